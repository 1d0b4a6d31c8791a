#include <cstddef>

#include "floor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/floor.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "core/executor.h"

HWY_BEFORE_NAMESPACE();
namespace bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Bytes = hn::ScalableTag<std::uint8_t>;

template <bool kStream>
HWY_INLINE void store(hn::Vec<Bytes> value, std::byte* to) {
  const Bytes d;
  if constexpr (kStream) {
    hn::Stream(value, d, reinterpret_cast<std::uint8_t*>(to));
  } else {
    hn::StoreU(value, d, reinterpret_cast<std::uint8_t*>(to));
  }
}

HWY_INLINE hn::Vec<Bytes> load(const std::byte* from) {
  return hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(from));
}

// Bytes before `to` is aligned to a vector; 0 where stores need not be.
template <bool kStream>
HWY_INLINE std::int64_t unaligned(const std::byte* to, std::int64_t bytes) {
  if (!kStream) return 0;
  const auto step = static_cast<std::uintptr_t>(hn::Lanes(Bytes()));
  return std::min(bytes, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & (step - 1)));
}

template <bool kStream>
HWY_INLINE void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const auto step = static_cast<std::int64_t>(hn::Lanes(Bytes()));
  std::int64_t i = unaligned<kStream>(to, bytes);
  std::memcpy(to, from, static_cast<std::size_t>(i));
  // Four at once: 5 % less time than one by one where rows are in the second-level cache.
  for (; i + 4 * step <= bytes; i += 4 * step) {
    const auto a = load(from + i), b = load(from + i + step), c = load(from + i + 2 * step), e = load(from + i + 3 * step);
    store<kStream>(a, to + i);
    store<kStream>(b, to + i + step);
    store<kStream>(c, to + i + 2 * step);
    store<kStream>(e, to + i + 3 * step);
  }
  for (; i + step <= bytes; i += step) store<kStream>(load(from + i), to + i);
  std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
}

template <bool kStreamOut, bool kStreamPool, bool kPrefetch>
HWY_INLINE void copy_tokens(const Traffic& x, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kAhead = 8, kLine = 64;  // tokens; bytes
  const auto fetch = [&](std::int64_t t) HWY_ATTR {
    for (std::int64_t i = 0; i < x.kv_row; i += kLine) {
      __builtin_prefetch(x.k_pool + x.slots[t] * x.kv_row + i, 1);
      __builtin_prefetch(x.v_pool + x.slots[t] * x.kv_row + i, 1);
    }
  };
  if constexpr (kPrefetch) {
    for (std::int64_t t = begin; t < std::min(begin + kAhead, end); ++t) fetch(t);
  }
  for (std::int64_t t = begin; t < end; ++t) {
    if constexpr (kPrefetch) {
      if (t + kAhead < end) fetch(t + kAhead);
    }
    const std::int64_t slot = x.slots[t];
    copy_row<kStreamOut>(x.q_out + t * x.q_row, x.q + t * x.q_row, x.q_row);
    copy_row<kStreamOut>(x.k_out + t * x.kv_row, x.k + t * x.kv_row, x.kv_row);
    copy_row<kStreamPool>(x.k_pool + slot * x.kv_row, x.k + t * x.kv_row, x.kv_row);
    copy_row<kStreamPool>(x.v_pool + slot * x.kv_row, x.v + t * x.kv_row, x.kv_row);
  }
  if (kStreamOut || kStreamPool) hwy::FlushStream();  // before another thread is told that this range is done
}

void copy_range(const Traffic& x, Stores stores, std::int64_t begin, std::int64_t end) {
  switch (stores) {
    case Stores::regular:
      return copy_tokens<false, false, false>(x, begin, end);
    case Stores::prefetched:
      return copy_tokens<false, false, true>(x, begin, end);
    case Stores::mixed:
      return copy_tokens<false, true, false>(x, begin, end);
    case Stores::streaming:
      return copy_tokens<true, true, false>(x, begin, end);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bench {
namespace {

HWY_EXPORT(copy_range);

// Two parts that are worth a second thread, as in the op.
constexpr std::int64_t kPartBytes = 128 * 1024;

template <class Body>
void split(const Traffic& x, Body body) {
  const std::int64_t parts = std::min(x.num_tokens, x.num_tokens * (2 * x.q_row + 5 * x.kv_row) / kPartBytes);
  if (parts <= 2) {
    body(0, x.num_tokens);
    return;
  }
  ropepool::own_executor().parallel_for(
      parts, [&](std::int64_t begin, std::int64_t end) { body(x.num_tokens * begin / parts, x.num_tokens * end / parts); });
}

}  // namespace

const char* to_string(Stores stores) {
  constexpr const char* kNames[] = {"regular", "prefetched", "mixed", "streaming"};
  return kNames[static_cast<int>(stores)];
}

void copy(const Traffic& traffic, Stores stores) {
  split(traffic, [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(copy_range)(traffic, stores, begin, end); });
}

void copy_whole(const Traffic& x) {
  split(x, [&](std::int64_t begin, std::int64_t end) {
    const auto part = [&](std::byte* to, const std::byte* from, std::int64_t row, std::int64_t offset) {
      std::memcpy(to + (offset + begin) * row, from + begin * row, static_cast<std::size_t>((end - begin) * row));
    };
    part(x.q_out, x.q, x.q_row, 0);
    part(x.k_out, x.k, x.kv_row, 0);
    part(x.k_pool, x.k, x.kv_row, x.slots[0]);
    part(x.v_pool, x.v, x.kv_row, x.slots[0]);
  });
}

}  // namespace bench
#endif
