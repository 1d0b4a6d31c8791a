// Which pool row each token of a call writes.
#include "core/pool_rows.h"

#include <gtest/gtest.h>

#include "op_case.h"

namespace ropepool::test {
namespace {

std::vector<std::int64_t> rows_of(const std::vector<std::int64_t>& slots, std::int64_t num_slots, DType dtype = DType::i64) {
  Memory memory;
  const Tensor tensor = memory.make(dtype, {static_cast<std::int64_t>(slots.size())});
  set_indices(tensor, slots);
  const PoolRows rows(tensor, num_slots);
  return {rows.data(), rows.data() + slots.size()};
}

using Rows = std::vector<std::int64_t>;

TEST(PoolRows, AreTheSlots) {
  EXPECT_EQ(rows_of({0, 1, 2}, 3), (Rows{0, 1, 2}));
  EXPECT_EQ(rows_of({2, 0, 1}, 3, DType::i32), (Rows{2, 0, 1}));
  EXPECT_EQ(rows_of({}, 3), Rows{});
}

TEST(PoolRows, AreMinusOneForNegativeSlotsAndThoseBeyondThePool) {
  EXPECT_EQ(rows_of({-1, 0, -7}, 3), (Rows{-1, 0, -1}));
  EXPECT_EQ(rows_of({3, 2, 4}, 3), (Rows{-1, 2, -1}));
  EXPECT_EQ(rows_of({std::numeric_limits<std::int64_t>::max(), 2, std::numeric_limits<std::int64_t>::min()}, 3),
            (Rows{-1, 2, -1}));
  EXPECT_EQ(rows_of({0, 0}, 0), (Rows{-1, -1}));
  EXPECT_EQ(rows_of({2147483647, -2147483647 - 1, 1}, 2, DType::i32), (Rows{-1, -1, 1}));
}

TEST(PoolRows, OfEqualSlotsTheLastTokenKeepsItsRow) {
  EXPECT_EQ(rows_of({3, 3, 1}, 4), (Rows{-1, 3, 1}));
  EXPECT_EQ(rows_of({0, 0, 0, 0}, 1), (Rows{-1, -1, -1, 0}));
  EXPECT_EQ(rows_of({1, -1, 1, -1}, 2), (Rows{-1, -1, 1, -1}));
  EXPECT_EQ(rows_of({5, 5}, 4), (Rows{-1, -1}));  // beyond the pool, twice
}

TEST(PoolRows, AgreesWithAPlainSearchForAnyNumberOfTokens) {
  Random random(1);
  for (int n = 0; n < 400; ++n) {
    const std::int64_t num_tokens = uniform(random, 0, n % 4 == 0 ? 500 : 40),
                       num_slots = uniform(random, 1, n % 3 == 0 ? 8 : 2000);
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < num_tokens; ++t) slots.push_back(uniform(random, -3, num_slots + 2));
    if (n % 5 == 0) std::sort(slots.begin(), slots.end());
    Rows expected = slots;
    for (std::size_t t = 0; t < slots.size(); ++t) {
      const bool later = std::find(slots.begin() + static_cast<std::ptrdiff_t>(t) + 1, slots.end(), slots[t]) != slots.end();
      if (slots[t] < 0 || slots[t] >= num_slots || later) expected[t] = -1;
    }
    ASSERT_EQ(rows_of(slots, num_slots, n % 2 == 0 ? DType::i32 : DType::i64), expected);
  }
}

// Slots that all fall on one place of a table of any size, and multiples of large powers of two.
TEST(PoolRows, SlotsThatCollide) {
  for (const int shift : {0, 8, 20, 32, 50}) {
    std::vector<std::int64_t> slots;
    for (std::int64_t t = 0; t < 300; ++t) slots.push_back((t % 150) << shift);
    const auto rows = rows_of(slots, std::int64_t{1} << 60);
    for (std::size_t t = 0; t < 300; ++t) ASSERT_EQ(rows[t], t < 150 ? -1 : slots[t]);
  }
}

TEST(PoolRows, OfACallInsideAnother) {
  Memory memory;
  const Tensor outer = memory.make(DType::i64, {3}), inner = memory.make(DType::i64, {2});
  set_indices(outer, {4, 5, 4});
  set_indices(inner, {7, 8});
  const PoolRows first(outer, 10);
  {
    const PoolRows second(inner, 10);
    EXPECT_EQ(second.data()[0], 7);
    EXPECT_EQ(second.data()[1], 8);
  }
  const PoolRows third(inner, 8);
  EXPECT_EQ(first.data()[0], -1);
  EXPECT_EQ(first.data()[1], 5);
  EXPECT_EQ(first.data()[2], 4);
  EXPECT_EQ(third.data()[1], -1);
}

}  // namespace
}  // namespace ropepool::test
