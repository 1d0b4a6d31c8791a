// What the classes of Hugging Face's models do with their configs, and llama.cpp with its architectures, one row each.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include <ropepool/rope.h>

namespace ropepool::config {

inline constexpr double kNoTheta = std::numeric_limits<double>::quiet_NaN();

// How a model with two ropes writes them where rope_parameters has no entry for each layer type.
enum class TwoRopes {
  none,        // one rope serves all layers
  gemma3,      // rope_theta and rope_scaling of full_attention, rope_local_base_freq of sliding_attention
  olmo3,       // rope_theta of both, rope_scaling of full_attention
  modernbert,  // global_rope_theta of full_attention, local_rope_theta of sliding_attention, rope_scaling of both
  nested,      // always an entry for each
};

struct Model {
  std::string_view type;  // model_type
  // What holds where its config leaves a key out, as transformers has it.
  double theta = kNoTheta;     // rope_theta; kNoTheta: the config has to say it
  std::int64_t head_dim = 0;   // 0: hidden_size / num_attention_heads
  double rotary_factor = 1.0;  // partial_rotary_factor
  std::int64_t rotary_dim = 0;
  std::array<std::int64_t, 3> sections = {};  // mrope_section

  Pairing pairing = Pairing::neox;
  Sections::Order section_order = Sections::Order::blocks;
  TwoRopes two_ropes = TwoRopes::none;
  double sliding_theta = kNoTheta;
  bool needs_parameters = false;      // its class fills in a whole scaling where the config has none, which is not done here
  std::string_view ropeless = {};     // the layer type that does not rotate
  std::string_view unsupported = {};  // why no Rope can do what it does
};

// Of a text model, or of a multimodal one whose text model's type ends in _text; nullptr for one that is not known.
const Model* find_model(std::string_view model_type);

struct GgufArchitecture {
  std::string_view name;  // general.architecture
  Pairing pairing;
  Sections::Order section_order = Sections::Order::blocks;
  double sliding_theta = kNoTheta;  // its sliding layers turn by this base where rope.freq_base_swa is left out, unscaled
  bool yarn_truncates = true;
  double yarn_log_unit = 0;  // rope.scaling.yarn_log_multiplier is this times mscale_all_dim; 0: not known
};

const GgufArchitecture* find_gguf_architecture(std::string_view name);

}  // namespace ropepool::config
