// read_rope_config: what config.json of Hugging Face says of a model's rope, as it is written today and as it was before.
#include <ropepool/rope_config.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <new>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/rope_tables.h"
#include "ops/rope_config_gguf.h"
#include "ops/rope_config_json.h"
#include "ops/rope_config_models.h"

namespace ropepool {
namespace config {
namespace {

// ---- Which keys stand beside a rope type

struct RopeType {
  std::string_view name;
  std::array<std::string_view, 4> needed = {};  // filled up with ""
  std::array<std::string_view, 7> optional = {};
};

constexpr RopeType kRopeTypes[] = {
    {"default"},
    {"linear", {"factor"}},
    {"dynamic", {"factor"}, {"original_max_position_embeddings"}},
    // HunYuan's; what is optional stands in its configs and does nothing.
    {"dynamic with alpha", {"alpha"}, {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}},
    {"yarn",
     {"factor", "original_max_position_embeddings"},
     {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}},
    {"llama3", {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
    {"longrope",
     {"short_factor", "long_factor", "original_max_position_embeddings"},
     {"factor", "attention_factor", "short_mscale", "long_mscale"}},
    {"proportional", {}, {"factor"}},
};

const RopeType* find_rope_type(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes), [&](const RopeType& type) { return type.name == name; });
  return found != std::end(kRopeTypes) ? found : nullptr;
}

// Keys that stand beside any type.
constexpr std::array kCommonKeys = {
    "rope_type",         "type",        "rope_theta",           "partial_rotary_factor",  "mrope_section",
    "mrope_interleaved", "interleaved", "llama_4_scaling_beta", "max_position_embeddings"};
// Those of them that say nothing of a scaling.
constexpr std::array kPlainKeys = {"rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved", "interleaved"};

bool holds(const auto& names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::string quoted(const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  for (const std::string& name : names) texts.push_back(shown(name));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// How many letters must be changed, put in or left out to make one of the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, diagonal + (a[i] == b[j] ? 0 : 1)}));
    }
  }
  return row.back();
}

// The letters and digits of a name, in lower case.
std::string plain_letters(std::string_view name) {
  std::string letters;
  for (const unsigned char c : name) {
    if (std::isalnum(c) != 0) letters += static_cast<char>(std::tolower(c));
  }
  return letters;
}

// The rope type that a name was meant for; "" where none is near.
std::string meant_type(const std::string& name) {
  if (name.size() > 40) return "";
  std::string letters = plain_letters(name);
  for (const char* word : {"rope", "scaling", "scaled"}) {
    if (const auto at = letters.find(word); at != std::string::npos && letters != "longrope")
      letters.erase(at, std::string(word).size());
  }
  for (const RopeType& type : kRopeTypes) {
    if (type.name == "dynamic with alpha") continue;
    const bool alike = letters.starts_with(type.name) || (letters == "long" && type.name == "longrope");
    if (alike || (letters.size() > 4 && distance(letters, type.name) <= 2)) return std::string(type.name);
  }
  return "";
}

// What a key that a rope type does not have may be.
std::string meant_key(std::string_view key, const RopeType& type) {
  std::vector<std::string_view> keys(std::begin(kCommonKeys), std::end(kCommonKeys));
  for (const auto& list : {std::span<const std::string_view>(type.needed), std::span<const std::string_view>(type.optional)}) {
    keys.insert(keys.end(), list.begin(), list.end());
  }
  for (const std::string_view known : keys) {
    const std::size_t near = std::max<std::size_t>(2, known.size() / 8);
    if (key.size() < 64 && known.size() > 4 && distance(key, known) <= near)
      return fmt::format("it may be {}, misspelt", known);
  }
  std::vector<std::string> types;
  for (const RopeType& other : kRopeTypes) {
    if (other.name == "dynamic with alpha") continue;
    if (holds(other.needed, key) || holds(other.optional, key)) types.push_back(shown(std::string(other.name)));
  }
  if (types.empty()) return "";
  return fmt::format("{} is a key of rope type {}: the type may be the wrong one, or the key left over", key,
                     fmt::join(types, ", "));
}

// Types under the names that they had before.
std::string today(const std::string& rope_type) {
  if (rope_type == "su") return "longrope";
  if (rope_type == "mrope") return "default";  // sections of a plain rope
  return rope_type;
}

// ---- Where a config keeps its rope

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

// A config of a text model, perhaps inside one of a multimodal model, whose keys then hold what the inner one leaves out.
class ModelConfig {
 public:
  explicit ModelConfig(const Object& root) {
    for (Object outer = root;;) {
      levels_.insert(levels_.begin(), outer);
      std::optional<Object> inner;
      for (const char* key : {"text_config", "thinker_config", "llm_config", "language_config"}) {
        if (!inner) inner = outer.object(key);
      }
      if (!inner) break;
      outer = *inner;
    }
    for (const Object& level : levels_) {
      if (model_type.empty()) model_type = level.text("model_type").value_or("");
    }
    if (const Model* found = find_model(model_type)) model = *found;
  }

  std::string model_type;
  Model model;  // that of no known type where there is no row for it

  std::span<const Object> levels() const { return levels_; }

  // The first that is given, by any of its names, innermost first.
  std::optional<std::int64_t> whole(std::initializer_list<const char*> keys) const {
    for (const Object& level : levels_) {
      for (const char* key : keys) {
        if (auto value = level.whole(key)) return value;
      }
    }
    return std::nullopt;
  }
  std::string name(std::string_view key) const { return levels_.front().name(key); }

  std::int64_t needed(const char* key, const char* purpose) const {
    if (auto value = whole({key})) return *value;
    throw Refused{key_missing(name(key), purpose, "latent attention has its lanes in two keys, and one of them is there",
                              "add it from the model's own config.json")};
  }

 private:
  std::vector<Object> levels_;  // innermost first
};

// Whether rope_parameters holds one object for each layer type.
bool is_by_layer_type(const Object& parameters) {
  return std::any_of(parameters.members().begin(), parameters.members().end(),
                     [](const Member& member) { return member.value.members() != nullptr; });
}

std::vector<std::string> layer_types_of(const ModelConfig& config) {
  for (const Object& level : config.levels()) {
    const auto parameters = level.object("rope_parameters");
    if (!parameters || !is_by_layer_type(*parameters)) continue;
    std::vector<std::string> types;
    for (const Member& member : parameters->members()) {
      if (member.value.is_null()) continue;  // layers without a rope
      if (member.value.members() == nullptr) {
        throw Refused{keys_contradict(parameters->name(member.key), member.value.shown(), "the layer types beside it",
                                      "rope_parameters holds either one rope or an object for each layer type", "")};
      }
      if (!holds(types, member.key)) types.push_back(member.key);
    }
    return types;
  }
  if (config.model.two_ropes != TwoRopes::none) return {std::string(kSliding), std::string(kFull)};
  return {};
}

class Reader {
 public:
  Reader(const Object& root, const RopeConfigOptions& options) : config_(root), model_(config_.model), options_(options) {}

  RopeConfig read() {
    check_model();
    choose_layer_type();
    gather_objects();
    read_rope_type();
    check_keys();
    read_lanes();
    read_base();
    read_sections();
    read_scaling();
    add_notes();
    return std::move(result_);
  }

 private:
  // ---- The model and its layers

  void check_model() {
    result_.model_type = config_.model_type;
    result_.max_length = config_.whole({"max_position_embeddings", "n_positions"});
    if (options_.length && *options_.length < 1) {
      throw Refused{
          value_unsuitable("length", "at least 1", shown(*options_.length), "", "pass the most tokens of a sequence")};
    }
    if (!model_.unsupported.empty()) {
      throw Refused{value_unsuitable(config_.name("model_type"), "one whose rope ropepool has", shown(config_.model_type),
                                     std::string(model_.unsupported),
                                     "make a Rope with frequencies of your own where those can say it")};
    }
    for (const Object& level : config_.levels()) {
      if (config_.model_type.empty() && level.has("dim") && level.has("n_heads")) {
        throw Refused{
            key_missing(level.name("model_type"), "the pairing of lanes",
                        "it may be the params.json of a checkpoint in its authors' own layout, whose pairs are 2i and "
                        "2i + 1 where those of transformers are not",
                        "pass the config.json of the model in Hugging Face's layout, or make a Rope by hand")};
      }
      const auto kind = level.text("position_embedding_type");
      if (kind && *kind != "rope" && *kind != "rotary") {
        throw Refused{value_unsuitable(level.name("position_embedding_type"), "'rope'", shown(*kind),
                                       "the model tells positions by other means", "pass no rope for this model")};
      }
      for (const char* key : {"alibi", "use_dynamic_ntk"}) {
        if (level.flag(key).value_or(false)) {
          throw Refused{
              value_unsuitable(level.name(key), "false", "true", "what it does to positions is no rope of ropepool", "")};
        }
      }
    }
  }

  void choose_layer_type() {
    const std::vector<std::string> ropes = layer_types_of(config_);
    const auto& wanted = options_.layer_type;
    if (!wanted && ropes.size() > 1) {
      throw Refused{key_missing("layer_type", fmt::format("one of the ropes {}", quoted(ropes)),
                                "layers of this model rotate in different ways",
                                fmt::format("pass layer_type={}, and make a Rope for each", shown(ropes.front())))};
    }
    if (wanted) {
      std::vector<std::string> known = ropes;
      for (const Object& level : config_.levels()) {
        const Value* list = level.find("layer_types");
        const auto* items = list != nullptr ? std::get_if<std::vector<Value>>(&list->of) : nullptr;
        if (!ropes.empty() || items == nullptr) continue;
        for (const Value& item : *items) {
          const auto* type = std::get_if<std::string>(&item.of);
          if (type != nullptr && !holds(known, *type)) known.push_back(*type);
        }
      }
      std::erase(known, model_.ropeless);
      if (!holds(known, *wanted)) {
        const std::string expected = known.empty() ? "left out" : "one of " + quoted(known);
        std::string cause = known.empty() ? "the config has one rope for all layers" : "";
        if (!known.empty() && (*wanted == "global" || *wanted == "full")) cause = "global layers are called 'full_attention'";
        if (!known.empty() && (*wanted == "local" || *wanted == "sliding" || *wanted == "sliding_window")) {
          cause = "local layers are called 'sliding_attention'";
        }
        if (*wanted == model_.ropeless) cause = "layers of that type do not rotate";
        throw Refused{value_unsuitable("layer_type", expected, shown(*wanted), cause, "")};
      }
      result_.layer_type = *wanted;
    } else if (ropes.size() == 1) {
      result_.layer_type = ropes.front();
    }
  }

  bool is_sliding() const { return result_.layer_type == kSliding; }

  // Whether rope_scaling is about this layer too.
  bool takes_rope_scaling() const {
    return !is_sliding() || (model_.two_ropes != TwoRopes::gemma3 && model_.two_ropes != TwoRopes::olmo3);
  }

  // ---- The objects that speak of the rope

  void gather_objects() {
    for (const Object& level : config_.levels()) {
      if (const auto parameters = level.object("rope_parameters")) {
        if (!is_by_layer_type(*parameters)) {
          if (takes_rope_scaling()) objects_.push_back(*parameters);
        } else if (const auto of_layer = parameters->object(result_.layer_type)) {
          objects_.push_back(*of_layer);
          by_layer_type_ = true;
        }
      }
      if (const auto scaling = level.object("rope_scaling"); scaling && takes_rope_scaling()) objects_.push_back(*scaling);
    }
    if ((model_.needs_parameters || model_.two_ropes == TwoRopes::nested) && objects_.empty()) {
      throw Refused{key_missing(config_.name("rope_parameters"), fmt::format("model_type {}", shown(config_.model_type)),
                                "the model scales its rope, and the config does not say how",
                                "add rope_parameters or rope_scaling as the model's own config.json has them")};
    }
  }

  std::string name(std::string_view key) const {
    return (objects_.empty() ? config_.levels().front() : objects_.front()).name(key);
  }

  // What any of the objects says, which have to agree.
  template <class T>
  std::optional<T> said(std::optional<T> (Object::*read)(std::string_view) const, std::string_view key) const {
    Agreed<T> agreed;
    for (const Object& object : objects_) agreed.add(object.name(key), (object.*read)(key));
    return agreed.value();
  }
  std::optional<double> number(std::string_view key) const { return said(&Object::number, key); }
  std::optional<std::int64_t> whole(std::string_view key) const { return said(&Object::whole, key); }
  std::optional<bool> flag(std::string_view key) const { return said(&Object::flag, key); }

  bool has(std::string_view key) const {
    return std::any_of(objects_.begin(), objects_.end(), [&](const Object& object) { return object.has(key); });
  }

  template <class T>
  T needed(std::optional<T> value, std::string_view key) const {
    if (value) return *value;
    const std::string purpose = fmt::format("rope type {}", shown(result_.rope_type));
    if (key == "original_max_position_embeddings") {
      std::string cause = "it is how long sequences were before the scaling, and does not follow from other keys";
      if (result_.max_length) {
        cause = fmt::format("max_position_embeddings {} may be the length before the scaling or after it, so it is not taken",
                            *result_.max_length);
      }
      throw Refused{key_missing(name(key), purpose, std::move(cause), "add the length that the model was first trained with")};
    }
    for (const Object& level : config_.levels()) {
      if (!level.has(key)) continue;
      throw Refused{key_missing(name(key), purpose, fmt::format("{} stands beside that object, not in it", level.name(key)),
                                fmt::format("move it to {}", name(key)))};
    }
    throw Refused{key_missing(name(key), purpose, "the rope type was set without all of its keys",
                              "copy the whole object from the model's own config.json")};
  }
  double needed_number(std::string_view key) const { return needed(number(key), key); }

  // ---- The type, and what may stand beside it

  void read_rope_type() {
    Agreed<std::string> type;
    for (const Object& object : objects_) {
      for (const char* key : {"rope_type", "type"}) {
        const auto text = object.text(key);
        if (text) type.add(object.name(key), today_of_model(*text));
      }
    }
    if (!type.value()) {
      for (const Object& object : objects_) {
        for (const Member& member : object.members()) {
          if (member.value.is_null() || holds(kPlainKeys, member.key)) continue;
          throw Refused{key_missing(object.name("rope_type"), object.name(member.key),
                                    "a scaling without its type; read as 'default' it would be dropped in silence",
                                    "add rope_type: 'linear', 'yarn', 'llama3' ... as the model's own config.json has it")};
        }
      }
    }
    result_.rope_type = type.value().value_or("default");
    if (find_rope_type(result_.rope_type) == nullptr || result_.rope_type == "dynamic with alpha") refuse_type(type.key());
    if (result_.rope_type == "dynamic" && has("alpha")) result_.rope_type = "dynamic with alpha";
  }

  std::string today_of_model(const std::string& type) const {
    // The first configs of Phi-3 called it so.
    if (type == "yarn" && model_.type.starts_with("phi3") && has("short_factor")) return "longrope";
    return today(type);
  }

  [[noreturn]] void refuse_type(const std::string& key) const {
    const std::string known = "'default', 'linear', 'dynamic', 'yarn', 'llama3', 'longrope' and 'proportional' are known";
    std::string cause;
    std::string mend = "use the rope_type of the model's own config.json, or make a Rope with frequencies of your own";
    const std::string& type = result_.rope_type;
    if (const std::string meant = meant_type(type); !meant.empty()) {
      cause = fmt::format("{} may be '{}' under another spelling", shown(type), meant);
      mend = fmt::format("write '{}'", meant);
    }
    if (type == "deepseek_yarn") {
      cause = "it is vLLM's name for the yarn of DeepSeek";
      mend = "write 'yarn', as DeepSeek's own config.json does";
    }
    if (plain_letters(type).starts_with("ntk")) {
      cause = "NTK-aware scaling comes in two ways: a base that follows the length, and one that is stretched once";
      mend = "write 'dynamic' where the base is to follow the length, else scale rope_theta itself";
    }
    if (type == "axial") {
      cause = "it is the rope of a vision tower";
      mend = "pass the text model's config";
    }
    throw Refused{type_unknown(key, shown(type), cause.empty() ? known : cause + "; " + known, mend)};
  }

  void check_keys() const {
    const RopeType& type = *find_rope_type(result_.rope_type);
    std::vector<std::string_view> keys(type.needed.begin(), type.needed.end());
    keys.insert(keys.end(), type.optional.begin(), type.optional.end());
    std::erase(keys, "");
    for (const Object& object : objects_) {
      for (const Member& member : object.members()) {
        if (member.value.is_null() || holds(kCommonKeys, member.key) || holds(keys, member.key)) continue;
        const std::string type_name = fmt::format("rope type {}", shown(result_.rope_type));
        std::string cause = meant_key(member.key, type);
        if (!cause.empty()) cause += "; ";
        cause += type_name + (keys.empty() ? " has no keys of its own" : fmt::format(" has {}", fmt::join(keys, ", ")));
        throw Refused{keys_contradict(object.name(member.key), member.value.shown(), type_name, std::move(cause), "")};
      }
    }
  }

  // ---- Lanes

  std::int64_t read_head_dim() const {
    if (model_.type.starts_with("gemma4") && result_.layer_type == kFull) {
      return config_.whole({"global_head_dim"}).value_or(512);
    }
    if (auto given = config_.whole({"head_dim", "attention_head_dim", "kv_channels"})) return *given;
    if (model_.head_dim > 0) return model_.head_dim;
    const auto width = config_.whole({"hidden_size", "n_embd", "d_model"});
    const auto heads = config_.whole({"num_attention_heads", "n_head", "n_heads"});
    if (!width && !heads && config_.model_type.empty()) {
      throw Refused{key_missing(
          config_.name("head_dim"), "the number of rotated lanes",
          "it describes no model: it may be another of a model's files, such as generation_config.json or adapter_config.json",
          "pass the model's config.json, or add head_dim, or hidden_size and num_attention_heads")};
    }
    if (!width || !heads) {
      throw Refused{key_missing(
          config_.name("head_dim"), "the number of rotated lanes",
          fmt::format("{} is missing too, from which it would follow", width ? "num_attention_heads" : "hidden_size"),
          "add head_dim, or hidden_size and num_attention_heads")};
    }
    if (*heads < 1 || *width % *heads != 0) {
      throw Refused{keys_contradict(config_.name("num_attention_heads"), shown(*heads), fmt::format("hidden_size {}", *width),
                                    "heads do not divide the hidden size, so head_dim does not follow from them",
                                    "add head_dim")};
    }
    return *width / *heads;
  }

  void read_lanes() {
    RopeForm& form = result_.form;
    form.pairing = model_.pairing;
    Agreed<double> part;
    for (const Object& object : objects_)
      part.add(object.name("partial_rotary_factor"), object.number("partial_rotary_factor"));
    for (const Object& level : config_.levels()) {
      for (const char* key : {"partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction"}) {
        if (!by_layer_type_ || part.value() == std::nullopt) part.add(level.name(key), level.number(key));
      }
    }
    rotary_factor_ = part.value().value_or(model_.rotary_factor);
    if (!(rotary_factor_ >= 0 && rotary_factor_ <= 1)) {
      throw Refused{value_unsuitable(part.key(), "from 0 to 1", shown(rotary_factor_),
                                     rotary_factor_ > 1
                                         ? "it is the part of a head that turns: it may be given in percent, or in lanes"
                                         : "it is the part of a head that turns",
                                     "")};
    }
    if (const auto rotary = config_.whole({"qk_rope_head_dim"})) {  // latent attention
      form.rotary_dim = *rotary;
      form.rotary_offset = config_.needed("qk_nope_head_dim", "the place of the rotated lanes, which stand behind the others");
      result_.head_dim = form.rotary_offset + form.rotary_dim;
      for (const Object& level : config_.levels()) {
        if (const auto interleaved = level.flag("rope_interleave")) {
          form.pairing = *interleaved ? Pairing::interleaved : Pairing::neox;
        }
      }
      if (model_.type.empty() && !says("rope_interleave")) {
        throw Refused{key_missing(config_.name("rope_interleave"), "the pairing of a latent attention that is not known",
                                  "models with qk_rope_head_dim pair in both ways",
                                  "add rope_interleave: true for pairs of 2i and 2i + 1")};
      }
      return;
    }
    result_.head_dim = read_head_dim();
    if (result_.rope_type == "proportional") {
      form.rotary_dim = result_.head_dim;
      return;
    }
    const auto lanes = static_cast<std::int64_t>(static_cast<double>(result_.head_dim) * rotary_factor_);
    const auto given = config_.whole({"rotary_dim"});
    if (given && part.value() && *given != lanes) {
      throw Refused{
          keys_contradict(config_.name("rotary_dim"), shown(*given),
                          fmt::format("{} {} of head_dim {}, which is {}", part.key(), rotary_factor_, result_.head_dim, lanes),
                          "both say how many lanes turn", "keep the one that the model was trained with")};
    }
    form.rotary_dim = given ? *given : model_.rotary_dim > 0 ? model_.rotary_dim : lanes;
    if (form.rotary_dim > result_.head_dim) {
      throw Refused{keys_contradict(config_.name("rotary_dim"), shown(form.rotary_dim),
                                    fmt::format("head_dim {}", result_.head_dim), "more lanes would turn than a head has", "")};
    }
  }

  bool says(const char* key) const {
    return std::any_of(config_.levels().begin(), config_.levels().end(), [&](const Object& level) { return level.has(key); });
  }

  // ---- Frequencies

  void read_base() {
    Agreed<double> base;
    for (const Object& object : objects_) base.add(object.name("rope_theta"), object.number("rope_theta"));
    for (const Object& level : config_.levels()) {
      if (by_layer_type_) {
        check_base_beside_layer_types(level);
        if (base.value()) continue;
      }
      std::vector<const char*> keys = {"rope_theta", "rotary_emb_base"};
      if (is_sliding() && model_.two_ropes == TwoRopes::gemma3) keys = {"rope_local_base_freq"};
      if (model_.two_ropes == TwoRopes::modernbert) keys = {is_sliding() ? "local_rope_theta" : "global_rope_theta"};
      for (const char* key : keys) base.add(level.name(key), level.number(key));
      if (const auto attention = level.object("attn_config")) {  // DBRX
        base.add(attention->name("rope_theta"), attention->number("rope_theta"));
      }
    }
    const bool by_sliding = is_sliding() && model_.two_ropes != TwoRopes::none;
    const double theta = base.value().value_or(by_sliding ? model_.sliding_theta : model_.theta);
    if (std::isnan(theta)) {
      const std::string cause =
          config_.model_type.empty() ? "" : fmt::format("the default of model_type {} is not known", shown(config_.model_type));
      throw Refused{
          key_missing(name("rope_theta"), "the frequencies", cause,
                      "add rope_theta as the model was trained with it: 10000.0 is a default of many, and of many not")};
    }
    result_.form.base = theta;
  }

  // A rope_theta beside rope_parameters by layer type has to be one of theirs.
  void check_base_beside_layer_types(const Object& level) const {
    const auto beside = level.number("rope_theta");
    if (!beside) return;
    std::vector<double> bases;
    for (const Object& each : config_.levels()) {
      const auto parameters = each.object("rope_parameters");
      for (const Member& member : parameters ? parameters->members() : std::vector<Member>{}) {
        if (member.value.members() == nullptr) continue;
        const Object of_layer(*member.value.members(), parameters->name(member.key) + ".");
        if (auto base = of_layer.number("rope_theta")) bases.push_back(*base);
      }
    }
    if (bases.empty() || holds_number(bases, *beside)) return;
    throw Refused{keys_contradict(level.name("rope_theta"), shown(*beside),
                                  fmt::format("rope_parameters, which has {}", shown(bases)),
                                  "rope_parameters has a base for each layer type, so the one beside it may be left over", "")};
  }
  static bool holds_number(const std::vector<double>& numbers, double number) {
    return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
  }

  void read_sections() {
    auto pairs = said(&Object::wholes, "mrope_section");
    Sections::Order order = model_.section_order;
    for (const char* key : {"mrope_interleaved", "interleaved"}) {
      const auto interleaved = flag(key);
      if (!interleaved) continue;
      const auto said_order = *interleaved ? Sections::Order::interleaved : Sections::Order::blocks;
      if (said_order != order && has_sections(model_)) {
        throw Refused{keys_contradict(name(key), shown(*interleaved), fmt::format("model_type {}", shown(config_.model_type)),
                                      "the model lays its sections out the other way", "")};
      }
      order = said_order;
    }
    if (!pairs && has_sections(model_)) pairs = {model_.sections.begin(), model_.sections.end()};
    if (pairs) result_.form.sections = Sections{*std::move(pairs), order};
  }
  static bool has_sections(const Model& model) { return model.sections[0] > 0; }

  // ---- Scaling

  std::int64_t original_length() const {
    Agreed<std::int64_t> length;
    for (const Object& object : objects_) {
      length.add(object.name("original_max_position_embeddings"), object.whole("original_max_position_embeddings"));
    }
    for (const Object& level : config_.levels()) {  // Phi-3 has it beside its rope_scaling
      length.add(level.name("original_max_position_embeddings"), level.whole("original_max_position_embeddings"));
    }
    return needed(length.value(), "original_max_position_embeddings");
  }

  std::int64_t max_length(const char* purpose) const {
    if (result_.max_length) return *result_.max_length;
    throw Refused{key_missing(config_.name("max_position_embeddings"), purpose, "the config was cut down to its rope",
                              "add it from the model's own config.json")};
  }

  void read_scaling() {
    const std::string& type = result_.rope_type;
    if (type == "linear") result_.form.scaling = LinearScaling{needed_number("factor")};
    if (type == "dynamic") result_.form.scaling = dynamic();
    if (type == "dynamic with alpha") result_.form.scaling = NtkAlphaScaling{needed_number("alpha")};
    if (type == "yarn") result_.form.scaling = yarn();
    if (type == "llama3") {
      result_.form.scaling = Llama3Scaling{needed_number("factor"), needed_number("low_freq_factor"),
                                           needed_number("high_freq_factor"), original_length()};
    }
    if (type == "longrope") result_.form.scaling = long_rope();
    if (type == "proportional") result_.form.scaling = ProportionalScaling{rotary_factor_, number("factor").value_or(1.0)};
  }

  DynamicNtkScaling dynamic() const {
    const double factor = needed_number("factor");
    const std::int64_t trained = max_length("rope type 'dynamic', as the length it was trained with");
    if (const auto original = whole("original_max_position_embeddings"); original && *original != trained) {
      throw Refused{keys_contradict(name("original_max_position_embeddings"), shown(*original),
                                    fmt::format("max_position_embeddings {}", trained),
                                    "rope type 'dynamic' grows past max_position_embeddings, whatever else is written", "")};
    }
    if (!options_.length) {
      throw Refused{key_missing("length", "rope type 'dynamic'", "its frequencies follow from how long a sequence may get",
                                "pass length, the most tokens a sequence may get; a sequence keeps it for good, since its keys "
                                "are in the pool already")};
    }
    return {factor, trained, *options_.length};
  }

  YarnScaling yarn() const {
    YarnScaling s{needed_number("factor"), original_length()};
    s.beta_fast = number("beta_fast").value_or(s.beta_fast);
    s.beta_slow = number("beta_slow").value_or(s.beta_slow);
    s.truncate = flag("truncate").value_or(true);
    s.attention_factor = number("attention_factor");
    s.mscale = number("mscale");
    s.mscale_all_dim = number("mscale_all_dim");
    return s;
  }

  LongRopeScaling long_rope() const {
    LongRopeScaling s;
    s.short_factor = needed(said(&Object::numbers, "short_factor"), "short_factor");
    s.long_factor = needed(said(&Object::numbers, "long_factor"), "long_factor");
    s.original_length = original_length();
    s.attention_factor = number("attention_factor");
    s.length = options_.length;
    const auto short_scale = number("short_mscale"), long_scale = number("long_mscale");  // Phi-3.5-MoE
    if (short_scale || long_scale) {
      if (s.attention_factor)
        throw Refused{
            keys_contradict(name("attention_factor"), shown(*s.attention_factor), "short_mscale and long_mscale", "", "")};
      const bool is_long = s.length && *s.length > s.original_length;
      const double a = needed(short_scale, "short_mscale"), b = needed(long_scale, "long_mscale");
      if (!s.length && a != b) {
        throw Refused{key_missing("length", fmt::format("short_mscale {} or long_mscale {}", a, b), "",
                                  "pass length, the most tokens a sequence may get")};
      }
      s.attention_factor = is_long ? b : a;
    }
    if (const auto factor = number("factor")) {
      s.factor = *factor;
    } else if (s.attention_factor) {
      s.factor = 1.0;  // nothing else follows from it
    } else {
      const auto longest = max_length("the attention factor of rope type 'longrope'");
      s.factor = static_cast<double>(longest) / static_cast<double>(std::max<std::int64_t>(s.original_length, 1));
    }
    return s;
  }

  // ---- What a reader should know besides

  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  void add_notes() {
    if (model_.type.empty()) {
      note(config_.model_type.empty()
               ? "The config names no model_type: pairs of i and i + rotary_dim / 2 are assumed."
               : fmt::format("model_type {} is not in ropepool's table: pairs of i and i + rotary_dim / 2 are assumed.",
                             shown(config_.model_type)));
    }
    if (!model_.ropeless.empty()) {
      note(fmt::format("Layers of type {} do not rotate: their q and k go on as they are.",
                       shown(std::string(model_.ropeless))));
    }
    if (says("no_rope_layers") || says("no_rope_layer_interval") || model_.type == "smollm3" || model_.type == "llama4_text") {
      note("Some layers do not rotate: those with a 0 in no_rope_layers, by default every fourth.");
    }
    if (result_.form.rotary_offset > 0) {
      note(fmt::format("Latent attention: lanes {} to {} of a head of q turn, and of k the {} lanes that all heads share.",
                       result_.form.rotary_offset, result_.head_dim - 1, result_.form.rotary_dim));
      if (number("mscale_all_dim").value_or(0) != 0 && result_.rope_type == "yarn") {
        const double scale = 0.1 * *number("mscale_all_dim") * std::log(needed_number("factor")) + 1.0;
        note(fmt::format(
            "Not in the rope: the model multiplies its softmax scale by {:.6g}, the square of what mscale_all_dim gives.",
            scale * scale));
      }
    }
    if (has("llama_4_scaling_beta")) {
      note("Not in the rope: the model scales q by its position as well (llama_4_scaling_beta).");
    }
    if (result_.rope_type == "longrope" && !options_.length) {
      note("Two sets: 0 for sequences up to the original length, 1 for longer ones. A sequence keeps the one it began with.");
    }
    const auto factor = number("factor");
    if (factor && result_.max_length && has("original_max_position_embeddings")) {
      const double reach = *factor * static_cast<double>(original_length());
      if (reach != static_cast<double>(*result_.max_length)) {
        note(fmt::format(
            "factor times original_max_position_embeddings is {}, and max_position_embeddings {}: the factor rules.", reach,
            *result_.max_length));
      }
    }
  }

  ModelConfig config_;
  const Model& model_;
  const RopeConfigOptions& options_;
  RopeConfig result_;
  std::vector<Object> objects_;  // rope_parameters, rope_scaling, innermost first
  bool by_layer_type_ = false;
  double rotary_factor_ = 1.0;
};

}  // namespace
}  // namespace config

Result<RopeConfig> read_rope_config(std::string_view json, const RopeConfigOptions& options) try {
  const config::Value value = config::parse(json);
  const config::Object root(*value.members(), "");
  RopeConfig read = config::is_gguf(root) ? config::read_gguf(root, options) : config::Reader(root, options).read();
  if (read.form.rotary_dim > kMaxRotaryDim) {
    return config::value_unsuitable("head_dim", fmt::format("at most {}", kMaxRotaryDim), std::to_string(read.form.rotary_dim),
                                    "", "");
  }
  if (auto rope = Rope::make(read.form); !rope) return rope.error();
  return read;
} catch (config::Refused& refused) {
  return std::move(refused.error);
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

Result<std::vector<std::string>> rope_layer_types(std::string_view json) try {
  const config::Value value = config::parse(json);
  const config::Object root(*value.members(), "");
  return config::is_gguf(root) ? config::gguf_layer_types(root) : config::layer_types_of(config::ModelConfig(root));
} catch (config::Refused& refused) {
  return std::move(refused.error);
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

Result<RopeForm> rope_form_from_config(std::string_view json, const RopeConfigOptions& options) {
  auto read = read_rope_config(json, options);
  if (!read) return read.error();
  return std::move(read.value().form);
}

Result<Rope> rope_from_config(std::string_view json, const RopeConfigOptions& options) {
  auto read = read_rope_config(json, options);
  if (!read) return read.error();
  return Rope::make(read.value().form);
}

}  // namespace ropepool
