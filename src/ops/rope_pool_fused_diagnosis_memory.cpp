// RP016 to RP019: what strides, addresses and devices say about a mistake.
#include <algorithm>
#include <cstdlib>

#include "core/dtype.h"
#include "core/overlap.h"
#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool::diagnosis {
namespace {

bool is_output(std::string_view name) { return name == "q_out" || name == "k_out"; }
bool is_pool(std::string_view name) { return name == "k_pool" || name == "v_pool"; }
const char* input_of(std::string_view output) { return output == "q_out" ? "q" : "k"; }

std::string new_output(std::string_view name) {
  return format("{0} = numpy.empty({1}.shape, {1}.dtype), or leave it out, and copy the result to where it belongs", name,
                input_of(name));
}

// For an array that can't be passed as it lies.
std::string lay_out_anew(std::string_view name) {
  if (is_output(name)) return new_output(name);
  if (is_pool(name)) {
    return format(
        "allocate {} as [num_slots, num_kv_heads, head_dim] with head_dim innermost; a copy would take the writes "
        "and leave the pool as it was",
        name);
  }
  return format("{0} = numpy.ascontiguousarray({0})", name);
}

bool broadcast(const Tensor& tensor) {
  for (int axis = 0; axis < std::min(tensor.rank(), Dims::kMaxRank); ++axis) {
    if (tensor.shape[axis] > 1 && tensor.strides[axis] == 0) return true;
  }
  return false;
}

}  // namespace

Diagnosis layout(const Args& a, const Finding& finding) {
  const std::string& name = finding.argument;
  const Tensor& tensor = *array_named(a, name);
  const int last = std::min(tensor.rank(), Dims::kMaxRank) - 1;
  if (tensor.empty() || std::ranges::any_of(tensor.shape, [](std::int64_t length) { return length < 0; })) return {};
  if (tensor.data == nullptr) return {"", format("let {}.data point to the elements", name)};
  const std::int64_t item = item_size(tensor.dtype);
  if (tensor.unaligned ||
      (item > 0 && reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(item) != 0)) {
    return {format("{} is a view into packed bytes or a record, whose elements lie between element boundaries", name),
            is_output(name) ? new_output(name)
            : is_pool(name)
                ? format("allocate {} at a whole element; a copy would take the writes and leave the pool as it was", name)
                : format("{0} = {0}.copy()", name)};
  }
  if (last < 0 || tensor.shape[last] == 1 || tensor.strides[last] == 1) return {};
  const std::int64_t stride = tensor.strides[last];
  const auto mend = lay_out_anew(name);
  if (stride == 0) return {format("{} is one value broadcast over its last axis", name), mend};
  if (stride == -1) return {format("{} is reversed along its last axis", name), mend};
  if (last == 0) {
    return {format("{0} takes one element in {1}: it is a column of a [tokens, {1}] table, or was sliced [::{1}]", name,
                   std::abs(stride)),
            mend};
  }
  for (int axis = 0; axis < last; ++axis) {
    if (tensor.strides[axis] == 1 && tensor.shape[axis] > 1) {
      return {format("{} is transposed: its axis {} is the contiguous one, not the last", name, axis), mend};
    }
  }
  return {format("{0} takes one lane in {1}: it was sliced [..., ::{1}], or is one part of interleaved values", name,
                 std::abs(stride)),
          mend};
}

namespace {

Diagnosis output_shape(const Args& a, const std::string& name, const Tensor& out, const Tensor& like) {
  const char* like_name = input_of(name);
  if (a.q_out.given() && a.k_out.given() && a.q.shape != a.k.shape && a.q_out.shape == a.k.shape &&
      a.k_out.shape == a.q.shape) {
    return {"q_out and k_out are swapped: each has the other's shape", "q_out, k_out = k_out, q_out"};
  }
  if (!is_3d(out) || !is_3d(like)) return {"", new_output(name)};
  const Shape &s = out.shape, &l = like.shape;
  if (s[1] == l[1] && s[2] == l[2]) {
    const auto counts = format("{} has {} tokens and {} has {}: ", name, s[0], like_name, l[0]);
    if (s[0] > l[0]) {
      return {counts + "it is the output of another step, or a buffer for the longest step",
              format("{0} = {0}[:{1}], this step's tokens", name, l[0])};
    }
    return {counts + "it is the output of another step, or a buffer made for fewer tokens", new_output(name)};
  }
  if (s[0] == l[1] && s[1] == l[0] && s[2] == l[2]) {
    return {format("{} is laid out heads first: [heads, tokens, head_dim] = {}", name, to_string(s)),
            format("{0} = {0}.swapaxes(0, 1), a view", name)};
  }
  if (elements(s) == elements(l)) return {format("{} has {}'s elements in another shape", name, like_name), new_output(name)};
  return {"", new_output(name)};
}

}  // namespace

Diagnosis outputs(const Args& a, const Finding& finding) {
  const std::string& name = finding.argument;
  const Tensor& tensor = *array_named(a, name);
  if (!tensor.given()) return {};
  if (is_output(name)) {
    const Tensor& like = *array_named(a, input_of(name));
    if (tensor.shape != like.shape) return output_shape(a, name, tensor, like);
    if (tensor.dtype != like.dtype) {
      return {format("{} was made as {}{}", name, to_string(tensor.dtype),
                     tensor.dtype == DType::f64 || tensor.dtype == DType::f32 ? ", a default dtype" : ""),
              new_output(name)};
    }
  }
  if (broadcast(tensor)) {
    return {format("{} comes from numpy.broadcast_to: many of its elements are one", name), lay_out_anew(name)};
  }
  return {format("{} can't be written: it is a view of bytes, a file mapped with mode 'r', an array whose flags.writeable is "
                 "off, or one of a library whose arrays are immutable",
                 name),
          is_output(name) ? new_output(name)
                          : format("make {} writable: map the file with mode 'r+', view a bytearray instead of bytes, or "
                                   "allocate the pool with NumPy; a copy would take the writes",
                                   name)};
}

Diagnosis devices(const Args& a, const Finding& finding) {
  if (finding.argument != "q") {
    return {format("{} is on {} and q on {}: they were made on two devices, or one of them was moved alone", finding.argument,
                   finding.actual, finding.expected),
            format("move {} to {}", finding.argument, finding.expected)};
  }
  for (const auto& [name, tensor] : all_arrays(a)) {
    if (tensor->given() && tensor->device.type == DeviceType::cpu) {
      return {format("{} is on the CPU and q on {}; this build has no kernel for {} in any case", name, finding.actual,
                     finding.actual),
              "move q to the CPU"};
    }
  }
  return {format("this build was made for the CPU alone, and the arrays are on {}", finding.actual),
          "move the arrays to the CPU"};
}

namespace {

const char* kInPlace = "leave q_out and k_out out, or copy k first";

// q_out or k_out, and something that it reaches into.
Diagnosis output_overlap(const Args& a, const std::string& name, const std::string& other) {
  const Tensor &out = *array_named(a, name), &against = *array_named(a, other);
  const bool is_q = name == "q_out";
  const char *own_name = input_of(name), *twin = is_q ? "k" : "q";
  const Tensor& own = *array_named(a, own_name);
  const bool in_place = same_view(out, own);
  if (same_view(a.q, a.k) && (other == twin || other == "k_out") && (in_place || same_view(out, against))) {
    return {"q and k are one array, so neither can be turned in place", kInPlace};
  }
  if (other == "k_out") {  // of q_out
    if (same_data(out, against)) {
      return {"q_out and k_out begin at one address: one buffer serves both outputs", "give each output a buffer of its own"};
    }
    return {
        "q_out and k_out are views of one buffer that reach into each other: a slice is off by some rows or lanes, or the "
        "buffer is reused",
        "give each output a buffer of its own"};
  }
  if (is_pool(other)) {
    return {format("{} {} {}'s memory: the op itself writes the pool, by slots", name,
                   same_data(out, against) ? "is" : "lies in", other),
            format("give {} memory of its own, or leave it out", name)};
  }
  if (other == own_name) {
    if (same_data(out, own)) {
      return {format("{} begins where {} does but has other strides: in place means the same view", name, own_name),
              format("{} = {}", name, own_name)};
    }
    return {format("{} and {} are views of one buffer, off by some rows or lanes, or a buffer that is reused", name, own_name),
            format("{0} = {1}, the same view, or leave {0} out", name, own_name)};
  }
  if (!in_place && other == twin && same_data(out, against)) {
    const Tensor& other_out = is_q ? a.k_out : a.q_out;
    if (same_view(other_out, own)) {
      return {"q_out is k's memory and k_out is q's: the outputs for working in place are swapped", "q_out = q; k_out = k"};
    }
    return {format("{} is {}'s memory: the outputs for working in place are swapped, or a buffer is reused", name, other),
            format("{0} = {1}, to work in place, or leave {0} out", name, own_name)};
  }
  if (in_place) {
    if (other == "v" && same_view(a.v, a.k)) {
      return {"v is k, and k is turned in place: v would be stored turned", "v = v.copy(), or leave k_out out"};
    }
    return {
        format("{0} is turned in place, and {1} reaches into {0}: one of the two was sliced off a boundary of their buffer, "
               "or {1} shares it on purpose",
               own_name, other),
        format("cut them apart, at q_size and q_size + kv_size of a packed QKV; where they are to overlap, leave {} out",
               name)};
  }
  return {format("{} lies in {}'s memory: a slice is off by some rows or lanes, or a buffer is reused", name, other),
          format("give {} memory of its own, or leave it out", name)};
}

}  // namespace

Diagnosis overlap(const Args& a, const Finding& finding) {
  const std::string& name = finding.argument;
  const std::string other = finding.expected.substr(finding.expected.rfind(' ') + 1);  // "memory apart from OTHER"
  const Tensor& tensor = *array_named(a, name);
  if (other == "itself") {
    if (broadcast(tensor)) {
      return {format("{} is broadcast: an axis of stride 0 makes many of its elements one", name), lay_out_anew(name)};
    }
    return {format("rows of {} reach into each other, or its strides are too irregular to tell", name), lay_out_anew(name)};
  }
  if (is_output(name)) return output_overlap(a, name, other);
  const Tensor& against = *array_named(a, other);
  if (is_pool(other)) {  // v_pool, of k_pool
    if (same_view(tensor, against))
      return {"k_pool and v_pool are one array: K would be overwritten by V", "pass the V pool as v_pool"};
    return {
        "k_pool and v_pool are views of one buffer that reach into each other: one of them was sliced off a boundary, or "
        "with other strides",
        "cut the pools from one buffer without a common row: pool[:n], pool[n:]"};
  }
  return {format("{} lies in {}'s memory: it is a view of the pool's rows, or a buffer is reused", other, name),
          format("{0} = {0}.copy()", other)};
}

}  // namespace ropepool::diagnosis
