// The contracts of ops beside rope_pool_fused for front-ends that make the outputs themselves.
#pragma once

#include <optional>

#include <ropepool/rope_alone.h>
#include <ropepool/rope_pool_fused_qkv.h>

#include "ops/rope_pool_fused.h"

namespace ropepool {
namespace contract {

std::optional<Error> first_refusal(const RopePoolFusedQkvArgs& args, Outputs outputs);
std::optional<Error> first_refusal(const RopeArgs& args, Outputs outputs);

}  // namespace contract

}  // namespace ropepool
