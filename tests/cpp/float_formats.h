// The float formats by their definition (sign, exponent, fraction), with none of the tricks on bits that kernels use.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ropepool/tensor.h>

namespace ropepool::test {

// Wider than any number a test needs: 64 bits of fraction on x86, 112 on others.
using Real = long double;
static_assert(std::numeric_limits<Real>::digits >= 64, "the oracle needs a long double that is wider than double");

struct FloatFormat {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
  std::uint32_t sign() const { return 1u << (exponent_bits + fraction_bits); }
  bool is_nan(std::uint32_t bits) const { return (bits & ~sign()) > infinity(); }
};

inline FloatFormat format_of(DType dtype) {
  if (dtype == DType::f16) return {5, 10};
  if (dtype == DType::bf16) return {8, 7};
  return {8, 23};
}

inline Real decode_slowly(DType dtype, std::uint32_t bits) {
  const FloatFormat format = format_of(dtype);
  const std::uint32_t magnitude = bits & ~format.sign();
  const std::uint32_t fraction = magnitude & ((1u << format.fraction_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> format.fraction_bits);
  const int unit = 1 - format.bias() - format.fraction_bits;
  Real value;
  if (format.is_nan(bits)) {
    value = std::numeric_limits<Real>::quiet_NaN();
  } else if (magnitude == format.infinity()) {
    value = std::numeric_limits<Real>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<Real>(fraction), unit);
  } else {
    value = std::ldexp(static_cast<Real>(fraction + (1u << format.fraction_bits)), unit + exponent - 1);
  }
  return (bits & format.sign()) != 0 ? -value : value;
}

inline Real decode(DType dtype, std::uint32_t bits) {
  static const auto table_of = [](DType narrow) {
    std::vector<Real> table(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) table[i] = decode_slowly(narrow, i);
    return table;
  };
  static const std::vector<Real> f16 = table_of(DType::f16), bf16 = table_of(DType::bf16);
  if (dtype == DType::f32) return std::bit_cast<float>(bits);
  return (dtype == DType::f16 ? f16 : bf16)[bits & 0xFFFF];
}

// To the nearest value, of two equally near ones to the even one.
inline std::uint32_t encode(DType dtype, Real value) {
  const FloatFormat format = format_of(dtype);
  if (dtype == DType::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const std::uint32_t sign = std::signbit(value) ? format.sign() : 0;
  if (std::isnan(value)) return sign | format.infinity() | (1u << (format.fraction_bits - 1));
  const Real magnitude = std::abs(value);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude is in [2^(exponent - 1), 2^exponent)
  if (std::isinf(magnitude) || exponent > format.bias() + 1) return sign | format.infinity();
  const int unit = std::max(exponent - 1, 1 - format.bias()) - format.fraction_bits;
  // With its hidden bit, which makes the exponent's 0 of a denormal, and the carry of a rounding, come out right.
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  const auto exponent_field = static_cast<std::uint32_t>(unit + format.fraction_bits + format.bias());
  return sign | std::min(((exponent_field - 1) << format.fraction_bits) + units, format.infinity());
}

// Bits as a number that grows with the value, so that neighbours differ by 1; both zeros are 0.
inline std::int64_t rank_of(DType dtype, std::uint32_t bits) {
  const FloatFormat format = format_of(dtype);
  const auto magnitude = static_cast<std::int64_t>(bits & ~format.sign());
  return (bits & format.sign()) != 0 ? -magnitude : magnitude;
}

}  // namespace ropepool::test
