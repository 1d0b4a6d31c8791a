// Which bytes a strided array covers, one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ropepool/tensor.h>

namespace ropepool::test {

// The address of every byte of every element, sorted; an address that two elements share is there twice.
inline std::vector<std::int64_t> bytes_of(const Tensor& tensor) {
  if (tensor.empty()) return {};
  std::vector<std::int64_t> offsets = {reinterpret_cast<std::int64_t>(tensor.data)};
  const std::int64_t item = item_size(tensor.dtype);
  const auto spread = [&](std::int64_t length, std::int64_t stride) {
    std::vector<std::int64_t> result;
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < length; ++i) result.push_back(offset + i * stride);
    }
    offsets = std::move(result);
  };
  for (int axis = 0; axis < tensor.rank(); ++axis) spread(tensor.shape[axis], tensor.strides[axis] * item);
  spread(item, 1);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

inline bool share_bytes(const Tensor& a, const Tensor& b) {
  const auto x = bytes_of(a), y = bytes_of(b);
  for (auto i = x.begin(), j = y.begin(); i != x.end() && j != y.end();) {
    if (*i == *j) return true;
    *i < *j ? ++i : ++j;
  }
  return false;
}

inline bool shares_bytes_with_itself(const Tensor& tensor) {
  const auto bytes = bytes_of(tensor);
  return std::adjacent_find(bytes.begin(), bytes.end()) != bytes.end();
}

}  // namespace ropepool::test
