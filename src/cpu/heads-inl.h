// Heads of a row: copies of them, and where turned lanes go.
// Included by kernels, which Highway compiles once for each SIMD target.
#if defined(ROPEPOOL_CPU_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEPOOL_CPU_HEADS_INL_H_
#undef ROPEPOOL_CPU_HEADS_INL_H_
#else
#define ROPEPOOL_CPU_HEADS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/rope_pool_fused_call.h"
#include "cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropepool {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line

// memcpy; past the caches but for lines at the ends that are not whole, of which a part would be read again.
template <bool kPastCaches>
HWY_INLINE void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const hn::CappedTag<std::uint8_t, kLine> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  auto* target = reinterpret_cast<std::uint8_t*>(to);
  const auto* source = reinterpret_cast<const std::uint8_t*>(from);
  std::int64_t i = 0;
  if constexpr (kPastCaches) {
    i = std::min(bytes, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & (kLine - 1)));
    if (i > 0) std::memcpy(to, from, static_cast<std::size_t>(i));
    for (const std::int64_t end = i + (bytes - i) / kLine * kLine; i < end; i += step) {
      hn::Stream(hn::LoadU(d, source + i), d, target + i);
    }
  } else {
    for (; i + step <= bytes; i += step) hn::StoreU(hn::LoadU(d, source + i), d, target + i);
  }
  if (i < bytes) std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
}

template <class Type>
struct Heads {
  using Lane = typename Type::Lane;
  std::byte* row;
  std::int64_t stride;

  Heads(const HeadRows& rows, std::int64_t index) : row(rows.row(index)), stride(rows.head_stride) {}
  Lane* operator[](std::int64_t h) const { return reinterpret_cast<Lane*>(row + h * stride); }
};

// Has the L2 cache fetch heads `begin` to `end` of the row that begins `ahead` bytes further: in the L1 cache, which the
// statistics and the angles need, biases took 1.08 times as long.
template <class Type>
HWY_INLINE void fetch(Heads<Type> heads, std::int64_t begin, std::int64_t end, std::int64_t head_dim, std::int64_t ahead) {
  for (std::int64_t h = begin; h < end; ++h) {
    const std::byte* head = reinterpret_cast<const std::byte*>(heads[h]) + ahead;
    const std::byte* behind = head + head_dim * static_cast<std::int64_t>(sizeof(typename Type::Lane));
    for (; head < behind; head += kLine) __builtin_prefetch(head, 0, 2);
  }
}

// Heads of any type, for those who only copy them.
struct Bytes {
  using Lane = std::byte;
};

// ---- Where turned lanes go: `at` counts from the head's first lane

// Past the caches, no line is read before it is written; whole vectors go to their own boundaries only.
template <class Lane, bool kPastCaches>
struct To {
  Lane* head;
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> lanes, std::int64_t at) const {
    // Of less than 16 bytes Highway would write 16.
    if constexpr (kPastCaches && hn::MaxLanes(D()) * sizeof(Lane) >= 16) {
      hn::Stream(lanes, d, head + at);
    } else {
      hn::StoreU(lanes, d, head + at);
    }
  }
  template <class D>
  HWY_INLINE void store(D d, const Two<D>& lanes, std::int64_t at) const {
    store(d, lanes.first, at);
    store(d, lanes.second, at + static_cast<std::int64_t>(hn::Lanes(d)));
  }
  template <class Store>
  HWY_INLINE void each(Store store) const {
    store(*this);
  }
  // Lanes `begin` to `end` as they are; nothing where the head is turned in place.
  HWY_INLINE void copy_lanes(const Lane* from, std::int64_t begin, std::int64_t end) const {
    if (from == head) return;
    copy<kPastCaches>(reinterpret_cast<std::byte*>(head + begin), reinterpret_cast<const std::byte*>(from + begin),
                      (end - begin) * static_cast<std::int64_t>(sizeof(Lane)));
  }
};
template <class Lane, bool kPastCaches>
struct ToBoth {
  To<Lane, kPastCaches> first, second;
  template <class Store>
  HWY_INLINE void each(Store store) const {  // one after the other, for the order of memory
    store(first);
    store(second);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> lanes, std::int64_t at) const {
    first.store(d, lanes, at);
    second.store(d, lanes, at);
  }
  HWY_INLINE void copy_lanes(const Lane* from, std::int64_t begin, std::int64_t end) const {
    first.copy_lanes(from, begin, end);
    second.copy_lanes(from, begin, end);
  }
};

template <class Type, bool kStream>
struct ToHeads {
  static constexpr bool kPastCaches = kStream;
  Heads<Type> heads;
  HWY_INLINE auto operator()(std::int64_t h) const { return To<typename Type::Lane, kPastCaches>{heads[h]}; }
};
template <class Type, bool kStream>
struct ToBothHeads {
  static constexpr bool kPastCaches = kStream;
  Heads<Type> first, second;
  HWY_INLINE auto operator()(std::int64_t h) const { return ToBoth<typename Type::Lane, kPastCaches>{{first[h]}, {second[h]}}; }
};

// Head h of `num_heads` of a row; of rows without gaps, the lines that end in it, since a head may share its last with the
// next.
template <bool kPastCaches, class Type>
HWY_INLINE void copy_head(Heads<Type> to, Heads<Type> from, std::int64_t h, std::int64_t num_heads, std::int64_t bytes) {
  std::int64_t begin = h * to.stride, end = begin + bytes;
  if (kPastCaches && to.stride == bytes && from.stride == bytes) {
    const auto past_line = [&](std::int64_t at) {
      return static_cast<std::int64_t>((reinterpret_cast<std::uintptr_t>(to.row) + static_cast<std::uintptr_t>(at)) &
                                       (kLine - 1));
    };
    if (h > 0) begin = std::max<std::int64_t>(begin - past_line(begin), 0);
    if (h + 1 < num_heads) end = std::max<std::int64_t>(end - past_line(end), 0);
    copy<kPastCaches>(to.row + begin, from.row + begin, end - begin);
  } else {
    copy<kPastCaches>(to.row + begin, from.row + h * from.stride, bytes);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ropepool
HWY_AFTER_NAMESPACE();

#endif
