// Frequencies, and the arithmetic of two doubles that they are made with.
#include "core/rope_tables.h"

#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "core/double_double.h"
#include "oracle.h"

namespace ropepool::test {
namespace {

// ---- Two doubles. What is expected was computed with 400 bits (mpmath 1.3.0).

void expect_close(DoubleDouble got, double hi, double lo, const char* what) {
  const double error = (got.hi - hi) + (got.lo - lo);
  EXPECT_LE(std::abs(error), std::abs(hi) * 0x1p-98) << what << " is off by " << error / hi << " of itself";
}

TEST(DoubleDouble, Logarithms) {
  expect_close(log(DoubleDouble{10000.0}), 0x1.26bb1bbb55516p+3, -0x1.f48ad494ea3e9p-51, "log 10000");
  expect_close(log(DoubleDouble{0.5}), -0x1.62e42fefa39efp-1, -0x1.abc9e3b39803fp-56, "log 1/2");
  expect_close(log(DoubleDouble{3.0}), 0x1.193ea7aad030bp+0, -0x1.a256f99caabebp-54, "log 3");
  expect_close(log(DoubleDouble{1e300}), 0x1.5963447f87fb5p+9, 0x1.abccc0710fcd4p-46, "log 1e300");
  expect_close(log(DoubleDouble{5e-324}), -0x1.74385446d71c3p+9, -0x1.8e569fa8ee781p-45, "log of the least denormal");
  EXPECT_EQ(log(DoubleDouble{1.0}).hi, 0.0);
  // Near 1 the error is absolute.
  const DoubleDouble tiny = log(DoubleDouble{1.0000000000000002});
  EXPECT_NEAR(tiny.hi - 0x1.fffffffffffffp-53, 0, 0x1p-98);
}

TEST(DoubleDouble, Exponentials) {
  expect_close(exp(DoubleDouble{1.0}), 0x1.5bf0a8b145769p+1, 0x1.4d57ee2b1013ap-53, "e");
  expect_close(exp(DoubleDouble{-1.0}), 0x1.78b56362cef38p-2, -0x1.ca8a4270fadf5p-57, "1/e");
  expect_close(exp(DoubleDouble{0.5}), 0x1.a61298e1e069cp+0, -0x1.b4690082a4906p-55, "e^1/2");
  expect_close(exp(DoubleDouble{-600.0}), 0x1.4dd4d0d12c071p-866, 0x1.2167a13398003p-921, "e^-600");
  expect_close(exp(DoubleDouble{700.0}), 0x1.d945df4f8ec8ep+1009, 0x1.183392684a46ep+954, "e^700");
  expect_close(exp(DoubleDouble{1e-10}), 0x1.000000006df38p+0, -0x1.3112d8e5e6d4cp-57, "e^1e-10");
  expect_close(exp(DoubleDouble{-9.210340371976184}), 0x1.a36e2eb1c4326p-14, 0x1.ea693527805fbp-69, "e^-9.21");
  const DoubleDouble one = exp(DoubleDouble{0.0});
  EXPECT_EQ(one.hi, 1.0);
  EXPECT_EQ(one.lo, 0.0);
}

TEST(DoubleDouble, SumsAndProductsAreExactToTheLastBitsOfTheSecond) {
  Random random(1);
  std::uniform_real_distribution<double> value(-1e3, 1e3);
  for (int n = 0; n < 10000; ++n) {
    // With 26 bits each, products and sums fit into two doubles, and into a long double or a pair of them.
    const double a = std::ldexp(std::nearbyint(std::ldexp(value(random), 15)), -15);
    const double b = std::ldexp(std::nearbyint(std::ldexp(value(random), 15)), -15);
    const DoubleDouble product = DoubleDouble{a} * DoubleDouble{b}, sum = DoubleDouble{a} + DoubleDouble{b};
    ASSERT_EQ(static_cast<Real>(product.hi) + static_cast<Real>(product.lo), static_cast<Real>(a) * static_cast<Real>(b));
    ASSERT_EQ(static_cast<Real>(sum.hi) + static_cast<Real>(sum.lo), static_cast<Real>(a) + static_cast<Real>(b));
    const DoubleDouble third = DoubleDouble{a} / 3.0;
    const DoubleDouble back = third * DoubleDouble{3.0};
    ASSERT_LE(std::abs((back.hi - a) + back.lo), std::abs(a) * 0x1p-100);
    const DoubleDouble nothing = product + -product;
    ASSERT_EQ(nothing.hi, 0.0);
  }
}

// ---- Turns

TEST(Frequencies, TurnsAreRightToTheLastBit) {
  struct Row {
    std::int64_t head_dim;
    double base;
    std::size_t pair;
    std::uint64_t turns;  // base^(-2 pair / head_dim) / (2 pi) modulo 1, in 2^-64, to nearest; with 400 bits (mpmath 1.3.0)
  };
  constexpr Row kRows[] = {
      {2, 1e4, 0, 0x28BE60DB9391054Au},        {128, 1e4, 0, 0x28BE60DB9391054Au},
      {128, 1e4, 1, 0x234855E55644662Fu},      {128, 1e4, 32, 0x00684DC4C179C52Cu},
      {128, 1e4, 63, 0x00013458E2F59024u},     {64, 5e5, 31, 0x0000080C2B350E40u},
      {128, 5e5, 17, 0x013F8796B76E6BCDu},     {256, 1e6, 100, 0x000036D52F1B06A3u},
      {80, 1e7, 39, 0x00000066470886DCu},      {96, 1e4, 1, 0x21A147275D5B35DEu},
      {4096, 1e4, 2047, 0x00010C38A2A4C22Fu},  {4096, 1e4, 1, 0x288F93671CA08F3Au},
      {192, 100.0, 50, 0x03B39E42B256D8DBu},   {128, 10000.5, 63, 0x0001345500675F64u},
      {8, 1.0, 3, 0x28BE60DB9391054Au},        {8, 2.0, 3, 0x1839F0A8A4638E44u},
      {128, 0.5, 63, 0x509C0B7EE4CB96A3u},     {128, 0x1p-32, 63, 0xBE66211FCE159C2Cu},
      {128, 0x1p-32, 40, 0x0DB9391054A7F09Du}, {128, 1e300, 63, 0},
  };
  for (const Row& row : kRows) {
    const auto frequencies = plain_rope(row.head_dim, row.base);
    ASSERT_EQ(frequencies->sets[0].turns.size(), static_cast<std::size_t>(row.head_dim / 2));
    EXPECT_EQ(frequencies->sets[0].turns[row.pair], row.turns)
        << "pair " << row.pair << " of " << row.head_dim << ", base " << row.base << std::hex << ": "
        << frequencies->sets[0].turns[row.pair] << " instead of " << row.turns;
  }
}

TEST(Frequencies, AgreeWithLongDoubles) {
  for (const std::int64_t head_dim : {2, 6, 64, 80, 128, 192, 512, 2050}) {
    for (const double base : {1.0, 1.5, 100.0, 1e4, 1e4 + 0.5, 5e5, 1e6, 1e7, 1e12}) {
      const auto frequencies = plain_rope(head_dim, base);
      for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        const Real turns = frequency(i, head_dim, base) / (2 * 3.14159265358979323846264338327950288L);
        const Real got = std::ldexp(static_cast<Real>(frequencies->sets[0].turns[static_cast<std::size_t>(i)]), -64);
        ASSERT_LE(std::abs(got - turns), std::ldexp(turns, -61) + 0x1p-64L) << i << " of " << head_dim << ", base " << base;
      }
    }
  }
}

TEST(Frequencies, InversesAreWithinAnUlpOfHuggingFacesStepsRoundedRight) {
  for (const std::int64_t head_dim : {2, 6, 64, 80, 128, 192, 256, 512}) {
    for (const double base : {1.0, 100.0, 1e4, 5e5, 1e6, 1e7}) {
      const auto frequencies = plain_rope(head_dim, base);
      for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        const float got = frequencies->sets[0].inverse_float32[static_cast<std::size_t>(i)];
        const float want = inverse_frequency_float32(i, head_dim, base);
        ASSERT_LE(std::abs(rank_of(DType::f32, std::bit_cast<std::uint32_t>(got)) -
                           rank_of(DType::f32, std::bit_cast<std::uint32_t>(want))),
                  1)
            << i << " of " << head_dim << ", base " << base;
      }
    }
  }
}

// ---- What is kept between calls

TEST(Frequencies, AreKept) {
  const auto first = plain_rope(128, 12345.0);
  EXPECT_EQ(plain_rope(128, 12345.0).get(), first.get());
  EXPECT_NE(plain_rope(128, 12345.5)->sets[0].turns, first->sets[0].turns);
  EXPECT_EQ(plain_rope(128, 12345.0).get(), first.get());
  EXPECT_NE(plain_rope(64, 12345.0).get(), first.get());
  // By another thread too.
  std::thread([&] { EXPECT_EQ(plain_rope(128, 12345.0).get(), first.get()); }).join();
}

TEST(Frequencies, StayRightWhenManyBasesPushEachOtherOut) {
  const auto first = plain_rope(8, 777.0);
  for (int round = 0; round < 2; ++round) {
    for (int n = 0; n < 500; ++n) {
      const double base = 1000.0 + n;
      const auto frequencies = plain_rope(8, base);
      ASSERT_NEAR(static_cast<double>(frequencies->sets[0].inverse_float32[1]), std::pow(base, -0.25), 1e-7) << base;
    }
  }
  EXPECT_EQ(first->sets[0].turns, plain_rope(8, 777.0)->sets[0].turns);
}

TEST(Frequencies, FromManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&wrong, n] {
      for (int i = 0; i < 300; ++i) {
        const double base = 2000.0 + (i * (n + 1)) % 97;
        if (std::abs(static_cast<double>(plain_rope(8, base)->sets[0].inverse_float32[2]) - std::pow(base, -0.5)) > 1e-6)
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ropepool::test
