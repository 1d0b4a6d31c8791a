// What a rope comes down to: how far each pair turns from one position to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ropepool/rope.h>

namespace ropepool {

struct FrequencySet {
  // For pair i the turns per position, modulo one turn, in units of 2^-64 turn: positions are whole numbers, so position *
  // turns in wrapping arithmetic is the angle to within position * 2^-65 turn, 4e-10 of a radian at position 2^31.
  std::vector<std::uint64_t> turns;
  // As Hugging Face computes them, in float32 steps.
  std::vector<float> inverse_float32;
  std::vector<double> inverse;  // radians a position
  float scale = 1.0f;           // of cos and sin
};

constexpr std::int64_t kMaxAxes = 4;
constexpr std::int64_t kMaxRotaryDim = 65536;  // beyond it frequencies of a number gone wrong would fill the memory

struct RopeTables {
  std::int64_t rotary_dim = 0, rotary_offset = 0;
  Pairing pairing = Pairing::neox;
  std::vector<FrequencySet> sets;
  std::int64_t num_axes = 1;
  std::vector<std::uint8_t> axis_of_pair;  // empty where there is one axis
  Tensor table;                            // the caller's cos and sin; then there are no sets

  std::int64_t num_pairs() const { return rotary_dim / 2; }
};

// Of base^(-2i / head_dim), i < head_dim / 2, for whole heads. Kept for the next call with the same two numbers. Throws
// std::bad_alloc.
std::shared_ptr<const RopeTables> plain_rope(std::int64_t head_dim, double base);

// The same for one call, from what the thread's last call had: without a lock, and without counting references, where threads
// would wait for each other.
class PlainRope {
 public:
  PlainRope(std::int64_t head_dim, double base);  // throws std::bad_alloc
  ~PlainRope();
  PlainRope(const PlainRope&) = delete;
  PlainRope& operator=(const PlainRope&) = delete;

  const RopeTables& tables() const { return *kept_.rope; }

  struct Kept {
    std::int64_t head_dim;
    std::uint64_t base_bits;  // every bit counts: 10000.0 and 10000.5 are two ropes
    std::shared_ptr<const RopeTables> rope;
    bool is(std::int64_t d, std::uint64_t bits) const { return head_dim == d && base_bits == bits; }
  };

 private:
  Kept kept_;
};

// The sets of a form that Rope::make takes: two of LongRoPE without a length, one of all others. Throws std::bad_alloc.
std::vector<FrequencySet> frequency_sets(const RopeForm& form);

// Of frequencies that are given, in radians a position.
FrequencySet frequency_set(const std::vector<double>& inverse, double scale);

}  // namespace ropepool
