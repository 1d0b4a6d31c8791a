// rerotate: keys that are in the pool already, turned on from one position to another.
#pragma once

#include <cstdint>
#include <limits>

#include <ropepool/executor.h>
#include <ropepool/export.h>
#include <ropepool/result.h>
#include <ropepool/rope.h>
#include <ropepool/tensor.h>

namespace ropepool {

// Shapes, dtypes and what happens to each:
//   k_pool                         [num_slots, num_kv_heads, head_dim]  the rows that slots name are turned where they stand
//   slots                          [num_tokens]                         int32 or int64; a negative slot is skipped
//   old_positions, new_positions   [num_tokens], or [axes, num_tokens]  int32 or int64; what a row was turned by, and shall be
//   old_sets, new_sets             [num_tokens]                         int32 or int64; the rope's set it was turned by, and
//                                                                       shall be; given where the rope has more than one
// Each row turns by the difference of the two angles, which is exact, and is rounded once more to its dtype. The rope's
// attention scale is in the row already, so it gets the quotient of the two sets' scales, mostly 1. A slot that stands twice is
// turned once, by its last token.
// For a context that shifts (tokens dropped in front), a prefix that moves, and a sequence that outgrows LongRoPE's short set.
struct RerotateArgs {
  Tensor k_pool, slots, old_positions, new_positions;
  std::int64_t head_dim = 0, num_kv_heads = 0;
  double rope_base = std::numeric_limits<double>::quiet_NaN();
  Angles angles = Angles::exact;
  const Rope* rope = nullptr;
  Tensor old_sets = {}, new_sets = {};
};

// Refuses what rope_pool_fused refuses of the arrays it has, and a rope that is a table (RP035): it can't be turned back.
ROPEPOOL_API Result<void> rerotate(const RerotateArgs& args, Executor* executor = nullptr);

}  // namespace ropepool
