// A call of the C interface with the arguments of a C++ one, but for its rope.
#pragma once

#include <cstdint>
#include <vector>

#include <ropepool/c_api.h>
#include <ropepool/rope_pool_fused.h>

namespace ropepool::test {

// A Tensor as DLPack has it; the arrays live as long as this does.
struct DlView {
  std::vector<std::int64_t> shape, strides;
  DLTensor tensor{};

  DlView() = default;
  explicit DlView(const Tensor& source) {
    shape.assign(source.shape.begin(), source.shape.end());
    strides.assign(source.strides.begin(), source.strides.end());
    while (static_cast<int>(shape.size()) < source.rank()) {
      shape.push_back(1);
      strides.push_back(1);
    }
    tensor.data = source.data;
    tensor.device = {source.device.type == DeviceType::cpu     ? kDLCPU
                     : source.device.type == DeviceType::cuda  ? kDLCUDA
                     : source.device.type == DeviceType::metal ? kDLMetal
                                                               : kDLVulkan,
                     source.device.index};
    tensor.ndim = source.rank();
    tensor.dtype = type_of(source.dtype);
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  DlView(const DlView&) = delete;
  DlView& operator=(const DlView&) = delete;

  static DLDataType type_of(DType dtype) {
    switch (dtype) {
      case DType::f32:
        return {kDLFloat, 32, 1};
      case DType::f16:
        return {kDLFloat, 16, 1};
      case DType::bf16:
        return {kDLBfloat, 16, 1};
      case DType::f64:
        return {kDLFloat, 64, 1};
      case DType::i8:
        return {kDLInt, 8, 1};
      case DType::i16:
        return {kDLInt, 16, 1};
      case DType::i32:
        return {kDLInt, 32, 1};
      case DType::i64:
        return {kDLInt, 64, 1};
      case DType::u8:
        return {kDLUInt, 8, 1};
      case DType::u16:
        return {kDLUInt, 16, 1};
      case DType::u32:
        return {kDLUInt, 32, 1};
      case DType::u64:
        return {kDLUInt, 64, 1};
      case DType::boolean:
        return {6, 8, 1};
      case DType::complex64:
        return {kDLComplex, 64, 1};
      case DType::complex128:
        return {kDLComplex, 128, 1};
      default:
        return {kDLOpaqueHandle, 16, 1};
    }
  }
};

class CCall {
 public:
  explicit CCall(const RopePoolFusedArgs& a)
      : q(a.q),
        k(a.k),
        v(a.v),
        positions(a.positions),
        slots(a.slots),
        k_pool(a.k_pool),
        v_pool(a.v_pool),
        q_out(a.q_out),
        k_out(a.k_out),
        rope_sets(a.rope_sets) {
    if (a.q_out.given()) q_out_pointer = &q_out.tensor;
    if (a.k_out.given()) k_out_pointer = &k_out.tensor;
    options.size = sizeof options;
    options.head_dim = a.head_dim;
    options.num_qo_heads = a.num_qo_heads;
    options.num_kv_heads = a.num_kv_heads;
    options.rope_base = a.rope_base;
    options.angles = static_cast<std::int32_t>(a.angles);
    if (a.rope_sets.given()) options.rope_sets = &rope_sets.tensor;
  }
  int run() const {
    return ropepool_rope_pool_fused_with(&q.tensor, &k.tensor, &v.tensor, &positions.tensor, &slots.tensor, &k_pool.tensor,
                                         &v_pool.tensor, q_out_pointer, k_out_pointer, &options);
  }

  DlView q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, rope_sets;
  const DLTensor *q_out_pointer = nullptr, *k_out_pointer = nullptr;
  ropepool_rope_pool_fused_options options{};
};

}  // namespace ropepool::test
