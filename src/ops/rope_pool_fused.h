// The contract of rope_pool_fused for front-ends that make the outputs themselves, and what follows it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "core/pool_rows.h"
#include "core/rope_pool_fused_call.h"
#include "core/rope_tables.h"

namespace ropepool::contract {

enum class Outputs {
  required,    // a missing q_out or k_out is a refusal
  made_later,  // the front-end makes what is missing once nothing else is refused
};

// The first refusal in the contract's order, or nullopt.
std::optional<Error> first_refusal(const RopePoolFusedArgs& args, Outputs outputs);
// All that apply.
std::vector<Error> all_refusals(const RopePoolFusedArgs& args, Outputs outputs);

// In front-ends where `angles` is a word: has a refusal of a number that stands for none of them say the word instead.
Error with_angles(const Error& error, const std::string& word);

// What q, k and v should have: the pools' dtype where one of them has it, else that of most of them.
DType common_dtype(const RopePoolFusedArgs& args);

}  // namespace ropepool::contract

namespace ropepool {

// What the kernel is told of a call that the contract takes; it points into `rows` and `rope`.
RopePoolFusedCall resolve(const RopePoolFusedArgs& args, const PoolRows& rows, const RopeTables& rope);

// The call itself, of arguments that the contract takes, in an environment that check_environment() takes.
Result<void> run(const RopePoolFusedArgs& args, Executor* executor);

}  // namespace ropepool
