// The contract of rope_pool_fused once more, one predicate a rule, as plainly as it can be said: what refusals a call must
// meet.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "byte_set.h"
#include "op_case.h"

namespace ropepool::test {

class ContractModel {
 public:
  explicit ContractModel(const RopePoolFusedArgs& args) : a(args) {}

  // Whether bytes are to be compared of an array that no machine has: with more elements than can be walked here, or with some
  // below address 0. What is said of it is of no consequence.
  bool is_beyond_comparison() const {
    for (const Tensor* t : arrays()) {
      if (!decidable(*t)) continue;
      Real elements = 1, low = static_cast<Real>(reinterpret_cast<std::uintptr_t>(t->data));
      for (int axis = 0; axis < t->rank(); ++axis) {
        elements *= static_cast<Real>(t->shape[axis]);
        low += static_cast<Real>(t->shape[axis] - 1) * static_cast<Real>(std::min<std::int64_t>(t->strides[axis], 0)) *
               static_cast<Real>(item_size(t->dtype));
      }
      if (elements > 1e5L || low < 0) return true;
    }
    return false;
  }

  // The numbers of all that apply to a call without a Rope, in order.
  std::vector<int> refusals() const {
    const bool applies[] = {r1(),  r2(),  r3(),  r4(),  r5(),  r6(),  r7(),  r8(),  r9(),  r10(), r11(),
                            r12(), r13(), r14(), r15(), r16(), r17(), r18(), r19(), r20(), r21()};
    std::vector<int> result;
    for (std::size_t i = 0; i < std::size(applies); ++i) {
      if (applies[i]) result.push_back(static_cast<int>(i) + 1);
    }
    return result;
  }

 private:
  using Tensors = std::vector<const Tensor*>;
  Tensors arrays() const { return {&a.q, &a.k, &a.v, &a.positions, &a.slots, &a.k_pool, &a.v_pool, &a.q_out, &a.k_out}; }
  Tensors floats() const { return {&a.q, &a.k, &a.v, &a.k_pool, &a.v_pool}; }
  Tensors written() const { return {&a.q_out, &a.k_out, &a.k_pool, &a.v_pool}; }
  Tensors inputs() const { return {&a.q, &a.k, &a.v, &a.positions, &a.slots}; }

  static bool is_index(DType t) { return t == DType::i32 || t == DType::i64; }
  static bool has_shape(const Tensor& t, const Shape& shape) { return t.shape == shape; }

  bool r1() const { return a.q.rank() != 3 || a.k.rank() != 3 || a.v.rank() != 3; }
  bool r2() const { return a.positions.rank() != 1 || a.slots.rank() != 1; }
  bool r3() const { return a.k_pool.rank() != 3 || a.v_pool.rank() != 3; }
  bool r4() const { return !(a.q.rank() == 3 && has_shape(a.q, {a.q.shape[0], a.num_qo_heads, a.head_dim})); }
  // Where q has no 3 axes, nobody knows the number of tokens, and any will do.
  bool r5() const {
    return a.k.rank() != 3 || (a.q.rank() == 3 && a.k.shape[0] != a.q.shape[0]) || a.k.shape[1] != a.num_kv_heads ||
           a.k.shape[2] != a.head_dim;
  }
  bool r6() const { return a.v.shape != a.k.shape; }
  bool r7() const {
    if (a.positions.rank() != 1 || a.slots.rank() != 1 || a.positions.shape[0] != a.slots.shape[0]) return true;
    return a.q.rank() == 3 && a.positions.shape[0] != a.q.shape[0];
  }
  bool r8() const { return !(a.k_pool.rank() == 3 && has_shape(a.k_pool, {a.k_pool.shape[0], a.num_kv_heads, a.head_dim})); }
  bool r9() const { return a.v_pool.shape != a.k_pool.shape; }
  bool r10() const { return a.k.dtype != a.q.dtype || a.v.dtype != a.q.dtype; }
  bool r11() const { return a.k_pool.dtype != a.q.dtype || a.v_pool.dtype != a.q.dtype; }
  bool r12() const {
    for (const Tensor* t : floats()) {
      if (t->dtype != DType::f32 && t->dtype != DType::f16 && t->dtype != DType::bf16) return true;
    }
    return false;
  }
  bool r13() const { return !is_index(a.positions.dtype) || !is_index(a.slots.dtype); }
  bool r14() const { return a.head_dim < 1 || a.num_qo_heads < 1 || a.num_kv_heads < 1 || a.head_dim % 2 != 0; }
  bool r15() const {
    return !(a.rope_base > 0 && a.rope_base <= std::numeric_limits<double>::max()) ||
           (a.angles != Angles::exact && a.angles != Angles::float32);
  }

  static bool bad_placement(const Tensor& t) {
    for (const std::int64_t length : t.shape) {
      if (length < 0) return true;
    }
    if (t.empty()) return false;
    const std::int64_t item = item_size(t.dtype);
    if (t.data == nullptr || t.unaligned) return true;
    if (item > 0 && reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(item) != 0) return true;
    Real low = 0, high = static_cast<Real>(item);
    for (int axis = 0; axis < std::min(t.rank(), Dims::kMaxRank); ++axis) {
      const Real elements = static_cast<Real>(t.shape[axis] - 1) * static_cast<Real>(t.strides[axis]);
      if (elements < -0x1p63L || elements >= 0x1p63L) return true;  // of whatever size
      const Real reach = elements * static_cast<Real>(item);
      (reach < 0 ? low : high) += reach;
    }
    return low < -0x1p63L || high >= 0x1p63L;
  }
  static bool bad_layout(const Tensor& t) {
    if (bad_placement(t)) return true;
    if (t.empty()) return false;
    const int last = t.rank() - 1;
    return last >= 0 && last < Dims::kMaxRank && t.shape[last] > 1 && t.strides[last] != 1;
  }
  bool r16() const {
    for (const Tensor* t : arrays()) {
      if (t->given() && bad_layout(*t)) return true;
    }
    return false;
  }
  bool r17() const {
    for (const auto& [out, in] : {std::pair{&a.q_out, &a.q}, {&a.k_out, &a.k}}) {
      if (!out->given() || out->shape != in->shape || out->dtype != in->dtype) return true;
    }
    for (const Tensor* t : written()) {
      if (t->read_only) return true;
    }
    return false;
  }
  bool r18() const {
    if (a.q.device.type != DeviceType::cpu) return true;
    for (const Tensor* t : arrays()) {
      if (t->given() && t->device != a.q.device) return true;
    }
    return false;
  }

  // Where bytes lie can be decided for arrays with elements of a known size that can be found, with gaps or without.
  static bool decidable(const Tensor& t) {
    return t.given() && item_size(t.dtype) > 0 && t.rank() <= Dims::kMaxRank && !bad_placement(t);
  }
  static bool same_array(const Tensor& x, const Tensor& y) {
    if (x.data != y.data || x.dtype != y.dtype || x.shape != y.shape) return false;
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (x.shape[axis] > 1 && x.strides[axis] != y.strides[axis]) return false;
    }
    return true;
  }
  bool r19() const {
    for (const Tensor* w : written()) {
      if (!decidable(*w)) continue;
      if (shares_bytes_with_itself(*w)) return true;
      for (const Tensor* other : written()) {
        if (other != w && decidable(*other) && w->device == other->device && share_bytes(*w, *other)) return true;
      }
      for (const Tensor* input : inputs()) {
        const bool in_place = (w == &a.q_out && input == &a.q) || (w == &a.k_out && input == &a.k);
        if (!decidable(*input) || w->device != input->device) continue;
        if (!(in_place && same_array(*w, *input)) && share_bytes(*w, *input)) return true;
      }
    }
    return false;
  }

  static bool has_values(const Tensor& t) {
    return t.rank() == 1 && is_index(t.dtype) && t.device.type == DeviceType::cpu && !bad_placement(t);
  }
  bool r20() const {
    if (!has_values(a.slots) || a.k_pool.rank() != 3) return false;
    for (std::int64_t t = 0; t < a.slots.shape[0]; ++t) {
      if (index_at(a.slots, t) >= a.k_pool.shape[0]) return true;
    }
    return false;
  }
  bool r21() const {
    if (!has_values(a.positions)) return false;
    for (std::int64_t t = 0; t < a.positions.shape[0]; ++t) {
      const std::int64_t position = index_at(a.positions, t);
      if (position > 2147483647 || position < -2147483647) return true;
    }
    return false;
  }

  const RopePoolFusedArgs& a;
};

}  // namespace ropepool::test
