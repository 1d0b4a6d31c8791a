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
  ROPEPOOL_RUNTIME_ERROR = -2,   /* the environment: ROPEPOOL_TARGET, ROPEPOOL_NUM_THREADS */
  ROPEPOOL_INVALID_ARGUMENT = -3 /* a NULL pointer, an options struct of unknown size, a number of threads out of range */
};

/* Rotates q and k by their positions and writes rotated k, and v, into the pool rows that slots name; what holds for each array
 * is said in rope_pool_fused.h. q_out and k_out must be given and may be q and k. A call that does not return 0 has written
 * nothing. Any thread may call; calls that write different memory may run at once. */
ROPEPOOL_API int ropepool_rope_pool_fused(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions,
                                          const DLTensor* slots, const DLTensor* k_pool, const DLTensor* v_pool,
                                          const DLTensor* q_out, const DLTensor* k_out, int64_t head_dim, int64_t num_qo_heads,
                                          int64_t num_kv_heads, double rope_base);

enum ropepool_angles { ROPEPOOL_ANGLES_EXACT = 0, ROPEPOOL_ANGLES_FLOAT32 = 1 };

/* Set `size` to sizeof(ropepool_rope_pool_fused_options) and the rest to zero, then what you need. */
typedef struct ropepool_rope_pool_fused_options {
  size_t size;
  int64_t head_dim, num_qo_heads, num_kv_heads;
  double rope_base;
  int32_t angles;      /* enum ropepool_angles */
  int32_t num_threads; /* at most so many threads for this call; 0: as many as ropepool_set_num_threads said */
} ropepool_rope_pool_fused_options;

ROPEPOOL_API int ropepool_rope_pool_fused_with(const DLTensor* q, const DLTensor* k, const DLTensor* v,
                                               const DLTensor* positions, const DLTensor* slots, const DLTensor* k_pool,
                                               const DLTensor* v_pool, const DLTensor* q_out, const DLTensor* k_out,
                                               const ropepool_rope_pool_fused_options* options);

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
