#include "measure.h"

#ifdef __linux__
#include <sys/mman.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>

#include <fmt/format.h>

namespace bench {
namespace {

using ropepool::Tensor;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double at_part(std::vector<double> values, double part) {
  const auto at = static_cast<std::ptrdiff_t>(static_cast<double>(values.size() - 1) * part + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

// The slots of one variant, a call's worth at a time.
class Walk {
 public:
  // Variants begin at different places, where slots are consecutive.
  Walk(const Setting& setting, std::int64_t num_slots, std::mt19937& random, double begin)
      : slots_(static_cast<std::size_t>(num_slots)), num_tokens_(setting.num_tokens) {
    std::iota(slots_.begin(), slots_.end(), 0);
    if (setting.order == Order::consecutive) {
      const auto calls = static_cast<double>(num_slots / num_tokens_);
      next_ = static_cast<std::int64_t>(calls * begin) * num_tokens_;
      return;
    }
    std::shuffle(slots_.begin(), slots_.end(), random);
    if (setting.order == Order::random) return;
    for (std::int64_t i = 0; i + num_tokens_ <= num_slots; i += num_tokens_) {
      std::sort(slots_.begin() + i, slots_.begin() + i + num_tokens_);
    }
  }

  const std::int32_t* next() {
    if (next_ + num_tokens_ > static_cast<std::int64_t>(slots_.size())) next_ = 0;
    const std::int32_t* slots = slots_.data() + next_;
    next_ += num_tokens_;
    return slots;
  }

 private:
  std::vector<std::int32_t> slots_;
  std::int64_t num_tokens_, next_ = 0;
};

}  // namespace

double Line::Variant::min() const { return *std::min_element(seconds.begin(), seconds.end()); }
double Line::Variant::median() const { return at_part(seconds, 0.5); }

const Line::Variant& Line::floor() const {
  return *std::min_element(variants.begin() + 1, variants.end() - 1,
                           [](const Variant& a, const Variant& b) { return a.median() < b.median(); });
}

Quartiles Line::share_of(const Variant& other) const {
  std::vector<double> shares;
  for (std::size_t r = 0; r < op().seconds.size(); ++r) shares.push_back(other.seconds[r] / op().seconds[r]);
  return {at_part(shares, 0.25), at_part(shares, 0.5), at_part(shares, 0.75)};
}

void Case::Free::operator()(std::byte* memory) const { ::operator delete[](memory, alignment); }

std::byte* Case::memory(std::int64_t bytes, bool huge_pages) {
  const auto size = static_cast<std::size_t>(bytes);
  const std::align_val_t alignment{huge_pages ? 1U << 21 : 4096U};
  auto* memory = static_cast<std::byte*>(::operator new[](size, alignment));
  memory_.emplace_back(memory, Free{alignment});
#ifdef MADV_HUGEPAGE
  if (huge_pages) madvise(memory, size, MADV_HUGEPAGE);
#endif
  std::memset(memory, 0x3c, size);  // about 0.01 in every type, and every page is there
  return memory;
}

Case::Case(const Setting& setting) : positions_(static_cast<std::size_t>(setting.num_tokens)) {
  const auto [num_qo_heads, num_kv_heads, head_dim] = setting.shape;
  const std::int64_t item = ropepool::item_size(setting.dtype), n = setting.num_tokens;
  const std::int64_t q_row = num_qo_heads * head_dim * item, kv_row = num_kv_heads * head_dim * item;
  const bool huge = setting.huge_pages;
  memory_.reserve(7);
  traffic = {n,
             q_row,
             kv_row,
             memory(n * q_row, huge),
             memory(n * kv_row, huge),
             memory(n * kv_row, huge),
             memory(n * q_row, huge),
             memory(n * kv_row, huge),
             memory(setting.num_slots * kv_row, huge),
             memory(setting.num_slots * kv_row, huge),
             nullptr};
  std::iota(positions_.begin(), positions_.end(), 1000);
  args.q = Tensor::contiguous(traffic.q, setting.dtype, {n, num_qo_heads, head_dim});
  args.k = Tensor::contiguous(traffic.k, setting.dtype, {n, num_kv_heads, head_dim});
  args.v = Tensor::contiguous(traffic.v, setting.dtype, {n, num_kv_heads, head_dim});
  args.q_out = Tensor::contiguous(traffic.q_out, setting.dtype, {n, num_qo_heads, head_dim});
  args.k_out = Tensor::contiguous(traffic.k_out, setting.dtype, {n, num_kv_heads, head_dim});
  args.k_pool = Tensor::contiguous(traffic.k_pool, setting.dtype, {setting.num_slots, num_kv_heads, head_dim});
  args.v_pool = Tensor::contiguous(traffic.v_pool, setting.dtype, {setting.num_slots, num_kv_heads, head_dim});
  args.positions = Tensor::contiguous(positions_.data(), ropepool::DType::i64, {n});
  args.head_dim = head_dim;
  args.num_qo_heads = num_qo_heads;
  args.num_kv_heads = num_kv_heads;
  args.rope_base = 500000.0;
}

ropepool::Result<Line> measure(const Setting& given, const std::function<void(double done)>& progress) {
  Setting setting = given;
  setting.num_slots = std::max(setting.num_slots, setting.num_tokens);
  Case data(setting);
  const Traffic& x = data.traffic;
  Line line;
  line.num_slots = setting.num_slots;
  line.bytes = x.num_tokens * (2 * x.q_row + 5 * x.kv_row);

  struct Runner {
    Walk walk;
    std::function<void(const std::int32_t* slots)> run;
  };
  std::vector<Runner> runners;
  std::mt19937 random(1);
  constexpr std::size_t kVariants = 2 + std::size(kAllStores);
  const auto add = [&](const Setting& walked, const char* name, std::function<void(const std::int32_t*)> run) {
    const double begin = static_cast<double>(runners.size()) / kVariants;
    runners.push_back({Walk(walked, setting.num_slots, random, begin), std::move(run)});
    line.variants.push_back({name, {}});
  };
  std::optional<ropepool::Error> failure;
  add(setting, "op", [&](const std::int32_t* slots) {
    data.args.slots = Tensor::contiguous(slots, ropepool::DType::i32, {setting.num_tokens});
    if (auto done = ropepool::rope_pool_fused(data.args); !done) failure = done.error();
  });
  for (const Stores stores : kAllStores) {
    add(setting, to_string(stores), [&, stores](const std::int32_t* slots) {
      Traffic traffic = x;
      traffic.slots = slots;
      copy(traffic, stores);
    });
  }
  Setting whole = setting;
  whole.order = Order::consecutive;
  add(whole, "memcpy", [&](const std::int32_t* slots) {
    Traffic traffic = x;
    traffic.slots = slots;
    copy_whole(traffic);
  });

  // A new order each round: whether the one before left the outputs in the caches decides up to half of a copy's time.
  std::vector<std::size_t> turns(runners.size());
  std::iota(turns.begin(), turns.end(), 0);
  Clock::time_point start = Clock::now();
  double told = 0;
  for (int round = 0; round < 20000 && (round <= kLeastRounds || since(start) < setting.seconds); ++round) {
    std::ranges::shuffle(turns, random);
    for (const std::size_t turn : turns) {
      const std::int32_t* slots = runners[turn].walk.next();
      const Clock::time_point begin = Clock::now();
      runners[turn].run(slots);
      const double seconds = since(begin);
      if (failure) return *failure;
      if (round > 0) line.variants[turn].seconds.push_back(seconds);
    }
    if (round == 0) start = Clock::now();
    if (const double now = since(start); progress && now - told > 0.1) {
      told = now;
      progress(std::min({1.0, now / setting.seconds}));
    }
  }
  return line;
}

void show_progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
}

std::string microseconds(double seconds) { return fmt::format("{:.{}f}", 1e6 * seconds, seconds < 1e-4 ? 2 : 0); }

}  // namespace bench
