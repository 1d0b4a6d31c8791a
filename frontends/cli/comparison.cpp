#include "comparison.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/half.h"

namespace ropepool::cli {
namespace {

template <class Bits>
Bits load(const std::byte* at) {
  Bits bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

bool is_float(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64; }

double value_at(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f16:
      return half_value(load<std::uint16_t>(at));
    case DType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(at)) << 16);
    case DType::f32:
      return load<float>(at);
    default:
      return load<double>(at);
  }
}

double error_between(double got, double expected) {
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return 0;
  if (!std::isfinite(got) || !std::isfinite(expected)) return INFINITY;
  return std::abs(got - expected);
}

std::vector<std::int64_t> index_of(std::int64_t flat, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<std::size_t>(axis)] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

}  // namespace

Tolerance rotated_tolerance(DType dtype, bool float32_angles, double largest_position) {
  const double unit = dtype == DType::f16 ? 0x1p-9 : dtype == DType::bf16 ? 0x1p-6 : 1e-6;
  const double angle = float32_angles ? largest_position * 0x1p-23 : 0;
  return {dtype == DType::f16 ? 0x1p-24 : std::numeric_limits<float>::denorm_min(), unit + angle,
          fmt::format("{:.2g} of the rotated pair's length", unit + angle)};
}

std::int64_t TurnedLanes::partner_of(std::int64_t lane) const {
  const std::int64_t i = lane - first;
  if (i < 0 || i >= count) return lane;
  return first + (pairing == Pairing::interleaved ? i ^ 1 : (i + count / 2) % count);
}

Comparison compare(std::string name, const Tensor& got, const Tensor& expected, const Tolerance& tolerance,
                   const TurnedLanes& turned) {
  Comparison result;
  result.name = std::move(name);
  result.tolerance = tolerance.words;
  if (got.shape != expected.shape) {
    result.fault = fmt::format("its shape is {}, expected {}", to_string(got.shape), to_string(expected.shape));
    return result;
  }
  if (!is_float(expected.dtype)) {
    result.fault =
        fmt::format("the expected values are {}, which is no float type that is compared", to_string(expected.dtype));
    return result;
  }
  const std::int64_t lanes = got.shape[got.rank() - 1];
  const std::int64_t got_item = item_size(got.dtype), expected_item = item_size(expected.dtype);
  const auto* got_row = static_cast<const std::byte*>(got.data);
  const auto* expected_row = static_cast<const std::byte*>(expected.data);
  result.num_elements = got.empty() ? 0 : 1;
  for (const std::int64_t length : got.shape) result.num_elements *= length;

  std::int64_t worst = 0;
  for (std::int64_t first = 0; first < result.num_elements; first += lanes) {
    // Most rows of a pool are the same bits: nothing was written there.
    if (got.dtype != expected.dtype || std::memcmp(got_row, expected_row, static_cast<std::size_t>(lanes * got_item)) != 0) {
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        const double got_value = value_at(got.dtype, got_row + lane * got_item);
        const double expected_value = value_at(expected.dtype, expected_row + lane * expected_item);
        const double error = error_between(got_value, expected_value);
        if (error == 0) continue;
        const std::int64_t partner = turned.partner_of(lane);
        double length = std::abs(expected_value);
        if (partner != lane) {
          length = std::hypot(expected_value, value_at(expected.dtype, expected_row + partner * expected_item));
        }
        if (!std::isfinite(length)) length = std::abs(expected_value);
        if (std::isinf(error) || error > tolerance.absolute + tolerance.of_pair * length) ++result.num_past;
        if (error > result.largest_error) {
          result.largest_error = error;
          worst = first + lane;
          result.got = got_value;
          result.expected = expected_value;
        }
      }
    }
    got_row += lanes * got_item;
    expected_row += lanes * expected_item;
  }
  if (result.largest_error > 0) result.index = index_of(worst, got.shape);
  return result;
}

}  // namespace ropepool::cli
