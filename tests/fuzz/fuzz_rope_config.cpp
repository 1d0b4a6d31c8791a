// libFuzzer on the reader of configs: any text gives a Rope that is finite, or a refusal with a message; it never crashes.
// fuzz_safetensors.cpp says how to run it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <ropepool/rope_config.h>

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto layer_types = ropepool::rope_layer_types(text);
  ropepool::RopeConfigOptions options;
  if (layer_types && !layer_types.value().empty()) options.layer_type = layer_types.value().front();
  if (size % 2 == 1) options.length = static_cast<std::int64_t>(size) * 100;
  const auto rope = ropepool::rope_from_config(text, options);
  if (!rope) {
    check(rope.error().refusal().has_value() && !rope.error().summary().empty() && !rope.error().hint().empty());
    return 0;
  }
  for (std::int64_t set = 0; set < rope.value().num_sets(); ++set) {
    for (double frequency : rope.value().frequencies(set)) check(std::isfinite(frequency));
  }
  return 0;
}
