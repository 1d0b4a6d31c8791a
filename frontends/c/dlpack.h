// DLPack's tensors as ropepool's.
#pragma once

#include <bit>
#include <cstdint>

#include <dlpack/dlpack.h>

#include <ropepool/tensor.h>

#include "core/dtype.h"

namespace ropepool {

inline DType from_dlpack(DLDataType type) {
  constexpr auto key = [](int code, int bits) {
    return std::bit_cast<std::uint32_t>(DLDataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1});
  };
  constexpr int kBool = 6;  // kDLBool of DLPack 0.8
  switch (std::bit_cast<std::uint32_t>(type)) {
    case key(kDLFloat, 32):
      return DType::f32;
    case key(kDLFloat, 16):
      return DType::f16;
    case key(kDLBfloat, 16):
      return DType::bf16;
    case key(kDLInt, 32):
      return DType::i32;
    case key(kDLInt, 64):
      return DType::i64;
    case key(kDLFloat, 64):
      return DType::f64;
    case key(kBool, 8):
      return DType::boolean;
    case key(kDLInt, 8):
      return DType::i8;
    case key(kDLInt, 16):
      return DType::i16;
    case key(kDLUInt, 8):
      return DType::u8;
    case key(kDLUInt, 16):
      return DType::u16;
    case key(kDLUInt, 32):
      return DType::u32;
    case key(kDLUInt, 64):
      return DType::u64;
    case key(kDLComplex, 64):
      return DType::complex64;
    case key(kDLComplex, 128):
      return DType::complex128;
    default:
      return other_dtype(type.code, type.bits, type.lanes & 0xFFu);
  }
}

inline Device from_dlpack(DLDevice device) {
  switch (static_cast<int>(device.device_type)) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
      return {DeviceType::cpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged:
      return {DeviceType::cuda, device.device_id};
    case kDLMetal:
      return {DeviceType::metal, device.device_id};
    default:
      return {DeviceType::other, device.device_id};
  }
}

// Into a new Tensor.
inline void from_dlpack(const DLTensor& source, Tensor& tensor) {
  if (source.data != nullptr) tensor.data = static_cast<std::byte*>(source.data) + source.byte_offset;
  tensor.dtype = from_dlpack(source.dtype);
  const int rank = std::max(source.ndim, 0);
  tensor.shape.set_rank(rank);
  tensor.strides.set_rank(rank);
  std::uint64_t stride = 1;  // in a row-major array without gaps, which is what no strides mean
  for (int axis = std::min(rank, Dims::kMaxRank) - 1; axis >= 0; --axis) {
    tensor.shape[axis] = source.shape[axis];
    tensor.strides[axis] = source.strides != nullptr ? source.strides[axis] : static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(source.shape[axis]);  // may overflow in a shape that every op refuses
  }
  if (source.device.device_type != kDLCPU) tensor.device = from_dlpack(source.device);
}

}  // namespace ropepool
