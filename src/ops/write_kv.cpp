// write_kv: the contract of rope_pool_fused without q and positions, then its kernel.
#include <ropepool/write_kv.h>

#include <new>

#include "core/devices.h"
#include "core/dtype.h"
#include "core/environment.h"
#include "core/write_kv_call.h"
#include "ops/rope_pool_fused.h"

namespace ropepool {
namespace {

const std::int64_t kOrigin = 0;
constexpr contract::Op::Word kWords[] = {{"rope_pool_fused", "write_kv"},
                                         {"q/k/v", "k/v"},
                                         {"positions/slots", "slots"},
                                         {"q", "k"},
                                         {"num_qo_heads", "num_kv_heads"}};

std::optional<Error> first_refusal(const WriteKvArgs& a) {
  using namespace contract;
  const Op op{.stand_ins = bit(q) | bit(positions), .words = kWords, .turns = false};
  const std::int64_t num_tokens = a.k.rank() == 3 ? a.k.shape[0] : a.slots.shape[0];
  const RopePoolFusedArgs args{.q = stand_in(a.k.dtype, {num_tokens, a.num_kv_heads, a.head_dim}, a.k.device),
                               .k = a.k,
                               .v = a.v,
                               .positions = constant_index(kOrigin, num_tokens, a.k.device),
                               .slots = a.slots,
                               .k_pool = a.k_pool,
                               .v_pool = a.v_pool,
                               .q_out = {},
                               .k_out = {},
                               .head_dim = a.head_dim,
                               .num_qo_heads = a.num_kv_heads,
                               .num_kv_heads = a.num_kv_heads,
                               .rope_base = 1.0,
                               .v_head_dim = a.v_head_dim};
  return contract::first_refusal(args, Outputs::made_later, op);
}

}  // namespace

Result<void> write_kv(const WriteKvArgs& args, Executor* executor) try {
  if (const Error* error = environment_error()) return *error;
  if (auto refusal = first_refusal(args)) return std::move(*refusal);
  const std::int64_t num_tokens = args.k.shape[0], item = item_size_of(args.k.dtype);
  if (num_tokens == 0) return {};
  const PoolRows rows(args.slots, args.k_pool.shape[0]);
  const WriteKvCall call{.num_tokens = num_tokens,
                         .num_kv_heads = args.num_kv_heads,
                         .k_head_bytes = args.head_dim * item,
                         .v_head_bytes = args.v_head_dim.value_or(args.head_dim) * item,
                         .k = rows_of(args.k, item),
                         .v = rows_of(args.v, item),
                         .k_pool = rows_of(args.k_pool, item),
                         .v_pool = rows_of(args.v_pool, item),
                         .pool_rows = rows.data(),
                         .stream_pool = streams_pool(num_tokens)};
  run_tokens(cpu_kernels().value().write_kv, call, 2 * call.num_kv_heads * (call.k_head_bytes + call.v_head_bytes), executor);
  return {};
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

}  // namespace ropepool
