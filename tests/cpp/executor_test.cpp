// The library's own executor.
#include "core/executor.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sanitizers.h"

namespace ropepool::test {
namespace {

class OwnExecutor : public ::testing::TestWithParam<int> {
 protected:
  OwnExecutor() : width_(get_num_threads()) { EXPECT_TRUE(set_num_threads(GetParam()).ok()); }
  ~OwnExecutor() override { EXPECT_TRUE(set_num_threads(width_).ok()); }

 private:
  int width_;
};

TEST_P(OwnExecutor, IsAsWideAsItWasTold) {
  EXPECT_EQ(own_executor().width(), GetParam());
  EXPECT_EQ(get_num_threads(), GetParam());
}

TEST_P(OwnExecutor, RunsEveryIndexOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000, 12345}) {
    std::vector<std::atomic<int>> times(static_cast<std::size_t>(count));
    own_executor().parallel_for(count, [&](std::int64_t begin, std::int64_t end) {
      ASSERT_LT(begin, end);
      ASSERT_GE(begin, 0);
      ASSERT_LE(end, count);
      for (std::int64_t i = begin; i < end; ++i) ++times[static_cast<std::size_t>(i)];
    });
    for (const auto& n : times) ASSERT_EQ(n, 1);
  }
}

TEST_P(OwnExecutor, WritesAreVisibleToTheCaller) {
  std::vector<std::int64_t> values(5000);  // not atomic: what orders them is the executor
  for (int repeat = 0; repeat < 50; ++repeat) {
    own_executor().parallel_for(5000, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += i;
    });
  }
  for (std::int64_t i = 0; i < 5000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], 50 * i);
}

TEST_P(OwnExecutor, NeverUsesMoreThreadsThanItsWidth) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  for (int repeat = 0; repeat < 20; ++repeat) {
    own_executor().parallel_for(100, [&](std::int64_t, std::int64_t) {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
  }
  EXPECT_LE(static_cast<int>(threads.size()), GetParam());
}

TEST_P(OwnExecutor, Nests) {
  std::atomic<int> sum{0};
  own_executor().parallel_for(8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      own_executor().parallel_for(8, [&](std::int64_t inner_begin, std::int64_t inner_end) {
        for (std::int64_t j = inner_begin; j < inner_end; ++j) {
          own_executor().parallel_for(4, [&](std::int64_t b, std::int64_t e) { sum += static_cast<int>(e - b); });
        }
      });
    }
  });
  EXPECT_EQ(sum, 8 * 8 * 4);
}

TEST_P(OwnExecutor, ServesSeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> sum{0};
  for (int n = 0; n < 5; ++n) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) {
        own_executor().parallel_for(37, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 5 * 100 * 37);
}

TEST_P(OwnExecutor, ChangesItsWidthWhileItWorks) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; !stop; ++i) EXPECT_TRUE(set_num_threads(1 + i % 5).ok());
  });
  std::int64_t sum = 0;
  for (int repeat = 0; repeat < (kSlow ? 200 : 1000); ++repeat) {
    std::atomic<std::int64_t> done{0};
    own_executor().parallel_for(20, [&](std::int64_t begin, std::int64_t end) { done += end - begin; });
    sum += done;
  }
  stop = true;
  changer.join();
  EXPECT_EQ(sum, (kSlow ? 200 : 1000) * 20);
}

// Workers that have nothing to do sleep. This is about the time that this process works, which a busy machine makes no longer.
TEST_P(OwnExecutor, IdleWorkersTakeNoTime) {
  std::atomic<int> done{0};
  own_executor().parallel_for(100, [&](std::int64_t begin, std::int64_t end) { done += static_cast<int>(end - begin); });
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 10);
  EXPECT_EQ(done, 100);
}

INSTANTIATE_TEST_SUITE_P(Widths, OwnExecutor, ::testing::Values(1, 2, 3, 16));

TEST(RangeBody, CallsWhatItRefersTo) {
  std::int64_t sum = 0;
  const auto add = [&sum](std::int64_t begin, std::int64_t end) { sum += end - begin; };
  const RangeBody body(add);
  body(3, 10);
  const RangeBody copy = body;  // still the same callable
  copy(0, 1);
  EXPECT_EQ(sum, 8);
}

}  // namespace
}  // namespace ropepool::test
