// Results against expected values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ropepool/rope.h>
#include <ropepool/tensor.h>

namespace ropepool::cli {

struct Comparison {
  std::string name;                 // "k_pool"
  std::string fault;                // why there was nothing to compare: another shape, no float type; else ""
  double largest_error = 0;         // infinite where one of the two is NaN or where different infinities meet
  std::vector<std::int64_t> index;  // where that is; empty where all is equal
  double got = 0, expected = 0;     // there
  std::int64_t num_elements = 0;
  std::int64_t num_past = 0;  // elements past the tolerance
  std::string tolerance;      // in words

  bool ok() const { return fault.empty() && num_past == 0; }
};

// How far a result may be from what is expected, and still be right.
struct Tolerance {
  double absolute = 0;
  double of_pair = 0;  // in parts of the length of the pair of lanes that was rotated together
  std::string words;
};

// What a right result may be off by, relative to its pair's length. float16 and bfloat16: four half units in the last place,
// one for our single rounding and three for a reference that computes in that type and rounds cos and sin, their products and
// the sum, as transformers does. float32: 1e-6, for both sides three roundings and the angle's 2e-7. Where angles are float32
// the largest position multiplies how far apart inverse frequencies may be: float32 powers as those of torch are off by up to
// two units in the last place, and below 1 a unit is at most 2^-24.
Tolerance rotated_tolerance(DType dtype, bool float32_angles, double largest_position);

// Which lanes of a head are turned, and with which others.
struct TurnedLanes {
  std::int64_t first = 0, count = 0;
  Pairing pairing = Pairing::neox;

  std::int64_t partner_of(std::int64_t lane) const;  // the lane itself where it is not turned
};

// Compares two row-major tensors [..., lanes]. NaN equals NaN.
Comparison compare(std::string name, const Tensor& got, const Tensor& expected, const Tolerance& tolerance,
                   const TurnedLanes& turned);

}  // namespace ropepool::cli
