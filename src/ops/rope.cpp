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

Error must(const char* argument, std::string expected, std::string actual) {
  std::string summary = fmt::format("Rope: {} must be {}, got {}", argument, expected, actual);
  return Error(Refusal::rope_form_unsupported, {std::move(summary), argument, std::move(expected), std::move(actual), "", ""});
}

Found above_zero(const char* argument, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return must(argument, "finite and above 0", fmt::format("{}", value));
}

Found at_least(const char* argument, std::int64_t least, std::int64_t value) {
  if (value >= least) return {};
  return must(argument, fmt::format("at least {}", least), std::to_string(value));
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
      order = must("beta_fast", "at least beta_slow", fmt::format("{} and {}", s.beta_fast, s.beta_slow));
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
          must("high_freq_factor", "at least low_freq_factor", fmt::format("{} and {}", s.high_freq_factor, s.low_freq_factor));
    }
    return first_of(above_zero("factor", s.factor), above_zero("low_freq_factor", s.low_freq_factor),
                    above_zero("high_freq_factor", s.high_freq_factor), std::move(order),
                    at_least("original_length", 1, s.original_length));
  }
  Found operator()(const LongRopeScaling& s) const {
    const auto factors = [&](const char* argument, const std::vector<double>& values) -> Found {
      const std::int64_t pairs = form.rotary_dim / 2;
      if (static_cast<std::int64_t>(values.size()) != pairs) {
        return must(argument, fmt::format("{} numbers, one a pair", pairs), fmt::format("{}", values.size()));
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
      return must("proportion", "from 0 to 1", fmt::format("{}", s.proportion));
    }
    return above_zero("factor", s.factor);
  }
};

// ---- What every rope demands

Found lanes(const RopeForm& form) {
  if (form.rotary_dim < 2 || form.rotary_dim % 2 != 0) {
    return must("rotary_dim", "even and at least 2", std::to_string(form.rotary_dim));
  }
  return at_least("rotary_offset", 0, form.rotary_offset);
}

Found sections(const RopeForm& form) {
  if (!form.sections) return {};
  const auto& [pairs, order] = *form.sections;
  const std::int64_t num_pairs = form.rotary_dim / 2;
  const bool countable = std::all_of(pairs.begin(), pairs.end(), [&](std::int64_t n) { return n >= 0 && n <= num_pairs; });
  const std::string actual = fmt::format("[{}]", fmt::join(pairs, ", "));
  if (pairs.size() < 3 || pairs.size() > 4) return must("sections", "3 or 4 numbers, one an axis", actual);
  if (!countable || std::accumulate(pairs.begin(), pairs.end(), std::int64_t{0}) != num_pairs) {
    return must("sections", fmt::format("{} pairs in all", num_pairs), actual);
  }
  if (order == Sections::Order::interleaved &&
      (pairs.size() != 3 || 3 * pairs[1] > num_pairs + 1 || 3 * pairs[2] > num_pairs)) {
    return must("sections", "3 numbers of which the second and third are a third of the pairs at most, to be interleaved",
                actual);
  }
  return {};
}

Found scaling(const RopeForm& form) { return std::visit(ScalingRules{form}, form.scaling); }

// A form that only says which lanes make pairs.
Found only_lanes(const RopeForm& form, const char* instead) {
  if (!std::isnan(form.base)) {
    return must("base", fmt::format("left out where {} are given", instead), fmt::format("{}", form.base));
  }
  if (form.scaling.index() != 0) return must("scaling", fmt::format("left out where {} are given", instead), "one");
  return {};
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
  if (auto found = first_of(above_zero("base", form.base), lanes(form), finite("attention_scale", form.attention_scale),
                            sections(form))) {
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
  if (auto found = first_of(lanes(form), finite("attention_scale", form.attention_scale), sections(form),
                            only_lanes(form, "frequencies"))) {
    return *std::move(found);
  }
  if (static_cast<std::int64_t>(frequencies.size()) != form.rotary_dim / 2) {
    return must("frequencies", fmt::format("{} numbers, one a pair", form.rotary_dim / 2),
                fmt::format("{}", frequencies.size()));
  }
  for (double frequency : frequencies) {
    if (!std::isfinite(frequency)) return must("frequencies", "finite", fmt::format("{}", frequency));
  }
  RopeTables tables = tables_of(form);
  tables.sets = {frequency_set(frequencies, form.attention_scale)};
  return Rope(shared(std::move(tables)));
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

Result<Rope> Rope::from_table(const Tensor& cos_sin, const RopeForm& form) try {
  if (auto found = first_of(lanes(form), only_lanes(form, "cos and sin"))) return *std::move(found);
  if (form.sections) return must("sections", "left out where cos and sin are given", "some");
  if (form.attention_scale != 1.0) {
    return must("attention_scale", "left out where cos and sin are given", fmt::format("{}", form.attention_scale));
  }
  if (cos_sin.rank() != 2 || cos_sin.shape[1] != form.rotary_dim || cos_sin.shape[0] < 0) {
    return must("cos_sin", fmt::format("of shape (positions, {})", form.rotary_dim), to_string(cos_sin.shape));
  }
  if (!is_data_type(cos_sin.dtype)) return must("cos_sin", "float32, float16 or bfloat16", to_string(cos_sin.dtype));
  if (cos_sin.device.type != DeviceType::cpu) return must("cos_sin", "on the CPU", to_string(cos_sin.device));
  const auto item = static_cast<std::uintptr_t>(item_size(cos_sin.dtype));
  if (!cos_sin.empty() && (cos_sin.data == nullptr || cos_sin.unaligned || cos_sin.strides[1] != 1 ||
                           reinterpret_cast<std::uintptr_t>(cos_sin.data) % item != 0)) {
    return must("cos_sin", "whole elements side by side", fmt::format("strides {}", to_string(cos_sin.strides)));
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
    if (tables.table.given()) return must("ropes", "of frequencies to be joined", "one of a table");
    if (tables.rotary_dim != joined.rotary_dim || tables.rotary_offset != joined.rotary_offset ||
        tables.pairing != joined.pairing || tables.axis_of_pair != joined.axis_of_pair) {
      return must("ropes", "alike but for frequencies and attention scale", "ropes that turn other lanes");
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
