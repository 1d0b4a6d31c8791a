// Calls with random layouts.
#pragma once

#include "op_case.h"

namespace ropepool::test {

// A view of its own memory with a unit innermost stride: the other two axes in either order, with gaps, turned around, and for
// inputs repeated (stride 0).
inline Tensor random_view(Memory& memory, Random& random, DType dtype, const Shape& shape, bool input) {
  Strides strides = shape;
  strides[2] = shape[2] == 1 ? uniform(random, -3, 3) : 1;
  std::int64_t span = shape[2] + uniform(random, 0, 2) * uniform(random, 0, 9);
  const int inner = uniform(random, 0, 1) == 0 ? 0 : 1;
  for (const int axis : {inner, 1 - inner}) {
    strides[axis] = uniform(random, 0, 3) == 0 ? -span : span;
    span *= std::max<std::int64_t>(shape[axis], 1);
    span += uniform(random, 0, 1) * uniform(random, 0, 20);
    if (shape[axis] == 1) strides[axis] = uniform(random, -1000, 1000);
    if (input && uniform(random, 0, 9) == 0) strides[axis] = 0;
  }
  return memory.make(dtype, shape, strides);
}

inline OpCase random_views(Random& random, DType dtype) {
  constexpr std::int64_t kHeadDims[] = {2, 4, 6, 8, 10, 16, 24, 32, 40, 64, 80, 128};
  constexpr std::int64_t kHeads[] = {1, 1, 2, 3, 5, 8};
  OpCase c;
  RopePoolFusedArgs& a = c.args;
  a.head_dim = kHeadDims[uniform(random, 0, 11)];
  a.num_qo_heads = kHeads[uniform(random, 0, 5)];
  a.num_kv_heads = kHeads[uniform(random, 0, 5)];
  a.rope_base = uniform(random, 0, 1) == 0 ? 1e4 : 5e5;
  a.angles = uniform(random, 0, 3) == 0 ? Angles::float32 : Angles::exact;
  const std::int64_t tokens = uniform(random, 0, 3) == 0 ? uniform(random, 60, 90) : uniform(random, 0, 20);
  const std::int64_t slots = uniform(random, 1, 60);
  const Shape q_shape{tokens, a.num_qo_heads, a.head_dim}, k_shape{tokens, a.num_kv_heads, a.head_dim};
  const Shape pool_shape{slots, a.num_kv_heads, a.head_dim};
  a.q = random_view(c.memory, random, dtype, q_shape, true);
  a.k = random_view(c.memory, random, dtype, k_shape, true);
  a.v = random_view(c.memory, random, dtype, k_shape, true);
  a.positions = c.memory.make(uniform(random, 0, 1) == 0 ? DType::i32 : DType::i64, {tokens});
  a.slots = c.memory.make(uniform(random, 0, 1) == 0 ? DType::i32 : DType::i64, {tokens});
  a.k_pool = random_view(c.memory, random, dtype, pool_shape, false);
  a.v_pool = random_view(c.memory, random, dtype, pool_shape, false);
  a.q_out = random_view(c.memory, random, dtype, q_shape, false);
  a.k_out = random_view(c.memory, random, dtype, k_shape, false);
  if (uniform(random, 0, 4) == 0) a.q = a.q_out;  // in place
  if (uniform(random, 0, 4) == 0) a.k = a.k_out;
  if (uniform(random, 0, 9) == 0) a.v = random_view(c.memory, random, dtype, k_shape, true);
  c.fill_inputs(random);
  for (std::int64_t t = 0; t < tokens; ++t) {
    set_index(a.slots, t, uniform(random, -3, slots - 1));
    set_index(a.positions, t, uniform(random, 0, 3) == 0 ? uniform(random, -2147483647, 2147483647) : uniform(random, 0, 9000));
  }
  return c;
}

}  // namespace ropepool::test
