// The Rope of a model, from its own words: config.json of Hugging Face, or metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ropepool/export.h>
#include <ropepool/result.h>
#include <ropepool/rope.h>

namespace ropepool {

struct RopeConfigOptions {
  // Which rope of a model that has several: "full_attention", "sliding_attention", as the config calls them.
  std::optional<std::string> layer_type = {};
  // How long a sequence may get, where frequencies depend on that: dynamic NTK needs it, of LongRoPE it picks the set.
  std::optional<std::int64_t> length = {};
};

// What a config says of a model's rope.
struct RopeConfig {
  RopeForm form;
  std::string model_type;                       // "" where it has none; of GGUF the architecture
  std::string layer_type;                       // the one that was chosen; "" where one rope serves all layers
  std::string rope_type;                        // "default", "linear", "yarn" ...
  std::int64_t head_dim = 0;                    // 0 where the config needs none
  std::optional<std::int64_t> max_length = {};  // max_position_embeddings
  std::vector<std::string> notes;               // what a reader should know besides, a sentence each
};

// `json` is the text of a config.json, with the rope in rope_parameters or in rope_theta and rope_scaling, of a text model or
// inside a multimodal one; or GGUF metadata as one JSON object, {"general.architecture": ..., "llama.rope.freq_base": ...}.
// Keys that have nothing to do with the rope are ignored. All that is unknown, missing or contradictory is refused (RP027 to
// RP030), and nothing is guessed: what a config leaves out comes from its model's own class where that is known.
ROPEPOOL_API Result<RopeConfig> read_rope_config(std::string_view json, const RopeConfigOptions& options = {});
// The layer types that have a rope of their own, as read_rope_config wants them; empty where one rope serves all layers.
ROPEPOOL_API Result<std::vector<std::string>> rope_layer_types(std::string_view json);

// The form alone, and the Rope that it makes.
ROPEPOOL_API Result<RopeForm> rope_form_from_config(std::string_view json, const RopeConfigOptions& options = {});
ROPEPOOL_API Result<Rope> rope_from_config(std::string_view json, const RopeConfigOptions& options = {});

}  // namespace ropepool
