#include "core/prologue.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "core/half.h"
#include "core/of_this_thread.h"

namespace ropepool {
namespace {

std::int64_t elements_of(const Tensor& tensor) {
  std::int64_t count = tensor.given() ? 1 : 0;
  for (const std::int64_t length : tensor.shape) count *= length;
  return count;
}

// A NaN becomes the one without a payload, which bfloat16 lanes are rounded by: all ones, as of memory that was set to 0xFF,
// would become 0. Told by its bits, so that the loop is of vectors.
void copy_lanes(const void* from, DType dtype, std::int64_t count, float* to) {
  const auto copy = [&](auto bits_at) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t bits = bits_at(i);
      to[i] = std::bit_cast<float>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : bits);
    }
  };
  const auto* words = static_cast<const std::uint32_t*>(from);
  const auto* lanes = static_cast<const std::uint16_t*>(from);
  switch (dtype) {
    case DType::f32:
      return copy([words](std::int64_t i) { return words[i]; });
    case DType::bf16:
      return copy([lanes](std::int64_t i) { return static_cast<std::uint32_t>(lanes[i]) << 16; });
    default:
      return copy([lanes](std::int64_t i) { return std::bit_cast<std::uint32_t>(static_cast<float>(half_value(lanes[i]))); });
  }
}

// All elements in their order, axis by axis.
float* copy_array(const Tensor& tensor, int axis, const std::byte* from, float* to) {
  const std::int64_t item = item_size(tensor.dtype);
  if (axis == tensor.rank() - 1) {
    copy_lanes(from, tensor.dtype, tensor.shape[axis], to);
    return to + tensor.shape[axis];
  }
  for (std::int64_t i = 0; i < tensor.shape[axis]; ++i) {
    to = copy_array(tensor, axis + 1, from + i * tensor.strides[axis] * item, to);
  }
  return to;
}

const Tensor* weight_of(const std::optional<HeadNorm>& norm) { return norm ? &norm->weight : nullptr; }

}  // namespace

PrologueOfCall::PrologueOfCall(const HeadOps& ops, std::int64_t head_dim)
    : floats_(std::move(of_this_thread<std::unique_ptr<std::vector<float>>>())) {
  if (!floats_) floats_ = std::make_unique<std::vector<float>>();
  std::int64_t count = 0;
  for (const Tensor* tensor : {&ops.q_bias, &ops.k_bias, &ops.v_bias, weight_of(ops.q_norm), weight_of(ops.k_norm)}) {
    if (tensor != nullptr) count += elements_of(*tensor);
  }
  if (floats_->size() < static_cast<std::size_t>(count)) floats_->resize(static_cast<std::size_t>(count));
  float* free = floats_->data();
  const auto copied = [&](const Tensor& tensor) -> float* {
    if (!tensor.given()) return nullptr;
    float* first = free;
    free = copy_array(tensor, 0, static_cast<const std::byte*>(tensor.data), free);
    return first;
  };
  const auto resolve = [&](const Tensor& bias, const std::optional<HeadNorm>& norm, double scale) {
    HeadPrologue result{copied(bias), nullptr, 0, HeadPrologue::Norm::none, false, 0, static_cast<float>(scale)};
    if (!norm) return result;
    float* weight = copied(norm->weight);
    if (norm->unit_offset && weight != nullptr) std::for_each(weight, free, [](float& w) { w += 1.0f; });
    const std::int64_t num_weights = elements_of(norm->weight);
    result.weight = weight;
    result.weight_stride = num_weights > head_dim ? head_dim : 0;
    result.norm = norm->kind == HeadNorm::Kind::rms ? HeadPrologue::Norm::rms : HeadPrologue::Norm::layer;
    result.over_all_heads = norm->weight.rank() == 1 && num_weights > head_dim;
    // One above 0 stays above 0, so that heads of zeros do.
    result.eps = norm->eps > 0 ? std::max(static_cast<float>(norm->eps), std::numeric_limits<float>::denorm_min()) : 0;
    return result;
  };
  prologue_.q = resolve(ops.q_bias, ops.q_norm, ops.q_scale);
  prologue_.k = resolve(ops.k_bias, ops.k_norm, 1.0);
  prologue_.v_bias = copied(ops.v_bias);
}

PrologueOfCall::~PrologueOfCall() { of_this_thread<std::unique_ptr<std::vector<float>>>() = std::move(floats_); }

}  // namespace ropepool
