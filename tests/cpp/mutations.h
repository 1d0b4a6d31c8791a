// One valid call and many ways to make it invalid.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "op_case.h"

namespace ropepool::test {

struct Mutation {
  int code;  // the refusal it is meant for, and the first one it meets
  std::string name;
  std::string first_line;  // "" where the contract leaves the words open
  std::function<void(OpCase&)> apply;
};

// 4 tokens, 4 query heads, 2 KV heads, head_dim 8, 16 slots. With margins so wide that a descriptor may be made larger by a
// half or get a wider dtype without reaching another array.
inline OpCase valid_case(DType dtype = DType::f32) { return OpCase({dtype, 4, 4, 2, 8, 16, DType::i64, DType::i32}, 1, 4); }

inline Tensor moved(Tensor tensor, std::int64_t bytes) {
  if (tensor.data != nullptr) tensor.data = static_cast<std::byte*>(tensor.data) + bytes;
  return tensor;
}
inline Tensor shaped(const Tensor& tensor, const Shape& shape) {
  Tensor result = Tensor::contiguous(tensor.data, tensor.dtype, shape);
  result.device = tensor.device;
  result.read_only = tensor.read_only;
  return result;
}
inline std::vector<Tensor*> float_arrays(RopePoolFusedArgs& a) {
  return {&a.q, &a.k, &a.v, &a.k_pool, &a.v_pool, &a.q_out, &a.k_out};
}
inline std::vector<Tensor*> all_arrays(RopePoolFusedArgs& a) {
  return {&a.q, &a.k, &a.v, &a.k_pool, &a.v_pool, &a.q_out, &a.k_out, &a.positions, &a.slots};
}
inline void set_dtypes(RopePoolFusedArgs& a, DType dtype) {
  for (Tensor* t : float_arrays(a)) t->dtype = dtype;
}

// A call whose arrays all have these sizes; its memory is what the valid call has.
inline void resize(RopePoolFusedArgs& a, std::int64_t tokens, std::int64_t qo, std::int64_t kv, std::int64_t head_dim) {
  a.num_qo_heads = qo;
  a.num_kv_heads = kv;
  a.head_dim = head_dim;
  for (Tensor* t : {&a.q, &a.q_out}) *t = shaped(*t, {tokens, qo, head_dim});
  for (Tensor* t : {&a.k, &a.v, &a.k_out}) *t = shaped(*t, {tokens, kv, head_dim});
  for (Tensor* t : {&a.k_pool, &a.v_pool}) *t = shaped(*t, {t->shape[0], kv, head_dim});
  for (Tensor* t : {&a.positions, &a.slots}) *t = shaped(*t, {tokens});
}

// All of them, in the order of their codes.
const std::vector<Mutation>& mutations();

}  // namespace ropepool::test
