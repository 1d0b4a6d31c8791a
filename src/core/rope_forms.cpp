// The frequencies of each rope form, one function a form: in double-double for exact angles, so that they hold at any
// position, and in the steps of Hugging Face's float32 for those who need its numbers.
#include <algorithm>
#include <cmath>

#include "core/double_double.h"
#include "core/rope_tables.h"

namespace ropepool {
namespace {

constexpr DoubleDouble kTurnsPerRadian{0x1.45f306dc9c883p-3, -0x1.6b01ec5417056p-57};
constexpr DoubleDouble kTwoPi{0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};

// x modulo 1, in units of 2^-64.
std::uint64_t fraction(DoubleDouble x) {
  const DoubleDouble part = two_sum(x.hi - std::floor(x.hi), x.lo);
  const double whole = std::floor(std::ldexp(part.hi, 32));
  const double rest = (std::ldexp(part.hi, 32) - whole) + std::ldexp(part.lo, 32);  // may be a little below 0
  return (static_cast<std::uint64_t>(static_cast<std::int64_t>(whole)) << 32) +
         static_cast<std::uint64_t>(std::llround(std::ldexp(rest, 32)));
}

std::uint64_t turns_of(DoubleDouble inverse) {
  const DoubleDouble turns = inverse * kTurnsPerRadian;
  return std::isfinite(turns.hi) ? fraction(turns) : 0;  // a base below 1e-300, where there is nothing to be exact
}

double to_double(DoubleDouble x) { return x.hi; }
double to_double(double x) { return x; }
DoubleDouble floor_of(DoubleDouble x) {
  const double whole = std::floor(x.hi);
  return DoubleDouble{whole == x.hi && x.lo < 0 ? whole - 1 : whole};
}
double floor_of(double x) { return std::floor(x); }

// Arithmetic of exact angles: all in double-double.
struct Exact {
  using Scalar = DoubleDouble;
  using Number = DoubleDouble;
  static Scalar log_of(Scalar x) { return log(x); }
  static Scalar exp_of(Scalar x) { return exp(x); }
  static Scalar two_pi() { return kTwoPi; }
  static Number number(Scalar x) { return x; }
  static Number quotient(Number x, Number y) { return x / y; }
  // base^(numerator / denominator)
  static Number power(Scalar base, std::int64_t numerator, std::int64_t denominator) {
    return exp(log(base) * DoubleDouble{static_cast<double>(numerator)} / DoubleDouble{static_cast<double>(denominator)});
  }
};

// Of Hugging Face: Python's floats, and tensors of float32.
struct Float32 {
  using Scalar = double;
  using Number = float;
  static Scalar log_of(Scalar x) { return std::log(x); }
  static Scalar exp_of(Scalar x) { return std::exp(x); }
  static Scalar two_pi() { return 2 * 3.14159265358979323846; }
  static Number number(Scalar x) { return static_cast<float>(x); }
  static Number quotient(Number x, Number y) { return 1.0f / y * x; }  // of a number by a tensor, as torch has it
  static Number power(Scalar base, std::int64_t numerator, std::int64_t denominator) {
    const float exponent = static_cast<float>(numerator) / static_cast<float>(denominator);
    return static_cast<float>(std::pow(static_cast<double>(static_cast<float>(base)), static_cast<double>(exponent)));
  }
};

// In the names of the formulas' sources: `inverse` are inverse frequencies, [rotary_dim / 2].
template <class A>
struct Forms {
  using S = typename A::Scalar;
  using N = typename A::Number;
  using Inverse = std::vector<N>;
  const RopeForm& form;

  std::int64_t num_pairs() const { return form.rotary_dim / 2; }
  static S scalar(double x) { return S{x}; }
  static S scalar(std::int64_t x) { return S{static_cast<double>(x)}; }
  static N number(S x) { return A::number(x); }
  static N one() { return number(scalar(1.0)); }

  Inverse of_base(S base) const {
    Inverse inverse;
    for (std::int64_t i = 0; i < num_pairs(); ++i) inverse.push_back(one() / A::power(base, 2 * i, form.rotary_dim));
    return inverse;
  }
  Inverse plain() const { return of_base(scalar(form.base)); }

  // base * growth^(d / (d - 2))
  S stretched_base(S growth) const {
    const S exponent = scalar(form.rotary_dim) / scalar(form.rotary_dim - 2);
    return scalar(form.base) * A::exp_of(A::log_of(growth) * exponent);
  }

  Inverse operator()(std::monostate) const { return plain(); }

  Inverse operator()(const LinearScaling& s) const {
    Inverse inverse = plain();
    for (N& x : inverse) x = x / number(scalar(s.factor));
    return inverse;
  }

  Inverse operator()(const DynamicNtkScaling& s) const {
    if (s.length <= s.original_length) return plain();
    const S factor = scalar(s.factor);
    return of_base(stretched_base(factor * scalar(s.length) / scalar(s.original_length) - (factor - scalar(1.0))));
  }

  Inverse operator()(const NtkAlphaScaling& s) const { return of_base(stretched_base(scalar(s.alpha))); }

  Inverse operator()(const YarnScaling& s) const {
    const S dim = scalar(form.rotary_dim), last = scalar(form.rotary_dim - 1);
    const auto pair_of = [&](double rotations) {  // that turns so often over the original length
      const S ratio = scalar(s.original_length) / (scalar(rotations) * A::two_pi());
      return dim * A::log_of(ratio) / (scalar(2.0) * A::log_of(scalar(form.base)));
    };
    S low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
    if (s.truncate) {
      low = floor_of(low);
      high = -floor_of(-high);
    }
    if (to_double(low) < 0) low = scalar(0.0);
    if (to_double(high) > to_double(last)) high = last;
    if (to_double(high - low) == 0) high = high + scalar(0.001);
    Inverse inverse;
    for (std::int64_t i = 0; i < num_pairs(); ++i) {
      const N power = A::power(scalar(form.base), 2 * i, form.rotary_dim);
      N ramp = (number(scalar(i)) - number(low)) / number(high - low);
      if (to_double(ramp) < 0) ramp = number(scalar(0.0));
      if (to_double(ramp) > 1) ramp = one();
      const N kept = one() - ramp;
      inverse.push_back(one() / (number(scalar(s.factor)) * power) * (one() - kept) + one() / power * kept);
    }
    return inverse;
  }

  Inverse operator()(const Llama3Scaling& s) const {
    const N low = number(scalar(s.low_freq_factor)), length = number(scalar(s.original_length));
    const N range = number(scalar(s.high_freq_factor) - scalar(s.low_freq_factor));
    const double longest = to_double(scalar(s.original_length) / scalar(s.low_freq_factor));
    const double shortest = to_double(scalar(s.original_length) / scalar(s.high_freq_factor));
    const N factor = number(scalar(s.factor));
    Inverse inverse = plain();
    for (N& x : inverse) {
      const N wavelength = A::quotient(number(A::two_pi()), x);
      if (to_double(wavelength) > longest) {
        x = x / factor;
      } else if (to_double(wavelength) >= shortest && longest > shortest) {
        const N smooth = (A::quotient(length, wavelength) - low) / range;
        x = (one() - smooth) * x / factor + smooth * x;
      }
    }
    return inverse;
  }

  Inverse long_rope(const std::vector<double>& factors) const {
    Inverse inverse;
    for (std::int64_t i = 0; i < num_pairs(); ++i) {
      const N factor = number(scalar(factors[static_cast<std::size_t>(i)]));
      inverse.push_back(one() / (factor * A::power(scalar(form.base), 2 * i, form.rotary_dim)));
    }
    return inverse;
  }

  Inverse operator()(const ProportionalScaling& s) const {
    const auto turning = static_cast<std::int64_t>(std::floor(s.proportion * static_cast<double>(form.rotary_dim) / 2));
    Inverse inverse = plain();
    for (std::size_t i = 0; i < inverse.size(); ++i) {
      inverse[i] = static_cast<std::int64_t>(i) < turning ? inverse[i] / number(scalar(s.factor)) : number(scalar(0.0));
    }
    return inverse;
  }
};

double yarn_scale(const YarnScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  const auto scale = [&](double mscale) { return s.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(s.factor) + 1.0; };
  if (s.mscale.value_or(0) != 0 && s.mscale_all_dim.value_or(0) != 0) return scale(*s.mscale) / scale(*s.mscale_all_dim);
  return scale(1.0);
}

double long_rope_scale(const LongRopeScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  if (s.factor <= 1) return 1.0;
  return std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_length)));
}

FrequencySet make_set(const std::vector<DoubleDouble>& exact, std::vector<float> float32, double scale) {
  FrequencySet set;
  set.inverse_float32 = std::move(float32);
  set.scale = static_cast<float>(scale);
  for (const DoubleDouble& x : exact) {
    set.turns.push_back(turns_of(x));
    set.inverse.push_back(x.hi);
  }
  return set;
}

}  // namespace

std::vector<FrequencySet> frequency_sets(const RopeForm& form) {
  const Forms<Exact> exact{form};
  const Forms<Float32> float32{form};
  if (const auto* s = std::get_if<LongRopeScaling>(&form.scaling)) {
    std::vector<const std::vector<double>*> wanted = {&s->short_factor, &s->long_factor};
    if (s->length) wanted = {*s->length > s->original_length ? &s->long_factor : &s->short_factor};
    std::vector<FrequencySet> sets;
    for (const auto* factors : wanted) {
      const double scale = long_rope_scale(*s) * form.attention_scale;
      sets.push_back(make_set(exact.long_rope(*factors), float32.long_rope(*factors), scale));
    }
    return sets;
  }
  const auto yarn = std::get_if<YarnScaling>(&form.scaling);
  const double scale = (yarn != nullptr ? yarn_scale(*yarn) : 1.0) * form.attention_scale;
  const auto frequencies_by = [&](const auto& forms) {
    return std::visit(
        [&](const auto& scaling) {
          if constexpr (std::is_same_v<std::decay_t<decltype(scaling)>, LongRopeScaling>) {
            return forms.plain();  // above
          } else {
            return forms(scaling);
          }
        },
        form.scaling);
  };
  return {make_set(frequencies_by(exact), frequencies_by(float32), scale)};
}

FrequencySet frequency_set(const std::vector<double>& inverse, double scale) {
  std::vector<DoubleDouble> exact;
  std::vector<float> float32;
  for (double x : inverse) {
    exact.push_back({x, 0.0});
    float32.push_back(static_cast<float>(x));
  }
  return make_set(exact, std::move(float32), scale);
}

}  // namespace ropepool
