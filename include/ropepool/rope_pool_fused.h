// rope_pool_fused: rotate Q and K and scatter K and V into a KV pool, in one pass over memory.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <ropepool/executor.h>
#include <ropepool/export.h>
#include <ropepool/head_ops.h>
#include <ropepool/result.h>
#include <ropepool/rope.h>
#include <ropepool/tensor.h>

namespace ropepool {

// Shapes, dtypes and what happens to each:
//   q                [num_tokens, num_qo_heads, head_dim]  float32, float16 or bfloat16, one for all float tensors
//   k, v             [num_tokens, num_kv_heads, head_dim]  read
//   positions        [num_tokens]                          int32 or int64; within +-(2^31 - 1), negative ones turn backwards
//   slots            [num_tokens]                          int32 or int64; a negative slot writes nothing to the pools
//   rope_sets        [num_tokens]                          int32 or int64; which set of `rope` a token takes
//   k_pool, v_pool   [num_slots, num_kv_heads, head_dim]   written in the rows that slots name, nowhere else
//   q_out, k_out     as q and k                            written whole; may be q and k themselves
// Any strides whose innermost one is 1. For each token t and pair i < head_dim / 2 of every head of q and k, lanes i and
// i + head_dim / 2 are turned by positions[t] * rope_base^(-2i / head_dim) (RoFormer, arXiv:2104.09864, in the pairing of
// GPT-NeoX), or as `rope` says, which stands instead of rope_base. With M-RoPE positions are [axes, num_tokens], a row an
// axis, or [num_tokens] where all axes follow one (text). Row slots[t] of the pools gets the rotated k and the bits of v. Of
// tokens with one slot the last wins. Where v_head_dim is given, v and v_pool have it instead of head_dim: other heads for
// values, or DeepSeek's MLA, whose one row of a pool [num_slots, 1, 512 + 64] has the latent in front, as v, and the turned
// part of k behind, both views of the row.
struct RopePoolFusedArgs {
  Tensor q, k, v, positions, slots, k_pool, v_pool, q_out, k_out;
  std::int64_t head_dim = 0, num_qo_heads = 0, num_kv_heads = 0;
  double rope_base = std::numeric_limits<double>::quiet_NaN();  // a model's rope_theta; NaN: not given
  Angles angles = Angles::exact;
  const Rope* rope = nullptr;  // instead of rope_base; read during the call only
  Tensor rope_sets = {};       // given where the rope has more sets than one
  std::optional<std::int64_t> v_head_dim = {};
  const HeadOps* head_ops = nullptr;  // null: heads turn as they stand; read during the call only
};

// Runs the op, or refuses it with nothing written (RP001 to RP021, RP023 to RP026, RP034). Other errors: out of memory, or a
// ROPEPOOL_ environment variable with a value that makes no sense. `executor`: who runs the parts; null for the library's own,
// which is as wide as get_num_threads() and starts its threads with the first call that is large enough to split. Threads:
// calls that write different memory may run at once. Results are the same bits for any executor and split.
ROPEPOOL_API Result<void> rope_pool_fused(const RopePoolFusedArgs& args, Executor* executor = nullptr);

// Every refusal that applies to `args`, in the contract's order; reads slots and positions, touches nothing.
ROPEPOOL_API std::vector<Error> check(const RopePoolFusedArgs& args);

}  // namespace ropepool
