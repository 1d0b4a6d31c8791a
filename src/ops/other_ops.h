// The contracts of ops beside rope_pool_fused for front-ends that make the outputs themselves, and what follows them.
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

// Of arguments that the contract takes, in an environment that check_environment() takes.
Result<void> run(const RopePoolFusedQkvArgs& args, Executor* executor);
Result<void> run(const RopeArgs& args, Executor* executor);

}  // namespace ropepool
