// ropepool rope: which rope a config means, in plain words, as JSON, and as a picture.
#include "commands.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ropepool/rope_config.h>

#include "core/rope_tables.h"
#include "files.h"
#include "rope_plot.h"
#include "terminal.h"

namespace ropepool::cli {
namespace {

// A config's rope, and the model's rope without its scaling beside it.
struct Resolved {
  RopeConfig config;
  Rope rope, unscaled;
  std::vector<double> unscaled_frequencies = unscaled.frequencies();

  std::int64_t num_pairs() const { return rope.rotary_dim() / 2; }
};

double wavelength(double frequency) { return 2 * std::numbers::pi / frequency; }

Result<Resolved> resolve(const std::string& text, const RopeConfigOptions& options) {
  auto config = read_rope_config(text, options);
  if (!config) return config.error();
  RopeForm plain = config.value().form;
  plain.scaling = {};
  plain.attention_scale = 1.0;
  auto rope = Rope::make(config.value().form);
  auto unscaled = Rope::make(plain);
  if (!rope) return rope.error();
  if (!unscaled) return unscaled.error();
  return Resolved{std::move(config.value()), std::move(rope.value()), std::move(unscaled.value())};
}

// ---- In words

struct Scaling {
  std::string words;
  std::optional<std::int64_t> original_length = {};
  Json json = nullptr;
};

struct Describe {
  const RopeForm& form;

  Scaling operator()(std::monostate) const { return {"none: all pairs turn by powers of the base"}; }
  Scaling operator()(const LinearScaling& s) const {
    return {fmt::format("all frequencies over {}", s.factor), {}, {{"factor", s.factor}}};
  }
  Scaling operator()(const DynamicNtkScaling& s) const {
    const double growth =
        std::max(1.0, s.factor * static_cast<double>(s.length) / static_cast<double>(s.original_length) - (s.factor - 1));
    const double d = static_cast<double>(form.rotary_dim);
    return {fmt::format("the base grows with the sequence: {:.6g} for a length of {}, factor {}; a sequence keeps its length",
                        form.base * std::pow(s.length > s.original_length ? growth : 1.0, d / (d - 2)), s.length, s.factor),
            s.original_length,
            {{"factor", s.factor}, {"original_length", s.original_length}, {"length", s.length}}};
  }
  Scaling operator()(const NtkAlphaScaling& s) const {
    const double d = static_cast<double>(form.rotary_dim);
    return {fmt::format("the base is stretched by alpha {}, to {:.6g}", s.alpha, form.base * std::pow(s.alpha, d / (d - 2))),
            {},
            {{"alpha", s.alpha}}};
  }
  Scaling operator()(const YarnScaling& s) const {
    const double length = static_cast<double>(s.original_length), turn = 2 * std::numbers::pi;
    const auto pair_of = [&](double turns) {
      return static_cast<double>(form.rotary_dim) * std::log(length / (turns * turn)) / (2 * std::log(form.base));
    };
    const double low = s.truncate ? std::floor(pair_of(s.beta_fast)) : pair_of(s.beta_fast);
    const double high = s.truncate ? std::ceil(pair_of(s.beta_slow)) : pair_of(s.beta_slow);
    return {fmt::format(
                "pairs that turn {} times and more in {} positions are kept, those that turn {} times and less are over {}; "
                "the ramp goes from pair {:.6g} to {:.6g}{}",
                s.beta_fast, s.original_length, s.beta_slow, s.factor, std::max(low, 0.0),
                std::min(high, static_cast<double>(form.rotary_dim - 1)),
                s.truncate ? ", whole pairs (truncate)" : ", not rounded to whole pairs (truncate false)"),
            s.original_length,
            {{"factor", s.factor},
             {"original_length", s.original_length},
             {"beta_fast", s.beta_fast},
             {"beta_slow", s.beta_slow},
             {"truncate", s.truncate}}};
  }
  Scaling operator()(const Llama3Scaling& s) const {
    const double length = static_cast<double>(s.original_length);
    return {
        fmt::format("wavelengths up to {:.6g} are kept (original length / high_freq_factor {}), those above {:.6g} (/ "
                    "low_freq_factor {}) "
                    "are times {}, a ramp lies between",
                    length / s.high_freq_factor, s.high_freq_factor, length / s.low_freq_factor, s.low_freq_factor, s.factor),
        s.original_length,
        {{"factor", s.factor},
         {"low_freq_factor", s.low_freq_factor},
         {"high_freq_factor", s.high_freq_factor},
         {"original_length", s.original_length}}};
  }
  Scaling operator()(const LongRopeScaling& s) const {
    Json json{{"short_factor", s.short_factor},
              {"long_factor", s.long_factor},
              {"original_length", s.original_length},
              {"factor", s.factor}};
    if (s.length) json["length"] = *s.length;
    const auto [low, high] = std::minmax_element(s.long_factor.begin(), s.long_factor.end());
    return {fmt::format("a factor for each pair: one list for sequences up to {} tokens, one (from {} to {}) for longer ones{}",
                        s.original_length, *low, *high,
                        s.length ? fmt::format("; for a length of {} it is the {}", *s.length,
                                               *s.length > s.original_length ? "second" : "first")
                                 : ""),
            s.original_length, std::move(json)};
  }
  Scaling operator()(const ProportionalScaling& s) const {
    return {fmt::format("the first {} of the pairs turn, the others stand still{}", s.proportion,
                        s.factor != 1.0 ? fmt::format("; frequencies over {}", s.factor) : ""),
            {},
            {{"proportion", s.proportion}, {"factor", s.factor}}};
  }
};

Scaling scaling_of(const RopeConfig& config) {
  Scaling scaling = std::visit(Describe{config.form}, config.form.scaling);
  if (config.rope_type == "factors of a tensor") {
    scaling = {"a factor for each pair, from the file's tensor rope_freqs", {}, std::move(scaling.json)};
  }
  return scaling;
}

// Runs of pairs that a scaling treats alike: "0 to 14".
std::string pairs_words(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("pair {}", first) : fmt::format("pairs {} to {}", first, last);
}

bool same(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); }

std::string slower_words(double ratio, bool one) {
  const char* turn = one ? "turns" : "turn";
  if (ratio == 0) return one ? "stands still" : "stand still";
  if (same(ratio, 1)) return fmt::format("{} as without scaling", turn);
  return ratio < 1 ? fmt::format("{} {:.6g} times as slowly", turn, 1 / ratio)
                   : fmt::format("{} {:.6g} times as fast", turn, ratio);
}

// Where the scaling bends: pairs of one ratio together, what changes from pair to pair as one run.
std::string bends_of(const std::vector<double>& ratios) {
  std::vector<std::string> words;
  const auto count = static_cast<std::int64_t>(ratios.size());
  const auto ratio = [&](std::int64_t pair) { return ratios[static_cast<std::size_t>(pair)]; };
  const auto alone = [&](std::int64_t pair) {
    return (pair == 0 || !same(ratio(pair), ratio(pair - 1))) && (pair + 1 == count || !same(ratio(pair), ratio(pair + 1)));
  };
  for (std::int64_t first = 0, end = 0; first < count; first = end) {
    end = first + 1;
    if (alone(first) && !same(ratio(first), 1)) {
      while (end < count && alone(end) && !same(ratio(end), 1)) ++end;
    } else {
      while (end < count && same(ratio(end), ratio(first))) ++end;
    }
    if (end - first > 1 && !same(ratio(first), ratio(end - 1))) {
      words.push_back(fmt::format("{} go from {:.6g} to {:.6g} of their unscaled frequency", pairs_words(first, end - 1),
                                  ratio(first), ratio(end - 1)));
    } else {
      words.push_back(fmt::format("{} {}", pairs_words(first, end - 1), slower_words(ratio(first), end - first == 1)));
    }
  }
  return fmt::format("{}", fmt::join(words, "; "));
}

std::vector<double> ratios_of(const Resolved& resolved, std::int64_t set) {
  std::vector<double> ratios = resolved.rope.frequencies(set);
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] /= resolved.unscaled_frequencies[i];
  return ratios;
}

// The first position at which a pair has turned once.
std::string turned_once(double frequency) {
  const double turn = std::ceil(wavelength(frequency));
  if (!(turn < 0x1p53)) return frequency == 0 ? "never" : fmt::format("{:.3g}", turn);
  return fmt::format("{}", static_cast<std::int64_t>(turn));
}

std::string axis_of(const Resolved& resolved, std::size_t pair) {
  const auto& axes = resolved.rope.tables().axis_of_pair;
  return axes.empty() ? "" : fmt::format("  {:>4}", axes[pair]);
}

std::string difference_words(const Resolved& resolved, std::int64_t set) {
  const std::vector<double> ratios = ratios_of(resolved, set);
  const auto changed = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return !same(ratio, 1); });
  const double scale = resolved.rope.attention_scale(set);
  std::vector<std::string> words;
  if (changed == 0) {
    words.push_back("frequencies are those of the unscaled rope");
  } else {
    words.push_back(fmt::format("{} of {} pairs turn otherwise", changed, ratios.size()));
    const double last = resolved.rope.frequencies(set).back(), unscaled = resolved.unscaled_frequencies.back();
    words.push_back(
        last == 0
            ? fmt::format("the last one stands still, unscaled it turns once in {} positions", turned_once(unscaled))
            : fmt::format("the last one turns once in {} positions, unscaled in {}", turned_once(last), turned_once(unscaled)));
  }
  words.push_back(scale == 1 ? "cos and sin are not stretched"
                             : fmt::format("cos and sin are times {:.7g}, so scores grow by {:.6g}", scale, scale * scale));
  return fmt::format("{}", fmt::join(words, "; "));
}

std::string describe(const Resolved& resolved, const Terminal& terminal) {
  const RopeConfig& config = resolved.config;
  const RopeForm& form = config.form;
  const Scaling scaling = scaling_of(config);
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += terminal.wrapped(fmt::format("  {:<17} ", name), value);
  };
  text += terminal.bold(fmt::format("{}{}: {}", config.model_type.empty() ? "a model without a name" : config.model_type,
                                    config.layer_type.empty() ? "" : ", " + config.layer_type,
                                    config.rope_type == "default" ? "plain RoPE" : "rope type " + config.rope_type)) +
          "\n";
  line("base", fmt::format("{}", form.base));
  line("lanes", fmt::format("{} to {} of {} turn, in {} pairs of {}", form.rotary_offset,
                            form.rotary_offset + form.rotary_dim - 1, config.head_dim, resolved.num_pairs(),
                            form.pairing == Pairing::neox ? fmt::format("i and i + {} (neox)", resolved.num_pairs())
                                                          : "2i and 2i + 1 (interleaved)"));
  if (form.sections) {
    line("positions",
         fmt::format("{} axes; pairs of each: [{}], {}", form.sections->pairs.size(), fmt::join(form.sections->pairs, ", "),
                     form.sections->order == Sections::Order::blocks ? "in blocks" : "interleaved"));
  }
  line("scaling", scaling.words);
  if (scaling.original_length) line("original length", fmt::format("{} tokens", *scaling.original_length));
  if (config.max_length) line("longest", fmt::format("{} tokens (max_position_embeddings)", *config.max_length));
  for (const std::string& note : config.notes) line("note", note);
  for (std::int64_t set = 0; set < resolved.rope.num_sets(); ++set) {
    const std::vector<double> frequencies = resolved.rope.frequencies(set), ratios = ratios_of(resolved, set);
    text += "\n";
    if (resolved.rope.num_sets() > 1) {
      text += terminal.bold(fmt::format("set {}, for sequences {} {} tokens", set, set == 0 ? "up to" : "above",
                                        scaling.original_length.value_or(0))) +
              "\n";
    }
    line("attention factor", fmt::format("{:.9g}", resolved.rope.attention_scale(set)));
    line("bends", bends_of(ratios));
    line("beside unscaled", difference_words(resolved, set));
    text += fmt::format("\n  {:>4}{}  {:>13}  {:>14}  {:>13}  {:>10}\n", "pair", form.sections ? "  axis" : "", "wavelength",
                        "turned once at", "unscaled", "ratio");
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      text += fmt::format("  {:>4}{}  {:>13.7g}  {:>14}  {:>13.7g}  {:>10.6g}\n", i, axis_of(resolved, i),
                          wavelength(frequencies[i]), turned_once(frequencies[i]), wavelength(resolved.unscaled_frequencies[i]),
                          ratios[i]);
    }
  }
  return text;
}

// ---- For programs

Json to_json(const Resolved& resolved) {
  const RopeConfig& config = resolved.config;
  const RopeForm& form = config.form;
  Json json;
  json["model_type"] = config.model_type;
  json["layer_type"] = config.layer_type.empty() ? Json(nullptr) : Json(config.layer_type);
  json["rope_type"] = config.rope_type;
  json["base"] = form.base;
  json["head_dim"] = config.head_dim;
  json["rotary_dim"] = form.rotary_dim;
  json["rotary_offset"] = form.rotary_offset;
  json["pairing"] = form.pairing == Pairing::neox ? "neox" : "interleaved";
  json["scaling"] = scaling_of(config).json;
  json["sections"] = form.sections ? Json(form.sections->pairs) : Json(nullptr);
  json["section_order"] =
      !form.sections ? Json(nullptr) : Json(form.sections->order == Sections::Order::blocks ? "blocks" : "interleaved");
  json["max_length"] = config.max_length ? Json(*config.max_length) : Json(nullptr);
  json["notes"] = config.notes;
  json["sets"] = Json::array();
  for (std::int64_t set = 0; set < resolved.rope.num_sets(); ++set) {
    const std::vector<double> frequencies = resolved.rope.frequencies(set), ratios = ratios_of(resolved, set);
    Json pairs = Json::array();
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double turn = std::ceil(wavelength(frequencies[i]));
      Json pair{{"pair", i},
                {"frequency", frequencies[i]},
                {"wavelength", number_json(wavelength(frequencies[i]))},
                {"turned_once_at", turn < 0x1p53 ? Json(static_cast<std::int64_t>(turn)) : Json(nullptr)},
                {"unscaled_wavelength", number_json(wavelength(resolved.unscaled_frequencies[i]))},
                {"ratio", ratios[i]}};
      if (form.sections) pair["axis"] = resolved.rope.tables().axis_of_pair[i];
      pairs.push_back(std::move(pair));
    }
    json["sets"].push_back({{"attention_factor", resolved.rope.attention_scale(set)}, {"pairs", std::move(pairs)}});
  }
  return json;
}

// ---- As a picture

void write_plot(const Resolved& resolved, const std::string& path) {
  const RopeConfig& config = resolved.config;
  RopePlot plot;
  plot.title = fmt::format("{}{}: {}", config.model_type.empty() ? "rope" : config.model_type,
                           config.layer_type.empty() ? "" : ", " + config.layer_type,
                           config.rope_type == "default" ? "plain RoPE" : "rope type " + config.rope_type);
  plot.subtitle = fmt::format("base {}, {} of {} lanes turn", config.form.base, config.form.rotary_dim, config.head_dim);
  if (const double scale = resolved.rope.attention_scale(); scale != 1) {
    plot.subtitle += fmt::format(", cos and sin times {:.6g}", scale);
  }
  const auto wavelengths = [](std::vector<double> frequencies) {
    for (double& x : frequencies) x = wavelength(x);
    return frequencies;
  };
  const bool scaled = config.form.scaling.index() != 0;
  plot.curves.push_back({scaled ? "without scaling" : "wavelength", wavelengths(resolved.unscaled_frequencies)});
  for (std::int64_t set = 0; scaled && set < resolved.rope.num_sets(); ++set) {
    const char* names[] = {"short sequences", "long sequences"};
    plot.curves.push_back({resolved.rope.num_sets() > 1 ? names[set] : "scaled", wavelengths(resolved.rope.frequencies(set))});
  }
  if (const auto length = scaling_of(config).original_length) {
    plot.lengths.push_back({fmt::format("original length {}", *length), static_cast<double>(*length)});
  }
  if (config.max_length) {
    plot.lengths.push_back(
        {fmt::format("max_position_embeddings {}", *config.max_length), static_cast<double>(*config.max_length)});
  }
  const std::string svg = to_svg(plot);
  OutputFile file(path);
  file.write(std::as_bytes(std::span(svg.data(), svg.size())));
  file.commit();
}

}  // namespace

Exit rope(const RopeOptions& options) {
  const std::string text = text_of(InputFile(config_path(options.input)));
  std::vector<std::optional<std::string>> layer_types = {options.layer_type};
  if (!options.layer_type) {
    auto found = rope_layer_types(text);
    if (found && found.value().size() > 1) layer_types = {found.value().begin(), found.value().end()};
  }
  if (options.plot && layer_types.size() > 1) {
    throw Failure(Exit::usage, fmt::format("--plot shows one rope, and this model has {}: add --layer-type {} or {}",
                                           layer_types.size(), *layer_types.front(), *layer_types.back()));
  }
  std::string words;
  Json ropes = Json::array();
  const Terminal terminal = Terminal::standard_output();
  for (const auto& layer_type : layer_types) {
    auto resolved = resolve(text, {layer_type, options.length});
    if (!resolved) {
      if (options.json) {
        print_json({{"ok", false}, {"error", error_json(resolved.error())}});
      } else {
        complain(resolved.error().message());
      }
      return exit_for(resolved.error());
    }
    words += (words.empty() ? "" : "\n") + describe(resolved.value(), terminal);
    ropes.push_back(to_json(resolved.value()));
    if (options.plot) write_plot(resolved.value(), *options.plot);
  }
  if (options.json) {
    print_json({{"ok", true}, {"ropes", std::move(ropes)}});
  } else {
    print(words);
  }
  return Exit::ok;
}

}  // namespace ropepool::cli
