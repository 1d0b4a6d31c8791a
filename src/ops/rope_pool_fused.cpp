// rope_pool_fused: the contract, rule by rule in its order, then the call.
#include "ops/rope_pool_fused.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>

#include <fmt/format.h>

#include <ropepool/runtime.h>

#include "core/devices.h"
#include "core/dtype.h"
#include "core/executor.h"
#include "core/float_modes.h"
#include "core/frequencies.h"
#include "core/index_array.h"
#include "core/overlap.h"
#include "core/pool_rows.h"
#include "core/rope_pool_fused_call.h"
#include "ops/rope_pool_fused_diagnosis.h"

namespace ropepool {
namespace contract {
namespace {

// ---- What the rules look at

using Args = RopePoolFusedArgs;
using Finding = Error::Finding;

struct Named {
  const char* name;
  const Tensor* tensor;
};

std::array<Named, 9> all_arrays(const Args& a) {
  return {{{"q", &a.q},
           {"k", &a.k},
           {"v", &a.v},
           {"positions", &a.positions},
           {"slots", &a.slots},
           {"k_pool", &a.k_pool},
           {"v_pool", &a.v_pool},
           {"q_out", &a.q_out},
           {"k_out", &a.k_out}}};
}
std::array<Named, 4> written_arrays(const Args& a) {
  return {{{"q_out", &a.q_out}, {"k_out", &a.k_out}, {"k_pool", &a.k_pool}, {"v_pool", &a.v_pool}}};
}
std::array<Named, 5> input_arrays(const Args& a) {
  return {{{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"positions", &a.positions}, {"slots", &a.slots}}};
}

// The summary of most rules beyond the original's: "{argument} must {be} {expected}, got {actual}".
Finding must(const char* argument, const char* be, std::string expected, std::string actual) {
  std::string summary = fmt::format("{} must {} {}, got {}", argument, be, expected, actual);
  return {std::move(summary), argument, std::move(expected), std::move(actual), "", ""};
}

// nullptr where elements can be found at all: on whole items, all within 63 bits.
const char* placement_fault(const Tensor& tensor, std::string& actual) {
  const auto item = item_size(tensor.dtype);
  for (std::int64_t length : tensor.shape) {
    if (length < 0) return actual = to_string(tensor.shape), "no negative length";
  }
  if (tensor.empty()) return nullptr;
  if (tensor.data == nullptr) return actual = "a null pointer", "data";
  if (tensor.unaligned) return actual = "an offset or stride between two elements", "data and strides on whole elements";
  const auto past = item > 0 ? reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(item) : 0;
  if (past != 0) {
    return actual = fmt::format("an address {} byte{} past one", past, past == 1 ? "" : "s"),
           "data and strides on whole elements";
  }
  std::int64_t low = 0, high = item;
  for (int axis = 0; axis < std::min(tensor.rank(), Dims::kMaxRank); ++axis) {
    const std::int64_t steps = tensor.shape[axis] - 1;
    std::int64_t reach = 0;
    std::int64_t& bound = tensor.strides[axis] < 0 ? low : high;
    if (steps > 0 && (__builtin_mul_overflow(tensor.strides[axis], steps, &reach) ||
                      __builtin_mul_overflow(reach, item, &reach) || __builtin_add_overflow(bound, reach, &bound))) {
      return actual = fmt::format("shape {} with strides {}", to_string(tensor.shape), to_string(tensor.strides)),
             "elements within the address space";
    }
  }
  return nullptr;
}

// nullptr where they are read as they lie, too: with a unit innermost stride.
const char* layout_fault(const Tensor& tensor, std::string& actual) {
  if (const char* fault = placement_fault(tensor, actual)) return fault;
  if (tensor.empty()) return nullptr;
  const int last = tensor.rank() - 1;
  if (last >= 0 && last < Dims::kMaxRank && tensor.shape[last] != 1 && tensor.strides[last] != 1) {
    return actual = fmt::format("{}", tensor.strides[last]), "an innermost stride of 1";
  }
  return nullptr;
}

// Whether later rules can look at the bytes of the tensor, gaps or not.
bool readable(const Tensor& tensor) {
  std::string unused;
  return tensor.given() && item_size(tensor.dtype) > 0 && tensor.rank() <= Dims::kMaxRank &&
         placement_fault(tensor, unused) == nullptr;
}

// Whether positions or slots can be read here, so that their values can be checked.
bool readable_indices(const Tensor& tensor) {
  return tensor.rank() == 1 && is_index_type(tensor.dtype) && tensor.device.type == DeviceType::cpu && readable(tensor);
}

// The first index whose value is above `high` or below `low`, or -1; and that value.
struct Outlier {
  std::int64_t index = -1, value = 0;
};
Outlier first_outlier(const Tensor& tensor, std::int64_t low, std::int64_t high) {
  Outlier found;
  visit_index_array(tensor, [&](const auto* values) {
    const std::int64_t count = tensor.strides[0] == 0 ? std::min<std::int64_t>(tensor.shape[0], 1) : tensor.shape[0];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = load_once(values + i * tensor.strides[0]);
      if (value < low || value > high) {
        found = {i, value};
        return;
      }
    }
  });
  return found;
}

bool is_shape(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c) {
  return tensor.rank() == 3 && tensor.shape[0] == a && tensor.shape[1] == b && tensor.shape[2] == c;
}

// ---- The rules. Each gives what it found wrong, or nullopt.

using Check = std::optional<Finding>;

Check qkv_rank(const Args& a, Outputs) {
  for (const auto& [name, tensor] : {Named{"q", &a.q}, Named{"k", &a.k}, Named{"v", &a.v}}) {
    if (tensor->rank() != 3) {
      return Finding{"rope_pool_fused expects q/k/v to be 3-D", name, "3 axes", to_string(tensor->shape), "", ""};
    }
  }
  return {};
}

Check positions_slots_rank(const Args& a, Outputs) {
  for (const auto& [name, tensor] : {Named{"positions", &a.positions}, Named{"slots", &a.slots}}) {
    if (tensor->rank() != 1) {
      return Finding{"rope_pool_fused expects positions/slots to be 1-D", name, "1 axis", to_string(tensor->shape), "", ""};
    }
  }
  return {};
}

Check pools_rank(const Args& a, Outputs) {
  for (const auto& [name, tensor] : {Named{"k_pool", &a.k_pool}, Named{"v_pool", &a.v_pool}}) {
    if (tensor->rank() != 3) {
      return Finding{"rope_pool_fused expects pool tensors to be 3-D", name, "3 axes", to_string(tensor->shape), "", ""};
    }
  }
  return {};
}

Check q_shape(const Args& a, Outputs) {
  if (a.q.rank() == 3 && is_shape(a.q, a.q.shape[0], a.num_qo_heads, a.head_dim)) return {};
  return Finding{fmt::format("q shape must be [num_tokens, num_qo_heads, head_dim], got {}", to_string(a.q.shape)),
                 "q",
                 fmt::format("(num_tokens, {}, {})", a.num_qo_heads, a.head_dim),
                 to_string(a.q.shape),
                 "",
                 ""};
}

Check k_shape(const Args& a, Outputs) {
  const bool counted = a.q.rank() == 3;  // else nobody knows how many tokens there are, and any number will do
  if (is_shape(a.k, counted ? a.q.shape[0] : a.k.shape[0], a.num_kv_heads, a.head_dim)) return {};
  return Finding{fmt::format("k shape must be [num_tokens, num_kv_heads, head_dim], got {}", to_string(a.k.shape)),
                 "k",
                 counted ? to_string(Shape{a.q.shape[0], a.num_kv_heads, a.head_dim})
                         : fmt::format("(num_tokens, {}, {})", a.num_kv_heads, a.head_dim),
                 to_string(a.k.shape),
                 "",
                 ""};
}

Check v_shape(const Args& a, Outputs) {
  if (a.v.shape == a.k.shape) return {};
  return Finding{fmt::format("v shape must match k shape, got {} vs {}", to_string(a.v.shape), to_string(a.k.shape)),
                 "v",
                 to_string(a.k.shape),
                 to_string(a.v.shape),
                 "",
                 ""};
}

Check token_counts(const Args& a, Outputs) {
  const bool counted = a.q.rank() == 3;  // else all that can be told is whether the two agree
  const Shape tokens = counted ? Shape{a.q.shape[0]} : a.positions.shape;
  for (const auto& [name, tensor] : {Named{"positions", &a.positions}, Named{"slots", &a.slots}}) {
    if (tensor->rank() != 1 || tensor->shape != tokens) {
      return Finding{"positions/slots must have one entry per token",
                     name,
                     tokens.rank() == 1 ? to_string(tokens) : "(num_tokens,)",
                     to_string(tensor->shape),
                     "",
                     ""};
    }
  }
  return {};
}

Check k_pool_shape(const Args& a, Outputs) {
  if (a.k_pool.rank() == 3 && is_shape(a.k_pool, a.k_pool.shape[0], a.num_kv_heads, a.head_dim)) return {};
  return Finding{fmt::format("k_pool has incompatible shape {}", to_string(a.k_pool.shape)),
                 "k_pool",
                 fmt::format("(num_slots, {}, {})", a.num_kv_heads, a.head_dim),
                 to_string(a.k_pool.shape),
                 "",
                 ""};
}

Check v_pool_shape(const Args& a, Outputs) {
  if (a.v_pool.shape == a.k_pool.shape) return {};
  return Finding{
      fmt::format("v_pool shape must match k_pool shape, got {} vs {}", to_string(a.v_pool.shape), to_string(a.k_pool.shape)),
      "v_pool",
      to_string(a.k_pool.shape),
      to_string(a.v_pool.shape),
      "",
      ""};
}

// What q, k and v should have: the pools' dtype where one of them has it, else that of most of them.
DType common_dtype(const Args& a) {
  const DType q = a.q.dtype, k = a.k.dtype, v = a.v.dtype, pool = a.k_pool.dtype;
  if (pool == a.v_pool.dtype && is_data_type(pool) && (q == pool || k == pool || v == pool)) return pool;
  if (k == v && is_data_type(k)) return k;
  for (DType dtype : {q, k, v}) {
    if (is_data_type(dtype)) return dtype;
  }
  return q;
}

Check qkv_dtypes(const Args& a, Outputs) {
  if (a.k.dtype == a.q.dtype && a.v.dtype == a.q.dtype) return {};
  const DType expected = common_dtype(a);
  for (const auto& [name, tensor] : {Named{"q", &a.q}, Named{"k", &a.k}, Named{"v", &a.v}}) {
    if (tensor->dtype != expected) {
      return Finding{"q/k/v dtypes must match", name, to_string(expected), to_string(tensor->dtype), "", ""};
    }
  }
  return {};
}

Check pool_dtypes(const Args& a, Outputs) {
  for (const auto& [name, tensor] : {Named{"k_pool", &a.k_pool}, Named{"v_pool", &a.v_pool}}) {
    if (tensor->dtype != a.q.dtype) {
      return Finding{"pool dtypes must match q/k/v dtype", name, to_string(a.q.dtype), to_string(tensor->dtype), "", ""};
    }
  }
  return {};
}

Check float_dtypes(const Args& a, Outputs) {
  for (const auto& [name, tensor] :
       {Named{"q", &a.q}, Named{"k", &a.k}, Named{"v", &a.v}, Named{"k_pool", &a.k_pool}, Named{"v_pool", &a.v_pool}}) {
    if (!is_data_type(tensor->dtype)) return must(name, "be", "float32, float16 or bfloat16", to_string(tensor->dtype));
  }
  return {};
}

Check index_dtypes(const Args& a, Outputs) {
  for (const auto& [name, tensor] : {Named{"positions", &a.positions}, Named{"slots", &a.slots}}) {
    if (!is_index_type(tensor->dtype)) return must(name, "be", "int32 or int64", to_string(tensor->dtype));
  }
  return {};
}

Check geometry(const Args& a, Outputs) {
  if (a.head_dim < 1) return must("head_dim", "be", "at least 2", std::to_string(a.head_dim));
  if (a.num_qo_heads < 1) return must("num_qo_heads", "be", "at least 1", std::to_string(a.num_qo_heads));
  if (a.num_kv_heads < 1) return must("num_kv_heads", "be", "at least 1", std::to_string(a.num_kv_heads));
  if (a.head_dim % 2 != 0) return must("head_dim", "be", "even", std::to_string(a.head_dim));
  return {};
}

Check rope(const Args& a, Outputs) {
  if (!std::isfinite(a.rope_base) || a.rope_base <= 0) {
    return must("rope_base", "be", "finite and above 0", fmt::format("{}", a.rope_base));
  }
  if (a.angles != Angles::exact && a.angles != Angles::float32)
    return must("angles", "be", "'exact' or 'float32'", std::to_string(static_cast<int>(a.angles)));
  return {};
}

Check layout(const Args& a, Outputs) {
  for (const auto& [name, tensor] : all_arrays(a)) {
    std::string actual;
    if (!tensor->given()) continue;
    if (const char* expected = layout_fault(*tensor, actual)) return must(name, "have", expected, std::move(actual));
  }
  return {};
}

Check outputs(const Args& a, Outputs outputs) {
  struct Pair {
    Named out;
    const Tensor* like;
  };
  for (const auto& [out, like] : {Pair{{"q_out", &a.q_out}, &a.q}, Pair{{"k_out", &a.k_out}, &a.k}}) {
    if (!out.tensor->given()) {
      if (outputs == Outputs::required) return must(out.name, "be", "given", "nothing");
      continue;
    }
    if (out.tensor->shape != like->shape) return must(out.name, "be", to_string(like->shape), to_string(out.tensor->shape));
    if (out.tensor->dtype != like->dtype) return must(out.name, "be", to_string(like->dtype), to_string(out.tensor->dtype));
  }
  for (const auto& [name, tensor] : written_arrays(a)) {
    if (tensor->read_only) return must(name, "be", "writable", "a read-only array");
  }
  return {};
}

Check devices(const Args& a, Outputs) {
  if (!has_kernels(a.q.device.type)) return must("q", "be on", "cpu", to_string(a.q.device));
  for (const auto& [name, tensor] : all_arrays(a)) {
    if (tensor->given() && tensor->device != a.q.device)
      return must(name, "be on", to_string(a.q.device), to_string(tensor->device));
  }
  return {};
}

Finding shared(const char* written, const char* other) {
  return {fmt::format("{} must share no memory with {}", written, other), written, fmt::format("memory apart from {}", other),
          "memory in common, or a layout in which that can't be told",    "",      ""};
}

Check overlap(const Args& a, Outputs) {
  struct Placed {
    Named array;
    ByteRange bytes;  // empty where the array can't be judged
  };
  const auto place = [](const Named& array) {
    return Placed{array, readable(*array.tensor) ? byte_range(*array.tensor) : ByteRange{}};
  };
  const auto meet = [](const Placed& x, const Placed& y) {  // addresses of two devices have nothing to do with each other
    return intersect(x.bytes, y.bytes) && x.array.tensor->device == y.array.tensor->device;
  };
  const auto share = [&](const Placed& x, const Placed& y) {
    return meet(x, y) && may_overlap(*x.array.tensor, *y.array.tensor);
  };
  std::array<Placed, 4> written;
  std::array<Placed, 5> inputs;
  std::ranges::transform(written_arrays(a), written.begin(), place);
  std::ranges::transform(input_arrays(a), inputs.begin(), place);
  for (std::size_t i = 0; i < written.size(); ++i) {
    const Placed& out = written[i];
    if (out.bytes.begin != out.bytes.end && overlaps_itself(*out.array.tensor)) return shared(out.array.name, "itself");
    for (std::size_t j = i + 1; j < written.size(); ++j) {
      if (share(out, written[j])) return shared(out.array.name, written[j].array.name);
    }
    for (const Placed& input : inputs) {
      const bool in_place = (out.array.tensor == &a.q_out && input.array.tensor == &a.q) ||
                            (out.array.tensor == &a.k_out && input.array.tensor == &a.k);
      if (in_place && meet(out, input) && same_view(*out.array.tensor, *input.array.tensor)) continue;
      if (share(out, input)) return shared(out.array.name, input.array.name);
    }
  }
  return {};
}

Check slot_values(const Args& a, Outputs) {
  if (!readable_indices(a.slots) || a.k_pool.rank() != 3) return {};  // of pages nobody knows how many slots they are
  const std::int64_t num_slots = a.k_pool.shape[0];
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const Outlier outlier = first_outlier(a.slots, kLeast, num_slots == kLeast ? kLeast : num_slots - 1);
  if (outlier.index < 0) return {};
  return Finding{fmt::format("slots[{}] is {}, but the pools have {} slots", outlier.index, outlier.value, num_slots),
                 "slots",
                 fmt::format("below {}", num_slots),
                 std::to_string(outlier.value),
                 "",
                 ""};
}

Check position_values(const Args& a, Outputs) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  if (!readable_indices(a.positions)) return {};
  const Outlier outlier = first_outlier(a.positions, -kLimit, kLimit);
  if (outlier.index < 0) return {};
  return Finding{fmt::format("positions[{}] is {}, beyond +-{}", outlier.index, outlier.value, kLimit),
                 "positions",
                 fmt::format("within +-{}", kLimit),
                 std::to_string(outlier.value),
                 "",
                 ""};
}

struct Rule {
  Refusal refusal;
  Check (*check)(const Args&, Outputs);
};

// In the contract's order.
constexpr Rule kRules[] = {
    {Refusal::qkv_not_3d, qkv_rank},
    {Refusal::positions_slots_not_1d, positions_slots_rank},
    {Refusal::pools_not_3d, pools_rank},
    {Refusal::q_shape_mismatch, q_shape},
    {Refusal::k_shape_mismatch, k_shape},
    {Refusal::v_shape_mismatch, v_shape},
    {Refusal::token_count_mismatch, token_counts},
    {Refusal::k_pool_shape_mismatch, k_pool_shape},
    {Refusal::v_pool_shape_mismatch, v_pool_shape},
    {Refusal::qkv_dtype_mismatch, qkv_dtypes},
    {Refusal::pool_dtype_mismatch, pool_dtypes},
    {Refusal::float_dtype_unsupported, float_dtypes},
    {Refusal::index_dtype_unsupported, index_dtypes},
    {Refusal::geometry_unsupported, geometry},
    {Refusal::rope_unsupported, rope},
    {Refusal::layout_unsupported, layout},
    {Refusal::output_unsuitable, outputs},
    {Refusal::device_unsupported, devices},
    {Refusal::overlap, overlap},
    {Refusal::slot_out_of_range, slot_values},
    {Refusal::position_out_of_range, position_values},
};

std::optional<Error> refusal_by(const Rule& rule, const Args& args, Outputs outputs) {
  Check finding = rule.check(args, outputs);
  if (!finding) return {};
  auto [cause, hint] = diagnose(rule.refusal, args, *finding);
  finding->cause = std::move(cause);
  finding->hint = std::move(hint);
  return Error(rule.refusal, std::move(*finding));
}

}  // namespace

std::optional<Error> first_refusal(const RopePoolFusedArgs& args, Outputs outputs) {
  for (const Rule& rule : kRules) {
    if (auto error = refusal_by(rule, args, outputs)) return error;
  }
  return {};
}

std::vector<Error> all_refusals(const RopePoolFusedArgs& args, Outputs outputs) {
  std::vector<Error> errors;
  for (const Rule& rule : kRules) {
    if (auto error = refusal_by(rule, args, outputs)) errors.push_back(std::move(*error));
  }
  return errors;
}

Error with_angles(const Error& error, const std::string& word) {
  if (error.refusal() != Refusal::rope_unsupported || error.argument() != "angles") return error;
  Finding finding = must("angles", "be", error.expected(), word);
  finding.cause = error.cause();
  finding.hint = error.hint();
  return Error(*error.refusal(), std::move(finding));
}

}  // namespace contract

namespace {

HeadRows rows_of(const Tensor& tensor) {
  // An axis of one, and those of an empty array, may have any stride, a product with which could overflow.
  const bool empty = tensor.empty();
  const auto step = [&](int axis) {
    return tensor.shape[axis] > 1 && !empty ? tensor.strides[axis] * item_size(tensor.dtype) : 0;
  };
  return {static_cast<std::byte*>(tensor.data), step(0), step(1)};
}

// Bytes a call must move before a second thread pays: waking one costs some 10 us, in which a core moves about this much.
constexpr std::int64_t kSplitBytes = 256 * 1024;
// From so many tokens on, pool rows are written past the caches: they are cold, and not read soon. 4,096 tokens take 0.85 times
// as long so (bfloat16, 32 and 8 heads of 128).
constexpr std::int64_t kStreamPoolTokens = 8;
// From so many bytes of q_out and k_out on, these too: they would not stay in a core's L2 cache until attention reads them. 4,096
// tokens take 0.8 times as long so.
constexpr std::int64_t kStreamOutputBytes = 2 << 20;

bool can_stream_outputs(const RopePoolFusedCall& call) {
  const std::int64_t half_bytes = call.head_dim / 2 * item_size(call.dtype);
  const bool in_place = call.q_out.data == call.q.data || call.k_out.data == call.k.data;  // then its lines are in the cache
  return !in_place && half_bytes % kStreamAlignment == 0 && call.q_out.aligned(kStreamAlignment) &&
         call.k_out.aligned(kStreamAlignment) && call.k_pool.aligned(kStreamAlignment);
}

}  // namespace

RopePoolFusedCall resolve(const RopePoolFusedArgs& args, const PoolRows& rows, const Frequencies& frequencies) {
  RopePoolFusedCall call{};
  call.dtype = args.q.dtype;
  call.num_tokens = args.q.shape[0];
  call.num_qo_heads = args.num_qo_heads;
  call.num_kv_heads = args.num_kv_heads;
  call.head_dim = args.head_dim;
  call.q = rows_of(args.q);
  call.k = rows_of(args.k);
  call.v = rows_of(args.v);
  call.q_out = rows_of(args.q_out);
  call.k_out = rows_of(args.k_out);
  call.k_pool = rows_of(args.k_pool);
  call.v_pool = rows_of(args.v_pool);
  call.positions = args.positions.data;
  call.positions_dtype = args.positions.dtype;
  call.pool_rows = rows.data();
  call.frequencies = &frequencies;
  call.angles = args.angles;
  const std::int64_t output_bytes =
      call.num_tokens * (call.num_qo_heads + call.num_kv_heads) * call.head_dim * item_size(call.dtype);
  call.stream_pool = call.num_tokens >= kStreamPoolTokens;
  call.stream_outputs = call.stream_pool && output_bytes >= kStreamOutputBytes && can_stream_outputs(call);
  return call;
}

Result<void> rope_pool_fused(const RopePoolFusedArgs& args, Executor* executor) try {
  if (auto environment = check_environment(); !environment) return environment.error();
  if (auto refusal = contract::first_refusal(args, contract::Outputs::required)) return std::move(*refusal);
  const std::int64_t num_tokens = args.q.shape[0];
  if (num_tokens == 0) return {};

  const DefaultFloatModes modes;
  // All that can fail comes before the first write.
  const PoolRows rows(args.slots, args.k_pool.shape[0]);
  const auto frequencies = frequencies_of(args.head_dim, args.rope_base);
  RopePoolFusedCall call = resolve(args, rows, *frequencies);

  const std::int64_t token_bytes =
      (2 * args.num_qo_heads + 5 * args.num_kv_heads) * args.head_dim * item_size(args.q.dtype);  // read and written
  const std::int64_t bytes = num_tokens * token_bytes;

  const auto kernel = cpu_kernels().value().rope_pool_fused;
  const std::int64_t parts = std::min(num_tokens, bytes / (kSplitBytes / 2));
  if (parts <= 2) {
    kernel(call, 0, num_tokens);
    return {};
  }
  Executor& runner = executor != nullptr ? *executor : own_executor();
  runner.parallel_for(parts, [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatModes modes_of_worker;
    const auto token_of = [&](std::int64_t part) {  // num_tokens * part / parts, without overflow
      return num_tokens / parts * part + num_tokens % parts * part / parts;
    };
    kernel(call, token_of(begin), token_of(end));
  });
  return {};
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

std::vector<Error> check(const RopePoolFusedArgs& args) { return contract::all_refusals(args, contract::Outputs::required); }

}  // namespace ropepool
