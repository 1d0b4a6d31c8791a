// What the op touches: nothing outside its arrays whatever another thread does meanwhile, and no more of a huge pool than the
// rows that slots name.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "guarded_memory.h"
#include "oracle.h"
#include "sanitizers.h"

namespace ropepool::test {
namespace {

// Stores in a way that a thread sanitizer knows to be no race: the op reads slots and positions by atomic loads.
void store(const Tensor& tensor, std::int64_t i, std::int64_t value) {
  if (tensor.dtype == DType::i64) {
    __atomic_store_n(static_cast<std::int64_t*>(tensor.data) + i, value, __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(static_cast<std::int32_t*>(tensor.data) + i, static_cast<std::int32_t>(value), __ATOMIC_RELAXED);
  }
}

class ChangingIndices : public ::testing::TestWithParam<DType> {};

TEST_P(ChangingIndices, NeverWriteOutsideThePools) {
  // 16 rows of 2 heads of 64 float16: each pool is one page, and the rows before and behind it are forbidden ground.
  constexpr std::int64_t kTokens = 96, kSlots = 16, kHeads = 2, kHeadDim = 64;
  const std::size_t pool_bytes = kSlots * kHeads * kHeadDim * 2;
  if (pool_bytes % Pages::page_size() != 0) GTEST_SKIP() << "pages of " << Pages::page_size() << " bytes";
  OpCase c({DType::f16, kTokens, 1, kHeads, kHeadDim, kSlots, GetParam(), GetParam()});
  const Guarded k_pool(pool_bytes), v_pool(pool_bytes);
  c.args.k_pool.data = k_pool.data();
  c.args.v_pool.data = v_pool.data();
  set_indices(c.args.slots, std::vector<std::int64_t>(kTokens, -1));
  for (std::int64_t t = 0; t < kTokens; ++t) set_index(c.args.positions, t, t);
  // K and V of a token name it.
  for (std::int64_t t = 0; t < kTokens; ++t) {
    fill(slice(c.args.k, 0, t, 1), static_cast<Real>(t + 1));
    fill(slice(c.args.v, 0, t, 1), static_cast<Real>(t + 1));
  }
  ASSERT_TRUE(c.run().ok());
  std::vector<std::uint32_t> first_lane;  // of rotated k
  for (std::int64_t t = 0; t < kTokens; ++t) first_lane.push_back(bits_at(c.args.k_out, t, 0, 0));

  std::atomic<bool> stop{false};
  std::thread changer([&] {
    const std::int64_t outside[] = {
        kSlots,     kSlots + 1,     kSlots + 100, -1, -2, -kSlots, std::numeric_limits<std::int32_t>::max(),
        1073741824, -2147483647 - 1};
    for (std::uint32_t n = 1; !stop; n = n * 1664525u + 1013904223u) {
      // Wrong for a moment, so that most calls get past the check, yet long enough for another core to see it.
      const std::int64_t t = (n >> 8) % kTokens;
      store(c.args.slots, t, outside[(n >> 16) % 9]);
      for (int i = 0; i < 20; ++i) __asm__ __volatile__("");
      store(c.args.slots, t, (n >> 20) % kSlots);
    }
  });
  int taken = 0, refused = 0;
  for (int i = 0; i < (kSlow ? 1000 : 20000) || (taken == 0 && i < 100'000); ++i) {  // more where `changer` had to pause
    const auto result = c.run();
    result.ok() ? ++taken : ++refused;
    if (!result.ok()) {
      ASSERT_EQ(result.error().number(), 20) << result.error().message();
    }
  }
  stop = true;
  changer.join();
  EXPECT_GT(taken, 0);
  RecordProperty("taken", taken);
  RecordProperty("refused", refused);
  // Each row holds what one token had: K and V of the same.
  for (std::int64_t row = 0; row < kSlots; ++row) {
    const auto token = static_cast<std::int64_t>(value_at(c.args.v_pool, row, 0, 0)) - 1;
    if (token < 0) continue;  // never written
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kHeadDim; ++i) {
        ASSERT_EQ(bits_at(c.args.v_pool, row, h, i), bits_at(c.args.v, token, h, i)) << "row " << row;
        ASSERT_EQ(bits_at(c.args.k_pool, row, h, i), bits_at(c.args.k_out, token, h, i)) << "row " << row;
      }
    }
    EXPECT_EQ(bits_at(c.args.k_pool, row, 0, 0), first_lane[static_cast<std::size_t>(token)]);
  }
}

TEST_P(ChangingIndices, PositionsToo) {
  OpCase c({DType::bf16, 64, 4, 2, 64, 64, GetParam(), GetParam()});
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    Random random(2);
    const std::int64_t wild[] = {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                                 -(std::int64_t{1} << 31), std::int64_t{1} << 31, 0};
    while (!stop) {
      const std::int64_t t = uniform(random, 0, 63);
      store(c.args.positions, t, wild[uniform(random, 0, 4)]);
      store(c.args.positions, t, uniform(random, -1000, 1000));
    }
  });
  int taken = 0;
  for (int i = 0; i < (kSlow ? 300 : 3000) || (taken == 0 && i < 100'000); ++i) {  // more where `changer` had to pause
    c.args.angles = i % 2 == 0 ? Angles::exact : Angles::float32;
    const auto result = c.run();
    taken += result.ok() ? 1 : 0;
    if (!result.ok()) {
      ASSERT_EQ(result.error().number(), 21) << result.error().message();
    }
  }
  stop = true;
  changer.join();
  EXPECT_GT(taken, 0);
}

INSTANTIATE_TEST_SUITE_P(IndexTypes, ChangingIndices, ::testing::Values(DType::i32, DType::i64),
                         [](const auto& info) { return to_string(info.param); });

// Arrays that end where a forbidden page begins, and begin where one ends: reads and writes of whole vectors stay inside.
TEST(Guards, NothingIsTouchedBeyondTheEndOfAnArray) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : {2, 6, 10, 14, 30, 62, 64, 80, 126, 128, 254}) {
      for (const bool at_the_end : {true, false}) {
        OpCase c({dtype, 9, 3, 2, head_dim, 11});
        std::deque<Guarded> memory;
        RopePoolFusedArgs& a = c.args;
        for (Tensor* t : {&a.q, &a.k, &a.v, &a.positions, &a.slots, &a.k_pool, &a.v_pool, &a.q_out, &a.k_out}) {
          std::size_t bytes = static_cast<std::size_t>(item_size(t->dtype));
          for (const std::int64_t length : t->shape) bytes *= static_cast<std::size_t>(length);
          const std::size_t page = Pages::page_size(), rounded = (bytes + page - 1) / page * page;
          const Guarded& block = memory.emplace_back(rounded);
          std::byte* data = at_the_end ? block.data() + rounded - bytes : block.data();
          std::memcpy(data, t->data, bytes);
          t->data = data;
        }
        const auto result = c.run();
        ASSERT_TRUE(result.ok()) << result.error().message();
      }
    }
  }
}

// ---- Pools beyond 32 bits

std::size_t resident_pages(const Pages& pages) {
  std::vector<unsigned char> state(pages.size() / Pages::page_size() + 1);
  EXPECT_EQ(mincore(pages.data(), pages.size(), state.data()), 0);
  return static_cast<std::size_t>(std::count_if(state.begin(), state.end(), [](unsigned char s) { return (s & 1) != 0; }));
}

// Pools [num_slots, 32, 128] of bfloat16 that are reserved only, and one token for each of `slots`.
void expect_only_these_rows(std::int64_t num_slots, const std::vector<std::int64_t>& slots, DType slots_dtype) {
  constexpr std::int64_t kHeads = 32, kHeadDim = 128;
  constexpr std::size_t kRowBytes = kHeads * kHeadDim * 2;
  const Pages k_pages(static_cast<std::size_t>(num_slots) * kRowBytes),
      v_pages(static_cast<std::size_t>(num_slots) * kRowBytes);
  if (k_pages.data() == nullptr || v_pages.data() == nullptr) GTEST_SKIP() << "no room for two pools of " << k_pages.size();
  const auto tokens = static_cast<std::int64_t>(slots.size());
  OpCase c({DType::bf16, tokens, kHeads, kHeads, kHeadDim, 1, DType::i32, slots_dtype});
  c.args.k_pool = Tensor::contiguous(k_pages.data(), DType::bf16, Shape{num_slots, kHeads, kHeadDim});
  c.args.v_pool = Tensor::contiguous(v_pages.data(), DType::bf16, Shape{num_slots, kHeads, kHeadDim});
  for (std::int64_t t = 0; t < tokens; ++t) set_index(c.args.positions, t, 0);
  set_indices(c.args.slots, slots);
  fill(c.args.k, Real{1});
  fill(c.args.v, Real{1});
  const auto result = c.run();
  ASSERT_TRUE(result.ok()) << result.error().message();
  const std::size_t row_pages = kRowBytes / Pages::page_size();
  for (const Pages* pages : {&k_pages, &v_pages}) {
    EXPECT_EQ(resident_pages(*pages), slots.size() * row_pages) << "other rows than those of slots were touched";
  }
  for (const std::int64_t row : slots) {
    for (const Tensor* pool : {&c.args.k_pool, &c.args.v_pool}) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t i = 0; i < kHeadDim; ++i) ASSERT_EQ(bits_at(*pool, row, h, i), 0x3F80u) << "row " << row;
      }
    }
  }
  // One past the last is refused, whatever is left of it in 32 bits.
  set_index(c.args.slots, 0, num_slots);
  EXPECT_EQ(c.run().error().number(), 20);
}

TEST(LargePool, F19RowAt2To31Elements) {
  for (const DType slots : {DType::i32, DType::i64}) expect_only_these_rows(524289, {524288}, slots);
}

TEST(LargePool, RowsBeyond2To32Elements) {
  expect_only_these_rows((std::int64_t{1} << 21) + 1, {(std::int64_t{1} << 21), (std::int64_t{1} << 20) + 1, 524287, 0},
                         DType::i64);
}

// The same offsets through a stride: two rows that are 2^33 bytes apart.
TEST(LargePool, StridesBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 32) + 64;  // elements
  const Pages pages(static_cast<std::size_t>(kStride + 64) * 2);
  if (pages.data() == nullptr) GTEST_SKIP() << "no room for " << pages.size() << " bytes";
  OpCase c({DType::bf16, 2, 1, 1, 16, 2});
  c.args.k_pool.data = pages.data();
  c.args.k_pool.strides = {kStride, 16, 1};
  c.args.v_pool.data = pages.data() + 32;
  c.args.v_pool.strides = {kStride, 16, 1};
  set_indices(c.args.positions, {3, 7});
  set_indices(c.args.slots, {1, 0});
  const auto result = c.run();
  ASSERT_TRUE(result.ok()) << result.error().message();
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t i = 0; i < 16; ++i) {
      ASSERT_EQ(bits_at(c.args.k_pool, 1 - t, 0, i), bits_at(c.args.k_out, t, 0, i));
      ASSERT_EQ(bits_at(c.args.v_pool, 1 - t, 0, i), bits_at(c.args.v, t, 0, i));
    }
  }
  EXPECT_LE(resident_pages(pages), 2u);
}

}  // namespace
}  // namespace ropepool::test
