#include "ops/rope_pool_fused_diagnosis.h"

#include <cmath>

#include <fmt/format.h>

namespace ropepool {
namespace {

Diagnosis diagnose_v_shape(const RopePoolFusedArgs& args) {
  const Shape &k = args.k.shape, &v = args.v.shape;
  if (k.rank() != 3 || v.rank() != 3) return {};
  if (v[0] == k[0] && v[2] == k[2] && v[1] == args.num_qo_heads + args.num_kv_heads && k[1] == args.num_kv_heads) {
    return {fmt::format("v has {} heads = num_qo_heads + num_kv_heads ({} + {}): it was sliced from kv_size of the packed QKV "
                        "instead of q_size + kv_size, and k from 0, so k holds Q's data",
                        v[1], args.num_qo_heads, args.num_kv_heads),
            ""};
  }
  if (v[0] == k[0] && v[2] == k[2] && v[1] == args.num_qo_heads && k[1] == args.num_kv_heads) {
    return {fmt::format("v has num_qo_heads = {} heads: it is Q's slice of the packed QKV, or K and V were repeated for grouped "
                        "heads too early, v first",
                        v[1]),
            "pass v as the projection gives it, with num_kv_heads heads"};
  }
  if (v[0] != k[0] && v[1] == k[1] && v[2] == k[2]) {
    return {fmt::format("k has {} tokens and v has {}: one was sliced for a chunk of the prefill and the other was not", k[0], v[0]),
            "slice k and v by the same tokens"};
  }
  return {};
}

Diagnosis diagnose_rope(const RopePoolFusedArgs& args) {
  if (std::isnan(args.rope_base)) return {"neither rope_base nor rope was given, or rope_base was computed as NaN", ""};
  return {};
}

}  // namespace

Diagnosis diagnose(Refusal refusal, const RopePoolFusedArgs& args) {
  switch (refusal) {
    case Refusal::v_shape_mismatch: return diagnose_v_shape(args);
    case Refusal::rope_unsupported: return diagnose_rope(args);
    default: return {};
  }
}

}  // namespace ropepool
