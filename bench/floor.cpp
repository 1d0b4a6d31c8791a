#include <cstddef>

#include "floor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "floor.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

struct Regular {
  static void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  static void finish() {}
};

// Rows here are aligned and whole vectors, as the benchmark makes them.
struct Streaming {
  static HWY_INLINE void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
    const hn::ScalableTag<std::uint8_t> d;
    const auto step = static_cast<std::int64_t>(hn::Lanes(d));
    auto* target = reinterpret_cast<std::uint8_t*>(to);
    const auto* source = reinterpret_cast<const std::uint8_t*>(from);
    for (std::int64_t i = 0; i < bytes; i += step) hn::Stream(hn::Load(d, source + i), d, target + i);
  }
  static void finish() { hwy::FlushStream(); }
};

template <class Out, class Pool>
HWY_INLINE void copy(const Traffic& x) {
  for (std::int64_t t = 0; t < x.num_tokens; ++t) {
    const std::int64_t slot = x.slots[t];
    Out::copy(x.q_out + t * x.q_row, x.q + t * x.q_row, x.q_row);
    Out::copy(x.k_out + t * x.kv_row, x.k + t * x.kv_row, x.kv_row);
    Pool::copy(x.k_pool + slot * x.kv_row, x.k + t * x.kv_row, x.kv_row);
    Pool::copy(x.v_pool + slot * x.kv_row, x.v + t * x.kv_row, x.kv_row);
  }
  Out::finish();
  Pool::finish();
}

void regular(const Traffic& x) { copy<Regular, Regular>(x); }
void streaming(const Traffic& x) { copy<Streaming, Streaming>(x); }
void mixed(const Traffic& x) { copy<Regular, Streaming>(x); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bench {
namespace {
HWY_EXPORT(regular);
HWY_EXPORT(streaming);
HWY_EXPORT(mixed);
}  // namespace

void copy_regular(const Traffic& traffic) { HWY_DYNAMIC_DISPATCH(regular)(traffic); }
void copy_streaming(const Traffic& traffic) { HWY_DYNAMIC_DISPATCH(streaming)(traffic); }
void copy_mixed(const Traffic& traffic) { HWY_DYNAMIC_DISPATCH(mixed)(traffic); }
}  // namespace bench
#endif
