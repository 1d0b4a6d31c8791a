// One line of a benchmark: the op and its floor, interleaved.
//
// Pool rows are cold: every variant walks the whole pool with slots of its own, so that none finds rows that another warmed.
// The order of a round is drawn anew each time.
// Shares are medians over rounds of (copy's time / op's time), so that noise that lasts longer than a round cancels out.
#pragma once

#include <cstdint>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "floor.h"

namespace bench {

struct Shape {
  std::int64_t num_qo_heads = 32, num_kv_heads = 8, head_dim = 128;
};

enum class Order { random, sorted, consecutive };  // of the slots of one call

struct Setting {
  Shape shape;
  ropepool::DType dtype = ropepool::DType::bf16;
  std::int64_t num_tokens = 1, num_slots = 65536;  // at least num_tokens slots are used
  Order order = Order::random;
  double seconds = 1;       // of rounds, after the first, which does not count; at least kLeastRounds rounds
  bool huge_pages = false;  // under all arrays, where the system has them to give
};
constexpr int kLeastRounds = 7;

struct Quartiles {
  double low, median, high;
};

struct Line {
  struct Variant {
    std::string name;
    std::vector<double> seconds;  // by round

    double min() const;
    double median() const;
  };
  std::vector<Variant> variants;  // the op, the copies in the order of kAllStores, memcpy
  std::int64_t num_slots = 0, bytes = 0;

  const Variant& op() const { return variants.front(); }
  const Variant& memcpy() const { return variants.back(); }
  // The copy with the least median.
  const Variant& floor() const;
  // Of the op's speed in that of another: 1 where both take the same time, above it where the op takes less.
  Quartiles share_of(const Variant& other) const;
};

// `progress` is told the part that is done. Throws std::bad_alloc.
ropepool::Result<Line> measure(const Setting& setting, const std::function<void(double done)>& progress);

// What is going on, in a line that the next one takes; only where standard error is a terminal. "" ends it.
void show_progress(const std::string& text);
// A time for a table.
std::string microseconds(double seconds);

// What an op's call and its arrays are made of, filled with small numbers.
class Case {
 public:
  explicit Case(const Setting& setting);
  Case(const Case&) = delete;

  ropepool::RopePoolFusedArgs args;  // without slots
  Traffic traffic{};                 // without slots

 private:
  struct Free {
    std::align_val_t alignment;
    void operator()(std::byte* memory) const;
  };
  std::byte* memory(std::int64_t bytes, bool huge_pages);

  std::vector<std::unique_ptr<std::byte[], Free>> memory_;
  std::vector<std::int64_t> positions_;
};

}  // namespace bench
