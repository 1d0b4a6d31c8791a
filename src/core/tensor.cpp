#include <ropepool/tensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/dtype.h"

namespace ropepool {

std::int64_t item_size(DType dtype) { return item_size_of(dtype); }

std::string to_string(DType dtype) {
  const std::string_view name = name_of(dtype);
  return std::string(name.empty() ? "an unsupported type" : name);
}

std::string to_string(const Dims& dims) {
  if (dims.rank() == 1) return fmt::format("({},)", dims[0]);
  return fmt::format("({}{})", fmt::join(dims, ", "), dims.rank() > Dims::kMaxRank ? ", ..." : "");
}

std::string to_string(const Device& device) {
  switch (device.type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceType::metal:
      return fmt::format("metal:{}", device.index);
    case DeviceType::other:
      break;
  }
  return "another device";
}

Tensor Tensor::contiguous(void* data, DType dtype, const Shape& shape) {
  Tensor tensor{data, dtype, shape, {}, {}, false, false};
  tensor.set_contiguous();
  return tensor;
}

Tensor Tensor::contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return contiguous(data, dtype, Shape(shape));
}

Tensor Tensor::contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor = contiguous(const_cast<void*>(data), dtype, Shape(shape));
  tensor.read_only = true;
  return tensor;
}

}  // namespace ropepool
