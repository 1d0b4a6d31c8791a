// From a file and flags to the arguments of an op.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "safetensors.h"

namespace ropepool::cli {

// The number that `text` is; nullopt where it is none, or one that Number can't hold.
template <class Number>
std::optional<Number> number_from(std::string_view text) {
  Number value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What the command line says; the rest comes from the file's metadata and, but for rope_base, from the shapes.
struct Parameters {
  std::optional<std::int64_t> head_dim, num_qo_heads, num_kv_heads;
  std::optional<double> rope_base;
  std::optional<std::string> angles;
  // Instead of rope_base: the path of a config, and which of its ropes.
  std::optional<std::string> rope, layer_type;
  std::optional<std::int64_t> length;
};

// One parameter as it was found.
struct Found {
  std::string name, value, source;  // "head_dim", "64", "metadata"
};

// The tensors that a file must have, and one that it may have.
inline constexpr std::string_view kTensors[] = {"q", "k", "v", "positions", "slots", "k_pool", "v_pool"};
inline constexpr std::string_view kRopeSets = "rope_sets";

// Bytes at an address that suits any element.
struct FreeAligned {
  void operator()(std::byte* bytes) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
AlignedBytes allocate_aligned(std::size_t size);  // throws std::bad_alloc

struct Arguments {
  RopePoolFusedArgs op;  // without q_out and k_out
  std::vector<Found> parameters;
  std::vector<AlignedBytes> copies;  // of tensors that lie unaligned in the file
};

// The tensor `entry` in the file's bytes, or in a copy where its elements do not lie aligned there.
Tensor tensor_at(const safetensors::Entry& entry, std::span<std::byte> bytes, std::vector<AlignedBytes>& copies);

// Takes kTensors of `file`, which was parsed from `bytes`. `rope` is what given.rope names, null where it names none. All three
// must outlive the result.
// Throws safetensors::Malformed where a tensor is missing or the metadata holds no number where one must be.
Arguments arguments_from(const safetensors::File& file, std::span<std::byte> bytes, const Parameters& given,
                         const Rope* rope = nullptr);

}  // namespace ropepool::cli
