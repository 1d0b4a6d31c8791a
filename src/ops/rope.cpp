// Rope: what a form must be, rule by rule, then the tables that kernels see.
#include <ropepool/rope.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/dtype.h"
#include "core/rope_tables.h"

namespace ropepool {
namespace {

using Found = std::optional<Error>;

// Which mistake it is, where that can be told, and how to mend it. tests/python/rope_mistakes.py has those that people make.
struct Cause {
  std::string text = {}, mend = {};
};

Error must(const char* argument, std::string expected, std::string actual, Cause cause = {}) {
  std::string summary = fmt::format("Rope: {} must be {}, got {}", argument, expected, actual);
  return Error(Refusal::rope_form_unsupported, {std::move(summary), argument, std::move(expected), std::move(actual),
                                                std::move(cause.text), std::move(cause.mend)});
}

Cause of_zero(double value) {
  if (value != 0) return {};
  return {"0 may stand for a key that the config lacks",
          "take it from the model's own config, or pass that to Rope.from_config"};
}

Found above_zero(const char* argument, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return must(argument, "finite and above 0", fmt::format("{}", value), of_zero(value));
}

Found at_least(const char* argument, std::int64_t least, std::int64_t value) {
  if (value >= least) return {};
  return must(argument, fmt::format("at least {}", least), std::to_string(value), of_zero(static_cast<double>(value)));
}

Found finite(const char* argument, const std::optional<double>& value) {
  if (!value || std::isfinite(*value)) return {};
  return must(argument, "finite", fmt::format("{}", *value));
}

// The first that was found.
template <class... Rest>
Found first_of(Found first, Rest... rest) {
  if constexpr (sizeof...(Rest) > 0) return first ? std::move(first) : first_of(std::move(rest)...);
  return first;
}

// A list of one number a pair that has `count`.
Cause of_count(std::int64_t count, std::int64_t rotary_dim) {
  if (count == rotary_dim) {
    return {fmt::format("{} numbers are one a lane: they may be repeated for both lanes of a pair, or rotary_dim counts pairs",
                        count),
            fmt::format("pass the first half of them, or rotary_dim={} where they are one a pair", 2 * count)};
  }
  if (count > 0 && 2 * count < rotary_dim) {
    return {fmt::format("{} pairs are {} lanes: rotary_dim may be that of the whole head, of which only a part turns", count,
                        2 * count),
            fmt::format("rotary_dim={}, which is head_dim * partial_rotary_factor", 2 * count)};
  }
  if (2 * count > rotary_dim) {
    return {
        fmt::format("{} pairs are {} lanes: the numbers may be those of the whole head, or of another model", count, 2 * count),
        "take list and rotary_dim from one config: Rope.from_config"};
  }
  return {};
}

// ---- What each scaling demands

struct ScalingRules {
  const RopeForm& form;

  // Its exponent is d / (d - 2).
  Found stretches() const {
    if (form.rotary_dim > 2) return {};
    return must("rotary_dim", "at least 4 where the base is stretched", std::to_string(form.rotary_dim));
  }

  Found operator()(std::monostate) const { return {}; }
  Found operator()(const LinearScaling& s) const { return above_zero("factor", s.factor); }
  Found operator()(const DynamicNtkScaling& s) const {
    return first_of(above_zero("factor", s.factor), at_least("original_length", 1, s.original_length),
                    at_least("length", 1, s.length), stretches());
  }
  Found operator()(const NtkAlphaScaling& s) const { return first_of(above_zero("alpha", s.alpha), stretches()); }
  Found operator()(const YarnScaling& s) const {
    Found order, base;
    if (!(s.beta_fast >= s.beta_slow)) {
      order = must("beta_fast", "at least beta_slow", fmt::format("{} and {}", s.beta_fast, s.beta_slow),
                   {"beta_fast and beta_slow are swapped: pairs that turn beta_fast times and more are kept",
                    fmt::format("beta_fast={}, beta_slow={}", s.beta_slow, s.beta_fast)});
    }
    if (!(form.base > 1)) base = must("base", "above 1 with YaRN", fmt::format("{}", form.base));
    return first_of(above_zero("factor", s.factor), at_least("original_length", 1, s.original_length),
                    above_zero("beta_fast", s.beta_fast), above_zero("beta_slow", s.beta_slow), std::move(order),
                    finite("attention_factor", s.attention_factor), finite("mscale", s.mscale),
                    finite("mscale_all_dim", s.mscale_all_dim), std::move(base));
  }
  Found operator()(const Llama3Scaling& s) const {
    Found order;
    if (!(s.high_freq_factor >= s.low_freq_factor)) {
      order =
          must("high_freq_factor", "at least low_freq_factor", fmt::format("{} and {}", s.high_freq_factor, s.low_freq_factor),
               {"low_freq_factor and high_freq_factor are swapped",
                fmt::format("low_freq_factor={}, high_freq_factor={}", s.high_freq_factor, s.low_freq_factor)});
    }
    return first_of(above_zero("factor", s.factor), above_zero("low_freq_factor", s.low_freq_factor),
                    above_zero("high_freq_factor", s.high_freq_factor), std::move(order),
                    at_least("original_length", 1, s.original_length));
  }
  Found operator()(const LongRopeScaling& s) const {
    const auto factors = [&](const char* argument, const std::vector<double>& values) -> Found {
      const std::int64_t pairs = form.rotary_dim / 2;
      if (static_cast<std::int64_t>(values.size()) != pairs) {
        return must(argument, fmt::format("{} numbers, one a pair", pairs), fmt::format("{}", values.size()),
                    of_count(static_cast<std::int64_t>(values.size()), form.rotary_dim));
      }
      for (double value : values) {
        if (auto found = above_zero(argument, value)) return found;
      }
      return {};
    };
    return first_of(factors("short_factor", s.short_factor), factors("long_factor", s.long_factor),
                    above_zero("factor", s.factor), finite("attention_factor", s.attention_factor),
                    at_least("original_length", 2, s.original_length), at_least("length", 1, s.length.value_or(1)));
  }
  Found operator()(const ProportionalScaling& s) const {
    if (!(s.proportion >= 0 && s.proportion <= 1)) {
      Cause cause;
      if (s.proportion > 1 && s.proportion <= 100) {
        cause = {fmt::format("{} may be percent, or a number of lanes", s.proportion),
                 "pass the config's partial_rotary_factor as it is"};
      }
      return must("proportion", "from 0 to 1", fmt::format("{}", s.proportion), std::move(cause));
    }
    return above_zero("factor", s.factor);
  }
};

// ---- What every rope demands

Found base(const RopeForm& form) {
  if (!std::isnan(form.base)) return above_zero("base", form.base);
  return must("base", "finite and above 0", "nan",
              {"no base is given, or it was computed as NaN",
               "pass the model's rope_theta, or frequencies or cos_sin of your own in its place"});
}

// As float32, in which cos and sin are multiplied by it.
Found usable_scale(const RopeForm& form) {
  const auto scale = static_cast<float>(form.attention_scale);
  if (std::isfinite(scale) && scale != 0) return {};
  return must("attention_scale", "finite and not 0 in float32", fmt::format("{}", form.attention_scale));
}

Found lanes(const RopeForm& form) {
  const std::int64_t d = form.rotary_dim;
  if (d < 2 || d % 2 != 0) {
    Cause cause = of_zero(static_cast<double>(d));
    if (d == 0) cause.text += ", or for a partial_rotary_factor cut to a whole number";
    if (d == 1) cause = {"1 may be a partial_rotary_factor: rotary_dim counts lanes", "pass head_dim * partial_rotary_factor"};
    if (d > 1) {
      cause = {fmt::format(
                   "lanes turn in pairs: {} may be head_dim * partial_rotary_factor of a head_dim that is not the model's", d),
               "pass the model's own config to Rope.from_config, which derives rotary_dim"};
    }
    return must("rotary_dim", "even and at least 2", std::to_string(d), std::move(cause));
  }
  if (d > kMaxRotaryDim) return must("rotary_dim", fmt::format("at most {}", kMaxRotaryDim), std::to_string(d));
  if (form.rotary_offset > kMaxRotaryDim) {
    return must("rotary_offset", fmt::format("at most {}", kMaxRotaryDim), std::to_string(form.rotary_offset));
  }
  if (form.rotary_offset >= 0) return {};
  const auto from_the_end = std::max(0 - static_cast<std::uint64_t>(form.rotary_offset), static_cast<std::uint64_t>(d));
  return must("rotary_offset", "at least 0", std::to_string(form.rotary_offset),
              {"negative as an index from the end, but lanes are counted from the first",
               fmt::format("rotary_offset = head_dim - {}", from_the_end)});
}

Cause of_sections(const std::vector<std::int64_t>& pairs, std::int64_t rotary_dim) {
  constexpr std::int64_t kMost = 1 << 20;  // of which a sum can't overflow
  if (std::any_of(pairs.begin(), pairs.end(), [](std::int64_t n) { return n < 0 || n > kMost; })) return {};
  const std::int64_t sum = std::accumulate(pairs.begin(), pairs.end(), std::int64_t{0});
  if (pairs.size() == 6 && std::equal(pairs.begin(), pairs.begin() + 3, pairs.begin() + 3)) {
    return {"it holds each section twice, as transformers doubles mrope_section for its cos and sin",
            fmt::format("pass [{}]", fmt::join(pairs.begin(), pairs.begin() + 3, ", "))};
  }
  if (pairs.size() < 3 || pairs.size() > 4) return {};
  if (sum == rotary_dim) {
    return {fmt::format("sections count pairs, of which there are {}: these may count lanes, or be those of heads of {} lanes",
                        sum / 2, 2 * sum),
            "halve each of them, or take mrope_section and head_dim from one config: Rope.from_config"};
  }
  if (sum > 0 && sum < rotary_dim / 2) return of_count(sum, rotary_dim);
  if (sum > rotary_dim / 2) {
    return {fmt::format("{} pairs are {} lanes: the sections may be those of a model with longer heads", sum, 2 * sum),
            "take mrope_section and head_dim from one config: Rope.from_config"};
  }
  return {};
}

Found sections(const RopeForm& form) {
  if (!form.sections) return {};
  const auto& [pairs, order] = *form.sections;
  const std::int64_t num_pairs = form.rotary_dim / 2;
  const bool countable = std::all_of(pairs.begin(), pairs.end(), [&](std::int64_t n) { return n >= 0 && n <= num_pairs; });
  const std::string actual = fmt::format("[{}]", fmt::join(pairs, ", "));
  if (pairs.size() < 3 || pairs.size() > 4) {
    return must("sections", "3 or 4 numbers, one an axis", actual, of_sections(pairs, form.rotary_dim));
  }
  if (!countable || std::accumulate(pairs.begin(), pairs.end(), std::int64_t{0}) != num_pairs) {
    return must("sections", fmt::format("{} pairs in all", num_pairs), actual, of_sections(pairs, form.rotary_dim));
  }
  if (order == Sections::Order::interleaved &&
      (pairs.size() != 3 || 3 * pairs[1] > num_pairs + 1 || 3 * pairs[2] > num_pairs)) {
    return must("sections", "3 numbers of which the second and third are a third of the pairs at most, to be interleaved",
                actual,
                {"sections of this shape are laid out in blocks, as Qwen2-VL has them",
                 "leave the order at blocks, or pass the model's own mrope_section"});
  }
  return {};
}

Found scaling(const RopeForm& form) { return std::visit(ScalingRules{form}, form.scaling); }

// A form that only says which lanes make pairs.
Found only_lanes(const RopeForm& form, const char* instead) {
  if (!std::isnan(form.base)) {
    return must("base", fmt::format("left out where {} are given", instead), fmt::format("{}", form.base),
                {fmt::format("{} say already what follows from a base", instead), "leave base out, or the other"});
  }
  if (form.scaling.index() == 0) return {};
  return must("scaling", fmt::format("left out where {} are given", instead), "one",
              {fmt::format("{} of your own are taken as they are, so a scaling would be lost", instead),
               fmt::format("leave out the {}, and give the base, or scale them yourself", instead)});
}

// cos and sin as they are laid out elsewhere.
Cause of_table(const Tensor& t, std::int64_t rotary_dim) {
  const Shape& s = t.shape;
  if (t.rank() == 3 && s[2] == 2 && s[1] == rotary_dim / 2) {
    return {"cos and sin of each pair stand side by side",
            "cos_sin = numpy.concatenate([cos_sin[..., 0], cos_sin[..., 1]], axis=-1)"};
  }
  if (t.rank() == 3 && s[0] == 2) return {"cos and sin are stacked", "cos_sin = numpy.concatenate(list(cos_sin), axis=-1)"};
  if (t.rank() == 3 && s[0] == 1) return {"cos_sin has a batch axis", "cos_sin = cos_sin[0]"};
  if (t.rank() != 2) return {};
  if (s[1] == rotary_dim / 2 && (t.dtype == DType::complex64 || t.dtype == DType::complex128)) {
    return {"it holds complex numbers, as Llama's own freqs_cis",
            "cos_sin = numpy.concatenate([cos_sin.real, cos_sin.imag], axis=-1)"};
  }
  if (s[1] == rotary_dim / 2) {
    return {"it has half the width: it may be cos or sin alone", "cos_sin = numpy.concatenate([cos, sin], axis=-1)"};
  }
  if (s[1] % 2 == 0 && s[1] / 2 == rotary_dim) {
    return {"cos and sin are each as wide as the rotated part: each pair's may stand there twice, as transformers has them",
            fmt::format("cos_sin = numpy.concatenate([cos[:, :{0}], sin[:, :{0}]], axis=-1)", rotary_dim / 2)};
  }
  if (s[0] == rotary_dim) return {"cos_sin is transposed", "cos_sin = numpy.ascontiguousarray(cos_sin.T)"};
  return {fmt::format("it may have been made for a rotary_dim of {}", s[1]), "make it for this rotary_dim"};
}

// In what two ropes differ that can't be joined.
Cause of_parts(const RopeTables& a, const RopeTables& b) {
  const auto differ = [](const char* what, std::int64_t x, std::int64_t y) {
    return Cause{fmt::format("they have a {} of {} and of {}", what, x, y), "make a call for each, with its own rope"};
  };
  if (a.rotary_dim != b.rotary_dim) return differ("rotary_dim", a.rotary_dim, b.rotary_dim);
  if (a.rotary_offset != b.rotary_offset) return differ("rotary_offset", a.rotary_offset, b.rotary_offset);
  if (a.pairing != b.pairing) return {"one pairs as neox, the other interleaved", "give both the pairing of the model"};
  return {"their pairs follow other axes", "give both the same sections"};
}

std::vector<std::uint8_t> axes_of_pairs(const RopeForm& form) {
  if (!form.sections) return {};
  const auto& [pairs, order] = *form.sections;
  std::vector<std::uint8_t> axes(static_cast<std::size_t>(form.rotary_dim / 2), 0);
  std::size_t pair = 0;
  for (std::size_t axis = 0; axis < pairs.size(); ++axis) {
    for (std::int64_t n = 0; n < pairs[axis]; ++n) {
      if (order == Sections::Order::blocks) {
        axes[pair++] = static_cast<std::uint8_t>(axis);
      } else if (axis > 0) {
        axes[axis + 3 * static_cast<std::size_t>(n)] = static_cast<std::uint8_t>(axis);
      }
    }
  }
  return axes;
}

RopeTables tables_of(const RopeForm& form) {
  RopeTables tables;
  tables.rotary_dim = form.rotary_dim;
  tables.rotary_offset = form.rotary_offset;
  tables.pairing = form.pairing;
  tables.axis_of_pair = axes_of_pairs(form);
  if (form.sections) tables.num_axes = static_cast<std::int64_t>(form.sections->pairs.size());
  return tables;
}

std::shared_ptr<const RopeTables> shared(RopeTables tables) { return std::make_shared<const RopeTables>(std::move(tables)); }

}  // namespace

Result<Rope> Rope::make(const RopeForm& form) try {
  if (auto found = first_of(base(form), lanes(form), usable_scale(form), sections(form))) {
    return *std::move(found);
  }
  if (auto found = scaling(form)) return *std::move(found);
  RopeTables tables = tables_of(form);
  tables.sets = frequency_sets(form);
  return Rope(shared(std::move(tables)));
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

Result<Rope> Rope::from_frequencies(const std::vector<double>& frequencies, const RopeForm& form) try {
  if (auto found = first_of(lanes(form), usable_scale(form), sections(form), only_lanes(form, "frequencies"))) {
    return *std::move(found);
  }
  if (static_cast<std::int64_t>(frequencies.size()) != form.rotary_dim / 2) {
    return must("frequencies", fmt::format("{} numbers, one a pair", form.rotary_dim / 2),
                fmt::format("{}", frequencies.size()),
                of_count(static_cast<std::int64_t>(frequencies.size()), form.rotary_dim));
  }
  for (double frequency : frequencies) {
    if (std::isfinite(frequency)) continue;
    Cause cause;
    if (std::isinf(frequency)) {
      cause = {"the wavelength of a pair that stands still may stand in the place of its frequency",
               "pass 2 pi over the wavelengths, and 0 for a pair that stands still"};
    }
    return must("frequencies", "finite", fmt::format("{}", frequency), std::move(cause));
  }
  RopeTables tables = tables_of(form);
  tables.sets = {frequency_set(frequencies, form.attention_scale)};
  return Rope(shared(std::move(tables)));
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

Result<Rope> Rope::from_table(const Tensor& cos_sin, const RopeForm& form) try {
  if (auto found = first_of(lanes(form), only_lanes(form, "cos and sin"))) return *std::move(found);
  if (form.sections) {
    return must("sections", "left out where cos and sin are given", "some",
                {"a table has one row a position, and with sections a position has several", "pass frequencies in its place"});
  }
  if (form.attention_scale != 1.0) {
    return must("attention_scale", "left out where cos and sin are given", fmt::format("{}", form.attention_scale),
                {"a table is taken as it is, so the scale would be lost", "multiply the table by it"});
  }
  if (cos_sin.rank() != 2 || cos_sin.shape[1] != form.rotary_dim || cos_sin.shape[0] < 0) {
    return must("cos_sin", fmt::format("of shape (positions, {})", form.rotary_dim), to_string(cos_sin.shape),
                of_table(cos_sin, form.rotary_dim));
  }
  if (!is_data_type(cos_sin.dtype)) {
    Cause cause;
    if (cos_sin.dtype == DType::f64) cause = {"float64 is NumPy's default", "cos_sin = cos_sin.astype(numpy.float32)"};
    return must("cos_sin", "float32, float16 or bfloat16", to_string(cos_sin.dtype), std::move(cause));
  }
  if (cos_sin.device.type != DeviceType::cpu) return must("cos_sin", "on the CPU", to_string(cos_sin.device));
  const auto item = static_cast<std::uintptr_t>(item_size(cos_sin.dtype));
  if (!cos_sin.empty() && (cos_sin.data == nullptr || cos_sin.unaligned || cos_sin.strides[1] != 1 ||
                           reinterpret_cast<std::uintptr_t>(cos_sin.data) % item != 0)) {
    Cause cause;
    if (!cos_sin.unaligned && cos_sin.strides[1] != 1) {
      cause = {cos_sin.strides[0] == 1 ? "cos_sin is transposed in memory" : "cos_sin is a view that leaves lanes out",
               "cos_sin = numpy.ascontiguousarray(cos_sin)"};
    }
    return must("cos_sin", "whole elements side by side", fmt::format("strides {}", to_string(cos_sin.strides)),
                std::move(cause));
  }
  RopeTables tables = tables_of(form);
  tables.table = cos_sin;
  return Rope(shared(std::move(tables)));
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

Result<Rope> Rope::join(const std::vector<Rope>& ropes) try {
  if (ropes.empty()) return must("ropes", "one at least", "none");
  RopeTables joined = ropes.front().tables();
  joined.sets.clear();
  for (const Rope& rope : ropes) {
    const RopeTables& tables = rope.tables();
    if (tables.table.given()) {
      return must(
          "ropes", "of frequencies to be joined", "one of a table",
          {"a table has no frequencies that could be a set", "make the rope with frequencies, or one call for each table"});
    }
    if (tables.rotary_dim != joined.rotary_dim || tables.rotary_offset != joined.rotary_offset ||
        tables.pairing != joined.pairing || tables.axis_of_pair != joined.axis_of_pair) {
      return must("ropes", "alike but for frequencies and attention scale", "ropes that turn other lanes",
                  of_parts(joined, tables));
    }
    joined.sets.insert(joined.sets.end(), tables.sets.begin(), tables.sets.end());
  }
  return Rope(shared(std::move(joined)));
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

std::int64_t Rope::rotary_dim() const { return tables_->rotary_dim; }
std::int64_t Rope::rotary_offset() const { return tables_->rotary_offset; }
Pairing Rope::pairing() const { return tables_->pairing; }
std::int64_t Rope::num_sets() const { return tables_->table.given() ? 1 : static_cast<std::int64_t>(tables_->sets.size()); }
std::int64_t Rope::num_axes() const { return tables_->num_axes; }
std::vector<double> Rope::frequencies(std::int64_t set) const {
  if (tables_->table.given()) return {};
  return tables_->sets.at(static_cast<std::size_t>(set)).inverse;
}
double Rope::attention_scale(std::int64_t set) const {
  if (tables_->table.given()) return 1.0;
  return static_cast<double>(tables_->sets.at(static_cast<std::size_t>(set)).scale);
}

}  // namespace ropepool
