#include "core/frequencies.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <mutex>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "core/double_double.h"
#include "core/of_this_thread.h"

namespace ropepool {
namespace {

// x modulo 1, in units of 2^-64.
std::uint64_t fraction(DoubleDouble x) {
  const DoubleDouble part = two_sum(x.hi - std::floor(x.hi), x.lo);
  const double whole = std::floor(std::ldexp(part.hi, 32));
  const double rest = (std::ldexp(part.hi, 32) - whole) + std::ldexp(part.lo, 32);  // may be a little below 0
  return (static_cast<std::uint64_t>(static_cast<std::int64_t>(whole)) << 32) +
         static_cast<std::uint64_t>(std::llround(std::ldexp(rest, 32)));
}

Frequencies compute(std::int64_t head_dim, double base) {
  constexpr DoubleDouble kTurnsPerRadian{0x1.45f306dc9c883p-3, -0x1.6b01ec5417056p-57};
  const auto half = static_cast<std::size_t>(head_dim / 2);
  Frequencies result{std::vector<std::uint64_t>(half), std::vector<float>(half)};
  const DoubleDouble log_base = log(base);
  for (std::size_t i = 0; i < half; ++i) {
    const auto two_i = static_cast<double>(2 * i);
    const DoubleDouble turns = exp(-(log_base * DoubleDouble{two_i}) / static_cast<double>(head_dim)) * kTurnsPerRadian;
    result.turns[i] = std::isfinite(turns.hi) ? fraction(turns) : 0;  // a base below 1e-300, where there is nothing to be exact
    const float exponent = static_cast<float>(two_i) / static_cast<float>(head_dim);
    result.inverse_float32[i] =
        1.0f / static_cast<float>(std::pow(static_cast<double>(static_cast<float>(base)), static_cast<double>(exponent)));
  }
  return result;
}

struct Entry {
  std::int64_t head_dim;
  std::uint64_t base_bits;  // every bit counts: 10000.0 and 10000.5 are two ropes
  std::shared_ptr<const Frequencies> frequencies;
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

std::shared_ptr<const Frequencies> frequencies_of(std::int64_t head_dim, double base) {
  const auto bits = std::bit_cast<std::uint64_t>(base);
  auto& last = of_this_thread<Entry>();
  if (last.frequencies && last.is(head_dim, bits)) return last.frequencies;
  {
    const std::lock_guard lock(cache().mutex);
    const auto& entries = cache().entries;
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.is(head_dim, bits); });
    if (found != entries.end()) {
      last = *found;
      return last.frequencies;
    }
  }
  Entry made{head_dim, bits, std::make_shared<const Frequencies>(compute(head_dim, base))};
  {
    const std::lock_guard lock(cache().mutex);
    cache().entries.push_back(made);
    if (cache().entries.size() > kMaxEntries) cache().entries.pop_front();
  }
  last = std::move(made);
  return last.frequencies;
}

}  // namespace ropepool
