// Any executor, any number of threads, any split of the batch: the same bits.
#include <chrono>
#include <filesystem>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "core/executor.h"
#include "executors.h"
#include "oracle.h"
#include "sanitizers.h"

namespace ropepool::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// Large enough to be split into a dozen parts or more.
OpCase large_case(DType dtype = DType::bf16, std::int64_t tokens = 256, std::uint64_t seed = 1) {
  return OpCase({dtype, tokens, 8, 2, 128, tokens + 9}, seed);
}

// What one thread makes of the call; the case is left as it was.
Memory::Copy expected_memory(OpCase& c) {
  const auto before = c.memory.copy();
  ThreadsExecutor one(1);
  EXPECT_TRUE(c.run(&one).ok());
  auto after = c.memory.copy();
  c.memory.restore(before);
  return after;
}

int count_threads() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}
// The same once it is `count`: a thread that has been joined is listed for a moment yet.
int count_threads_until(int count) {
  for (int i = 0; i < 5000 && count_threads() != count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return count_threads();
}
// With the own executor's threads ended.
int count_without_workers() {
  EXPECT_TRUE(set_num_threads(1).ok());
  int count = count_threads();
  for (int same = 0; same < 10; ++same) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const int now = count_threads(); now != count) {
      count = now;
      same = 0;
    }
  }
  return count;
}

// Puts the width back, so that tests of one process don't see each other's.
class Threads : public ::testing::Test {
 protected:
  Threads() : width_(get_num_threads()) {
    std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first one, which is not to be counted
  }
  ~Threads() override { EXPECT_TRUE(set_num_threads(width_).ok()); }

 private:
  int width_;
};

TEST_F(Threads, SameBitsForAnyExecutorAndWidth) {
  for (const DType dtype : kFloats) {
    for (const bool in_place : {false, true}) {
      OpCase c = large_case(dtype);
      if (in_place) {
        c.args.q_out = c.args.q;
        c.args.k_out = c.args.k;
      }
      const auto before = c.memory.copy();
      const auto expected = expected_memory(c);
      ReverseExecutor reverse;
      UnevenExecutor uneven;
      ThreadsExecutor two(2), three(3), sixteen(16);
      for (Executor* executor : std::initializer_list<Executor*>{&reverse, &uneven, &two, &three, &sixteen}) {
        ASSERT_TRUE(c.run(executor).ok());
        EXPECT_TRUE(c.memory.equals(expected));
        c.memory.restore(before);
      }
      EXPECT_GT(reverse.calls(), 8) << "the call was not split, so that this test shows nothing";
      for (const int width : {1, 2, 3, 16}) {
        ASSERT_TRUE(set_num_threads(width).ok());
        for (int i = 0; i < 3; ++i) {
          ASSERT_TRUE(c.run().ok());
          EXPECT_TRUE(c.memory.equals(expected)) << width << " threads";
          c.memory.restore(before);
        }
      }
    }
  }
}

TEST_F(Threads, TheSplitCallIsRightToo) {
  OpCase c = large_case(DType::f32, 160);
  ASSERT_TRUE(set_num_threads(3).ok());
  expect_right(c);
}

// F27: in place, equal inputs give equal results each time.
TEST_F(Threads, F27RepeatedCallsInPlaceGiveTheSameBits) {
  OpCase c({DType::bf16, 8, 64, 8, 128, 16});
  const Tensor qkv = c.memory.make(DType::bf16, {8, 64 + 8 + 8, 128});
  c.args.q = c.args.q_out = slice(qkv, 1, 0, 64);
  c.args.k = c.args.k_out = slice(qkv, 1, 64, 8);
  c.args.v = slice(qkv, 1, 72, 8);
  Random random(27);
  c.fill_inputs(random);
  const auto before = c.memory.copy();
  const auto expected = expected_memory(c);
  ThreadsExecutor sixteen(16);
  for (int i = 0; i < 200; ++i) {
    const int width = i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 16;
    ASSERT_TRUE(set_num_threads(width).ok());
    ASSERT_TRUE((i % 10 == 0 ? c.run(&sixteen) : c.run()).ok());
    ASSERT_TRUE(c.memory.equals(expected)) << "repeat " << i << ", " << width << " threads";
    c.memory.restore(before);
  }
}

// F29: the last of the tokens with one slot wins, K and V from the same token, however many threads.
TEST_F(Threads, F29DuplicateSlotsWithManyThreads) {
  OpCase c = large_case(DType::bf16, 128);
  Random random(29);
  for (std::int64_t t = 0; t < 128; ++t) set_index(c.args.slots, t, uniform(random, 0, 5));
  const auto before = c.memory.copy();
  const auto expected = expected_memory(c);
  ThreadsExecutor sixteen(16);
  ASSERT_TRUE(set_num_threads(16).ok());
  for (int i = 0; i < (kSlow ? 20 : 100); ++i) {
    ASSERT_TRUE((i % 4 == 0 ? c.run(&sixteen) : c.run()).ok());
    ASSERT_TRUE(c.memory.equals(expected)) << "repeat " << i;
    c.memory.restore(before);
  }
  expect_right(c);
}

#if defined(__SSE2__)
constexpr std::uint64_t kFlushDenormals = 0x8040, kRoundUp = 0x4000;
std::uint64_t float_modes() { return _mm_getcsr() & (kFlushDenormals | kRoundUp); }
void set_float_modes(std::uint64_t modes) {
  _mm_setcsr((_mm_getcsr() & ~static_cast<unsigned int>(kFlushDenormals | kRoundUp)) | static_cast<unsigned int>(modes));
}
#elif defined(__aarch64__)
constexpr std::uint64_t kFlushDenormals = 1 << 24, kRoundUp = 1 << 22;
std::uint64_t float_modes() {
  std::uint64_t modes;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(modes));
  return modes;
}
void set_float_modes(std::uint64_t modes) { __asm__ __volatile__("msr fpcr, %0" : : "r"(modes)); }
#endif

#if defined(__SSE2__) || defined(__aarch64__)
// Denormals flushed, or another rounding, on the calling thread (as PyTorch's set_flush_denormal does it) are not what the
// workers have: they must not reach the results, or these depend on the split.
TEST_F(Threads, FloatingPointModesOfTheCallerDoNotMatter) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t tokens : {4, 160}) {
      OpCase c = large_case(dtype, tokens);
      const FloatFormat format = format_of(dtype);
      Random random(31);
      for_each_element(c.args.q, [&](auto t, auto h, auto i) {  // denormals of the dtype, and sums that become them
        const std::uint32_t exponent = (t + h) % 2 == 0 ? 0 : 1u << format.fraction_bits;
        set_bits(c.args.q, t, h, i, exponent | (static_cast<std::uint32_t>(random()) & ((1u << format.fraction_bits) - 1)));
      });
      const auto before = c.memory.copy();
      const auto expected = expected_memory(c);
      ASSERT_TRUE(set_num_threads(2).ok());
      const std::uint64_t usual = float_modes();
      for (const std::uint64_t modes : {kFlushDenormals, kRoundUp}) {
        c.memory.restore(before);
        set_float_modes(modes);
        const bool ok = c.run().ok();
        const bool kept = float_modes() == modes;
        set_float_modes(usual);
        EXPECT_TRUE(ok);
        EXPECT_TRUE(kept) << "the op has changed its caller's modes";
        EXPECT_TRUE(c.memory.equals(expected)) << to_string(dtype) << ", " << tokens << " tokens, modes " << modes;
      }
    }
  }
}
#endif

// ---- Several callers

TEST_F(Threads, CallsFromSeveralThreadsAtOnce) {
  ASSERT_TRUE(set_num_threads(3).ok());
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int n = 0; n < 4; ++n) {
    callers.emplace_back([n, &wrong] {
      OpCase c = large_case(kFloats[n % 3], 100, static_cast<std::uint64_t>(n));
      c.args.rope_base = 10000.0 + n;
      const auto before = c.memory.copy();
      const auto expected = expected_memory(c);
      for (int i = 0; i < 25; ++i) {
        if (!c.run().ok() || !c.memory.equals(expected)) ++wrong;
        c.memory.restore(before);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// A pool's rows may be shared out among calls: those that write different rows may run at once.
TEST_F(Threads, CallsThatWriteDifferentRowsOfOnePool) {
  ASSERT_TRUE(set_num_threads(2).ok());
  OpCase a = large_case(DType::f32, 100, 1), b = large_case(DType::f32, 100, 2);
  const Tensor k_pool = a.memory.make(DType::f32, {200, 2, 128}), v_pool = a.memory.make(DType::f32, {200, 2, 128});
  for (OpCase* c : {&a, &b}) {
    c->args.k_pool = k_pool;
    c->args.v_pool = v_pool;
    for (std::int64_t t = 0; t < 100; ++t) set_index(c->args.slots, t, 2 * t + (c == &b ? 1 : 0));
  }
  std::thread other([&] { EXPECT_TRUE(b.run().ok()); });
  EXPECT_TRUE(a.run().ok());
  other.join();
  for (OpCase* c : {&a, &b}) {
    for (std::int64_t t = 0; t < 100; ++t) {
      const std::int64_t row = index_at(c->args.slots, t);
      for (std::int64_t i = 0; i < 128; ++i) {
        ASSERT_EQ(bits_at(k_pool, row, 1, i), bits_at(c->args.k_out, t, 1, i));
        ASSERT_EQ(bits_at(v_pool, row, 1, i), bits_at(c->args.v, t, 1, i));
      }
    }
  }
}

TEST_F(Threads, SetNumThreadsWhileCallsRun) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int n = 0; n < 2; ++n) {
    callers.emplace_back([n, &wrong, &stop] {
      OpCase c = large_case(DType::bf16, 100, static_cast<std::uint64_t>(n));
      const auto before = c.memory.copy();
      const auto expected = expected_memory(c);
      while (!stop) {
        if (!c.run().ok() || !c.memory.equals(expected)) ++wrong;
        c.memory.restore(before);
      }
    });
  }
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(set_num_threads(1 + i % 4).ok());
    EXPECT_EQ(get_num_threads(), 1 + i % 4);
    std::this_thread::yield();
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// ---- Calls inside calls

TEST_F(Threads, ACallInsideAnotherOnTheSameThread) {
  OpCase outer = large_case(DType::bf16, 100, 1), inner = large_case(DType::f32, 60, 2);
  const auto expected_outer = expected_memory(outer), before_inner = inner.memory.copy();
  const auto expected_inner = expected_memory(inner);
  int calls = 0;
  NestingExecutor nesting([&] {
    ++calls;
    EXPECT_TRUE(inner.run().ok());
    EXPECT_TRUE(inner.memory.equals(expected_inner));
    inner.memory.restore(before_inner);
  });
  ASSERT_TRUE(outer.run(&nesting).ok());
  EXPECT_GT(calls, 2);
  EXPECT_TRUE(outer.memory.equals(expected_outer));
}

TEST_F(Threads, CallsInsideTheOwnExecutor) {
  ASSERT_TRUE(set_num_threads(4).ok());
  std::vector<OpCase> cases;
  std::vector<Memory::Copy> expected;
  for (int n = 0; n < 6; ++n) {
    cases.push_back(large_case(kFloats[n % 3], 60, static_cast<std::uint64_t>(n)));
    expected.push_back(expected_memory(cases.back()));
  }
  own_executor().parallel_for(6, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) EXPECT_TRUE(cases[static_cast<std::size_t>(n)].run().ok());
  });
  for (std::size_t n = 0; n < cases.size(); ++n) EXPECT_TRUE(cases[n].memory.equals(expected[n])) << n;
}

// ---- Threads of the process

TEST_F(Threads, WidthOneStartsNoThread) {
  OpCase c = large_case();
  const int before = count_without_workers();
  ASSERT_TRUE(c.run().ok());
  int inside = 0;  // all on this thread
  own_executor().parallel_for(1000, [&](std::int64_t, std::int64_t) { inside = std::max(inside, count_threads()); });
  EXPECT_EQ(inside, before);
  EXPECT_EQ(count_threads(), before);
}

TEST_F(Threads, OnlyALargeCallStartsThreads) {
  OpCase small({DType::bf16, 8, 8, 2, 128, 16}), large = large_case();
  const int before = count_without_workers();
  ASSERT_TRUE(set_num_threads(4).ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(small.run().ok());
  EXPECT_EQ(count_threads(), before);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(large.run().ok());
    EXPECT_EQ(count_threads(), before + 3);
  }
  ASSERT_TRUE(set_num_threads(1).ok());
  EXPECT_EQ(count_threads_until(before), before);
}

TEST_F(Threads, ACallersExecutorStartsNoThreadOfOurs) {
  OpCase c = large_case();
  const int before = count_without_workers();
  ASSERT_TRUE(set_num_threads(4).ok());
  ReverseExecutor reverse;
  ASSERT_TRUE(c.run(&reverse).ok());
  EXPECT_GT(reverse.calls(), 2);
  EXPECT_EQ(count_threads(), before);
}

TEST_F(Threads, BadNumbersOfThreadsAreErrors) {
  ASSERT_TRUE(set_num_threads(2).ok());
  for (const int width : {0, -1, 1025, 2147483647, -2147483647 - 1}) {
    const auto result = set_num_threads(width);
    ASSERT_FALSE(result.ok()) << width;
    EXPECT_EQ(result.error().kind(), Error::Kind::runtime);
    EXPECT_EQ(result.error().number(), -2);
    EXPECT_NE(result.error().message().find(std::to_string(width)), std::string::npos) << result.error().message();
    EXPECT_EQ(get_num_threads(), 2);
  }
}

// ---- Fork

// Runs `child` in a fork of this process and gives its exit status, 0 where it returned true.
template <class F>
int status_of_child(F child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);  // a child that hangs in a lock must not outlive the test
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST_F(Threads, ForkAfterUse) {
  if (kEmulated) GTEST_SKIP() << "qemu lets no child of a process with threads start threads";
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start threads";
  ASSERT_TRUE(set_num_threads(4).ok());
  OpCase c = large_case();
  const auto before = c.memory.copy();
  const auto expected = expected_memory(c);
  ASSERT_TRUE(c.run().ok());  // the pool's threads are there now
  c.memory.restore(before);
  const auto child = [&] {
    for (int i = 0; i < 3; ++i) {
      if (!c.run().ok() || !c.memory.equals(expected)) return false;
      c.memory.restore(before);
    }
    return count_threads() == 4;  // the child has workers of its own
  };
  for (int i = 0; i < 5; ++i) ASSERT_EQ(status_of_child(child), 0);
  // And the child's child.
  ASSERT_EQ(status_of_child([&] { return child() && status_of_child(child) == 0; }), 0);
  ASSERT_TRUE(c.run().ok());
  EXPECT_TRUE(c.memory.equals(expected));
}

// A child may also leave by exit, with all that runs then.
TEST_F(Threads, AChildThatExitsInTheUsualWay) {
  if (kEmulated) GTEST_SKIP() << "qemu lets no child of a process with threads start threads";
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start threads";
  if (kAddressSanitizer) GTEST_SKIP() << "the child has no use for its parent's workers and leaves their memory alone";
  ASSERT_TRUE(set_num_threads(3).ok());
  OpCase c = large_case();
  ASSERT_TRUE(c.run().ok());
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    std::exit(c.run().ok() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST_F(Threads, ForkWhileCallsRun) {
  if (kEmulated) GTEST_SKIP() << "qemu lets no child of a process with threads start threads";
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start threads";
  ASSERT_TRUE(set_num_threads(3).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int n = 0; n < 2; ++n) {
    callers.emplace_back([n, &stop] {
      OpCase c = large_case(DType::bf16, 60, static_cast<std::uint64_t>(n));
      for (int i = 0; !stop; ++i) {
        c.args.rope_base = 10000.0 + i % 100;  // new frequencies each time: their lock is taken too
        EXPECT_TRUE(c.run().ok());
        if (i % 16 == 0) {
          EXPECT_TRUE(set_num_threads(2 + i / 16 % 2).ok());
        }
      }
    });
  }
  OpCase c = large_case();
  const auto before = c.memory.copy();
  const auto expected = expected_memory(c);
  for (int i = 0; i < (kSlow ? 10 : 40); ++i) {
    const int status = status_of_child([&] {
      c.args.rope_base = 20000.0;
      if (!c.run().ok()) return false;
      c.memory.restore(before);
      c.args.rope_base = 10000.0;
      return c.run().ok() && c.memory.equals(expected) && set_num_threads(2).ok() && c.run().ok();
    });
    EXPECT_EQ(status, 0);
    if (status != 0) break;
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace ropepool::test
