// The contract of rope_pool_fused for front-ends that make the outputs themselves, and what follows it.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "core/pool_rows.h"
#include "core/prologue.h"
#include "core/rope_pool_fused_call.h"
#include "core/rope_tables.h"

namespace ropepool::contract {

enum class Outputs {
  required,    // a missing q_out or k_out is a refusal
  made_later,  // the front-end makes what is missing once nothing else is refused
};

// The arrays of a call, in the order in which rules look at them.
enum Array : unsigned { q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, rope_sets, kNumArrays };

// An op that has the contract of rope_pool_fused for the arrays it takes. It fills in the others so that no rule complains of
// them; nobody looks at their memory, but for the values of positions and slots.
struct Op {
  unsigned stand_ins;  // a bit for each Array that the caller did not give
  using Word = std::pair<std::string_view, std::string_view>;
  std::span<const Word> words;     // of the messages, and what stands in their place
  bool turns = true;               // else head_dim may be odd
  const Tensor* packed = nullptr;  // has q, k and v in it
  bool in_place = false;           // q_out and k_out are in `packed` too
};
constexpr unsigned bit(Array array) { return 1u << array; }

// Shape and dtype of what stands in for an array.
Tensor stand_in(DType dtype, std::initializer_list<std::int64_t> shape, const Device& device);
// [num_tokens], all of one value.
Tensor constant_index(const std::int64_t& value, std::int64_t num_tokens, const Device& device);

// The first refusal in the contract's order, or nullopt.
std::optional<Error> first_refusal(const RopePoolFusedArgs& args, Outputs outputs);
std::optional<Error> first_refusal(const RopePoolFusedArgs& args, Outputs outputs, const Op& op);
// All that apply.
std::vector<Error> all_refusals(const RopePoolFusedArgs& args, Outputs outputs);

// In front-ends where `angles` is a word: has a refusal of a number that stands for none of them say the word instead.
Error with_angles(const Error& error, const std::string& word);

// "{argument} must {be} {expected}, got {actual}": the summary of most rules beyond the original's.
Error::Finding must(const char* argument, const char* be, std::string expected, std::string actual);

// What is wrong with a bias or weight that is read on the CPU: its shape is one of `shapes`, its dtype float32 or that of the
// data.
std::optional<Error::Finding> float_array(const char* name, const Tensor& tensor, DType data,
                                          std::initializer_list<Shape> shapes);

// What q, k and v should have: the pools' dtype where one of them has it, else that of most of them.
DType common_dtype(const RopePoolFusedArgs& args);

// How many positions a token has: more than one with M-RoPE.
inline std::int64_t num_axes(const RopePoolFusedArgs& args) { return args.rope != nullptr ? args.rope->num_axes() : 1; }

// Whether a norm can add `eps`, in float32.
inline bool is_eps(double eps) { return std::isfinite(static_cast<float>(eps)) && eps >= 0; }

}  // namespace ropepool::contract

namespace ropepool {

// What the kernel is told of a call that the contract takes; it points into `rows`, `rope` and `prologue`. No rows: no pool; no
// prologue: heads turn as they stand.
RopePoolFusedCall resolve(const RopePoolFusedArgs& args, const PoolRows* rows, const RopeTables& rope,
                          const Prologue* prologue);
HeadRows rows_of(const Tensor& tensor, std::int64_t item_size);
Places places_of(const Tensor& positions, const Tensor& sets);

// Whether so many tokens are written past the caches.
bool streams_pool(std::int64_t num_tokens);

// Runs kernel(call, begin, end) over all tokens, split over the executor where they move enough bytes.
template <class Call>
void run_tokens(void (*kernel)(const Call&, std::int64_t, std::int64_t), const Call& call, std::int64_t token_bytes,
                Executor* executor);

// The call itself, of arguments that the contract takes, in an environment that check_environment() takes.
Result<void> run(const RopePoolFusedArgs& args, Executor* executor);
// With what stands in a packed projection: the gaps between groups, and biases.
Result<void> run_packed(const RopePoolFusedArgs& args, std::int64_t q_group_gap, std::int64_t q_out_group_gap,
                        Executor* executor);

}  // namespace ropepool
