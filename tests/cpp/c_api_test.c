/* The C interface from C alone. Compiled as C99 and as C11. Ends with the number of failures. */
#include <ropepool/c_api.h>

#include <stdio.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                                                                      \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      ++failures;                                                                                              \
      fprintf(stderr, "line %d: %s; last message: %s\n", __LINE__, #condition, ropepool_last_error_message()); \
    }                                                                                                          \
  } while (0)

enum { kTokens = 2, kHeads = 1, kHeadDim = 4, kSlots = 3 };

static float q_data[kTokens * kHeads * kHeadDim] = {1, 2, 3, 4, 1, 2, 3, 4};
static float k_data[kTokens * kHeads * kHeadDim] = {1, 2, 3, 4, 5, 6, 7, 8};
static float v_data[kTokens * kHeads * kHeadDim] = {10, 20, 30, 40, 50, 60, 70, 80};
static float q_out_data[kTokens * kHeads * kHeadDim], k_out_data[kTokens * kHeads * kHeadDim];
static float k_pool_data[kSlots * kHeads * kHeadDim], v_pool_data[kSlots * kHeads * kHeadDim];
static int32_t positions_data[kTokens] = {1, 0};
static int64_t slots_data[kTokens] = {2, -1};

static int64_t token_shape[3] = {kTokens, kHeads, kHeadDim}, pool_shape[3] = {kSlots, kHeads, kHeadDim},
               index_shape[1] = {kTokens};

static DLTensor tensor(void* data, int ndim, int64_t* shape, uint8_t code, uint8_t bits) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = code;
  t.dtype.bits = bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t; /* strides NULL: row-major without gaps */
}

static int near(float got, double expected) { return got - expected < 1e-5 && expected - got < 1e-5; }

int main(void) {
  DLTensor q = tensor(q_data, 3, token_shape, kDLFloat, 32), k = tensor(k_data, 3, token_shape, kDLFloat, 32);
  DLTensor v = tensor(v_data, 3, token_shape, kDLFloat, 32);
  DLTensor positions = tensor(positions_data, 1, index_shape, kDLInt, 32),
           slots = tensor(slots_data, 1, index_shape, kDLInt, 64);
  DLTensor k_pool = tensor(k_pool_data, 3, pool_shape, kDLFloat, 32), v_pool = tensor(v_pool_data, 3, pool_shape, kDLFloat, 32);
  DLTensor q_out = tensor(q_out_data, 3, token_shape, kDLFloat, 32), k_out = tensor(k_out_data, 3, token_shape, kDLFloat, 32);
  ropepool_rope_pool_fused_options options;
  ropepool_rope_form form;
  ropepool_rope* rope = NULL;
  ropepool_head_norm norm;
  ropepool_head_ops head_ops;
  ropepool_rope_pool_fused_qkv_options qkv_options;
  ropepool_apply_rope_options apply_options;
  ropepool_write_kv_options write_options;
  ropepool_rerotate_options rerotate_options;
  float qkv_data[kTokens * 3 * kHeadDim];
  int32_t new_positions_data[kTokens] = {0, 0};
  int64_t qkv_shape[2] = {kTokens, 3 * kHeadDim};
  DLTensor qkv = tensor(qkv_data, 2, qkv_shape, kDLFloat, 32),
           new_positions = tensor(new_positions_data, 1, index_shape, kDLInt, 32);
  float before[kSlots * kHeads * kHeadDim];
  int i;

  EXPECT(strcmp(ropepool_last_error_message(), "") == 0);
  EXPECT(strlen(ropepool_version()) >= 5);

  EXPECT(ropepool_rope_pool_fused(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, kHeadDim, kHeads, kHeads,
                                  10000.0) == ROPEPOOL_OK);
  EXPECT(near(q_out_data[0], -1.984111) && near(q_out_data[1], 1.959901) && near(q_out_data[2], 2.462378) &&
         near(q_out_data[3], 4.019800));
  EXPECT(memcmp(k_out_data + kHeadDim, k_data + kHeadDim, sizeof(float) * kHeadDim) == 0); /* position 0 */
  EXPECT(memcmp(k_pool_data + 2 * kHeadDim, k_out_data, sizeof(float) * kHeadDim) == 0);
  EXPECT(memcmp(v_pool_data + 2 * kHeadDim, v_data, sizeof(float) * kHeadDim) == 0);
  for (i = 0; i < 2 * kHeadDim; ++i) EXPECT(k_pool_data[i] == 0 && v_pool_data[i] == 0);

  /* A refusal: its number, its text, and nothing written. */
  memcpy(before, k_pool_data, sizeof before);
  slots_data[1] = kSlots;
  EXPECT(ropepool_rope_pool_fused(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, kHeadDim, kHeads, kHeads,
                                  10000.0) == 20);
  EXPECT(strncmp(ropepool_last_error_message(), "slots[1] is 3, but the pools have 3 slots\n", 42) == 0);
  EXPECT(strstr(ropepool_last_error_message(), "RP020 slot-out-of-range: ropepool explain RP020") != NULL);
  EXPECT(memcmp(before, k_pool_data, sizeof before) == 0);
  slots_data[1] = -1;

  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.head_dim = kHeadDim;
  options.num_qo_heads = options.num_kv_heads = kHeads;
  options.rope_base = 10000.0;
  options.angles = ROPEPOOL_ANGLES_FLOAT32;
  options.num_threads = 1;
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, &options) ==
         ROPEPOOL_OK);
  EXPECT(near(q_out_data[0], -1.984111));
  options.size = 0;
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, &options) ==
         ROPEPOOL_INVALID_ARGUMENT);
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, NULL) ==
         ROPEPOOL_INVALID_ARGUMENT);
  EXPECT(strcmp(ropepool_last_error_message(), "options is NULL") == 0);

  /* Ropes: one of a form, and the same from a config. */
  options.size = sizeof options;
  options.rope_base = 0;
  memset(&form, 0, sizeof form);
  form.size = sizeof form;
  form.base = 10000.0;
  form.rotary_dim = kHeadDim;
  EXPECT(ropepool_rope_make(&form, &rope) == ROPEPOOL_OK);
  EXPECT(ropepool_rope_rotary_dim(rope) == kHeadDim && ropepool_rope_rotary_offset(rope) == 0);
  EXPECT(ropepool_rope_num_sets(rope) == 1 && ropepool_rope_num_axes(rope) == 1);
  EXPECT(ropepool_rope_pairing(rope) == ROPEPOOL_PAIRING_NEOX);
  options.rope = rope;
  memset(q_out_data, 0, sizeof q_out_data);
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, &options) ==
         ROPEPOOL_OK);
  EXPECT(near(q_out_data[0], -1.984111) && near(q_out_data[1], 1.959901));
  ropepool_rope_free(rope);
  EXPECT(ropepool_rope_from_config("{\"model_type\": \"gptj\", \"head_dim\": 4, \"rotary_dim\": 4, \"rope_theta\": 1e4}", NULL,
                                   0, &rope) == ROPEPOOL_OK);
  EXPECT(ropepool_rope_pairing(rope) == ROPEPOOL_PAIRING_INTERLEAVED);
  options.rope = rope;
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, &options) ==
         ROPEPOOL_OK);
  EXPECT(near(q_out_data[0], -1.142640) && near(q_out_data[1], 1.922075)); /* cos 1 - 2 sin 1, 2 cos 1 + sin 1 */
  ropepool_rope_free(rope);
  form.rotary_dim = 3;
  EXPECT(ropepool_rope_make(&form, &rope) == 22);
  EXPECT(rope == NULL);
  ropepool_rope_free(rope);

  /* Norms: every head with a mean square of 1, at position 0 as it stands; the scale goes to q alone. */
  memset(&norm, 0, sizeof norm);
  norm.size = sizeof norm;
  norm.eps = 1e-12;
  memset(&head_ops, 0, sizeof head_ops);
  head_ops.size = sizeof head_ops;
  head_ops.q_norm = head_ops.k_norm = &norm;
  head_ops.q_scale = 2;
  options.rope = NULL;
  options.rope_base = 10000.0;
  options.v_head_dim = kHeadDim;
  options.head_ops = &head_ops;
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, &options) ==
         ROPEPOOL_OK);
  EXPECT(near(q_out_data[kHeadDim], 0.730297) && near(k_out_data[kHeadDim], 0.758098)); /* 2 / sqrt(7.5), 5 / sqrt(43.5) */
  norm.eps = 0;
  EXPECT(ropepool_rope_pool_fused_with(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, &options) == 34);

  /* The other ops. */
  memset(&apply_options, 0, sizeof apply_options);
  apply_options.size = sizeof apply_options;
  apply_options.head_dim = kHeadDim;
  apply_options.num_qo_heads = apply_options.num_kv_heads = kHeads;
  apply_options.rope_base = 10000.0;
  EXPECT(ropepool_apply_rope(&q, &k, &positions, &q_out, &k_out, &apply_options) == ROPEPOOL_OK);
  EXPECT(near(q_out_data[0], -1.984111) && near(k_out_data[0], -1.984111));

  memset(&write_options, 0, sizeof write_options);
  write_options.size = sizeof write_options;
  write_options.head_dim = kHeadDim;
  write_options.num_kv_heads = kHeads;
  EXPECT(ropepool_write_kv(&k_out, &v, &slots, &k_pool, &v_pool, &write_options) == ROPEPOOL_OK);
  EXPECT(near(k_pool_data[2 * kHeadDim], -1.984111) && v_pool_data[2 * kHeadDim] == 10);

  memset(&rerotate_options, 0, sizeof rerotate_options);
  rerotate_options.size = sizeof rerotate_options;
  rerotate_options.head_dim = kHeadDim;
  rerotate_options.num_kv_heads = kHeads;
  rerotate_options.rope_base = 10000.0;
  EXPECT(ropepool_rerotate(&k_pool, &slots, &positions, &new_positions, &rerotate_options) == ROPEPOOL_OK);
  for (i = 0; i < kHeadDim; ++i) EXPECT(near(k_pool_data[2 * kHeadDim + i], k_data[i])); /* back where it came from */

  for (i = 0; i < kTokens; ++i) {
    memcpy(qkv_data + i * 3 * kHeadDim, q_data + i * kHeadDim, sizeof(float) * kHeadDim);
    memcpy(qkv_data + (i * 3 + 1) * kHeadDim, k_data + i * kHeadDim, sizeof(float) * kHeadDim);
    memcpy(qkv_data + (i * 3 + 2) * kHeadDim, v_data + i * kHeadDim, sizeof(float) * kHeadDim);
  }
  memset(&qkv_options, 0, sizeof qkv_options);
  qkv_options.size = sizeof qkv_options;
  qkv_options.head_dim = kHeadDim;
  qkv_options.num_qo_heads = qkv_options.num_kv_heads = kHeads;
  qkv_options.rope_base = 10000.0;
  qkv_options.order = ROPEPOOL_QKV_GROUPS;
  qkv_options.in_place = 1;
  memset(v_pool_data, 0, sizeof v_pool_data);
  EXPECT(ropepool_rope_pool_fused_qkv(&qkv, &positions, &slots, &k_pool, &v_pool, NULL, NULL, &qkv_options) == ROPEPOOL_OK);
  EXPECT(near(qkv_data[0], -1.984111) && near(qkv_data[kHeadDim], -1.984111) && qkv_data[2 * kHeadDim] == 10);
  EXPECT(near(k_pool_data[2 * kHeadDim], -1.984111) && v_pool_data[2 * kHeadDim] == 10);
  EXPECT(ropepool_rope_pool_fused_qkv(&qkv, &positions, &slots, &k_pool, &v_pool, &q_out, NULL, &qkv_options) == 33);

  EXPECT(ropepool_get_num_threads() >= 1);
  EXPECT(ropepool_set_num_threads(2) == ROPEPOOL_OK);
  EXPECT(ropepool_get_num_threads() == 2);
  EXPECT(ropepool_set_num_threads(0) == ROPEPOOL_INVALID_ARGUMENT);
  EXPECT(ropepool_get_num_threads() == 2);

  /* The error reference, by a code, a message, and what is neither. */
  EXPECT(strncmp(ropepool_explain("rp6"), "RP006 v-shape-mismatch\n", 23) == 0);
  EXPECT(strstr(ropepool_explain("ValueError: q/k/v dtypes must match"), "RP010 qkv-dtype-mismatch") != NULL);
  EXPECT(ropepool_explain("all is well") == NULL);
  EXPECT(ropepool_explain(NULL) == NULL);

  if (failures == 0) printf("C interface: all as expected\n");
  return failures;
}
