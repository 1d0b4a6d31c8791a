// Whether arrays share bytes: never "apart" where the sets of bytes meet, always "apart" for the layouts that engines use.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include "byte_set.h"
#include "op_case.h"
#include "sanitizers.h"

namespace ropepool::test {
namespace {

ByteRange byte_range(const Tensor& tensor) {
  if (tensor.empty()) return {};
  std::int64_t low = 0, high = 1;
  for (int i = 0; i < tensor.rank(); ++i) (tensor.strides[i] < 0 ? low : high) += tensor.strides[i] * (tensor.shape[i] - 1);
  const auto base = reinterpret_cast<std::uint64_t>(tensor.data);
  const std::int64_t item = item_size(tensor.dtype);
  return {base + static_cast<std::uint64_t>(low * item), base + static_cast<std::uint64_t>(high * item)};
}

// As the contract puts the two steps together.
bool judged_to_overlap(const Tensor& a, const Tensor& b) {
  return intersect(byte_range(a), byte_range(b)) && may_overlap(a, b);
}

constexpr std::int64_t kBase = 0x100000;  // nothing is read: addresses may be anything

Tensor at(std::int64_t offset, DType dtype, const Shape& shape, const Strides& strides) {
  return {reinterpret_cast<void*>(kBase + offset), dtype, shape, strides, {}, false, false};
}

Tensor random_tensor(Random& random) {
  constexpr DType kTypes[] = {DType::bf16, DType::f32, DType::i64, DType::u8};
  const int rank = static_cast<int>(uniform(random, 0, 4));
  std::vector<std::int64_t> shape, strides;
  for (int i = 0; i < rank; ++i) {
    shape.push_back(uniform(random, 0, 20) == 0 ? 0 : uniform(random, 1, 4));
    strides.push_back(uniform(random, -14, 14));
  }
  return at(uniform(random, -40, 40), kTypes[uniform(random, 0, 3)], Shape(shape.data(), rank), Strides(strides.data(), rank));
}

// A view with regular strides: a cut out of, or every n-th element of, a row-major array, with axes turned and swapped.
Tensor random_view_of_one_array(Random& random, const Tensor& whole) {
  Tensor view = whole;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t begin = uniform(random, 0, view.shape[axis] - 1);
    view = slice(view, axis, begin, uniform(random, 1, view.shape[axis] - begin));
    if (uniform(random, 0, 3) == 0) {
      view.shape[axis] = (view.shape[axis] + 1) / 2;
      view.strides[axis] *= 2;
    }
    if (uniform(random, 0, 3) == 0) view = reversed(view, axis);
  }
  return uniform(random, 0, 1) == 0 ? view : transpose(view, 0, 1);
}

TEST(Overlap, IsNeverMissed) {
  Random random(1);
  const int kCases = kSlow ? 4000 : 40000;
  int apart = 0, told = 0;
  for (int n = 0; n < kCases; ++n) {
    const Tensor a = random_tensor(random), b = random_tensor(random);
    const bool share = share_bytes(a, b);
    ASSERT_EQ(judged_to_overlap(a, b), judged_to_overlap(b, a)) << describe(a) << " and " << describe(b);
    if (share) {
      ASSERT_TRUE(judged_to_overlap(a, b)) << describe(a) << " at " << a.data << " and " << describe(b) << " at " << b.data;
    } else {
      ++apart;
      told += judged_to_overlap(a, b) ? 0 : 1;
    }
    if (shares_bytes_with_itself(a)) {
      ASSERT_TRUE(overlaps_itself(a)) << describe(a);
    }
  }
  // The test must not pass because all is said to overlap.
  EXPECT_GT(told, apart / 4);
}

TEST(Overlap, IsNeverMissedAmongViewsOfOneArray) {
  Random random(2);
  int shared = 0, told = 0, apart = 0;
  for (int n = 0; n < (kSlow ? 2000 : 20000); ++n) {
    const Tensor whole = Tensor::contiguous(reinterpret_cast<void*>(kBase), DType::bf16,
                                            Shape{uniform(random, 1, 5), uniform(random, 1, 5), uniform(random, 1, 6)});
    const Tensor a = random_view_of_one_array(random, whole), b = random_view_of_one_array(random, whole);
    ASSERT_FALSE(overlaps_itself(a)) << describe(a);
    if (share_bytes(a, b)) {
      ++shared;
      ASSERT_TRUE(judged_to_overlap(a, b)) << describe(a) << " and " << describe(b);
    } else {
      ++apart;
      told += judged_to_overlap(a, b) ? 0 : 1;
    }
  }
  EXPECT_GT(shared, 200);
  EXPECT_GT(told, apart / 2);
}

// Every cut of every axis of an array into two, in any order of axes, turned around or not: all are legal.
TEST(Overlap, IsNotSeenBetweenPartsOfOneArray) {
  Random random(3);
  for (const Shape& shape : {Shape{5, 7, 4, 8}, Shape{1, 7, 4, 8}, Shape{6, 2, 1, 8}, Shape{3, 3, 3, 2}, Shape{16, 2, 2, 64}}) {
    const Tensor whole = Tensor::contiguous(reinterpret_cast<void*>(kBase), DType::bf16, shape);
    for (int axis = 0; axis < 4; ++axis) {
      for (std::int64_t cut = 1; cut < shape[axis]; ++cut) {
        for (std::int64_t second = cut; second < shape[axis]; ++second) {
          Tensor a = slice(whole, axis, 0, cut), b = slice(whole, axis, second, shape[axis] - second);
          if (uniform(random, 0, 1) == 0) a = transpose(a, 0, 2);
          if (uniform(random, 0, 1) == 0) b = transpose(b, 1, 2);
          if (uniform(random, 0, 1) == 0) a = reversed(a, static_cast<int>(uniform(random, 0, 3)));
          ASSERT_FALSE(share_bytes(a, b));
          ASSERT_FALSE(judged_to_overlap(a, b)) << "axis " << axis << " of " << to_string(shape) << " at " << cut;
          ASSERT_FALSE(overlaps_itself(a));
          ASSERT_FALSE(overlaps_itself(b));
        }
        // One index too many: they share a slice.
        ASSERT_TRUE(judged_to_overlap(slice(whole, axis, 0, cut + 1), slice(whole, axis, cut, shape[axis] - cut)));
      }
    }
  }
}

TEST(Overlap, OfTheLayoutsOfEngines) {
  const auto whole = [](const Shape& shape) { return Tensor::contiguous(reinterpret_cast<void*>(kBase), DType::bf16, shape); };
  for (const std::int64_t tokens : {1, 2, 7, 64}) {
    for (const auto& [qo, kv] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 2}, {32, 8}}) {
      for (const std::int64_t d : {2, 64, 80}) {
        const Tensor qkv = whole({tokens, qo + 2 * kv, d});
        const Tensor q = slice(qkv, 1, 0, qo), k = slice(qkv, 1, qo, kv), v = slice(qkv, 1, qo + kv, kv);
        EXPECT_FALSE(judged_to_overlap(q, k));
        EXPECT_FALSE(judged_to_overlap(k, v));
        EXPECT_FALSE(judged_to_overlap(q, v));
        EXPECT_TRUE(judged_to_overlap(q, slice(qkv, 1, qo - 1, kv)));

        const Tensor halves = whole({tokens, 2, kv, d});
        EXPECT_FALSE(judged_to_overlap(select(halves, 1, 0), select(halves, 1, 1)));
        const Tensor lanes = whole({tokens, kv, 2 * d});
        EXPECT_FALSE(judged_to_overlap(slice(lanes, 2, 0, d), slice(lanes, 2, d, d)));
        EXPECT_TRUE(judged_to_overlap(slice(lanes, 2, 0, d + 1), slice(lanes, 2, d, d)));
        const Tensor heads_first = transpose(whole({kv, tokens, 2 * d}), 0, 1);
        EXPECT_FALSE(judged_to_overlap(slice(heads_first, 2, 0, d), slice(heads_first, 2, d, d)));
        const Tensor layers = whole({tokens, 4, 2, kv, d});
        EXPECT_FALSE(judged_to_overlap(select(select(layers, 1, 2), 1, 0), select(select(layers, 1, 2), 1, 1)));
        EXPECT_FALSE(judged_to_overlap(select(select(layers, 1, 2), 1, 1), select(select(layers, 1, 3), 1, 0)));
      }
    }
  }
}

TEST(Overlap, OfAnArrayWithItself) {
  EXPECT_FALSE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {16, 8, 1})));
  EXPECT_FALSE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {8, 32, 1})));
  EXPECT_FALSE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {-16, -8, 1})));
  EXPECT_TRUE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {0, 8, 1})));
  EXPECT_TRUE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {16, 0, 1})));
  EXPECT_TRUE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {15, 8, 1})));
  EXPECT_TRUE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {16, 7, 1})));
  EXPECT_TRUE(overlaps_itself(at(0, DType::bf16, {4, 2, 8}, {8, -8, 1})));
  EXPECT_FALSE(overlaps_itself(at(0, DType::bf16, {1, 2, 8}, {0, 8, 1})));  // one token: its stride says nothing
  EXPECT_FALSE(overlaps_itself(at(0, DType::bf16, {4, 0, 8}, {0, 0, 1})));  // no elements
  EXPECT_FALSE(judged_to_overlap(at(0, DType::bf16, {4, 0, 8}, {16, 8, 1}), at(0, DType::bf16, {4, 2, 8}, {16, 8, 1})));
}

TEST(Overlap, NeighboursAreApart) {
  const Tensor a = at(0, DType::f32, {4, 2, 8}, {16, 8, 1});
  EXPECT_FALSE(judged_to_overlap(a, at(4 * 2 * 8 * 4, DType::f32, {4, 2, 8}, {16, 8, 1})));
  EXPECT_TRUE(judged_to_overlap(a, at(4 * 2 * 8 * 4 - 1, DType::u8, {1}, {1})));
  EXPECT_FALSE(judged_to_overlap(a, at(-4 * 2 * 8 * 4, DType::f32, {4, 2, 8}, {16, 8, 1})));
  EXPECT_FALSE(judged_to_overlap(a, at(4 * 16 * 4 + 3 * 16 * 4, DType::f32, {4, 2, 8}, {-16, 8, 1})));
  EXPECT_TRUE(judged_to_overlap(a, at(4 * 16 * 4 + 2 * 16 * 4, DType::f32, {4, 2, 8}, {-16, 8, 1})));
}

TEST(Overlap, SizesNearTheEndOfTheAddressSpace) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  const Tensor a = at(0, DType::bf16, {2, 2, 8}, {kHuge, 16, 1}), b = at(16, DType::bf16, {2, 2, 8}, {kHuge, 16, 1});
  EXPECT_FALSE(judged_to_overlap(a, b));
  EXPECT_TRUE(judged_to_overlap(a, at(14, DType::bf16, {2, 2, 8}, {kHuge, 16, 1})));
  EXPECT_FALSE(overlaps_itself(a));
}

TEST(Overlap, AnyStrideOfAnAxisOfOneIsFine) {
  for (const std::int64_t stride : {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    const Tensor a = at(0, DType::f32, {4, 1, 8}, {8, stride, 1}), b = at(4 * 8 * 4, DType::f32, {1, 4, 8}, {stride, 8, 1});
    EXPECT_FALSE(judged_to_overlap(a, b));
    EXPECT_FALSE(overlaps_itself(a));
    EXPECT_TRUE(same_view(a, a));
  }
}

TEST(Overlap, SameViewLooksAtStridesThatCount) {
  const Tensor a = at(0, DType::f32, {4, 1, 8}, {8, 8, 1});
  EXPECT_TRUE(same_view(a, at(0, DType::f32, {4, 1, 8}, {8, -5, 1})));
  EXPECT_FALSE(same_view(a, at(0, DType::f32, {4, 1, 8}, {16, 8, 1})));
  EXPECT_FALSE(same_view(a, at(4, DType::f32, {4, 1, 8}, {8, 8, 1})));
  EXPECT_FALSE(same_view(a, at(0, DType::f32, {3, 1, 8}, {8, 8, 1})));
  EXPECT_FALSE(same_view(a, at(0, DType::i32, {4, 1, 8}, {8, 8, 1})));
}

}  // namespace
}  // namespace ropepool::test
