/* ropepool for C, and for every language that can call C. Arrays are DLPack's DLTensor, so that any framework's go in. */
#ifndef ROPEPOOL_C_API_H_
#define ROPEPOOL_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#include <ropepool/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What every function that can fail returns: 0, the number of a refusal (6 for RP006), or one of these. */
enum {
  ROPEPOOL_OK = 0,
  ROPEPOOL_OUT_OF_MEMORY = -1,
  ROPEPOOL_RUNTIME_ERROR = -2,   /* the environment: ROPEPOOL_TARGET, ROPEPOOL_NUM_THREADS; a file that can't be read */
  ROPEPOOL_INVALID_ARGUMENT = -3 /* a NULL pointer, a struct of unknown size, a number of threads out of range */
};

/* Rotates q and k by their positions and writes rotated k, and v, into the pool rows that slots name; what holds for each array
 * is said in rope_pool_fused.h. q_out and k_out must be given and may be q and k. A call that does not return 0 has written
 * nothing. Any thread may call; calls that write different memory may run at once. */
ROPEPOOL_API int ropepool_rope_pool_fused(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions,
                                          const DLTensor* slots, const DLTensor* k_pool, const DLTensor* v_pool,
                                          const DLTensor* q_out, const DLTensor* k_out, int64_t head_dim, int64_t num_qo_heads,
                                          int64_t num_kv_heads, double rope_base);

/* How positions become rotations, where that is more than a rope_base: frequencies, and which lanes of a head they turn. A rope
 * never changes: any number of threads and calls may use one at once. Whoever makes one frees it, once no call that uses it
 * runs. The functions that make one return 0 and set *rope, or another number and set it to NULL; what makes no sense is
 * refused with 22, a config with 27 to 30 too. */
typedef struct ropepool_rope ropepool_rope;

enum ropepool_pairing {
  ROPEPOOL_PAIRING_NEOX = 0,       /* lanes i and i + rotary_dim / 2: nearly all models */
  ROPEPOOL_PAIRING_INTERLEAVED = 1 /* 2i and 2i + 1: GPT-J, Cohere, GLM, DeepSeek, Meta's own Llama checkpoints */
};
enum ropepool_section_order {
  ROPEPOOL_SECTIONS_BLOCKS = 0,     /* the first pairs follow axis 0, the next axis 1 ...: Qwen2-VL */
  ROPEPOOL_SECTIONS_INTERLEAVED = 1 /* pairs follow axes 0, 1, 2, 0, 1, 2 ...: Qwen3-VL */
};

/* Set `size` to sizeof(ropepool_rope_form) and the rest to zero, then what you need. It is read by the call alone. */
typedef struct ropepool_rope_form {
  size_t size;
  double base;             /* rope_theta; 0 where frequencies or a table are given */
  int64_t rotary_dim;      /* lanes that are turned: head_dim, or fewer */
  int64_t rotary_offset;   /* the first of them; DeepSeek's stand last */
  int32_t pairing;         /* enum ropepool_pairing */
  int32_t section_order;   /* enum ropepool_section_order */
  const int64_t* sections; /* [num_sections] for M-RoPE: how many pairs follow each axis of a position, all pairs together */
  int64_t num_sections;    /* 3 or 4; 0: no M-RoPE */
  double attention_scale;  /* what cos and sin are multiplied by; 0: 1 */
} ropepool_rope_form;

/* Plain RoPE, whole or partial heads, with sections or without: pair i turns by base^(-2i / rotary_dim) a position. A rope with
 * a scaling (linear, dynamic, yarn, llama3, longrope, proportional) is made from a config: a text of its few keys will do,
 * {"head_dim": 128, "rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}. */
ROPEPOOL_API int ropepool_rope_make(const ropepool_rope_form* form, ropepool_rope** rope);
/* Frequencies of the caller's own, in radians a position: [num_frequencies], one a pair. They are copied. */
ROPEPOOL_API int ropepool_rope_from_frequencies(const double* frequencies, int64_t num_frequencies,
                                                const ropepool_rope_form* form, ropepool_rope** rope);
/* cos and sin of the caller's own: [positions, rotary_dim], the cos of all pairs, then their sin; float32, float16 or bfloat16
 * on the CPU, innermost stride 1. The data are read at each call and must outlive the rope; the DLTensor need not. */
ROPEPOOL_API int ropepool_rope_from_table(const DLTensor* cos_sin, const ropepool_rope_form* form, ropepool_rope** rope);
/* `json` is the text of a model's config.json, or GGUF metadata as one JSON object. `layer_type` says which rope of a model
 * that has several ("full_attention", "sliding_attention"); else NULL. `length` is the most tokens a sequence may get: dynamic
 * NTK needs it, of LongRoPE it picks the set; 0 where it is not said. */
ROPEPOOL_API int ropepool_rope_from_config(const char* json, const char* layer_type, int64_t length, ropepool_rope** rope);
/* The same from a file with that text, or the folder that holds it as config.json. */
ROPEPOOL_API int ropepool_rope_from_config_file(const char* path, const char* layer_type, int64_t length, ropepool_rope** rope);
/* Several ropes that differ in frequencies and attention scale alone as one, with a set for each of theirs: rope_sets of a
 * call says which a token takes. The joined rope does not need the others to live. */
ROPEPOOL_API int ropepool_rope_join(const ropepool_rope* const* ropes, int64_t num_ropes, ropepool_rope** rope);
/* NULL may be freed too. */
ROPEPOOL_API void ropepool_rope_free(ropepool_rope* rope);

/* What a rope is; ROPEPOOL_INVALID_ARGUMENT for NULL. */
ROPEPOOL_API int64_t ropepool_rope_rotary_dim(const ropepool_rope* rope);
ROPEPOOL_API int64_t ropepool_rope_rotary_offset(const ropepool_rope* rope);
ROPEPOOL_API int ropepool_rope_pairing(const ropepool_rope* rope);      /* enum ropepool_pairing */
ROPEPOOL_API int64_t ropepool_rope_num_sets(const ropepool_rope* rope); /* above 1: a call needs rope_sets */
ROPEPOOL_API int64_t ropepool_rope_num_axes(const ropepool_rope* rope); /* of a position: 1 but for M-RoPE */

enum ropepool_angles { ROPEPOOL_ANGLES_EXACT = 0, ROPEPOOL_ANGLES_FLOAT32 = 1 };

enum ropepool_norm { ROPEPOOL_NORM_RMS = 0, ROPEPOOL_NORM_LAYER = 1 };

/* Heads normalized before they turn. Set `size` to sizeof(ropepool_head_norm) and the rest to zero, then what you need. */
typedef struct ropepool_head_norm {
  size_t size;
  double eps;             /* a model's rms_norm_eps or layer_norm_eps; 0: not given, which is refused, since models differ */
  const DLTensor* weight; /* [head_dim], [num_heads, head_dim], or [num_heads * head_dim] for a norm over all heads of a token;
                             float32 or the data's dtype. NULL: each head by itself, with a weight of 1 */
  int32_t kind;           /* enum ropepool_norm */
  int32_t unit_offset;    /* not 0: 1 + weight (Gemma) */
} ropepool_head_norm;

/* What happens to heads on their way to the rotation, in this order: bias, norm, rotation, scale; the guide's page "Fused with
 * the rope" says which model needs what. Biases are [num_heads, head_dim] or [num_heads * head_dim], that of v with v_head_dim,
 * float32 or the data's dtype. Set `size` to sizeof(ropepool_head_ops) and the rest to zero or NULL, then what you need. All of
 * it is only read, during the call alone; what does not fit is refused with 34. */
typedef struct ropepool_head_ops {
  size_t size;
  const DLTensor* q_bias;
  const DLTensor* k_bias;
  const DLTensor* v_bias;
  const ropepool_head_norm* q_norm;
  const ropepool_head_norm* k_norm;
  double q_scale; /* what q is multiplied by once it is turned; 0: 1 */
} ropepool_head_ops;

/* Set `size` to sizeof(ropepool_rope_pool_fused_options) and the rest to zero, then what you need. The struct may grow at its
 * end: a program that was compiled with an older header still works, and what it does not know is zero. */
typedef struct ropepool_rope_pool_fused_options {
  size_t size;
  int64_t head_dim, num_qo_heads, num_kv_heads;
  double rope_base;                  /* a model's rope_theta; 0 where rope is given */
  int32_t angles;                    /* enum ropepool_angles */
  int32_t num_threads;               /* at most so many threads for this call; 0: as many as ropepool_set_num_threads said */
  const ropepool_rope* rope;         /* instead of rope_base; else NULL */
  const DLTensor* rope_sets;         /* [num_tokens] int32 or int64, where the rope has several sets; else NULL */
  int64_t v_head_dim;                /* lanes of a head of v and v_pool; 0: head_dim */
  const ropepool_head_ops* head_ops; /* NULL: heads turn as they stand */
} ropepool_rope_pool_fused_options;

/* As ropepool_rope_pool_fused. With a rope of several axes positions are [axes, num_tokens], or [num_tokens] where all axes
 * follow one. */
ROPEPOOL_API int ropepool_rope_pool_fused_with(const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                               const DLTensor* positions, const DLTensor* slots, const DLTensor* k_pool,
                                               const DLTensor* v_pool, const DLTensor* q_out, const DLTensor* k_out,
                                               const ropepool_rope_pool_fused_options* options);

/* ---- The ops beside it. What is said of arrays, options, refusals and threads above holds for them too, by the same names.
 * Arrays that are not said to be written are only read. `size` is the sizeof of the options at hand, the rest zero where it is
 * not needed; rope_base, angles, num_threads, rope and rope_sets are as in ropepool_rope_pool_fused_options. */

enum ropepool_qkv_order {
  ROPEPOOL_QKV_BLOCKS = 0, /* all of Q, then all of K, then all of V: Llama, Qwen, Phi-3, Falcon 7B */
  ROPEPOOL_QKV_GROUPS = 1 /* for each key/value head its query heads, its K and its V: InternLM2, Falcon 40B, GPT-NeoX, BLOOM */
};

typedef struct ropepool_rope_pool_fused_qkv_options {
  size_t size;
  int64_t head_dim, num_qo_heads, num_kv_heads;
  double rope_base;
  int32_t angles;
  int32_t num_threads;
  const ropepool_rope* rope;
  const DLTensor* rope_sets;
  int32_t order;        /* enum ropepool_qkv_order */
  int32_t in_place;     /* not 0: q and k are turned where they stand in qkv */
  const DLTensor* bias; /* [(num_qo_heads + 2 * num_kv_heads) * head_dim], in the order of qkv; float32 or its dtype; or NULL */
  const ropepool_head_norm* q_norm; /* or NULL */
  const ropepool_head_norm* k_norm; /* or NULL */
  double q_scale;                   /* 0: 1 */
} ropepool_rope_pool_fused_qkv_options;

/* As ropepool_rope_pool_fused_with, out of one packed projection: qkv is [num_tokens, (num_qo_heads + 2 * num_kv_heads) *
 * head_dim]. In place, q and k in qkv are written, v there is not, and q_out and k_out must be NULL; else qkv is only read, and
 * q_out and k_out must be given. 31 to 33 are refusals of its own. */
ROPEPOOL_API int ropepool_rope_pool_fused_qkv(const DLTensor* qkv, const DLTensor* positions, const DLTensor* slots,
                                              const DLTensor* k_pool, const DLTensor* v_pool, const DLTensor* q_out,
                                              const DLTensor* k_out, const ropepool_rope_pool_fused_qkv_options* options);

typedef struct ropepool_apply_rope_options {
  size_t size;
  int64_t head_dim, num_qo_heads, num_kv_heads;
  double rope_base;
  int32_t angles;
  int32_t num_threads;
  const ropepool_rope* rope;
  const DLTensor* rope_sets;
} ropepool_apply_rope_options;

/* Turns q and k and stores nothing: `rope` in C++ and Python. q_out and k_out are written, must be given and may be q and k. */
ROPEPOOL_API int ropepool_apply_rope(const DLTensor* q, const DLTensor* k, const DLTensor* positions, const DLTensor* q_out,
                                     const DLTensor* k_out, const ropepool_apply_rope_options* options);

typedef struct ropepool_write_kv_options {
  size_t size;
  int64_t head_dim, num_kv_heads;
  int64_t v_head_dim; /* 0: head_dim */
  int32_t num_threads;
} ropepool_write_kv_options;

/* Writes rows of k and v, as they are, to the rows of the pools that slots name. head_dim may be odd, since nothing turns. */
ROPEPOOL_API int ropepool_write_kv(const DLTensor* k, const DLTensor* v, const DLTensor* slots, const DLTensor* k_pool,
                                   const DLTensor* v_pool, const ropepool_write_kv_options* options);

typedef struct ropepool_rerotate_options {
  size_t size;
  int64_t head_dim, num_kv_heads;
  double rope_base;
  int32_t angles;
  int32_t num_threads;
  const ropepool_rope* rope; /* one with a table is refused with 35 */
  const DLTensor* old_sets;  /* [num_tokens] int32 or int64, where the rope has several sets; else NULL */
  const DLTensor* new_sets;
} ropepool_rerotate_options;

/* Turns the rows of k_pool that slots name, where they stand, from the positions (and sets) that they were turned by to new
 * ones, both of the shape of positions. A negative slot is skipped, and of tokens with one slot the last counts. */
ROPEPOOL_API int ropepool_rerotate(const DLTensor* k_pool, const DLTensor* slots, const DLTensor* old_positions,
                                   const DLTensor* new_positions, const ropepool_rerotate_options* options);

/* Of the last call on this thread that did not return 0; "" before the first. Valid until the next call on this thread. */
ROPEPOOL_API const char* ropepool_last_error_message(void);

/* What the error reference says of a code ("RP006", "6"), a name, a message or a log that holds one, as text to read; NULL
 * where nothing fits or memory runs out. Valid until the next call of this function on this thread. */
ROPEPOOL_API const char* ropepool_explain(const char* what);

/* How many threads calls may use, the caller's included: from 1, which starts none, to 1024; any other number is
 * ROPEPOOL_INVALID_ARGUMENT. Safe to call while others run. */
ROPEPOOL_API int ropepool_set_num_threads(int num_threads);
/* That number, or ROPEPOOL_OUT_OF_MEMORY, which only the first call of a process can meet. */
ROPEPOOL_API int ropepool_get_num_threads(void);
ROPEPOOL_API const char* ropepool_version(void);

#ifdef __cplusplus
}
#endif

#endif /* ROPEPOOL_C_API_H_ */
