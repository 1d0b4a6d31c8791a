// rope: the contract of rope_pool_fused without a pool, then its kernel.
#include <ropepool/rope_alone.h>

#include <new>

#include "core/environment.h"
#include "ops/other_ops.h"

namespace ropepool {
namespace {

const std::int64_t kNoSlot = -1;

constexpr contract::Op::Word kWords[] = {{"rope_pool_fused", "rope"}, {"q/k/v", "q/k"}, {"positions/slots", "positions"}};

RopePoolFusedArgs args_of(const RopeArgs& a) {
  return {.q = a.q,
          .k = a.k,
          .v = {},
          .positions = a.positions,
          .slots = {},
          .k_pool = {},
          .v_pool = {},
          .q_out = a.q_out,
          .k_out = a.k_out,
          .head_dim = a.head_dim,
          .num_qo_heads = a.num_qo_heads,
          .num_kv_heads = a.num_kv_heads,
          .rope_base = a.rope_base,
          .angles = a.angles,
          .rope = a.rope,
          .rope_sets = a.rope_sets};
}

}  // namespace

namespace contract {

std::optional<Error> first_refusal(const RopeArgs& a, Outputs outputs) {
  RopePoolFusedArgs args = args_of(a);
  args.v = a.k;
  const std::int64_t num_tokens = a.q.rank() == 3 ? a.q.shape[0] : a.positions.shape[a.positions.rank() == 2 ? 1 : 0];
  args.slots = constant_index(kNoSlot, num_tokens, a.q.device);
  args.k_pool = args.v_pool = stand_in(a.q.dtype, {0, a.num_kv_heads, a.head_dim}, a.q.device);
  const Op op{.stand_ins = bit(v) | bit(slots) | bit(k_pool) | bit(v_pool), .words = kWords};
  return first_refusal(args, outputs, op);
}

}  // namespace contract

Result<void> rope(const RopeArgs& args, Executor* executor) try {
  if (const Error* error = environment_error()) return *error;
  if (auto refusal = contract::first_refusal(args, contract::Outputs::required)) return std::move(*refusal);
  return run(args_of(args), executor);
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

}  // namespace ropepool
