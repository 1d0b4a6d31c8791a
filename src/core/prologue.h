// HeadOps as a kernel takes them: biases and weights in float32.
#pragma once

#include <memory>
#include <vector>

#include <ropepool/head_ops.h>

#include "core/rope_pool_fused_call.h"

namespace ropepool {

// Reads all arrays of `ops`, which the contract took, when it is made. The memory is kept for the thread's next call.
class PrologueOfCall {
 public:
  // Throws std::bad_alloc.
  PrologueOfCall(const HeadOps& ops, std::int64_t head_dim);
  ~PrologueOfCall();
  PrologueOfCall(const PrologueOfCall&) = delete;
  PrologueOfCall& operator=(const PrologueOfCall&) = delete;

  const Prologue& get() const { return prologue_; }

 private:
  std::unique_ptr<std::vector<float>> floats_;
  Prologue prologue_;
};

}  // namespace ropepool
