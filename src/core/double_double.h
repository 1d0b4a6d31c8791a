// Arithmetic with some 104 bits: a number is the unevaluated sum of two doubles (T. J. Dekker 1971; Y. Hida, X. S. Li,
// D. H. Bailey 2001). Only what frequencies need.
#pragma once

#include <cmath>

namespace ropepool {

struct DoubleDouble {
  double hi = 0.0, lo = 0.0;  // |lo| is at most half an ulp of hi
};

// a + b where |a| >= |b|, exactly.
inline DoubleDouble fast_two_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

inline DoubleDouble two_sum(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = two_sum(a.hi, b.hi);
  const DoubleDouble low = two_sum(a.lo, b.lo);
  const DoubleDouble sum = fast_two_sum(high.hi, high.lo + low.hi);
  return fast_two_sum(sum.hi, sum.lo + low.lo);
}

inline DoubleDouble operator-(DoubleDouble a) { return {-a.hi, -a.lo}; }

inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const double product = a.hi * b.hi;
  return fast_two_sum(product, std::fma(a.hi, b.hi, -product) + (a.hi * b.lo + a.lo * b.hi));
}

inline DoubleDouble operator-(DoubleDouble a, DoubleDouble b) { return a + -b; }

inline DoubleDouble operator/(DoubleDouble a, double b) {
  const double quotient = a.hi / b;
  const double rest = (std::fma(-quotient, b, a.hi) + a.lo) / b;
  return fast_two_sum(quotient, rest);
}

inline DoubleDouble operator/(DoubleDouble a, DoubleDouble b) {
  const double first = a.hi / b.hi;
  const DoubleDouble rest = a - b * DoubleDouble{first};
  const double second = rest.hi / b.hi;
  const double third = (rest - b * DoubleDouble{second}).hi / b.hi;
  return fast_two_sum(first, second) + DoubleDouble{third};
}

inline constexpr DoubleDouble kLn2{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};

inline DoubleDouble exp(DoubleDouble x) {
  constexpr int kHalvings = 9;
  const double exponent = std::nearbyint(x.hi / kLn2.hi);
  DoubleDouble r = x + -(kLn2 * DoubleDouble{exponent});
  r = {std::ldexp(r.hi, -kHalvings), std::ldexp(r.lo, -kHalvings)};
  // expm1 by its series, |r| < 7e-4: the first term left out is below 1e-37. Then expm1(2r) = 2 expm1(r) + expm1(r)^2.
  DoubleDouble sum, term{1.0};
  for (int n = 1; n <= 10; ++n) {
    term = term * r / n;
    sum = sum + term;
  }
  for (int i = 0; i < kHalvings; ++i) sum = DoubleDouble{2 * sum.hi, 2 * sum.lo} + sum * sum;
  sum = sum + DoubleDouble{1.0};
  return {std::ldexp(sum.hi, static_cast<int>(exponent)), std::ldexp(sum.lo, static_cast<int>(exponent))};
}

// x above 0 and finite: one step of Newton from the double's logarithm.
inline DoubleDouble log(DoubleDouble x) {
  // Scaled so that exp stays in range for denormal and huge x.
  int exponent = 0;
  const double high = std::frexp(x.hi, &exponent);
  const DoubleDouble mantissa{high, std::ldexp(x.lo, -exponent)};
  const double estimate = std::log(high);
  const DoubleDouble ratio = mantissa * exp(DoubleDouble{-estimate});
  return DoubleDouble{estimate} + (ratio + DoubleDouble{-1.0}) + kLn2 * DoubleDouble{static_cast<double>(exponent)};
}

}  // namespace ropepool