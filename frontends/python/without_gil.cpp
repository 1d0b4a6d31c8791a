#include "without_gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace ropepool::python {
namespace {

std::atomic<bool> ending{false};
std::atomic<pthread_t> ending_thread{};
std::atomic<int> returning{0};  // threads between their look at `ending` and the GIL

[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { returning = 0; });  // none came along

}  // namespace

WithoutGil::~WithoutGil() {
  ++returning;
  if (ending && !pthread_equal(pthread_self(), ending_thread)) {
    --returning;
    for (;;) pause();
  }
  PyEval_RestoreThread(state_);
  --returning;
}

void stop_returning_threads() {
  ending_thread = pthread_self();
  ending = true;
  for (int i = 0; i < 10000 && returning > 0; ++i) {  // at most a second
    PyThreadState* state = PyEval_SaveThread();
    usleep(100);
    PyEval_RestoreThread(state);
  }
}

}  // namespace ropepool::python
