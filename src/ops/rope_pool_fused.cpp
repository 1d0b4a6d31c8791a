// rope_pool_fused: the contract, rule by rule in its order, then the call.
#include "ops/rope_pool_fused.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include <ropepool/catalog.h>

#include "core/devices.h"
#include "core/dtype.h"
#include "core/environment.h"
#include "core/executor.h"
#include "core/float_modes.h"
#include "core/index_array.h"
#include "core/overlap.h"
#include "core/pool_rows.h"
#include "core/rope_pool_fused_call.h"
#include "core/rerotate_call.h"
#include "core/rope_tables.h"
#include "core/words.h"
#include "core/write_kv_call.h"
#include "ops/rope_pool_fused_diagnosis.h"

namespace ropepool {
namespace contract {

using Finding = Error::Finding;

namespace {

// ---- What the rules look at

using Args = RopePoolFusedArgs;

struct Named {
  const char* name;
  Tensor Args::*tensor;
};
constexpr Named kArrays[kNumArrays] = {{"q", &Args::q},           {"k", &Args::k},
                                       {"v", &Args::v},           {"positions", &Args::positions},
                                       {"slots", &Args::slots},   {"k_pool", &Args::k_pool},
                                       {"v_pool", &Args::v_pool}, {"q_out", &Args::q_out},
                                       {"k_out", &Args::k_out},   {"rope_sets", &Args::rope_sets}};
const char* name_of(Array array) { return kArrays[array].name; }
const Tensor& of(const Args& a, Array array) { return a.*kArrays[array].tensor; }

// Whether elements can be found at all, on whole items and all within 63 bits; whether each axis is known to step past all that
// lies inside it, so that no two elements share a byte; and their bytes, none where the size of an item or the length of an
// axis is not known.
struct Placement {
  bool found, nested;
  ByteRange bytes;
};
Placement place(const Tensor& tensor) {
  const std::int64_t item = item_size_of(tensor.dtype);
  const int rank = std::min(tensor.rank(), Dims::kMaxRank);
  std::int64_t low = 0, high = item;
  bool empty = false, overflow = false;
  for (int axis = 0; axis < rank; ++axis) {
    const std::int64_t length = tensor.shape[axis];
    if (length <= 0) {
      if (length < 0) return {};
      empty = true;
      continue;
    }
    std::int64_t reach = 0;
    std::int64_t& bound = tensor.strides[axis] < 0 ? low : high;
    if (__builtin_mul_overflow(length - 1, tensor.strides[axis], &reach) || __builtin_mul_overflow(reach, item, &reach) ||
        __builtin_add_overflow(bound, reach, &bound)) {
      overflow = true;
    }
  }
  if (empty) return {true, false, {}};
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  const bool on_items = !tensor.unaligned && (item == 0 || (address & static_cast<std::uintptr_t>(item - 1)) == 0);
  if (address == 0 || !on_items || overflow) return {};
  if (item == 0 || rank < tensor.rank()) return {true, false, {}};
  return {true, false, {address + static_cast<std::uint64_t>(low), address + static_cast<std::uint64_t>(high)}};
}

// The bytes of an array that place() finds, and whose every axis steps past all that lies inside it, as in nearly all calls; of
// all others none. Takes two thirds of the instructions of place().
inline ByteRange nested_bytes(const Tensor& tensor) {
  const std::int64_t item = item_size_of(tensor.dtype);
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (item == 0 || address == 0 || (address & static_cast<std::uintptr_t>(item - 1)) != 0 || tensor.unaligned ||
      tensor.rank() > Dims::kMaxRank) {
    return {};
  }
  std::int64_t span = 1;  // elements
  for (int axis = tensor.rank() - 1; axis >= 0; --axis) {
    const std::int64_t length = tensor.shape[axis], stride = tensor.strides[axis];
    if (length == 1) continue;
    std::int64_t reach = 0;
    if (length < 1 || stride < span || __builtin_mul_overflow(length - 1, stride, &reach) ||
        __builtin_add_overflow(span, reach, &span)) {
      return {};
    }
  }
  if (__builtin_mul_overflow(span, item, &span)) return {};
  return {address, address + static_cast<std::uint64_t>(span)};
}

// Why place() does not find the elements.
const char* placement_fault(const Tensor& tensor, std::string& actual) {
  for (std::int64_t length : tensor.shape) {
    if (length < 0) return actual = to_string(tensor.shape), "no negative length";
  }
  if (tensor.data == nullptr) return actual = "a null pointer", "data";
  if (tensor.unaligned) return actual = "an offset or stride between two elements", "data and strides on whole elements";
  const auto item = static_cast<std::uintptr_t>(item_size(tensor.dtype));
  const auto past = item > 0 ? reinterpret_cast<std::uintptr_t>(tensor.data) % item : 0;
  if (past != 0) {
    return actual = fmt::format("an address {} byte{} past one", past, past == 1 ? "" : "s"),
           "data and strides on whole elements";
  }
  return actual = fmt::format("shape {} with strides {}", to_string(tensor.shape), to_string(tensor.strides)),
         "elements within the address space";
}

inline bool has_unit_innermost_stride(const Tensor& tensor) {
  const int last = tensor.rank() - 1;
  return last < 0 || last >= Dims::kMaxRank || tensor.strides[last] == 1 || tensor.shape[last] == 1 || tensor.empty();
}

// What several rules look at, found once.
struct Facts {
  struct Entry {
    const Tensor* tensor;
    Placement placement;
  };
  static constexpr Array kWritten[] = {q_out, k_out, k_pool, v_pool};

  Outputs outputs;
  bool turns = true, in_place = false;
  unsigned stand_ins = 0;  // a bit for each Array
  std::array<Entry, kNumArrays> arrays;

  Facts(const Args& a, Outputs made) : outputs(made) {
    for (unsigned i = 0; i < kNumArrays; ++i) look_at(i, a.*kArrays[i].tensor);
  }

  void look_at(unsigned i, const Tensor& tensor) {
    arrays[i].tensor = &tensor;
    if (const ByteRange bytes = nested_bytes(tensor); bytes.begin != bytes.end) {
      arrays[i].placement = {true, true, bytes};
    } else {
      arrays[i].placement = tensor.given() ? place(tensor) : Placement{};
    }
  }

  void fit(const Op& op) {
    turns = op.turns;
    stand_ins = op.stand_ins;
    for (unsigned i = 0; i < kNumArrays; ++i) {
      if (op.stand_ins & (1u << i)) arrays[i].placement = {true, true, {}};
    }
    if (op.packed == nullptr) return;
    look_at(q, *op.packed);
    in_place = op.in_place;
    if (in_place) arrays[q_out] = arrays[q];
  }

  // With in_place q_out is called q.
  const char* name(unsigned i) const { return kArrays[in_place && i == q_out ? q : i].name; }
};

const RopeTables* tables_of(const Args& a) { return a.rope != nullptr ? &a.rope->tables() : nullptr; }

// Whether positions, slots or rope_sets can be read here, so that their values can be checked.
bool readable_indices(const Facts::Entry& array, int max_rank = 1) {
  const Tensor& tensor = *array.tensor;
  return tensor.rank() >= 1 && tensor.rank() <= max_rank && is_index_type(tensor.dtype) &&
         tensor.device.type == DeviceType::cpu && array.placement.found;
}

// The first index whose value is above `high` or below `low`, or -1; and that value.
struct Outlier {
  std::int64_t index = -1, value = 0;
};
Outlier first_outlier(const void* data, DType dtype, std::int64_t count, std::int64_t stride, std::int64_t low,
                      std::int64_t high) {
  Outlier found;
  visit_index_array(data, dtype, [&](const auto* values) {
    if (stride == 0) count = std::min<std::int64_t>(count, 1);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t value = load_once(values + i * stride);
      if (value < low || value > high) {
        found = {i, value};
        return;
      }
    }
  });
  return found;
}
Outlier first_outlier(const Tensor& tensor, std::int64_t low, std::int64_t high) {
  return first_outlier(tensor.data, tensor.dtype, tensor.shape[0], tensor.strides[0], low, high);
}

bool is_shape(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c) {
  return tensor.rank() == 3 && tensor.shape[0] == a && tensor.shape[1] == b && tensor.shape[2] == c;
}

// ---- The rules. Each gives what it found wrong, or nullopt.

using Check = std::optional<Finding>;

Check qkv_rank(const Args& a, const Facts&) {
  for (const Array i : {q, k, v}) {
    if (of(a, i).rank() != 3) {
      return Finding{"rope_pool_fused expects q/k/v to be 3-D", name_of(i), "3 axes", to_string(of(a, i).shape), "", ""};
    }
  }
  return {};
}

Check positions_slots_rank(const Args& a, const Facts&) {
  for (const Array i : {positions, slots}) {
    const bool may_have_axes = i == positions && num_axes(a) > 1;
    if (of(a, i).rank() != 1 && !(may_have_axes && of(a, i).rank() == 2)) {
      return Finding{"rope_pool_fused expects positions/slots to be 1-D",
                     name_of(i),
                     may_have_axes ? "1 axis, or 2 for M-RoPE" : "1 axis",
                     to_string(of(a, i).shape),
                     "",
                     ""};
    }
  }
  return {};
}

Check pools_rank(const Args& a, const Facts&) {
  for (const Array i : {k_pool, v_pool}) {
    if (of(a, i).rank() != 3) {
      return Finding{"rope_pool_fused expects pool tensors to be 3-D", name_of(i), "3 axes", to_string(of(a, i).shape), "", ""};
    }
  }
  return {};
}

Check q_shape(const Args& a, const Facts&) {
  if (a.q.rank() == 3 && is_shape(a.q, a.q.shape[0], a.num_qo_heads, a.head_dim)) return {};
  return Finding{fmt::format("q shape must be [num_tokens, num_qo_heads, head_dim], got {}", to_string(a.q.shape)),
                 "q",
                 fmt::format("(num_tokens, {}, {})", a.num_qo_heads, a.head_dim),
                 to_string(a.q.shape),
                 "",
                 ""};
}

Check k_shape(const Args& a, const Facts&) {
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

// The shape of k or k_pool with the lanes of v's heads.
Shape of_values(const Args& a, Shape shape) {
  if (a.v_head_dim && shape.rank() == 3) shape[2] = *a.v_head_dim;
  return shape;
}

Check v_shape(const Args& a, const Facts&) {
  if (!a.v_head_dim && a.v.shape == a.k.shape) return {};
  const Shape expected = of_values(a, a.k.shape);
  if (a.v.shape == expected) return {};
  return Finding{fmt::format("v shape must match k shape, got {} vs {}", to_string(a.v.shape), to_string(expected)),
                 "v",
                 to_string(expected),
                 to_string(a.v.shape),
                 "",
                 ""};
}

Check token_counts(const Args& a, const Facts&) {
  const bool counted = a.q.rank() == 3;  // else all that can be told is whether the two agree
  const auto per_token = [&](const Tensor& t) { return t.rank() == 1 && t.shape[0] == a.q.shape[0]; };
  if (counted && per_token(a.positions) && per_token(a.slots)) return {};
  const bool has_axes = num_axes(a) > 1 && a.positions.rank() == 2;
  const Shape tokens = counted ? Shape{a.q.shape[0]} : has_axes ? Shape{a.positions.shape[1]} : a.positions.shape;
  for (const Array i : {positions, slots}) {
    const Shape expected = has_axes && i == positions ? Shape{num_axes(a), tokens[0]} : tokens;
    if (of(a, i).rank() < 1 || of(a, i).rank() > (has_axes ? 2 : 1) || of(a, i).shape != expected) {
      return Finding{"positions/slots must have one entry per token",
                     name_of(i),
                     tokens.rank() == 1 ? to_string(expected) : "(num_tokens,)",
                     to_string(of(a, i).shape),
                     "",
                     ""};
    }
  }
  return {};
}

Check k_pool_shape(const Args& a, const Facts&) {
  if (a.k_pool.rank() == 3 && is_shape(a.k_pool, a.k_pool.shape[0], a.num_kv_heads, a.head_dim)) return {};
  return Finding{fmt::format("k_pool has incompatible shape {}", to_string(a.k_pool.shape)),
                 "k_pool",
                 fmt::format("(num_slots, {}, {})", a.num_kv_heads, a.head_dim),
                 to_string(a.k_pool.shape),
                 "",
                 ""};
}

Check v_pool_shape(const Args& a, const Facts&) {
  if (!a.v_head_dim && a.v_pool.shape == a.k_pool.shape) return {};
  const Shape expected = of_values(a, a.k_pool.shape);
  if (a.v_pool.shape == expected) return {};
  return Finding{
      fmt::format("v_pool shape must match k_pool shape, got {} vs {}", to_string(a.v_pool.shape), to_string(expected)),
      "v_pool",
      to_string(expected),
      to_string(a.v_pool.shape),
      "",
      ""};
}

Check qkv_dtypes(const Args& a, const Facts&) {
  if (a.k.dtype == a.q.dtype && a.v.dtype == a.q.dtype) return {};
  const DType expected = common_dtype(a);
  for (const Array i : {q, k, v}) {
    if (of(a, i).dtype != expected) {
      return Finding{"q/k/v dtypes must match", name_of(i), to_string(expected), to_string(of(a, i).dtype), "", ""};
    }
  }
  return {};
}

Check pool_dtypes(const Args& a, const Facts&) {
  for (const Array i : {k_pool, v_pool}) {
    if (of(a, i).dtype != a.q.dtype) {
      return Finding{"pool dtypes must match q/k/v dtype", name_of(i), to_string(a.q.dtype), to_string(of(a, i).dtype), "", ""};
    }
  }
  return {};
}

Check float_dtypes(const Args& a, const Facts&) {
  for (const Array i : {q, k, v, k_pool, v_pool}) {
    if (!is_data_type(of(a, i).dtype)) return must(name_of(i), "be", "float32, float16 or bfloat16", to_string(of(a, i).dtype));
  }
  return {};
}

Check index_dtypes(const Args& a, const Facts&) {
  for (const Array i : {positions, slots}) {
    if (!is_index_type(of(a, i).dtype)) return must(name_of(i), "be", "int32 or int64", to_string(of(a, i).dtype));
  }
  return {};
}

Check geometry(const Args& a, const Facts& facts) {
  if (a.head_dim < 1) return must("head_dim", "be", facts.turns ? "at least 2" : "at least 1", std::to_string(a.head_dim));
  if (a.num_qo_heads < 1) return must("num_qo_heads", "be", "at least 1", std::to_string(a.num_qo_heads));
  if (a.num_kv_heads < 1) return must("num_kv_heads", "be", "at least 1", std::to_string(a.num_kv_heads));
  if (facts.turns && a.head_dim % 2 != 0) return must("head_dim", "be", "even", std::to_string(a.head_dim));
  if (a.v_head_dim && *a.v_head_dim < 1) return must("v_head_dim", "be", "at least 1", std::to_string(*a.v_head_dim));
  return {};
}

Check rope(const Args& a, const Facts&) {
  if (a.rope != nullptr && !std::isnan(a.rope_base)) {
    return must("rope_base", "be", "left out where rope is given", fmt::format("{}", a.rope_base));
  }
  if (a.rope == nullptr && (!std::isfinite(a.rope_base) || a.rope_base <= 0)) {
    return must("rope_base", "be", "finite and above 0", fmt::format("{}", a.rope_base));
  }
  if (a.angles != Angles::exact && a.angles != Angles::float32)
    return must("angles", "be", "'exact' or 'float32'", std::to_string(static_cast<int>(a.angles)));
  return {};
}

Check layout(const Args&, const Facts& facts) {
  for (unsigned i = 0; i < kNumArrays; ++i) {
    const auto& [tensor, placement] = facts.arrays[i];
    if (placement.found && has_unit_innermost_stride(*tensor)) continue;
    if (!tensor->given() || (facts.stand_ins & (1u << i))) continue;
    if (placement.found) {
      return must(facts.name(i), "have", "an innermost stride of 1", std::to_string(tensor->strides[tensor->rank() - 1]));
    }
    std::string actual;
    const char* expected = placement_fault(*tensor, actual);
    return must(facts.name(i), "have", expected, std::move(actual));
  }
  return {};
}

Check outputs(const Args& a, const Facts& facts) {
  for (const Array i : {q_out, k_out}) {
    const Tensor &out = of(a, i), &like = i == q_out ? a.q : a.k;
    if (!out.given()) {
      if (facts.outputs == Outputs::required) return must(name_of(i), "be", "given", "nothing");
      continue;
    }
    if (out.shape != like.shape) return must(name_of(i), "be", to_string(like.shape), to_string(out.shape));
    if (out.dtype != like.dtype) return must(name_of(i), "be", to_string(like.dtype), to_string(out.dtype));
  }
  for (const Array i : Facts::kWritten) {
    if (facts.arrays[i].tensor->read_only) return must(facts.name(i), "be", "writable", "a read-only array");
  }
  return {};
}

Check devices(const Args& a, const Facts& facts) {
  if (!has_kernels(a.q.device.type)) return must("q", "be on", "cpu", to_string(a.q.device));
  for (unsigned i = 0; i < kNumArrays; ++i) {
    const Tensor& tensor = *facts.arrays[i].tensor;
    if (tensor.given() && tensor.device != a.q.device)
      return must(facts.name(i), "be on", to_string(a.q.device), to_string(tensor.device));
  }
  return {};
}

Finding shared(const char* written, const char* other) {
  return {fmt::format("{} must share no memory with {}", written, other), written, fmt::format("memory apart from {}", other),
          "memory in common, or a layout in which that can't be told",    "",      ""};
}

Check overlap(const Args&, const Facts& facts) {
  // What is written, then what is read: each of the first with all behind it.
  static constexpr Array kOrder[kNumArrays] = {q_out, k_out, k_pool, v_pool, q, k, v, positions, slots, rope_sets};
  std::array<ByteRange, kNumArrays> bytes;
  for (std::size_t i = 0; i < kNumArrays; ++i) bytes[i] = facts.arrays[kOrder[i]].placement.bytes;
  for (std::size_t i = 0; i < std::size(Facts::kWritten); ++i) {
    const Array written = kOrder[i];
    const auto& [out, placement] = facts.arrays[written];
    if (bytes[i].begin == bytes[i].end) continue;
    if (!placement.nested && overlaps_itself(*out)) return shared(facts.name(written), "itself");
    for (std::size_t j = i + 1; j < kNumArrays; ++j) {
      if (!intersect(bytes[i], bytes[j])) [[likely]]
        continue;
      const Array other = kOrder[j];
      const Tensor& tensor = *facts.arrays[other].tensor;
      if (out->device != tensor.device) continue;  // whose addresses have nothing to do with each other
      const bool may_be_in_place = (written == q_out && other == q) || (written == k_out && other == k);
      if (may_be_in_place && same_view(*out, tensor)) continue;
      if (may_overlap(*out, tensor)) return shared(facts.name(written), facts.name(other));
    }
  }
  return {};
}

Check slot_values(const Args& a, const Facts& facts) {
  if (!readable_indices(facts.arrays[slots]) || a.k_pool.rank() != 3)
    return {};  // of pages nobody knows how many slots they are
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

// Over all axes, the first of the axis that comes first.
Outlier first_position_outside(const Args& a, const Facts& facts, std::int64_t low, std::int64_t high) {
  if (!readable_indices(facts.arrays[positions], num_axes(a) > 1 ? 2 : 1)) return {};
  const Tensor& array = a.positions;
  if (array.rank() == 1) return first_outlier(array, low, high);
  const std::int64_t item = item_size_of(array.dtype);
  for (std::int64_t axis = 0; axis < array.shape[0]; ++axis) {
    const auto bytes =
        static_cast<std::uint64_t>(axis) * static_cast<std::uint64_t>(array.strides[0]) * static_cast<std::uint64_t>(item);
    const auto* row = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(array.data) + bytes);
    const Outlier outlier = first_outlier(row, array.dtype, array.shape[1], array.strides[1], low, high);
    if (outlier.index >= 0) return outlier;
  }
  return {};
}

Check position_values(const Args& a, const Facts& facts) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  const Outlier outlier = first_position_outside(a, facts, -kLimit, kLimit);
  if (outlier.index < 0) return {};
  return Finding{fmt::format("positions[{}] is {}, beyond +-{}", outlier.index, outlier.value, kLimit),
                 "positions",
                 fmt::format("within +-{}", kLimit),
                 std::to_string(outlier.value),
                 "",
                 ""};
}

Check rope_fits(const Args& a, const Facts&) {
  const RopeTables* rope = tables_of(a);
  if (rope == nullptr || rope->rotary_offset + rope->rotary_dim <= a.head_dim) return {};  // each at most kMaxRotaryDim
  const std::int64_t end = rope->rotary_offset + rope->rotary_dim;
  return Finding{fmt::format("the rope turns lanes {} to {}, but heads have {}", rope->rotary_offset, end - 1, a.head_dim),
                 "rope",
                 fmt::format("{} lanes at most", a.head_dim),
                 std::to_string(end),
                 "",
                 ""};
}

Check sets(const Args& a, const Facts&) {
  const std::int64_t num_sets = a.rope != nullptr ? a.rope->num_sets() : 1;
  if (!a.rope_sets.given()) {
    if (num_sets == 1) return {};
    return must("rope_sets", "be", "given where the rope has more sets than one", "nothing");
  }
  if (a.rope == nullptr) return must("rope_sets", "be", "left out where no rope is given", to_string(a.rope_sets.shape));
  if (!is_index_type(a.rope_sets.dtype)) return must("rope_sets", "be", "int32 or int64", to_string(a.rope_sets.dtype));
  const Shape tokens = a.q.rank() == 3 ? Shape{a.q.shape[0]} : a.slots.shape;
  if (a.rope_sets.rank() != 1 || a.rope_sets.shape != tokens) {
    return must("rope_sets", "be", "of one entry per token", to_string(a.rope_sets.shape));
  }
  return {};
}

Check set_values(const Args& a, const Facts& facts) {
  if (a.rope == nullptr || !a.rope_sets.given() || !readable_indices(facts.arrays[rope_sets])) return {};
  const Outlier outlier = first_outlier(a.rope_sets, 0, a.rope->num_sets() - 1);
  if (outlier.index < 0) return {};
  return Finding{fmt::format("rope_sets[{}] is {}, but the rope has {} sets", outlier.index, outlier.value, a.rope->num_sets()),
                 "rope_sets",
                 fmt::format("from 0 to {}", a.rope->num_sets() - 1),
                 std::to_string(outlier.value),
                 "",
                 ""};
}

Check table_positions(const Args& a, const Facts& facts) {
  const RopeTables* rope = tables_of(a);
  if (rope == nullptr || !rope->table.given()) return {};
  const std::int64_t rows = rope->table.shape[0];
  const Outlier outlier = first_position_outside(a, facts, 0, rows - 1);
  if (outlier.index < 0) return {};
  return Finding{fmt::format("positions[{}] is {}, but the rope's table has {} positions", outlier.index, outlier.value, rows),
                 "positions",
                 fmt::format("from 0 to {}", rows - 1),
                 std::to_string(outlier.value),
                 "",
                 ""};
}

// A bias or weight: [num_heads, head_dim] or [num_heads * head_dim], or for a weight [head_dim].
Check head_array(const char* name, const Tensor& tensor, DType data, std::int64_t num_heads, std::int64_t head_dim,
                 bool one_for_all) {
  std::int64_t lanes = 0;
  if (__builtin_mul_overflow(num_heads, head_dim, &lanes)) return {};  // heads have a refusal of their own
  const Shape each{num_heads, head_dim}, flat{lanes}, one{head_dim};
  if (one_for_all) return float_array(name, tensor, data, {one, each, flat});
  return float_array(name, tensor, data, {each, flat});
}

Check head_ops(const Args& a, const Facts&) {
  if (a.head_ops == nullptr) return {};
  const HeadOps& ops = *a.head_ops;
  const std::int64_t v_head_dim = a.v_head_dim.value_or(a.head_dim);
  if (auto found = head_array("q_bias", ops.q_bias, a.q.dtype, a.num_qo_heads, a.head_dim, false)) return found;
  if (auto found = head_array("k_bias", ops.k_bias, a.q.dtype, a.num_kv_heads, a.head_dim, false)) return found;
  if (auto found = head_array("v_bias", ops.v_bias, a.q.dtype, a.num_kv_heads, v_head_dim, false)) return found;
  struct Normed {
    const char* name;
    const std::optional<HeadNorm>& norm;
    std::int64_t num_heads;
  };
  for (const auto& [name, norm, num_heads] :
       {Normed{"q_norm", ops.q_norm, a.num_qo_heads}, Normed{"k_norm", ops.k_norm, a.num_kv_heads}}) {
    if (!norm) continue;
    if (auto found = head_array(name, norm->weight, a.q.dtype, num_heads, a.head_dim, true)) return found;
    if (!is_eps(norm->eps)) return must("eps", "be", "finite and at least 0", fmt::format("{}", norm->eps));
  }
  if (!std::isfinite(static_cast<float>(ops.q_scale))) return must("q_scale", "be", "finite", fmt::format("{}", ops.q_scale));
  return {};
}

struct Rule {
  Refusal refusal;
  Check (*check)(const Args&, const Facts&);
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
    {Refusal::rope_wider_than_heads, rope_fits},
    {Refusal::rope_sets_unsuitable, sets},
    {Refusal::rope_set_out_of_range, set_values},
    {Refusal::position_outside_table, table_positions},
    {Refusal::head_ops_unsuitable, head_ops},
};

Error refusal_of(Refusal refusal, const Args& args, Finding finding) {
  auto [cause, hint] = diagnose(refusal, args, finding);
  finding.cause = std::move(cause);
  finding.hint = std::move(hint);
  return Error(refusal, std::move(finding));
}

// `text` with each of `words`, where it stands alone, as the op says it.
std::string in_words_of(const Op& op, std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto stands_here = [&](const auto& word) {
      const std::size_t end = at + word.first.size();
      return text.substr(at, word.first.size()) == word.first && (at == 0 || !is_word(text[at - 1])) &&
             (end == text.size() || !is_word(text[end]));
    };
    const auto word = std::ranges::find_if(op.words, stands_here);
    if (word != op.words.end()) {
      result += word->second;
      at += word->first.size();
    } else {
      result += text[at++];
    }
  }
  return result;
}

// Whether `text` speaks of an array that the caller did not give, as a cause may that knows rope_pool_fused only.
bool speaks_of_stand_in(const Facts& facts, std::string_view text) {
  std::vector<Op::Word> words;
  for (unsigned i = 0; i < kNumArrays; ++i) {
    if (facts.stand_ins & (1u << i)) words.push_back({kArrays[i].name, ""});
  }
  if (facts.stand_ins & bit(k_pool)) words.insert(words.end(), {{"pool", ""}, {"pools", ""}});
  return in_words_of(Op{.stand_ins = 0, .words = words}, text) != text;
}

// A mend that speaks of none: the one found, else the first of the catalog's.
std::string mend_of(const Op& op, const Facts& facts, const Error& error) {
  if (!speaks_of_stand_in(facts, error.hint())) return in_words_of(op, error.hint());
  for (std::string_view left = catalog_entry(*error.refusal()).solutions; !left.empty();) {
    const std::string_view solution = left.substr(0, left.find('\n'));
    if (!speaks_of_stand_in(facts, solution)) return in_words_of(op, solution);
    left.remove_prefix(std::min(solution.size() + 1, left.size()));
  }
  return fmt::format("mend {}, as `ropepool explain {}` says of the arrays of rope_pool_fused",
                     in_words_of(op, error.argument()), error.code());
}

Error in_words_of(const Op& op, const Facts& facts, const Error& error) {
  const auto said = [&](std::string_view text) { return in_words_of(op, text); };
  return Error(*error.refusal(),
               {said(error.summary()), said(error.argument()), said(error.expected()), error.actual(),
                speaks_of_stand_in(facts, error.cause()) ? "" : said(error.cause()), mend_of(op, facts, error)});
}

[[gnu::cold, gnu::noinline]] bool add(std::vector<Error>& errors, Refusal refusal, const Args& args, Finding finding) {
  errors.push_back(refusal_of(refusal, args, std::move(finding)));
  return true;
}

// Whether a rule refuses the call, which adds to `errors`.
template <std::size_t i>
[[gnu::always_inline]] inline bool refuses(const Args& args, const Facts& facts, std::vector<Error>& errors) {
  Check finding = kRules[i].check(args, facts);
  if (finding) [[unlikely]]
    return add(errors, kRules[i].refusal, args, *std::move(finding));
  return false;
}

// One expression rather than a loop over kRules, so that the rules are compiled into it: a call that goes through takes 240
// instructions less of some 4,000.
template <std::size_t... i>
void walk(const Args& args, const Facts& facts, bool all, std::vector<Error>& errors, std::index_sequence<i...>) {
  ((refuses<i>(args, facts, errors) && !all) || ...);
}

// All, or the first alone.
std::vector<Error> refusals(const Args& args, const Facts& facts, bool all) {
  std::vector<Error> errors;
  walk(args, facts, all, errors, std::make_index_sequence<std::size(kRules)>());
  return errors;
}

std::optional<Error> first_refusal(const Args& args, const Facts& facts) {
  std::vector<Error> errors = refusals(args, facts, false);
  if (errors.empty()) return {};
  return std::move(errors.front());
}

}  // namespace

Finding must(const char* argument, const char* be, std::string expected, std::string actual) {
  std::string summary = fmt::format("{} must {} {}, got {}", argument, be, expected, actual);
  return {std::move(summary), argument, std::move(expected), std::move(actual), "", ""};
}

std::optional<Finding> float_array(const char* name, const Tensor& tensor, DType data, std::initializer_list<Shape> shapes) {
  if (!tensor.given()) return {};
  if (std::ranges::find(shapes, tensor.shape) == shapes.end()) {
    std::string expected;
    for (const Shape* shape = shapes.begin(); shape != shapes.end(); ++shape) {
      if (shape != shapes.begin()) expected += shape + 1 == shapes.end() ? " or " : ", ";
      expected += to_string(*shape);
    }
    return must(name, "be", std::move(expected), to_string(tensor.shape));
  }
  if (tensor.dtype != DType::f32 && tensor.dtype != data) {
    return must(name, "be", data == DType::f32 ? "float32" : "float32 or " + to_string(data), to_string(tensor.dtype));
  }
  if (tensor.device.type != DeviceType::cpu) return must(name, "be on", "cpu", to_string(tensor.device));
  std::string actual;
  if (!place(tensor).found) {
    const char* expected = placement_fault(tensor, actual);
    return must(name, "have", expected, std::move(actual));
  }
  if (!has_unit_innermost_stride(tensor)) {
    return must(name, "have", "an innermost stride of 1", std::to_string(tensor.strides[tensor.rank() - 1]));
  }
  return {};
}

Tensor stand_in(DType dtype, std::initializer_list<std::int64_t> shape, const Device& device) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.set_contiguous();
  tensor.device = device;
  return tensor;
}

Tensor constant_index(const std::int64_t& value, std::int64_t num_tokens, const Device& device) {
  Tensor tensor = stand_in(DType::i64, {num_tokens}, device);
  tensor.data = const_cast<std::int64_t*>(&value);
  tensor.strides = {0};
  return tensor;
}

DType common_dtype(const RopePoolFusedArgs& a) {
  const DType q = a.q.dtype, k = a.k.dtype, v = a.v.dtype, pool = a.k_pool.dtype;
  if (pool == a.v_pool.dtype && is_data_type(pool) && (q == pool || k == pool || v == pool)) return pool;
  if (k == v && is_data_type(k)) return k;
  for (DType dtype : {q, k, v}) {
    if (is_data_type(dtype)) return dtype;
  }
  return q;
}

std::optional<Error> first_refusal(const RopePoolFusedArgs& args, Outputs outputs) {
  return first_refusal(args, Facts(args, outputs));
}

std::optional<Error> first_refusal(const RopePoolFusedArgs& args, Outputs outputs, const Op& op) {
  Facts facts(args, outputs);
  facts.fit(op);
  auto refusal = first_refusal(args, facts);
  if (refusal) refusal = in_words_of(op, facts, *refusal);
  return refusal;
}

std::vector<Error> all_refusals(const RopePoolFusedArgs& args, Outputs outputs) {
  return refusals(args, Facts(args, outputs), true);
}

Error with_angles(const Error& error, const std::string& word) {
  if (error.refusal() != Refusal::rope_unsupported || error.argument() != "angles") return error;
  Finding finding = must("angles", "be", error.expected(), word);
  finding.cause = error.cause();
  finding.hint = error.hint();
  return Error(*error.refusal(), std::move(finding));
}

}  // namespace contract

HeadRows rows_of(const Tensor& tensor, std::int64_t item_size) {
  // An axis of one, and those of an empty array, may have any stride, a product with which could overflow, and is not used.
  const auto step = [&](int axis) {
    const auto bytes = static_cast<std::uint64_t>(tensor.strides[axis]) * static_cast<std::uint64_t>(item_size);
    return tensor.shape[axis] > 1 ? static_cast<std::int64_t>(bytes) : 0;
  };
  return {static_cast<std::byte*>(tensor.data), step(0), step(1)};
}

Places places_of(const Tensor& positions, const Tensor& sets) {
  return {positions.data, positions.dtype, positions.rank() == 2 ? positions.strides[0] : 0, sets.data, sets.dtype};
}

namespace {

// Bytes a call must move before a second thread pays: waking one costs some 10 us, in which a core moves about this much.
constexpr std::int64_t kSplitBytes = 256 * 1024;
// From so many tokens on, pool rows are written past the caches: they are cold, and not read soon. 4,096 tokens take 0.85 times
// as long so (bfloat16, 32 and 8 heads of 128).
constexpr std::int64_t kStreamPoolTokens = 8;
// From so many bytes of q_out and k_out on, these too: they would not stay in a core's L2 cache until attention reads them.
// 4,096 tokens take 0.8 times as long so.
constexpr std::int64_t kStreamOutputBytes = 2 << 20;

// From so many bytes of q, k and v on, they are fetched ahead: they come from memory then, and 4,096 tokens take 0.9 to 0.97
// times as long so. Fewer, where a cache has them, would take up to 1.06 times as long.
constexpr std::int64_t kFetchInputBytes = 32 << 20;

bool fetches_inputs(const RopePoolFusedCall& call) {
  if (!call.stream_q_out) return false;
  // More arithmetic, beside which memory would wait: a norm takes 0.85 times as long.
  if (call.prologue != nullptr) return true;
  const std::int64_t item = item_size(call.dtype), q_bytes = call.num_qo_heads * call.head_dim * item,
                     k_bytes = call.num_kv_heads * call.head_dim * item, v_bytes = call.num_kv_heads * call.v_head_dim * item;
  // Other bytes between rows, as in a packed QKV: then the CPU does not fetch well by itself, and such calls take 0.85 times as
  // long.
  if (call.q.row_stride > q_bytes || call.k.row_stride > k_bytes || call.v.row_stride > v_bytes) return true;
  return call.num_tokens > (kFetchInputBytes - 1) / (q_bytes + k_bytes + v_bytes);
}

// Whether turned heads can go past the caches to `out`. In place they do not, since their lines are in the cache.
bool can_stream(const RopePoolFusedCall& call, const HeadRows& from, const HeadRows& out) {
  const std::int64_t item = item_size(call.dtype), rotated = call.rope->rotary_dim * item;
  const std::int64_t before = call.rope->rotary_offset * item, behind = call.head_dim * item - before - rotated;
  const std::int64_t piece = call.rope->pairing == Pairing::neox ? rotated / 2 : rotated;
  return out.data != from.data && (before | piece | behind) % kStreamAlignment == 0 && out.aligned(kStreamAlignment);
}

}  // namespace

bool streams_pool(std::int64_t num_tokens) { return num_tokens >= kStreamPoolTokens; }

RopePoolFusedCall resolve(const RopePoolFusedArgs& args, const PoolRows* rows, const RopeTables& rope,
                          const Prologue* prologue) {
  const std::int64_t item = item_size_of(args.q.dtype);
  RopePoolFusedCall call{.dtype = args.q.dtype,
                         .num_tokens = args.q.shape[0],
                         .num_qo_heads = args.num_qo_heads,
                         .num_kv_heads = args.num_kv_heads,
                         .head_dim = args.head_dim,
                         .v_head_dim = args.v_head_dim.value_or(args.head_dim),
                         .q = rows_of(args.q, item),
                         .k = rows_of(args.k, item),
                         .v = rows_of(args.v, item),
                         .q_out = rows_of(args.q_out, item),
                         .k_out = rows_of(args.k_out, item),
                         .k_pool = rows_of(args.k_pool, item),
                         .v_pool = rows_of(args.v_pool, item),
                         .q_group_gap = 0,
                         .q_out_group_gap = 0,
                         .pool_rows = rows == nullptr ? nullptr : rows->data(),
                         .places = places_of(args.positions, args.rope_sets),
                         .rope = &rope,
                         .angles = args.angles,
                         .prologue = prologue,
                         .stream_q_out = false,
                         .stream_k_out = false,
                         .stream_pool = false,
                         .fetch_inputs = false};
  const std::int64_t output_bytes = call.num_tokens * (call.num_qo_heads + call.num_kv_heads) * call.head_dim * item;
  call.stream_pool = rows != nullptr && streams_pool(call.num_tokens);
  call.stream_q_out = call.stream_pool && output_bytes >= kStreamOutputBytes && can_stream(call, call.q, call.q_out);
  call.stream_k_out = call.stream_q_out && can_stream(call, call.k, call.k_out) && call.k_pool.aligned(kStreamAlignment);
  call.fetch_inputs = fetches_inputs(call);
  return call;
}

Result<void> rope_pool_fused(const RopePoolFusedArgs& args, Executor* executor) try {
  if (const Error* error = environment_error()) return *error;
  if (auto refusal = contract::first_refusal(args, contract::Outputs::required)) return std::move(*refusal);
  return run(args, executor);
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

template <class Call>
void run_tokens(void (*kernel)(const Call&, std::int64_t, std::int64_t), const Call& call, std::int64_t token_bytes,
                Executor* executor) {
  const std::int64_t num_tokens = call.num_tokens;
  const std::int64_t parts = std::min(num_tokens, num_tokens * token_bytes / (kSplitBytes / 2));
  if (parts <= 2) return kernel(call, 0, num_tokens);
  Executor& runner = executor != nullptr ? *executor : own_executor();
  runner.parallel_for(parts, [&](std::int64_t begin, std::int64_t end) {
    const DefaultFloatModes modes_of_worker;
    const auto token_of = [&](std::int64_t part) {  // num_tokens * part / parts, without overflow
      return num_tokens / parts * part + num_tokens % parts * part / parts;
    };
    kernel(call, token_of(begin), token_of(end));
  });
}
template void run_tokens(void (*)(const RopePoolFusedCall&, std::int64_t, std::int64_t), const RopePoolFusedCall&, std::int64_t,
                         Executor*);
template void run_tokens(void (*)(const WriteKvCall&, std::int64_t, std::int64_t), const WriteKvCall&, std::int64_t, Executor*);
template void run_tokens(void (*)(const RerotateCall&, std::int64_t, std::int64_t), const RerotateCall&, std::int64_t,
                         Executor*);

Result<void> run(const RopePoolFusedArgs& args, Executor* executor) { return run_packed(args, 0, 0, executor); }

Result<void> run_packed(const RopePoolFusedArgs& args, std::int64_t q_group_gap, std::int64_t q_out_group_gap,
                        Executor* executor) try {
  const std::int64_t num_tokens = args.q.shape[0];
  if (num_tokens == 0) return {};

  const DefaultFloatModes modes;
  // All that can fail comes before the first write.
  std::optional<PoolRows> rows;
  if (args.k_pool.given()) rows.emplace(args.slots, args.k_pool.shape[0]);
  std::optional<PlainRope> plain;
  if (args.rope == nullptr) plain.emplace(args.head_dim, args.rope_base);
  std::optional<PrologueOfCall> prologue;
  if (args.head_ops != nullptr) prologue.emplace(*args.head_ops, args.head_dim);
  RopePoolFusedCall call = resolve(args, rows ? &*rows : nullptr, plain ? plain->tables() : args.rope->tables(),
                                   prologue ? &prologue->get() : nullptr);
  call.q_group_gap = q_group_gap;
  call.q_out_group_gap = q_out_group_gap;

  const std::int64_t token_bytes =  // read and written
      ((2 * args.num_qo_heads + 3 * args.num_kv_heads) * args.head_dim + 2 * args.num_kv_heads * call.v_head_dim) *
      item_size_of(args.q.dtype);
  const Kernels& kernels = cpu_kernels().value();
  run_tokens(call.prologue == nullptr ? kernels.rope_pool_fused : kernels.rope_pool_fused_prologue, call, token_bytes,
             executor);
  return {};
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

std::vector<Error> check(const RopePoolFusedArgs& args) { return contract::all_refusals(args, contract::Outputs::required); }

}  // namespace ropepool
