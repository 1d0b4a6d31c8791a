// The way from a refusal to the part of the diagnosis that knows its mistakes.
#include "ops/rope_pool_fused_diagnosis.h"

#include <algorithm>

#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool {
namespace {

// Beyond these no number is a length that a user meant, and products of them might not fit.
constexpr std::int64_t kMaxCount = 1 << 24, kMaxLength = std::int64_t{1} << 31;

bool within(std::int64_t value, std::int64_t limit) { return -limit <= value && value <= limit; }

bool is_plausible(const RopePoolFusedArgs& a) {
  if (!within(a.head_dim, kMaxCount) || !within(a.num_qo_heads, kMaxCount) || !within(a.num_kv_heads, kMaxCount)) return false;
  return std::ranges::all_of(diagnosis::all_arrays(a), [](const auto& array) {
    const auto fits = [](std::int64_t value) { return within(value, kMaxLength * kMaxLength / 2); };
    return std::ranges::all_of(array.second->shape, [](std::int64_t length) { return within(length, kMaxLength); }) &&
           std::ranges::all_of(array.second->strides, fits);
  });
}

}  // namespace

Diagnosis diagnose(Refusal refusal, const RopePoolFusedArgs& a, const Error::Finding& finding) {
  if (!is_plausible(a)) return {};
  switch (refusal) {
    case Refusal::qkv_not_3d:
      return diagnosis::qkv_rank(a, finding);
    case Refusal::positions_slots_not_1d:
      return diagnosis::positions_slots_rank(a, finding);
    case Refusal::pools_not_3d:
      return diagnosis::pools_rank(a, finding);
    case Refusal::q_shape_mismatch:
      return diagnosis::q_shape(a, finding);
    case Refusal::k_shape_mismatch:
      return diagnosis::k_shape(a, finding);
    case Refusal::v_shape_mismatch:
      return diagnosis::v_shape(a, finding);
    case Refusal::token_count_mismatch:
      return diagnosis::token_count(a, finding);
    case Refusal::k_pool_shape_mismatch:
      return diagnosis::k_pool_shape(a, finding);
    case Refusal::v_pool_shape_mismatch:
      return diagnosis::v_pool_shape(a, finding);
    case Refusal::qkv_dtype_mismatch:
      return diagnosis::qkv_dtypes(a, finding);
    case Refusal::pool_dtype_mismatch:
      return diagnosis::pool_dtypes(a, finding);
    case Refusal::float_dtype_unsupported:
      return diagnosis::float_dtypes(a, finding);
    case Refusal::index_dtype_unsupported:
      return diagnosis::index_dtypes(a, finding);
    case Refusal::geometry_unsupported:
      return diagnosis::geometry(a, finding);
    case Refusal::rope_unsupported:
      return diagnosis::rope(a, finding);
    case Refusal::layout_unsupported:
      return diagnosis::layout(a, finding);
    case Refusal::output_unsuitable:
      return diagnosis::outputs(a, finding);
    case Refusal::device_unsupported:
      return diagnosis::devices(a, finding);
    case Refusal::overlap:
      return diagnosis::overlap(a, finding);
    case Refusal::slot_out_of_range:
      return diagnosis::slot_values(a, finding);
    case Refusal::position_out_of_range:
      return diagnosis::position_values(a, finding);
    case Refusal::rope_wider_than_heads:
      return diagnosis::rope_fits(a, finding);
    case Refusal::rope_sets_unsuitable:
      return diagnosis::rope_sets(a, finding);
    case Refusal::rope_set_out_of_range:
      return diagnosis::rope_set_values(a, finding);
    case Refusal::position_outside_table:
      return diagnosis::table_positions(a, finding);
    case Refusal::head_ops_unsuitable:
      return diagnosis::head_ops(a, finding);
    default:  // of making a Rope, which has its own
      return {};
  }
  return {};
}

}  // namespace ropepool
