// One-dimensional arrays of int32 or int64: positions and slots.
#pragma once

#include <cstdint>
#include <utility>

#include <ropepool/tensor.h>

namespace ropepool {

// Calls f with the array's data as const int32_t* or const int64_t*. The dtype is one of the two.
template <class F>
void visit_index_array(const void* data, DType dtype, F&& f) {
  if (dtype == DType::i32) {
    f(static_cast<const std::int32_t*>(data));
  } else {
    f(static_cast<const std::int64_t*>(data));
  }
}
template <class F>
void visit_index_array(const Tensor& tensor, F&& f) {
  visit_index_array(tensor.data, tensor.dtype, std::forward<F>(f));
}

// One read of memory that another thread may write meanwhile: the value that is checked is the value that is used.
template <class T>
std::int64_t load_once(const T* value) {
  return __atomic_load_n(value, __ATOMIC_RELAXED);
}

}  // namespace ropepool
