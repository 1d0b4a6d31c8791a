// Whether strided arrays share bytes.
#pragma once

#include <ropepool/tensor.h>

namespace ropepool {

// All take tensors with a known item size whose lengths are not negative and whose bytes' offsets fit in 63 bits.

// From the first byte to past the last one; empty where the tensor has no element.
struct ByteRange {
  std::uint64_t begin, end;
};
inline bool intersect(ByteRange a, ByteRange b) { return a.begin < b.end && b.begin < a.end; }

// True where two elements of `tensor` share a byte, or where that can't be told cheaply.
bool overlaps_itself(const Tensor& tensor);

// For tensors whose ranges intersect: true where they share a byte, or where that can't be told cheaply. Interleaved views with
// a common period, such as the heads of one packed QKV or the halves of a unified pool, are told apart.
bool may_overlap(const Tensor& a, const Tensor& b);

// The same elements at the same places.
bool same_view(const Tensor& a, const Tensor& b);

}  // namespace ropepool
