// Whether strided arrays share bytes.
#pragma once

#include <ropepool/tensor.h>

namespace ropepool {

// Both take tensors with a known item size whose lengths are not negative and whose bytes' offsets fit in 63 bits.

// True where two elements of `tensor` share a byte, or where that can't be told cheaply.
bool overlaps_itself(const Tensor& tensor);

// True where `a` and `b` share a byte, or where that can't be told cheaply. Interleaved views with a common period, such as
// the heads of one packed QKV or the halves of a unified pool, are told apart.
bool may_overlap(const Tensor& a, const Tensor& b);

// The same elements at the same places.
bool same_view(const Tensor& a, const Tensor& b);

}  // namespace ropepool
