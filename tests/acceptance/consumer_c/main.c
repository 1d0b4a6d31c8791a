/* A C program that knows the installed header only. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ropepool/c_api.h>

static DLTensor tensor(void* data, uint8_t code, uint8_t bits, int ndim, int64_t* shape) {
  DLTensor result;
  memset(&result, 0, sizeof result);
  result.data = data;
  result.device.device_type = kDLCPU;
  result.dtype.code = code;
  result.dtype.bits = bits;
  result.dtype.lanes = 1;
  result.ndim = ndim;
  result.shape = shape;
  return result;
}

int main(void) {
  float q[] = {1, 2, 3, 4}, k[] = {1, 2, 3, 4}, v[] = {5, 6, 7, 8};
  float k_pool[] = {99, 99, 99, 99, 99, 99, 99, 99}, v_pool[] = {99, 99, 99, 99, 99, 99, 99, 99};
  const float rotated[] = {-1.984111f, 1.959901f, 2.462378f, 4.019800f};
  int32_t positions[] = {1}, slots[] = {1};
  int64_t heads_shape[] = {1, 1, 4}, tokens_shape[] = {1}, pool_shape[] = {2, 1, 4}, wrong_shape[] = {1, 2, 2};
  const DLTensor tq = tensor(q, kDLFloat, 32, 3, heads_shape), tk = tensor(k, kDLFloat, 32, 3, heads_shape);
  const DLTensor tv = tensor(v, kDLFloat, 32, 3, heads_shape), wrong_v = tensor(v, kDLFloat, 32, 3, wrong_shape);
  const DLTensor tpositions = tensor(positions, kDLInt, 32, 1, tokens_shape),
                 tslots = tensor(slots, kDLInt, 32, 1, tokens_shape);
  const DLTensor tk_pool = tensor(k_pool, kDLFloat, 32, 3, pool_shape), tv_pool = tensor(v_pool, kDLFloat, 32, 3, pool_shape);
  ropepool_rope_pool_fused_options options;
  ropepool_rope* rope;
  int i, number;

  number = ropepool_rope_pool_fused(&tq, &tk, &wrong_v, &tpositions, &tslots, &tk_pool, &tv_pool, &tq, &tk, 4, 1, 1, 10000.0);
  if (number != 6 ||
      strncmp(ropepool_last_error_message(), "v shape must match k shape, got (1, 2, 2) vs (1, 1, 4)", 54) != 0) {
    printf("not refused as it should be: %d %s\n", number, ropepool_last_error_message());
    return 1;
  }
  puts(ropepool_last_error_message());
  if (q[0] != 1 || k_pool[4] != 99) return 1;

  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.head_dim = 4;
  options.num_qo_heads = options.num_kv_heads = 1;
  options.rope_base = 10000.0;
  options.num_threads = 1;
  number = ropepool_rope_pool_fused_with(&tq, &tk, &tv, &tpositions, &tslots, &tk_pool, &tv_pool, &tq, &tk, &options);
  if (number != ROPEPOOL_OK) {
    puts(ropepool_last_error_message());
    return 1;
  }
  for (i = 0; i < 4; ++i) {
    if (fabsf(q[i] - rotated[i]) > 1e-6f || k_pool[4 + i] != k[i] || v_pool[4 + i] != v[i] || k_pool[i] != 99 ||
        v_pool[i] != 99) {
      printf("lane %d is wrong: %f\n", i, q[i]);
      return 1;
    }
  }

  /* The same from a config, with q and k turned back. */
  if (ropepool_rope_from_config("{\"head_dim\": 4, \"rope_theta\": 10000.0}", NULL, 0, &rope) != ROPEPOOL_OK) {
    puts(ropepool_last_error_message());
    return 1;
  }
  options.rope_base = 0;
  options.rope = rope;
  positions[0] = -1;
  number = ropepool_rope_pool_fused_with(&tq, &tk, &tv, &tpositions, &tslots, &tk_pool, &tv_pool, &tq, &tk, &options);
  ropepool_rope_free(rope);
  for (i = 0; i < 4; ++i) {
    if (number != ROPEPOOL_OK || fabsf(q[i] - (float)(i + 1)) > 1e-6f) {
      printf("lane %d is wrong with a rope: %f %s\n", i, q[i], ropepool_last_error_message());
      return 1;
    }
  }
  printf("ropepool %s, %d threads at most\n", ropepool_version(), ropepool_get_num_threads());
  return 0;
}
