// Faults that others had in this job, each with its input and what is right. F19 is in memory_test.cpp, F27 and F29 with many
// threads in threads_test.cpp, F54 in allocations_test.cpp.
#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "oracle.h"

namespace ropepool::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// One rounding of the output's dtype.
void expect_value(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c, double expected) {
  const double unit = tensor.dtype == DType::f32 ? 4e-7 : std::abs(expected) * (tensor.dtype == DType::f16 ? 0x1p-11 : 0x1p-8);
  EXPECT_NEAR(static_cast<double>(value_at(tensor, a, b, c)), expected, unit + 1e-6)
      << "[" << a << ", " << b << ", " << c << "]";
}

// Large positions are not held in the dtype of the data.
TEST(KnownFaults, F02PositionsInHalfPrecision) {
  OpCase f16({DType::f16, 1, 1, 1, 32, 1});
  set_index(f16.args.positions, 0, 1857);
  fill(f16.args.k, Real{0});
  set_value(f16.args.k, 0, 0, 1, 1);
  ASSERT_TRUE(f16.run().ok());
  expect_value(f16.args.k_out, 0, 0, 1, 0.306693);
  expect_value(f16.args.k_out, 0, 0, 17, 0.951809);

  OpCase bf16({DType::bf16, 2, 1, 1, 8, 2});
  set_indices(bf16.args.positions, {256, 257});
  fill(bf16.args.k, Real{0});
  for (int t = 0; t < 2; ++t) set_value(bf16.args.k, t, 0, 0, 1);
  ASSERT_TRUE(bf16.run().ok());
  expect_value(bf16.args.k_out, 0, 0, 0, -0.039791);
  expect_value(bf16.args.k_out, 1, 0, 0, 0.819306);
}

// Lanes i and i + head_dim / 2 are a pair, not 2i and 2i + 1.
TEST(KnownFaults, F12ThePairingIsNeoX) {
  OpCase c({DType::f32, 1, 1, 1, 4, 1});
  set_index(c.args.positions, 0, 1);
  for (int i = 0; i < 4; ++i) set_value(c.args.k, 0, 0, i, i + 1);
  ASSERT_TRUE(c.run().ok());
  const double expected[] = {-1.984111, 1.959901, 2.462378, 4.019800};
  for (int i = 0; i < 4; ++i) expect_value(c.args.k_out, 0, 0, i, expected[i]);
}

// Widths that are no powers of two.
TEST(KnownFaults, F15SineOfTheRightPair) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t d = 2; d <= 256; d += 2) {
      OpCase c({dtype, 1, 1, 1, d, 1});
      set_index(c.args.positions, 0, 5);
      fill(c.args.k, Real{1});
      ASSERT_TRUE(c.run().ok());
      double norm = 0;
      for (std::int64_t i = 0; i < d; ++i) norm += std::pow(static_cast<double>(value_at(c.args.k_out, 0, 0, i)), 2.0);
      EXPECT_NEAR(std::sqrt(norm), std::sqrt(static_cast<double>(d)),
                  std::sqrt(static_cast<double>(d)) * (dtype == DType::f32 ? 1e-6 : 4e-3))
          << d;
      expect_value(c.args.k_out, 0, 0, 0, 1.242586);
      expect_value(c.args.k_out, 0, 0, d / 2, -0.675262);
      if (d == 192) expect_value(c.args.k_out, 0, 0, 95, 0.999450);
    }
  }
}

TEST(KnownFaults, F16ASingleKvHeadIsRotated) {
  for (const std::int64_t qo_heads : {2, 1}) {
    for (const std::int64_t stride : {128, 1, 0, -5, 99999}) {
      OpCase c({DType::f32, 2, qo_heads, 1, 128, 4});
      set_indices(c.args.positions, {1, 1});
      fill(c.args.k, Real{0});
      for (int t = 0; t < 2; ++t) set_value(c.args.k, t, 0, 0, 1);
      for (Tensor* t : {&c.args.k, &c.args.v, &c.args.k_out, &c.args.k_pool, &c.args.v_pool}) t->strides[1] = stride;
      ASSERT_TRUE(c.run().ok());
      for (int t = 0; t < 2; ++t) {
        expect_value(c.args.k_out, t, 0, 0, 0.540302);
        expect_value(c.args.k_out, t, 0, 64, 0.841471);
        expect_value(c.args.k_pool, index_at(c.args.slots, t), 0, 64, 0.841471);
      }
    }
  }
}

// One token a sequence, equal rows: every row is rotated, and to the same bits.
TEST(KnownFaults, F17EveryRowOfADecodeBatch) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t tokens : {2, 32}) {
      OpCase c({dtype, tokens, 16, 16, 256, tokens + 1});
      Random random(17);
      fill(slice(c.args.q, 0, 0, 1), random);
      fill(slice(c.args.k, 0, 0, 1), random);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for_each_element(slice(c.args.q, 0, 0, 1), [&](auto, auto h, auto i) {
          set_bits(c.args.q, t, h, i, bits_at(c.args.q, 0, h, i));
          set_bits(c.args.k, t, h, i, bits_at(c.args.k, 0, h, i));
        });
        set_index(c.args.positions, t, 6);
        set_index(c.args.slots, t, t + 1);
      }
      ASSERT_TRUE(c.run().ok());
      for (std::int64_t t = 1; t < tokens; ++t) {
        for_each_element(slice(c.args.q, 0, 0, 1), [&](auto, auto h, auto i) {
          ASSERT_EQ(bits_at(c.args.q_out, t, h, i), bits_at(c.args.q_out, 0, h, i));
          ASSERT_EQ(bits_at(c.args.k_out, t, h, i), bits_at(c.args.k_out, 0, h, i));
          ASSERT_EQ(bits_at(c.args.k_pool, t + 1, h, i), bits_at(c.args.k_out, 0, h, i));
        });
      }
      expect_right(c);
    }
  }
}

TEST(KnownFaults, F21NegativeSlotsAreNoPythonIndices) {
  const std::vector<std::vector<std::int64_t>> all = {{0, -1, 2}, {-1, -1, -1}, {-7, 2, -2147483647 - 1}};
  for (const DType dtype : {DType::i32, DType::i64}) {
    for (const auto& slots : all) {
      OpCase c({DType::f32, 3, 1, 1, 8, 4, DType::i32, dtype});
      fill(c.args.k_pool, Real{99});
      fill(c.args.v_pool, Real{99});
      set_indices(c.args.slots, slots);
      expect_right(c);  // tokens without a slot are rotated too
      EXPECT_EQ(value_at(c.args.k_pool, 3, 0, 0), 99);
      EXPECT_EQ(value_at(c.args.v_pool, 1, 0, 7), 99);
    }
  }
}

// A pool that is a view of a unified buffer: every stride counts. The paged form, [blocks, heads, page, 2 head_dim], has 4 axes
// and is refused; a block of it is a pool.
TEST(KnownFaults, F25PoolsThatAreViewsOfAUnifiedBuffer) {
  for (const DType dtype : kFloats) {
    OpCase c({dtype, 2, 2, 2, 8, 16});
    const Tensor buffer = c.memory.make(dtype, {4, 2, 16, 16});
    for (int block = 0; block < 4; ++block) fill(select(buffer, 0, block), Real{99});
    const Tensor pages = transpose(buffer, 1, 2);  // [blocks, page, heads, 16]
    c.args.k_pool = slice(pages, 3, 0, 8);
    c.args.v_pool = slice(pages, 3, 8, 8);
    EXPECT_EQ(c.run().error().number(), 3);
    c.args.k_pool = select(c.args.k_pool, 0, 1);
    c.args.v_pool = select(c.args.v_pool, 0, 1);
    set_indices(c.args.slots, {1, 15});
    expect_right(c);  // compares every other byte as well
    EXPECT_EQ(value_at(select(buffer, 0, 0), 0, 0, 0), 99);
    // Lanes that are not innermost are refused, not misread.
    c.args.k_pool = transpose(c.args.k_pool, 1, 2);
    c.args.k_pool.shape = {16, 2, 8};
    EXPECT_EQ(c.run().error().number(), 16);
  }
}

TEST(KnownFaults, F26AnEmptyBatch) {
  for (const std::int64_t slots : {8, 0}) {
    OpCase empty({DType::f16, 0, 4, 1, 64, slots});
    expect_right(empty);
    OpCase next({DType::f16, 3, 4, 1, 64, 8});
    expect_right(next);
  }
}

TEST(KnownFaults, F29OfEqualSlotsTheLastTokenWins) {
  OpCase c({DType::f32, 3, 1, 1, 8, 4});
  set_indices(c.args.slots, {3, 3, 1});
  set_indices(c.args.positions, {0, 0, 0});
  for (int t = 0; t < 3; ++t) {
    fill(slice(c.args.k, 0, t, 1), Real(t + 1));
    fill(slice(c.args.v, 0, t, 1), Real(10 * (t + 1)));
  }
  for (int repeat = 0; repeat < 100; ++repeat) {
    ASSERT_TRUE(c.run().ok());
    ASSERT_EQ(value_at(c.args.k_pool, 3, 0, 0), 2);
    ASSERT_EQ(value_at(c.args.v_pool, 3, 0, 0), 20);
    ASSERT_EQ(value_at(c.args.k_pool, 1, 0, 5), 3);
    ASSERT_EQ(value_at(c.args.v_pool, 1, 0, 5), 30);
  }
}

// k_out is the rotated k, for tokens without a slot too, and is what lies in the pool.
TEST(KnownFaults, F35KOutIsThePoolsRow) {
  OpCase c({DType::bf16, 22, 32, 4, 128, 40});
  c.args.q_out = c.args.q;
  c.args.k_out = c.args.k;
  set_index(c.args.slots, 21, -1);
  const auto before = c.memory.copy();
  OpCase apart({DType::bf16, 22, 32, 4, 128, 40});
  ASSERT_TRUE(apart.run().ok());
  ASSERT_TRUE(c.run().ok());
  for_each_element(c.args.k, [&](auto t, auto h, auto i) {
    ASSERT_EQ(bits_at(c.args.k, t, h, i), bits_at(apart.args.k_out, t, h, i));
    const std::int64_t row = index_at(c.args.slots, t);
    if (row >= 0) {
      ASSERT_EQ(bits_at(c.args.k_pool, row, h, i), bits_at(c.args.k, t, h, i));
    }
  });
  c.memory.restore(before);
  expect_right(c);
}

// One error each, that says which argument, where, what and what the limit is; the next call works.
TEST(KnownFaults, F56ErrorsSayWhatIsWrong) {
  const auto message = [](const std::function<void(OpCase&)>& spoil) {
    OpCase c({DType::f32, 8, 2, 1, 8, 16});
    spoil(c);
    const auto result = c.run();
    return result.ok() ? std::string() : result.error().message();
  };
  const auto expect_words = [](const std::string& text, const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " is missing in: " << text;
  };
  expect_words(message([](OpCase& c) { set_index(c.args.slots, 7, 16); }), {"slots[7]", "16", "RP020"});
  expect_words(message([](OpCase& c) { set_index(c.args.positions, 7, 1LL << 40); }),
               {"positions[7]", "1099511627776", "2147483647"});
  expect_words(message([](OpCase& c) { c.args.k = slice(c.args.k, 0, 0, 7); }), {"k shape", "(7, 1, 8)"});
  expect_words(message([](OpCase& c) { c.args.head_dim = 7; }), {"head_dim", "(8, 2, 8)"});
  EXPECT_EQ(message([](OpCase&) {}), "");
}

}  // namespace
}  // namespace ropepool::test
