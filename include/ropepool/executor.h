// Executor: where an op runs the parts of its work. Hand in your own to keep to your threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ropepool/export.h>
#include <ropepool/result.h>

namespace ropepool {

// A reference to a callable body(begin, end); valid while parallel_for runs.
class RangeBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeBody>) RangeBody(F&& body)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(&body))),
        call_([](void* object, std::int64_t begin, std::int64_t end) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end);
        }) {}
  void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, std::int64_t);
};

class ROPEPOOL_API Executor {
 public:
  virtual ~Executor();
  // How many threads may work at once, the caller's included; at least 1.
  virtual int width() const = 0;
  // Calls body on ranges that together are [0, count), each index once, on any threads in any order, and returns when all are
  // done, with their writes visible to the caller. Must not throw. `body` neither throws nor blocks.
  virtual void parallel_for(std::int64_t count, RangeBody body) = 0;
};

// Width of the library's own executor, which serves calls that hand in none. At the start: ROPEPOOL_NUM_THREADS, or the
// physical cores this process may run on. 1 starts no thread. Safe to call while ops run. Both throw std::bad_alloc.
ROPEPOOL_API Result<void> set_num_threads(int num_threads);
ROPEPOOL_API int get_num_threads();

}  // namespace ropepool
