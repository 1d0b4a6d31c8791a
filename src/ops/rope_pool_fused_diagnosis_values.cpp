// RP014, RP015, RP020, RP021: what numbers, slots and positions say about a mistake.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/index_array.h"
#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool::diagnosis {

// ---- RP014, RP015: numbers

Diagnosis geometry(const Args& a, const Finding& finding) {
  const auto suggest = [](const char* name, const Tensor& t, int axis) {
    return is_3d(t) && t.shape[axis] > 0 ? format("{}={}, as the array has it", name, t.shape[axis]) : std::string();
  };
  // 0 and -1 are what stands for a key that is missing; other negative numbers have no such story.
  const auto missing = [](std::int64_t count) { return count == 0 || count == -1; };
  if (finding.argument == "head_dim" && a.head_dim < 1) {
    const auto hint = suggest("head_dim", a.q, 2);
    if (!missing(a.head_dim)) return {"", hint};
    return {format("head_dim = {} was read from a config that does not have the key, or computed from one that lacks another",
                   a.head_dim),
            hint};
  }
  if (finding.argument == "num_qo_heads") {
    const auto hint = suggest("num_qo_heads", a.q, 1);
    if (!missing(a.num_qo_heads)) return {"", hint};
    return {format("num_qo_heads = {} was read from a config that does not have the key, or divided by too many ranks",
                   a.num_qo_heads),
            hint};
  }
  if (finding.argument == "num_kv_heads") {
    const auto hint = suggest("num_kv_heads", a.k, 1);
    if (!missing(a.num_kv_heads)) return {"", hint};
    return {format("num_kv_heads = {}: fewer key/value heads than ranks were divided among them, or the config has no "
                   "num_key_value_heads, which then equals num_attention_heads",
                   a.num_kv_heads),
            hint};
  }
  return {format("head_dim = {} is odd and can't be turned in pairs: it may be hidden_size // num_attention_heads of a model "
                 "that says its own head_dim, or a count of something else",
                 a.head_dim),
          ""};
}

Diagnosis rope(const Args& a, const Finding& finding) {
  const double base = a.rope_base;
  if (finding.argument == "angles") return {"", "angles='exact', or 'float32' for what transformers computes"};
  if (a.rope != nullptr) {
    return {"rope and rope_base were both given, and a rope has a base of its own", "leave rope_base out, or rope"};
  }
  if (std::isnan(base)) return {"neither rope_base nor rope was given, or rope_base was computed as NaN", ""};
  if (base == 0)
    return {"rope_base = 0: rope_theta was read from a config that does not have it, or this layer has no rope", ""};
  if (std::isinf(base)) {
    return {
        "rope_base is infinite: it was computed with an overflow, as a base scaled by a power of too large a number is, or "
        "given as infinity or as a number beyond every double",
        ""};
  }
  return {format("rope_base = {} is below 0: a base scaled for a longer context was computed from a length below the trained "
                 "one, or a sign was lost",
                 base),
          ""};
}

// ---- RP020, RP021: slots and positions

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max(), kMinInt64 = -kMaxInt64 - 1;
constexpr std::int64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();

struct Values {
  std::int64_t bad = 0, count = 0, low = 0, high = 0;  // bad: the first beyond the limits
  bool consecutive = true;                             // each one more than the one before
};

// Of a 1-D array of integers in the CPU's memory, which is what rules 20 and 21 find faults in.
Values look_at(const Tensor& tensor, std::int64_t lowest, std::int64_t highest) {
  Values seen;
  visit_index_array(tensor, [&](const auto* values) {
    seen.count = tensor.strides[0] == 0 ? std::min<std::int64_t>(tensor.shape[0], 1) : tensor.shape[0];
    std::int64_t before = 0;
    bool found = false;
    for (std::int64_t i = 0; i < seen.count; ++i) {
      const std::int64_t value = load_once(values + i * tensor.strides[0]);
      if (i == 0) seen.low = seen.high = value;
      seen.low = std::min(seen.low, value);
      seen.high = std::max(seen.high, value);
      seen.consecutive = seen.consecutive && (i == 0 || (before != kMaxInt64 && value == before + 1));
      before = value;
      if (!found && (value < lowest || value > highest)) {
        found = true;
        seen.bad = value;
      }
    }
  });
  return seen;
}

bool readable(const Tensor& tensor) {
  return is_1d(tensor) && (tensor.dtype == DType::i32 || tensor.dtype == DType::i64) && tensor.device.type == DeviceType::cpu &&
         !tensor.empty() && tensor.data != nullptr && !tensor.unaligned;
}

}  // namespace

Diagnosis slot_values(const Args& a, const Finding&) {
  const std::int64_t num_slots = a.k_pool.shape[0];
  const Values slots = look_at(a.slots, kMinInt64, num_slots - 1);
  if (num_slots == 0) return {"the pools have no slots yet", "make the pools before the first call; slot -1 stores nothing"};
  if (slots.bad == kMaxUint32) {
    return {"4294967295 is -1 read as an unsigned number: a padding value", "give padding tokens the slot -1"};
  }
  if (slots.bad == kMaxInt32 || slots.bad == kMaxInt64) {
    return {format("{} is the largest number of its type: a padding value, or a result that was clipped", slots.bad),
            "give padding tokens the slot -1"};
  }
  const auto one_past = format(
      "{} is one past the last slot: slots are counted from 1, or the pools have a row too few, or the "
      "allocator hands out one too many",
      num_slots);
  const auto range = format("slots run from 0 to {}", num_slots - 1);
  if (readable(a.positions)) {
    const Values positions = look_at(a.positions, -kMaxInt32, kMaxInt32);
    if (slots.count > 1 && slots.consecutive && !positions.consecutive && positions.low >= -1 && positions.high < num_slots) {
      return {format("slots counts up one by one to {} and positions does not: positions and slots are swapped in the argument "
                     "list, or a fresh run of slots reaches past the end of pools that are too small, or of another pool",
                     slots.high),
              "pass positions first, then slots; where they are in order, give the pools as many slots as the allocator has"};
    }
  }
  if (slots.high == num_slots) return {one_past, range};
  return {format("the highest slot is {}, the pools have {}: the slots may be of a larger pool, of all layers' pools in one, "
                 "or offsets in elements instead of rows",
                 slots.high, num_slots),
          ""};
}

Diagnosis position_values(const Args& a, const Finding&) {
  if (!is_1d(a.positions)) return {};  // M-RoPE
  const std::int64_t bad = look_at(a.positions, -kMaxInt32, kMaxInt32).bad;
  if (bad == kMaxUint32)
    return {"4294967295 is -1 read as an unsigned number: a padding position",
            "give padding tokens the position 0 and the slot -1"};
  if (bad == std::numeric_limits<std::int32_t>::min() || bad == kMinInt64) {
    return {format("{} is the smallest number of its type: an array that was never filled, or a NaN cast to an integer", bad),
            ""};
  }
  const std::int64_t high = bad >> 32, low = bad & kMaxUint32;
  if (constexpr std::int64_t kLong = 1 << 20; high > 0 && high < kLong && low < kLong) {
    return {
        format("{} may be two int32 positions, {} and {}, read as one int64, or a hash, an address or a time", bad, low, high),
        "read a buffer with the dtype it was written in"};
  }
  return {format("{} is no position of a token: it may be a hash, an address, a time or memory that was never filled", bad),
          ""};
}

}  // namespace ropepool::diagnosis
