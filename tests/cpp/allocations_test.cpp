// What the op allocates, and what becomes of a call when there is no memory. This program counts every operator new.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "c_call.h"
#include "mutations.h"
#include "oracle.h"
#include "sanitizers.h"

namespace {

std::atomic<long> allocations{0};
std::atomic<long> left_until_failure{-1};  // the allocation that finds 0 fails, and so do all after it; below 0 none does
std::atomic<long> failures{0};

void* allocate(std::size_t bytes) {
  ++allocations;
  if (left_until_failure >= 0) {
    if (left_until_failure == 0) {
      ++failures;
      throw std::bad_alloc();
    }
    --left_until_failure;
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace ropepool::test {
namespace {

// Allocations of `f`.
template <class F>
long count_in(F f) {
  const long before = allocations;
  f();
  return allocations - before;
}

// Runs `f` with room for `n` more allocations; true where one failed.
template <class F>
bool with_room_for(long n, F f) {
  failures = 0;
  left_until_failure = n;
  f();
  left_until_failure = -1;
  return failures > 0;
}

// The first of all, since only a process's first call makes the executor.
TEST(AllocationsAtTheStart, OutOfMemoryInCIsANumber) {
  int got = 0;
  for (long n = 0; with_room_for(n, [&] { got = ropepool_get_num_threads(); }); ++n) {
    ASSERT_LT(n, 10000);
    if (got < 1) {
      EXPECT_EQ(got, ROPEPOOL_OUT_OF_MEMORY);
    }
  }
  EXPECT_GE(got, 1);
}

// Every allocation that a maker of the C interface makes fails once: a number, and no rope.
TEST(AllocationsOfRopes, OutOfMemoryInCIsANumber) {
  const double frequencies[] = {1, 0.5};
  float cos_sin[8] = {};
  const DlView table(Tensor::contiguous(cos_sin, DType::f32, {2, 4}));
  const std::int64_t pairs[] = {2, 0, 0};
  ropepool_rope_form plain{}, given{};
  plain.size = given.size = sizeof plain;
  plain.rotary_dim = given.rotary_dim = 4;
  plain.base = 1e4;
  plain.sections = pairs;
  plain.num_sections = 3;
  const std::string folder = ROPEPOOL_SOURCE_DIR "/tests/data/llama-3.1-8b";
  ropepool_rope* part = nullptr;
  ASSERT_EQ(ropepool_rope_make(&plain, &part), ROPEPOOL_OK);
  const ropepool_rope* const parts[] = {part, part};
  const std::function<int(ropepool_rope**)> makers[] = {
      [&](auto* rope) { return ropepool_rope_make(&plain, rope); },
      [&](auto* rope) { return ropepool_rope_from_frequencies(frequencies, 2, &given, rope); },
      [&](auto* rope) { return ropepool_rope_from_table(&table.tensor, &given, rope); },
      [&](auto* rope) { return ropepool_rope_from_config(R"({"head_dim": 4, "rope_theta": 1e4})", nullptr, 0, rope); },
      [&](auto* rope) { return ropepool_rope_from_config(R"({"head_dim": 4})", nullptr, 0, rope); },
      [&](auto* rope) { return ropepool_rope_from_config_file(folder.c_str(), nullptr, 0, rope); },
      [&](auto* rope) { return ropepool_rope_join(parts, 2, rope); },
  };
  for (const auto& maker : makers) {
    ropepool_rope* rope = nullptr;
    int number = 0;
    long n = 0;
    for (; with_room_for(n, [&] { number = maker(&rope); }); ++n) {
      ASSERT_LT(n, 10000);
      ASSERT_EQ(number, ROPEPOOL_OUT_OF_MEMORY);
      ASSERT_EQ(rope, nullptr);
    }
    EXPECT_GT(n, 0);
    EXPECT_EQ(rope == nullptr, number == 28);
    ropepool_rope_free(rope);
  }
  ropepool_rope_free(part);
}

class Allocations : public ::testing::Test {
 protected:
  Allocations() : width_(get_num_threads()) {}
  ~Allocations() override { EXPECT_TRUE(set_num_threads(width_).ok()); }

 private:
  int width_;
};

TEST_F(Allocations, TheTestCountsThem) {
  EXPECT_EQ(count_in([] { ::operator delete(::operator new(1)); }), 1);  // a new-expression may be left out
  EXPECT_TRUE(with_room_for(0, [] { EXPECT_THROW(::operator delete(::operator new(1)), std::bad_alloc); }));
}

// F54: views are read where they lie, int64 positions are not copied: from the second call on nothing is allocated.
TEST_F(Allocations, F54TheSecondCallOnAViewAllocatesNothing) {
  for (const int width : {1, 3}) {
    ASSERT_TRUE(set_num_threads(width).ok());
    OpCase c({DType::bf16, 8192, 1, 1, 64, 8192, DType::i64, DType::i64});
    constexpr std::int64_t kHeads = 8;
    const Tensor big = c.memory.make(DType::bf16, {8192, kHeads, 192});
    c.args.q = slice(big, 2, 128, 64);
    c.args.q_out = c.memory.make(DType::bf16, {8192, kHeads, 64});
    c.args.num_qo_heads = kHeads;
    ASSERT_TRUE(c.run().ok());
    for (const std::int64_t swapped : {0, 1}) {  // slots that rise, then with two that change places
      if (swapped == 1) {
        const std::int64_t first = index_at(c.args.slots, 0);
        set_index(c.args.slots, 0, index_at(c.args.slots, 1));
        set_index(c.args.slots, 1, first);
      }
      ASSERT_TRUE(c.run().ok());
      EXPECT_EQ(count_in([&] { EXPECT_TRUE(c.run().ok()); }), 0) << width << " threads";
    }
  }
}

TEST_F(Allocations, NoCallOfAWarmThreadAllocates) {
  for (const int width : {1, 4}) {
    ASSERT_TRUE(set_num_threads(width).ok());
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      OpCase small({dtype, 1, 8, 2, 128, 16}), large({dtype, 300, 8, 2, 128, 400});
      for (const Angles angles : {Angles::exact, Angles::float32}) {
        small.args.angles = large.args.angles = angles;
        ASSERT_TRUE(large.run().ok());
        ASSERT_TRUE(small.run().ok());
        EXPECT_EQ(count_in([&] {
                    for (int i = 0; i < (kSlow ? 20 : 200); ++i) EXPECT_TRUE(small.run().ok() && large.run().ok());
                  }),
                  0)
            << width << " threads";
      }
    }
  }
}

TEST_F(Allocations, AFullPassOfTheContractAllocatesNothing) {
  const OpCase c = valid_case();
  EXPECT_EQ(count_in([&] { EXPECT_TRUE(check(c.args).empty()); }), 0);
}

// The n-th allocation of a call fails, for every n: it says so, has written nothing, and the next call works.
TEST_F(Allocations, OutOfMemoryIsAnErrorWithNothingWritten) {
  for (const int width : {1, 3}) {
    bool failed = true;
    for (long n = 0; failed; ++n) {
      ASSERT_LT(n, 1000);
      // Nothing is warm: new sizes, new frequencies, no threads.
      ASSERT_TRUE(set_num_threads(1).ok());
      ASSERT_TRUE(set_num_threads(width).ok());
      OpCase c({DType::bf16, 400 + 10 * n, 4, 1, 128, 1000});
      c.args.rope_base = 30000.0 + static_cast<double>(n) + 5000.0 * width;
      const auto before = c.memory.copy();
      std::optional<Result<void>> result;
      failed = with_room_for(n, [&] { result = c.run(); });
      if (!result->ok()) {
        EXPECT_TRUE(failed);
        EXPECT_EQ(result->error().kind(), Error::Kind::out_of_memory);
        EXPECT_EQ(result->error().number(), -1);
        EXPECT_EQ(result->error().message(), "out of memory");
        EXPECT_FALSE(result->error().refusal().has_value());
        EXPECT_EQ(result->error().code(), "");
        ASSERT_TRUE(c.memory.equals(before)) << "written before allocation " << n << " failed";
      }
      const auto again = c.run();
      ASSERT_TRUE(again.ok()) << again.error().message();
    }
  }
}

TEST_F(Allocations, OutOfMemoryInARefusalIsAnErrorToo) {
  bool failed = true;
  for (long n = 0; failed; ++n) {
    ASSERT_LT(n, 1000);
    OpCase c = valid_case();
    c.args.v = shaped(c.args.v, {4, 6, 8});
    const auto before = c.memory.copy();
    std::optional<Result<void>> result;
    failed = with_room_for(n, [&] { result = c.run(); });
    ASSERT_FALSE(result->ok());
    EXPECT_EQ(result->error().number(), failed ? -1 : 6);
    ASSERT_TRUE(c.memory.equals(before));
  }
}

// Nothing is thrown through C: the number says it.
TEST_F(Allocations, OutOfMemoryInCIsANumber) {
  OpCase c = valid_case();
  CCall fine(c.args), wrong_size(c.args), refused(c.args);
  wrong_size.options.size = 7;
  refused.options.rope_base = 0;
  for (const auto& [call, number] : {std::pair{&fine, 0}, {&wrong_size, ROPEPOOL_INVALID_ARGUMENT}, {&refused, 15}}) {
    bool failed = true;
    for (long n = 0; failed; ++n) {
      ASSERT_LT(n, 1000);
      call->options.head_dim = 8;
      int got = 0;
      failed = with_room_for(n, [&] { got = call->run(); });
      EXPECT_TRUE(got == number || (failed && got == ROPEPOOL_OUT_OF_MEMORY)) << got;
      if (got == ROPEPOOL_OUT_OF_MEMORY) {
        EXPECT_STREQ(ropepool_last_error_message(), "out of memory");
      }
    }
  }
  int got = 0;
  for (long n = 0; with_room_for(n, [&] { got = ropepool_set_num_threads(-1); }); ++n) EXPECT_LT(got, 0);
  EXPECT_EQ(got, ROPEPOOL_INVALID_ARGUMENT);
}

TEST_F(Allocations, OutOfMemoryInTheOtherOpsOfCIsANumber) {
  OpCase c = valid_case();
  const CCall views(c.args);
  const DlView qkv_view(c.memory.make(DType::f32, {4, 64}));
  const DLTensor *q = &views.q.tensor, *k = &views.k.tensor, *v = &views.v.tensor, *positions = &views.positions.tensor,
                 *slots = &views.slots.tensor, *k_pool = &views.k_pool.tensor, *v_pool = &views.v_pool.tensor,
                 *q_out = &views.q_out.tensor, *k_out = &views.k_out.tensor, *qkv = &qkv_view.tensor;
  ropepool_head_norm norm{};
  norm.size = sizeof norm;
  norm.eps = 1e-6;
  ropepool_head_ops ops{};
  ops.size = sizeof ops;
  ops.q_norm = ops.k_norm = &norm;
  // With a base that no call has had, and the number of a refusal where it makes no sense.
  const auto fill_in = [](auto& options, double base) {
    options.size = sizeof options;
    options.head_dim = 8;
    options.num_kv_heads = 2;
    if constexpr (requires { options.num_qo_heads; }) options.num_qo_heads = 4;
    if constexpr (requires { options.rope_base; }) options.rope_base = base;
  };
  const std::function<int(double)> calls[] = {
      [&](double base) {
        ropepool_rope_pool_fused_options options{};
        fill_in(options, base);
        options.head_ops = &ops;
        return ropepool_rope_pool_fused_with(q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, &options);
      },
      [&](double base) {
        ropepool_rope_pool_fused_qkv_options options{};
        fill_in(options, base);
        options.q_norm = &norm;
        return ropepool_rope_pool_fused_qkv(qkv, positions, slots, k_pool, v_pool, q_out, k_out, &options);
      },
      [&](double base) {
        ropepool_apply_rope_options options{};
        fill_in(options, base);
        return ropepool_apply_rope(q, k, positions, q_out, k_out, &options);
      },
      [&](double base) {
        ropepool_write_kv_options options{};
        fill_in(options, base);
        return ropepool_write_kv(k, base > 0 ? v : q, slots, k_pool, v_pool, &options);
      },
      [&](double base) {
        ropepool_rerotate_options options{};
        fill_in(options, base);
        return ropepool_rerotate(k_pool, slots, positions, positions, &options);
      },
  };
  double base = 70000;
  for (const auto& call : calls) {
    for (const bool refused : {false, true}) {
      bool failed = true;
      for (long n = 0; failed; ++n) {
        ASSERT_LT(n, 1000);
        const auto before = c.memory.copy();
        int got = 0;
        failed = with_room_for(n, [&] { got = call(refused ? -1 : ++base); });
        if (got == ROPEPOOL_OUT_OF_MEMORY) {
          EXPECT_TRUE(failed);
          EXPECT_STREQ(ropepool_last_error_message(), "out of memory");
        } else if (refused) {
          EXPECT_TRUE(got == 15 || got == 6) << got;
        } else {
          EXPECT_EQ(got, ROPEPOOL_OK) << ropepool_last_error_message();
        }
        if (got != ROPEPOOL_OK) {
          ASSERT_TRUE(c.memory.equals(before));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ropepool::test
