#include "arguments.h"

#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ropepool::cli {
namespace {

using safetensors::in_quotes;
using safetensors::Malformed;

// One cache line and one AVX-512 register.
constexpr std::align_val_t kAlignment{64};

template <class Number>
std::optional<Number> number_in(const safetensors::File& file, std::string_view key) {
  const auto position = file.metadata.find(key);
  if (position == file.metadata.end()) return std::nullopt;
  const std::optional<Number> value = number_from<Number>(position->second);
  if (!value) {
    throw Malformed(fmt::format("metadata {} must be {}, it is {}", key, std::is_integral_v<Number> ? "an integer" : "a number",
                                in_quotes(position->second)));
  }
  return value;
}

void require_tensors(const safetensors::File& file) {
  std::vector<std::string_view> missing;
  for (const std::string_view name : kTensors) {
    if (!file.tensors.contains(name)) missing.push_back(name);
  }
  if (missing.empty()) return;
  constexpr std::size_t kMaxListed = 20;
  std::vector<std::string> held;
  for (const auto& [name, entry] : file.tensors) {
    if (held.size() == kMaxListed) {
      held.push_back(fmt::format("{} more", file.tensors.size() - kMaxListed));
      break;
    }
    held.push_back(in_quotes(name));
  }
  throw Malformed(fmt::format("it has no tensor {}; it holds {}", fmt::join(missing, ", "),
                              held.empty() ? "none at all" : fmt::format("{}", fmt::join(held, ", "))));
}

// Flags first, then the file's metadata, then the shapes.
class Finder {
 public:
  Finder(const safetensors::File& file, const RopePoolFusedArgs& op) : file_(file), op_(op) {}

  std::int64_t integer(std::string name, std::optional<std::int64_t> given, std::string_view of, int axis) {
    std::string source = "flag";
    if (!given) {
      given = number_in<std::int64_t>(file_, name);
      source = "metadata";
    }
    if (!given) {
      const Tensor& tensor = of == "q" ? op_.q : op_.k;
      if (tensor.rank() == 3) {
        given = tensor.shape[axis];
        source = fmt::format("shape of {}", of);
      } else {
        // This shape is refused anyhow: what stands here must only be no fault of its own.
        given = axis == 2 ? 2 : 1;
        source = fmt::format("assumed: {} is not 3-D", of);
      }
    }
    found.push_back({std::move(name), fmt::format("{}", *given), std::move(source)});
    return *given;
  }

  double rope_base(std::optional<double> given) {
    std::string source = "flag";
    if (!given) {
      given = number_in<double>(file_, "rope_base");
      source = "metadata";
    }
    found.push_back(given ? Found{"rope_base", fmt::format("{}", *given), source} : Found{"rope_base", "none", "not given"});
    return given.value_or(std::numeric_limits<double>::quiet_NaN());
  }

  void rope(const Parameters& given) {
    std::string value = *given.rope;
    if (given.layer_type) value += ", " + *given.layer_type;
    if (given.length) value += fmt::format(", length {}", *given.length);
    found.push_back({"rope", std::move(value), "flag"});
  }

  Angles angles(std::optional<std::string> given) {
    std::string source = "flag";
    if (!given) {
      const auto position = file_.metadata.find("angles");
      given = position == file_.metadata.end() ? "exact" : position->second;
      source = position == file_.metadata.end() ? "default" : "metadata";
    }
    const std::string value = *given == "exact" || *given == "float32" ? *given : in_quotes(*given);
    found.push_back({"angles", value, source});
    // What is neither is for the contract to refuse.
    return *given == "exact" ? Angles::exact : *given == "float32" ? Angles::float32 : static_cast<Angles>(-1);
  }

  std::vector<Found> found;

 private:
  const safetensors::File& file_;
  const RopePoolFusedArgs& op_;
};

}  // namespace

void FreeAligned::operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlignment); }

AlignedBytes allocate_aligned(std::size_t size) {
  return AlignedBytes(static_cast<std::byte*>(::operator new[](size, kAlignment)));
}

Tensor tensor_at(const safetensors::Entry& entry, std::span<std::byte> bytes, std::vector<AlignedBytes>& copies) {
  std::byte* data = bytes.data() + entry.offset;
  const auto item = static_cast<std::uintptr_t>(item_size(entry.dtype));
  if (item > 1 && reinterpret_cast<std::uintptr_t>(data) % item != 0) {
    copies.push_back(allocate_aligned(entry.size));
    if (entry.size > 0) std::memcpy(copies.back().get(), data, entry.size);
    data = copies.back().get();
  }
  return Tensor::contiguous(data, entry.dtype, entry.shape);
}

Arguments arguments_from(const safetensors::File& file, std::span<std::byte> bytes, const Parameters& given, const Rope* rope) {
  require_tensors(file);
  Arguments arguments;
  RopePoolFusedArgs& op = arguments.op;
  Tensor* const tensors[] = {&op.q, &op.k, &op.v, &op.positions, &op.slots, &op.k_pool, &op.v_pool};
  static_assert(std::size(tensors) == std::size(kTensors));
  for (std::size_t i = 0; i < std::size(tensors); ++i) {
    *tensors[i] = tensor_at(file.tensors.find(kTensors[i])->second, bytes, arguments.copies);
  }
  if (const auto sets = file.tensors.find(kRopeSets); sets != file.tensors.end()) {
    op.rope_sets = tensor_at(sets->second, bytes, arguments.copies);
  }

  Finder finder(file, op);
  op.head_dim = finder.integer("head_dim", given.head_dim, "q", 2);
  op.num_qo_heads = finder.integer("num_qo_heads", given.num_qo_heads, "q", 1);
  op.num_kv_heads = finder.integer("num_kv_heads", given.num_kv_heads, "k", 1);
  if (rope != nullptr) {
    op.rope = rope;
    finder.rope(given);
  } else {
    op.rope_base = finder.rope_base(given.rope_base);
  }
  op.angles = finder.angles(given.angles);
  arguments.parameters = std::move(finder.found);
  return arguments;
}

}  // namespace ropepool::cli
