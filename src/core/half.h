// float16 by its bits, one number at a time: where whole rows are read, kernels do it.
#pragma once

#include <cmath>
#include <cstdint>

namespace ropepool {

inline double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  const double magnitude = exponent == 0x1F ? (mantissa == 0 ? INFINITY : NAN)
                           : exponent == 0  ? std::ldexp(mantissa, -24)
                                            : std::ldexp(mantissa + 0x400, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

}  // namespace ropepool
