#include "core/rope_tables.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "core/of_this_thread.h"

namespace ropepool {
namespace {

using Entry = PlainRope::Kept;

// More than the ropes of one process, and few enough to search; a caller with a new base at each call pushes out the oldest.
constexpr std::size_t kMaxEntries = 64;

struct Cache {
  std::mutex mutex;
  std::deque<Entry> entries;
};

Cache& cache() {
  static Cache* const instance = [] {
    auto* made = new Cache;
#if defined(__unix__) || defined(__APPLE__)
    // A child must not inherit the mutex locked by a thread that it does not have.
    pthread_atfork([] { cache().mutex.lock(); }, [] { cache().mutex.unlock(); }, [] { cache().mutex.unlock(); });
#endif
    return made;
  }();
  return *instance;
}

}  // namespace

std::shared_ptr<const RopeTables> plain_rope(std::int64_t head_dim, double base) {
  const auto bits = std::bit_cast<std::uint64_t>(base);
  {
    const std::lock_guard lock(cache().mutex);
    const auto& entries = cache().entries;
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.is(head_dim, bits); });
    if (found != entries.end()) return found->rope;
  }
  RopeForm form;
  form.base = base;
  form.rotary_dim = head_dim;
  RopeTables tables;
  tables.rotary_dim = head_dim;
  tables.sets = frequency_sets(form);
  Entry made{head_dim, bits, std::make_shared<const RopeTables>(std::move(tables))};
  {
    const std::lock_guard lock(cache().mutex);
    cache().entries.push_back(made);
    if (cache().entries.size() > kMaxEntries) cache().entries.pop_front();
  }
  return made.rope;
}

// Taken out of the thread's hands while it is in use, so that a call inside this one can't let go of it.
PlainRope::PlainRope(std::int64_t head_dim, double base) : kept_(std::move(of_this_thread<Kept>())) {
  const auto bits = std::bit_cast<std::uint64_t>(base);
  if (!kept_.rope || !kept_.is(head_dim, bits)) kept_ = {head_dim, bits, plain_rope(head_dim, base)};
}

PlainRope::~PlainRope() { of_this_thread<Kept>() = std::move(kept_); }

}  // namespace ropepool
