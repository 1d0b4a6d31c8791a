#include "ops/rope_config_gguf.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "ops/rope_config_models.h"

namespace ropepool::config {
namespace {

constexpr const char kSliding[] = "sliding_attention", kFull[] = "full_attention";

// Of {arch}.rope., those that are read or change nothing.
constexpr std::array kRopeKeys = {
    "freq_base",
    "freq_base_swa",
    "dimension_count",
    "dimension_count_swa",
    "dimension_sections",
    "scale_linear",
    "scaling.type",
    "scaling.factor",
    "scaling.original_context_length",
    "scaling.finetuned",
    "scaling.attn_factor",
    "scaling.yarn_beta_fast",
    "scaling.yarn_beta_slow",
    "scaling.yarn_log_multiplier",
    "scaling.yarn_ext_factor",
    "scaling.yarn_attn_factor",
};

class GgufReader {
 public:
  GgufReader(const Object& root, const RopeConfigOptions& options) : root_(root), options_(options) {
    name_ = root.text("general.architecture").value_or("");
    if (const auto* found = find_gguf_architecture(name_)) {
      architecture_ = *found;
    } else {
      throw Refused{value_unsuitable("general.architecture", "one whose pairing is known", shown(name_),
                                     "llama.cpp pairs lanes by architecture", "make a Rope by hand, with its pairing")};
    }
  }

  std::vector<std::string> layer_types() const {
    const bool two = root_.has(key("rope.freq_base_swa")) || !std::isnan(architecture_.sliding_theta);
    return two ? std::vector<std::string>{kSliding, kFull} : std::vector<std::string>{};
  }

  RopeConfig read() {
    result_.model_type = name_;
    result_.max_length = root_.whole(key("context_length"));
    check_keys();
    choose_layer_type();
    read_lanes();
    read_base();
    read_scaling();
    add_notes();
    return std::move(result_);
  }

 private:
  std::string key(std::string_view rest) const { return fmt::format("{}.{}", name_, rest); }
  std::optional<double> number(std::string_view rest) const { return root_.number(key(rest)); }
  std::optional<std::int64_t> whole(std::string_view rest) const { return root_.whole(key(rest)); }
  template <class T>
  T needed(std::optional<T> value, std::string_view rest, const std::string& purpose, std::string mend = "") const {
    if (value) return *value;
    throw Refused{key_missing(key(rest), purpose, "", std::move(mend))};
  }

  void check_keys() const {
    const std::string prefix = key("rope.");
    for (const Member& member : root_.members()) {
      if (!member.key.starts_with(prefix) || member.value.is_null()) continue;
      const auto rest = std::string_view(member.key).substr(prefix.size());
      if (std::find(kRopeKeys.begin(), kRopeKeys.end(), rest) == kRopeKeys.end()) {
        throw Refused{keys_contradict(member.key, member.value.shown(), "the keys of a rope that ropepool knows",
                                      "what it does to the rope is not known, and it is not left out in silence", "")};
      }
    }
  }

  void choose_layer_type() {
    const std::vector<std::string> types = layer_types();
    if (!types.empty() && !options_.layer_type) {
      throw Refused{key_missing("layer_type", "one of the ropes 'sliding_attention', 'full_attention'",
                                "sliding layers of this architecture turn by a base of their own",
                                "pass layer_type='full_attention' or 'sliding_attention', and make a Rope for each")};
    }
    if (options_.layer_type && std::find(types.begin(), types.end(), *options_.layer_type) == types.end()) {
      const bool none = types.empty();
      throw Refused{value_unsuitable("layer_type", none ? "left out" : "one of 'sliding_attention', 'full_attention'",
                                     shown(*options_.layer_type), none ? "the metadata has one rope for all layers" : "", "")};
    }
    if (options_.layer_type) result_.layer_type = *options_.layer_type;
  }
  bool is_sliding() const { return result_.layer_type == kSliding; }

  void read_lanes() {
    RopeForm& form = result_.form;
    form.pairing = architecture_.pairing;
    auto head_dim = whole(is_sliding() ? "attention.key_length_swa" : "attention.key_length");
    if (!head_dim && is_sliding()) head_dim = whole("attention.key_length");
    if (const auto latent = whole("attention.key_length_mla")) head_dim = latent;
    if (!head_dim) {
      const auto width = whole("embedding_length"), heads = whole("attention.head_count");
      if (width && heads && *heads > 0 && *width % *heads == 0) head_dim = *width / *heads;
    }
    auto lanes = whole(is_sliding() ? "rope.dimension_count_swa" : "rope.dimension_count");
    if (!lanes && is_sliding()) lanes = whole("rope.dimension_count");
    if (!lanes) lanes = head_dim;
    if (!lanes) {
      throw Refused{key_missing(key("rope.dimension_count"), "the number of rotated lanes",
                                fmt::format("{} and {} are missing too, from which it would follow",
                                            key("attention.key_length"), key("embedding_length")),
                                "pass all of the file's metadata")};
    }
    form.rotary_dim = *lanes;
    result_.head_dim = head_dim.value_or(form.rotary_dim);
    if (form.rotary_dim > result_.head_dim) {
      throw Refused{keys_contradict(key("rope.dimension_count"), shown(form.rotary_dim),
                                    fmt::format("{} {}", key("attention.key_length"), result_.head_dim),
                                    "more lanes would turn than a head has", "")};
    }
    if (name_ == "deepseek2") form.rotary_offset = result_.head_dim - form.rotary_dim;
    if (auto sections = root_.wholes(key("rope.dimension_sections"))) {
      while (sections->size() > 3 && sections->back() == 0) sections->pop_back();
      form.sections = Sections{*std::move(sections), architecture_.section_order};
      form.pairing = Pairing::neox;  // llama.cpp has no other with sections
    }
  }

  void read_base() {
    auto base = number(is_sliding() ? "rope.freq_base_swa" : "rope.freq_base");
    if (!base && is_sliding()) base = architecture_.sliding_theta;
    result_.form.base = needed(base, "rope.freq_base", "the frequencies",
                               "add it as the model was trained with it; llama.cpp takes 10000.0 where it is left out");
  }

  // A factor for each pair, which GGUF keeps in a tensor beside the metadata.
  std::optional<std::vector<double>> factors(const char* tensor) const { return root_.numbers(tensor); }

  bool is_left_out(const char* tensor) const {
    return std::none_of(root_.members().begin(), root_.members().end(),
                        [&](const Member& member) { return member.key == tensor; });
  }

  void read_scaling() {
    Agreed<double> agreed;
    for (const char* rest : {"rope.scaling.factor", "rope.scale_linear"}) agreed.add(key(rest), number(rest));
    const std::optional<double> factor = agreed.value();
    const auto given = root_.text(key("rope.scaling.type"));
    const std::string type = given.value_or(factor && *factor != 1.0 ? "linear" : "none");
    result_.rope_type = type == "none" ? "default" : type;
    if (type == "none" && factor && *factor != 1.0) {
      throw Refused{keys_contradict(agreed.key(), shown(*factor), key("rope.scaling.type") + " 'none'",
                                    "a type of 'none' leaves the factor out, which may have been set for longer sequences",
                                    "set the type to 'linear' or 'yarn', or the factor to 1")};
    }
    if (type != "yarn") refuse_keys_of_yarn();
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope") {
      throw Refused{
          type_unknown(key("rope.scaling.type"), shown(type),
                       (type == "llama3"    ? std::string("llama.cpp keeps that scaling in a tensor, rope_freqs.weight; ")
                        : type == "dynamic" ? std::string("a rope type of config.json that llama.cpp does not have; ")
                                            : std::string()) +
                           "llama.cpp has 'none', 'linear', 'yarn' and 'longrope'",
                       type == "llama3" ? "add the values of that tensor under its name, and leave the type out" : "")};
    }
    if (is_sliding() && !std::isnan(architecture_.sliding_theta)) {  // those are never scaled
      result_.rope_type = "default";
      return;
    }
    if (type == "linear") result_.form.scaling = LinearScaling{needed(factor, "rope.scaling.factor", "rope type 'linear'")};
    if (type == "yarn") result_.form.scaling = yarn(needed(factor, "rope.scaling.factor", "rope type 'yarn'"));
    if (type == "longrope") result_.form.scaling = long_rope(factor);
    if (type == "none" || type == "linear") read_rope_freqs();
  }

  void refuse_keys_of_yarn() const {
    for (const char* rest :
         {"yarn_beta_fast", "yarn_beta_slow", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"}) {
      const std::string name = key(fmt::format("rope.scaling.{}", rest));
      if (const auto value = root_.number(name)) {
        throw Refused{keys_contradict(name, shown(*value), fmt::format("rope type {}", shown(result_.rope_type)), "", "")};
      }
    }
  }

  YarnScaling yarn(double factor) {
    YarnScaling s{factor, needed(whole("rope.scaling.original_context_length"), "rope.scaling.original_context_length",
                                 "rope type 'yarn'")};
    s.beta_fast = number("rope.scaling.yarn_beta_fast").value_or(s.beta_fast);
    s.beta_slow = number("rope.scaling.yarn_beta_slow").value_or(s.beta_slow);
    s.truncate = architecture_.yarn_truncates;
    for (const char* rest : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
      const auto value = number(rest);
      if (value && *value != 1.0) {
        throw Refused{
            value_unsuitable(key(rest), "1", shown(*value), "versions of llama.cpp do not agree on what it does", "")};
      }
    }
    if (const auto multiplier = number("rope.scaling.yarn_log_multiplier"); multiplier && *multiplier != 0) {
      if (architecture_.yarn_log_unit == 0) {
        throw Refused{value_unsuitable(key("rope.scaling.yarn_log_multiplier"), "left out", shown(*multiplier),
                                       "architectures write it in different units, and this one's is not known",
                                       "pass the model's config.json instead")};
      }
      s.mscale_all_dim = *multiplier / architecture_.yarn_log_unit;
      // The file has no mscale. llama.cpp takes 1, but for DeepSeek-V2-Lite, whose two are alike.
      s.mscale = name_ == "deepseek2" && std::abs(*s.mscale_all_dim - 1.0) > 1e-6 ? *s.mscale_all_dim : 1.0;
    }
    result_.form.attention_scale = number("rope.scaling.attn_factor").value_or(1.0);
    return s;
  }

  LongRopeScaling long_rope(std::optional<double> factor) const {
    const auto from_tensor = [&](const char* tensor) {
      if (auto values = factors(tensor)) return *std::move(values);
      throw Refused{key_missing(tensor, "rope type 'longrope'", "GGUF keeps the factors in a tensor, not in its metadata",
                                "add the values of the file's tensor under its name")};
    };
    LongRopeScaling s;
    s.short_factor = from_tensor("rope_factors_short.weight");
    s.long_factor = from_tensor("rope_factors_long.weight");
    s.original_length =
        needed(whole("rope.scaling.original_context_length"), "rope.scaling.original_context_length", "rope type 'longrope'");
    s.factor = factor.value_or(1.0);
    s.attention_factor = needed(number("rope.scaling.attn_factor"), "rope.scaling.attn_factor", "rope type 'longrope'");
    s.length = options_.length;
    return s;
  }

  void read_rope_freqs() {
    constexpr const char kTensor[] = "rope_freqs.weight";
    if (const auto divisors = factors(kTensor)) {
      if (result_.rope_type == "linear") {
        throw Refused{keys_contradict(kTensor, "with values", key("rope.scaling.factor"), "", "")};
      }
      result_.rope_type = "factors of a tensor";
      // One set of factors: two alike, of which a length picks the first.
      result_.form.scaling = LongRopeScaling{*divisors, *divisors, 2, 1.0, 1.0, 1};
      return;
    }
    const bool llama3 = name_ == "llama" && result_.form.base == 5e5 && result_.max_length.value_or(0) > 8192;
    const bool gemma4 = name_ == "gemma4" && result_.layer_type == kFull;
    if ((llama3 || gemma4) && is_left_out(kTensor)) {
      throw Refused{key_missing(kTensor,
                                llama3 ? "a Llama 3.1 or newer, which it seems to be" : "the full attention of Gemma 4",
                                "GGUF keeps this model's scaling in a tensor, not in its metadata",
                                "add the values of the file's tensor under its name, or null where the file has none")};
    }
  }

  void add_notes() {
    if (architecture_.pairing == Pairing::interleaved && name_ != "command-r" && name_ != "cohere2") {
      result_.notes.push_back(
          "Pairs are llama.cpp's for this architecture. Weights from Hugging Face may pair otherwise: those in a GGUF file are "
          "permuted.");
    }
  }

  const Object& root_;
  const RopeConfigOptions& options_;
  std::string name_;
  GgufArchitecture architecture_;
  RopeConfig result_;
};

}  // namespace

bool is_gguf(const Object& root) { return root.has("general.architecture"); }
RopeConfig read_gguf(const Object& root, const RopeConfigOptions& options) { return GgufReader(root, options).read(); }
std::vector<std::string> gguf_layer_types(const Object& root) {
  const RopeConfigOptions options;
  return GgufReader(root, options).layer_types();
}

}  // namespace ropepool::config
