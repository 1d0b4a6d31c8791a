// What rope_pool_fused must do, computed one number at a time in long double.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "op_case.h"

namespace ropepool::test {

struct Rotation {
  Real cos, sin;
};

// The frequency of pair i: 2^-64 of relative error, so that an angle is right to 5e-10 even at position 2^31.
inline Real frequency(std::int64_t pair, std::int64_t head_dim, double base) {
  return std::pow(static_cast<Real>(base), -static_cast<Real>(2 * pair) / static_cast<Real>(head_dim));
}

// Hugging Face: 1.0 / base ** (arange(0, dim, 2).float() / dim), all in float32.
inline float inverse_frequency_float32(std::int64_t pair, std::int64_t head_dim, double base) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(head_dim);
  return 1.0f / static_cast<float>(std::pow(static_cast<Real>(base), static_cast<Real>(exponent)));
}

inline Real angle_of(const RopePoolFusedArgs& args, std::int64_t position, std::int64_t pair) {
  if (args.angles == Angles::exact) return static_cast<Real>(position) * frequency(pair, args.head_dim, args.rope_base);
  // volatile: the product must be rounded to float32, whatever the compiler would like to keep.
  volatile float product = static_cast<float>(position) * inverse_frequency_float32(pair, args.head_dim, args.rope_base);
  return product;
}

// How far a float32 result may be from the true one, given the two inputs and the rotation: cos and sin are off by at most 2e-7
// each (the contract of Angles), both products and the sum are rounded once (2^-24 each, one of them falls away with fused
// multiply-add), and what is below the smallest normal number is rounded to a multiple of 2^-149.
inline Real tolerance(Real x, Real y, const Rotation& r, Real result) {
  return 2e-7L * (std::abs(x) + std::abs(y)) + 0x1p-24L * (std::abs(x * r.cos) + std::abs(y * r.sin) + std::abs(result)) +
         0x1p-148L;
}

// Of a 16-bit result the same, rounded: nothing but the values between the two roundings is accepted, which are the correctly
// rounded result and its neighbour, and more only where x and y cancel.
inline ::testing::AssertionResult near(DType dtype, std::uint32_t got, Real x, Real y, const Rotation& r, Real expected) {
  if (got == encode(dtype, expected)) return ::testing::AssertionSuccess();
  const Real allowed = tolerance(x, y, r, expected);
  const std::int64_t low = rank_of(dtype, encode(dtype, expected - allowed));
  const std::int64_t high = rank_of(dtype, encode(dtype, expected + allowed));
  const std::int64_t rank = rank_of(dtype, got);
  if (rank >= low && rank <= high && !format_of(dtype).is_nan(got)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << static_cast<double>(decode(dtype, got)) << " instead of "
                                       << static_cast<double>(expected) << " +- " << static_cast<double>(allowed);
}

// Row r of the pools belongs to token winners[r].
inline std::map<std::int64_t, std::int64_t> winners(const RopePoolFusedArgs& args) {
  std::map<std::int64_t, std::int64_t> result;
  for (std::int64_t t = 0; t < args.q.shape[0]; ++t) {
    if (const std::int64_t slot = index_at(args.slots, t); slot >= 0) result[slot] = t;
  }
  return result;
}

// Runs the call, which is legal and has finite inputs, and compares every output with the oracle, K's pool rows with k_out and
// V's with v bit for bit, and every byte that no output covers with what it was.
inline void expect_right(OpCase& c, Executor* executor = nullptr) {
  const RopePoolFusedArgs& a = c.args;
  SCOPED_TRACE(describe(a));
  const std::int64_t half = a.head_dim / 2;

  struct Expected {
    const Tensor* out;
    std::int64_t token, head, lane;
    Real x, y, value;  // value = x cos - y sin, or y cos + x sin with x and y swapped and the sine negative
    Rotation rotation;
  };
  std::vector<Expected> expected;
  std::vector<std::uint32_t> v_bits;
  // Before the call, which may write over its inputs.
  for (std::int64_t t = 0; t < c.num_tokens(); ++t) {
    for (std::int64_t i = 0; i < half; ++i) {
      const Real angle = angle_of(a, index_at(a.positions, t), i);
      const Rotation r{std::cos(angle), std::sin(angle)};
      for (const auto& [in, out] : {std::pair{&a.q, &a.q_out}, {&a.k, &a.k_out}}) {
        for (std::int64_t h = 0; h < in->shape[1]; ++h) {
          const Real x = value_at(*in, t, h, i), y = value_at(*in, t, h, i + half);
          expected.push_back({out, t, h, i, x, y, x * r.cos - y * r.sin, r});
          expected.push_back({out, t, h, i + half, y, x, y * r.cos + x * r.sin, r});
        }
      }
    }
  }
  for_each_element(a.v, [&](auto t, auto h, auto i) { v_bits.push_back(bits_at(a.v, t, h, i)); });
  const auto rows = winners(a);
  auto image = c.memory.copy();

  const auto result = c.run(executor);
  ASSERT_TRUE(result.ok()) << result.error().message();

  int faults = 0;
  for (const Expected& e : expected) {
    const auto verdict = near(a.q.dtype, bits_at(*e.out, e.token, e.head, e.lane), e.x, e.y, e.rotation, e.value);
    if (verdict) continue;
    ADD_FAILURE() << (e.out == &a.q_out ? "q_out[" : "k_out[") << e.token << ", " << e.head << ", " << e.lane
                  << "] at position " << index_at(a.positions, e.token) << ": " << verdict.message();
    if (++faults == 5) return;
  }
  // The memory as it should be: what it was, with the outputs in their places.
  const auto item = static_cast<std::size_t>(item_size(a.q.dtype));
  const auto put = [&](const Tensor& tensor, std::int64_t x, std::int64_t y, std::int64_t z, std::uint32_t bits) {
    const auto [block, offset] = c.memory.find(element(tensor, x, y, z));
    std::memcpy(image[block].data() + offset, &bits, item);
  };
  for (const Tensor* out : {&a.q_out, &a.k_out}) {
    for_each_element(*out, [&](auto t, auto h, auto i) { put(*out, t, h, i, bits_at(*out, t, h, i)); });
  }
  for (const auto& [row, token] : rows) {
    for (std::int64_t h = 0; h < a.num_kv_heads; ++h) {
      for (std::int64_t i = 0; i < a.head_dim; ++i) {
        put(a.k_pool, row, h, i, bits_at(a.k_out, token, h, i));
        put(a.v_pool, row, h, i, v_bits[static_cast<std::size_t>((token * a.num_kv_heads + h) * a.head_dim + i)]);
      }
    }
  }
  for (std::size_t block = 0; block < image.size(); ++block) {
    const auto& was = image[block];
    const auto& is = c.memory.blocks()[block];
    const auto differs = std::mismatch(was.begin(), was.end(), is.begin()).first - was.begin();
    ASSERT_EQ(differs, static_cast<std::ptrdiff_t>(was.size()))
        << "byte " << differs << " of block " << block << " is not what it should be";
  }
}

}  // namespace ropepool::test
