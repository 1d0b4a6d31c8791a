// rope_pool_fused_qkv: rope_pool_fused on the output of one packed QKV projection, which it splits itself.
#pragma once

#include <ropepool/rope_pool_fused.h>

namespace ropepool {

// How the heads of a packed projection follow each other.
enum class QkvOrder {
  blocks,  // all of Q, then all of K, then all of V: Llama, Qwen, Phi-3; Falcon 7B with its one key/value head
  groups,  // for each key/value head its query heads, then its K, then its V: InternLM2, Falcon 40B; with one query head a
           // group GPT-NeoX and BLOOM
};

// As RopePoolFusedArgs has them, but:
//   qkv    [num_tokens, (num_qo_heads + 2 * num_kv_heads) * head_dim]   any row stride, an innermost one of 1
//   bias   [(num_qo_heads + 2 * num_kv_heads) * head_dim], in the order of qkv; float32 or the data's dtype
// In place, the heads of q and k are turned where they stand in qkv, those of v are left alone (the pool gets v with its bias),
// and q_out and k_out are not given. Else qkv is only read.
struct RopePoolFusedQkvArgs {
  Tensor qkv, positions, slots, k_pool, v_pool, q_out, k_out;
  std::int64_t head_dim = 0, num_qo_heads = 0, num_kv_heads = 0;
  double rope_base = std::numeric_limits<double>::quiet_NaN();
  Angles angles = Angles::exact;
  const Rope* rope = nullptr;
  Tensor rope_sets = {};
  QkvOrder order = QkvOrder::blocks;
  bool in_place = false;
  Tensor bias = {};
  std::optional<HeadNorm> q_norm = {}, k_norm = {};
  double q_scale = 1.0;
};

// The same bits as rope_pool_fused of the split. Refuses RP031 to RP033, and what rope_pool_fused refuses, with qkv in the
// place of q, k and v.
ROPEPOOL_API Result<void> rope_pool_fused_qkv(const RopePoolFusedQkvArgs& args, Executor* executor = nullptr);

}  // namespace ropepool
