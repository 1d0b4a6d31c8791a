#include "core/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include <fmt/format.h>

#include "core/environment.h"

namespace ropepool {
namespace {

// A parallel_for on its way; it lives on its caller's stack.
struct Job {
  RangeBody body;
  std::int64_t count, grain;
  std::atomic<std::int64_t> next{0};
  int workers = 0;  // that look at this job; under the pool's mutex

  void run() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      body(begin, std::min(begin + grain, count));
    }
  }
};

class ThreadPool {
 public:
  explicit ThreadPool(int num_workers) {
    threads_.reserve(static_cast<std::size_t>(num_workers));
    for (int i = 0; i < num_workers; ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::exception&) {
        break;  // no more threads or memory to be had: the caller and those that started do the work
      }
    }
  }

  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(&job);
    }
    wake_.notify_all();
    job.run();
    std::unique_lock lock(mutex_);
    // Nothing is left to claim: workers that come now must not see the job, and those inside finish.
    std::erase(jobs_, &job);
    done_.wait(lock, [&] { return job.workers == 0; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      Job& job = *jobs_.front();
      ++job.workers;
      lock.unlock();
      job.run();
      lock.lock();
      std::erase(jobs_, &job);
      if (--job.workers == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job*> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

class OwnExecutor final : public Executor {
 public:
  OwnExecutor() : width_(environment().num_threads) {}

  int width() const override { return width_.load(std::memory_order_relaxed); }

  void parallel_for(std::int64_t count, RangeBody body) override {
    const int threads = static_cast<int>(std::min<std::int64_t>(width(), count));
    if (threads <= 1) {
      if (count > 0) body(0, count);
      return;
    }
    // Some parts for each thread, so that one that is held up by another process leaves its rest to the others.
    Job job{body, count, std::max<std::int64_t>(1, count / (threads * 4))};
    pool()->run(job);
  }

  void set_width(int width) {
    std::shared_ptr<ThreadPool> old;  // joined outside the lock, by its last user
    const std::lock_guard lock(mutex_);
    if (width != width_.exchange(width, std::memory_order_relaxed)) old.swap(pool_);
  }

  // Around a fork: the child has none of the pool's threads, so it forgets the pool without touching it.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child() {
    new (&pool_) std::shared_ptr<ThreadPool>();
    mutex_.unlock();
  }

 private:
  std::shared_ptr<ThreadPool> pool() {
    const std::lock_guard lock(mutex_);
    if (!pool_) pool_ = std::make_shared<ThreadPool>(width() - 1);
    return pool_;
  }

  std::atomic<int> width_;
  std::mutex mutex_;
  std::shared_ptr<ThreadPool> pool_;
};

OwnExecutor& own() {
  // Never destroyed: calls may come as late as from another library's exit handler.
  static OwnExecutor* const instance = [] {
    auto* made = new OwnExecutor;
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork([] { own().before_fork(); }, [] { own().after_fork_in_parent(); }, [] { own().after_fork_in_child(); });
#endif
    return made;
  }();
  return *instance;
}

}  // namespace

Executor::~Executor() = default;

Executor& own_executor() { return own(); }

Result<void> set_num_threads(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return Error::runtime(fmt::format("the number of threads must be from 1 to {}, got {}", kMaxThreads, num_threads));
  }
  own().set_width(num_threads);
  return {};
}

int get_num_threads() { return own().width(); }

}  // namespace ropepool
