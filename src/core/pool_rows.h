// Which pool row each token of a call writes.
#pragma once

#include <cstdint>
#include <memory>

#include <ropepool/tensor.h>

namespace ropepool {

// Reads each slot once, so that slots which change under the call can't move a write: row[t] is slots[t], or -1 where that is
// negative, at or past num_slots, or the slot of a later token too (the last token wins, however the work is split).
// The memory for more than a few tokens is kept for the thread's next call; a call that runs inside another on the same thread
// gets its own.
class PoolRows {
 public:
  // `slots` is [num_tokens], int32 or int64. Throws std::bad_alloc.
  PoolRows(const Tensor& slots, std::int64_t num_slots);
  ~PoolRows();
  PoolRows(const PoolRows&) = delete;
  PoolRows& operator=(const PoolRows&) = delete;

  const std::int64_t* data() const { return rows_; }

 private:
  static constexpr std::int64_t kFewTokens = 16;  // up to here a look at every later token is cheaper than a table
  struct Scratch;
  std::int64_t few_[kFewTokens];
  std::unique_ptr<Scratch> scratch_;
  std::int64_t* rows_;
};

}  // namespace ropepool
