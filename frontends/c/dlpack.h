// DLPack's tensors as ropepool's.
#pragma once

#include <dlpack/dlpack.h>

#include <ropepool/tensor.h>

#include "core/dtype.h"

namespace ropepool {

inline DType from_dlpack(DLDataType type) {
  struct Row {
    int code, bits;
    DType dtype;
  };
  constexpr Row kRows[] = {
      {kDLFloat, 32, DType::f32},
      {kDLFloat, 16, DType::f16},
      {kDLBfloat, 16, DType::bf16},
      {kDLInt, 32, DType::i32},
      {kDLInt, 64, DType::i64},
      {kDLFloat, 64, DType::f64},
      {6 /* kDLBool of DLPack 0.8 */, 8, DType::boolean},
      {kDLInt, 8, DType::i8},
      {kDLInt, 16, DType::i16},
      {kDLUInt, 8, DType::u8},
      {kDLUInt, 16, DType::u16},
      {kDLUInt, 32, DType::u32},
      {kDLUInt, 64, DType::u64},
      {kDLComplex, 64, DType::complex64},
      {kDLComplex, 128, DType::complex128},
  };
  for (const Row& row : kRows) {
    if (type.lanes == 1 && row.code == type.code && row.bits == type.bits) return row.dtype;
  }
  return other_dtype(type.code, type.bits, type.lanes & 0xFFu);
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
  const int rank = std::max(source.ndim, 0);
  if (source.data != nullptr) tensor.data = static_cast<std::byte*>(source.data) + source.byte_offset;
  tensor.dtype = from_dlpack(source.dtype);
  tensor.shape.assign(source.shape, rank);
  if (source.strides != nullptr) {
    tensor.strides.assign(source.strides, rank);
  } else {
    tensor.set_contiguous();
  }
  tensor.device = from_dlpack(source.device);
}

}  // namespace ropepool
