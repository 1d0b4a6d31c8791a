// rerotate: the contract of rope_pool_fused for the pool and its positions, once for each place, then its kernel.
#include <ropepool/rerotate.h>

#include <algorithm>
#include <new>
#include <optional>

#include "core/devices.h"
#include "core/dtype.h"
#include "core/environment.h"
#include "core/float_modes.h"
#include "core/rerotate_call.h"
#include "core/rope_tables.h"
#include "ops/rope_pool_fused.h"

namespace ropepool {
namespace {

// What rope_pool_fused would refuse if it wrote these rows with `positions` and `sets`, which the caller knows as these words.
std::optional<Error> refusal_at(const RerotateArgs& a, const Tensor& positions, std::string_view positions_word,
                                const Tensor& sets, std::string_view sets_word) {
  using namespace contract;
  const Op::Word words[] = {{"rope_pool_fused", "rerotate"},
                            {"positions/slots", "old_positions/new_positions/slots"},
                            {"positions", positions_word},
                            {"rope_sets", sets_word},
                            {"q", "k_pool"},
                            {"num_qo_heads", "num_kv_heads"}};
  const Op op{.stand_ins = bit(q) | bit(k) | bit(v) | bit(v_pool), .words = words};
  const Tensor& counted = a.slots.rank() == 1 ? a.slots : positions;
  const std::int64_t num_tokens = counted.shape[counted.rank() == 2 ? 1 : 0];
  const Device& device = a.k_pool.device;
  const Tensor heads = stand_in(a.k_pool.dtype, {num_tokens, a.num_kv_heads, a.head_dim}, device);
  const RopePoolFusedArgs args{.q = heads,
                               .k = heads,
                               .v = heads,
                               .positions = positions,
                               .slots = a.slots,
                               .k_pool = a.k_pool,
                               .v_pool = a.k_pool,
                               .q_out = {},
                               .k_out = {},
                               .head_dim = a.head_dim,
                               .num_qo_heads = a.num_kv_heads,
                               .num_kv_heads = a.num_kv_heads,
                               .rope_base = a.rope_base,
                               .angles = a.angles,
                               .rope = a.rope,
                               .rope_sets = sets};
  return contract::first_refusal(args, Outputs::made_later, op);
}

std::optional<Error> first_refusal(const RerotateArgs& a) {
  if (a.rope != nullptr && a.rope->tables().table.given()) {
    return Error(Refusal::rerotate_needs_frequencies, {"rerotate needs frequencies, but the rope has a table of cos and sin",
                                                       "rope", "frequencies", "a table of cos and sin", "", ""});
  }
  if (auto refusal = refusal_at(a, a.old_positions, "old_positions", a.old_sets, "old_sets")) return refusal;
  return refusal_at(a, a.new_positions, "new_positions", a.new_sets, "new_sets");
}

}  // namespace

Result<void> rerotate(const RerotateArgs& args, Executor* executor) try {
  if (const Error* error = environment_error()) return *error;
  if (auto refusal = first_refusal(args)) return std::move(*refusal);
  const std::int64_t num_tokens = args.slots.shape[0];
  if (num_tokens == 0) return {};

  const DefaultFloatModes modes;
  const PoolRows rows(args.slots, args.k_pool.shape[0]);
  // With no row to turn heads may be of any length, for which frequencies would fill the memory.
  if (std::all_of(rows.data(), rows.data() + num_tokens, [](std::int64_t row) { return row < 0; })) return {};
  std::optional<PlainRope> plain;
  if (args.rope == nullptr) plain.emplace(args.head_dim, args.rope_base);
  const RerotateCall call{.dtype = args.k_pool.dtype,
                          .num_tokens = num_tokens,
                          .num_kv_heads = args.num_kv_heads,
                          .head_dim = args.head_dim,
                          .k_pool = rows_of(args.k_pool, item_size_of(args.k_pool.dtype)),
                          .pool_rows = rows.data(),
                          .from = places_of(args.old_positions, args.old_sets),
                          .to = places_of(args.new_positions, args.new_sets),
                          .rope = plain ? &plain->tables() : &args.rope->tables(),
                          .angles = args.angles};
  const std::int64_t token_bytes = 2 * args.num_kv_heads * args.head_dim * item_size_of(call.dtype);
  run_tokens(cpu_kernels().value().rerotate, call, token_bytes, executor);
  return {};
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

}  // namespace ropepool
