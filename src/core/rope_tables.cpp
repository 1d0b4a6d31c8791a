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

struct Entry {
  std::int64_t head_dim;
  std::uint64_t base_bits;  // every bit counts: 10000.0 and 10000.5 are two ropes
  std::shared_ptr<const RopeTables> rope;
  bool is(std::int64_t d, std::uint64_t bits) const { return head_dim == d && base_bits == bits; }
};

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
  auto& last = of_this_thread<Entry>();
  if (last.rope && last.is(head_dim, bits)) return last.rope;
  {
    const std::lock_guard lock(cache().mutex);
    const auto& entries = cache().entries;
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.is(head_dim, bits); });
    if (found != entries.end()) {
      last = *found;
      return last.rope;
    }
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
  last = std::move(made);
  return last.rope;
}

}  // namespace ropepool
