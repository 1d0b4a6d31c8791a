// What a rope comes down to: how far each pair turns from one position to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace ropepool {

struct Frequencies {
  // For pair i the turns per position, modulo one turn, in units of 2^-64 turn: positions are whole numbers, so position *
  // turns in wrapping arithmetic is the angle to within position * 2^-65 turn, 4e-10 of a radian at position 2^31.
  std::vector<std::uint64_t> turns;
  // As Hugging Face has them: 1 / base^(2i / head_dim), in float32 steps.
  std::vector<float> inverse_float32;
};

// Those of base^(-2i / head_dim), i < head_dim / 2. Kept for the next call with the same two numbers. Throws std::bad_alloc.
std::shared_ptr<const Frequencies> frequencies_of(std::int64_t head_dim, double base);

}  // namespace ropepool
