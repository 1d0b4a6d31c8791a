// Executors as a caller might write them.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <ropepool/executor.h>

namespace ropepool::test {

// Threads of its own for every call, each part claimed by whoever comes first.
class ThreadsExecutor final : public Executor {
 public:
  explicit ThreadsExecutor(int width) : width_(width) {}
  int width() const override { return width_; }
  void parallel_for(std::int64_t count, RangeBody body) override {
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
      for (std::int64_t i; (i = next.fetch_add(1)) < count;) body(i, i + 1);
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < width_; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int width_;
};

// One thread, from the last part to the first.
class ReverseExecutor final : public Executor {
 public:
  int width() const override { return 4; }
  void parallel_for(std::int64_t count, RangeBody body) override {
    for (std::int64_t i = count - 1; i >= 0; --i) body(i, i + 1);
    calls_ += count;
  }
  std::int64_t calls() const { return calls_; }

 private:
  std::int64_t calls_ = 0;
};

// Ranges of uneven lengths, the middle first.
class UnevenExecutor final : public Executor {
 public:
  int width() const override { return 3; }
  void parallel_for(std::int64_t count, RangeBody body) override {
    const std::int64_t a = count / 5, b = count - count / 7;
    body(a, b);
    if (b < count) body(b, count);
    if (a > 0) body(0, a);
  }
};

// Does something else in the middle of each part, such as another call of the op.
class NestingExecutor final : public Executor {
 public:
  explicit NestingExecutor(std::function<void()> between) : between_(std::move(between)) {}
  int width() const override { return 2; }
  void parallel_for(std::int64_t count, RangeBody body) override {
    for (std::int64_t i = 0; i < count; ++i) {
      between_();
      body(i, i + 1);
    }
  }

 private:
  std::function<void()> between_;
};

}  // namespace ropepool::test
