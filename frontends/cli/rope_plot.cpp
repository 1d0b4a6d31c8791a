#include "rope_plot.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace ropepool::cli {
namespace {

constexpr double kWidth = 860, kHeight = 520;
constexpr double kLeft = 84, kRight = 24, kTop = 84, kBottom = 60;
// Of curves, unscaled first: told apart by dash and marker as well, and by those who see no red or green.
constexpr const char* kColours[] = {"#6b7280", "#0b57a4", "#c2570c"};

std::string escaped(std::string_view text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

struct Scales {
  double pairs, lowest, highest;  // of pairs, and of powers of ten

  double x(double pair) const { return kLeft + (kWidth - kLeft - kRight) * (pairs > 1 ? pair / (pairs - 1) : 0.5); }
  double y(double wavelength) const {
    const double part = (std::log10(wavelength) - lowest) / (highest - lowest);
    return kHeight - kBottom - (kHeight - kTop - kBottom) * part;
  }
};

std::string text_at(double x, double y, std::string_view anchor, std::string_view colour, int size, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
                     anchor, colour, size, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

std::string power_of_ten(int exponent) {
  constexpr const char* kNames[] = {"1", "10", "100", "1,000", "10,000", "100,000"};
  if (exponent >= 0 && exponent < 6) return kNames[exponent];
  return fmt::format("1e{}", exponent);
}

std::string axes(const Scales& scales) {
  std::string svg;
  const int step = std::max(1, static_cast<int>(std::ceil((scales.highest - scales.lowest) / 10)));
  for (int power = static_cast<int>(scales.lowest); power <= static_cast<int>(scales.highest); power += step) {
    const double y = scales.y(std::pow(10.0, power));
    svg += line(kLeft, y, kWidth - kRight, y, "stroke=\"#e5e7eb\"");
    svg += text_at(kLeft - 8, y + 4, "end", "#374151", 12, power_of_ten(power));
  }
  const int pairs = static_cast<int>(scales.pairs);
  int stride = 1;
  for (int next : {2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    if (pairs / stride > 16) stride = next;
  }
  for (int pair = 0; pair < pairs; pair += stride) {
    const double x = scales.x(pair);
    svg += line(x, kHeight - kBottom, x, kHeight - kBottom + 5, "stroke=\"#374151\"");
    svg += text_at(x, kHeight - kBottom + 20, "middle", "#374151", 12, fmt::format("{}", pair));
  }
  svg += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "stroke=\"#374151\"");
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", "#111827", 13, "pair");
  svg += fmt::format(
      "<text transform=\"translate(20 {:.1f}) rotate(-90)\" text-anchor=\"middle\" fill=\"#111827\" "
      "font-size=\"13\">wavelength: positions for one turn</text>\n",
      (kTop + kHeight - kBottom) / 2);
  return svg;
}

std::string curve(const RopePlot::Curve& curve, std::size_t index, const Scales& scales) {
  const char* colour = kColours[std::min(index, std::size(kColours) - 1)];
  std::string points, dots;
  for (std::size_t pair = 0; pair < curve.wavelengths.size(); ++pair) {
    if (!std::isfinite(curve.wavelengths[pair])) continue;
    const double x = scales.x(static_cast<double>(pair)), y = scales.y(curve.wavelengths[pair]);
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    if (index > 0) dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", x, y, colour);
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n{}", points, colour,
                     index == 0 ? " stroke-dasharray=\"6 4\"" : "", dots);
}

// The pairs that the last curve turns otherwise than the first: where they begin is where the scaling bends.
std::string bend(const RopePlot& plot, const Scales& scales) {
  if (plot.curves.size() < 2) return "";
  const auto& plain = plot.curves.front().wavelengths;
  const auto& scaled = plot.curves.back().wavelengths;
  std::size_t first = 0;
  while (first < plain.size() && std::abs(scaled[first] / plain[first] - 1) < 1e-6) ++first;
  if (first == 0 || first == plain.size()) return "";
  const double x = scales.x(static_cast<double>(first));
  const bool still = !std::isfinite(scaled[first]), at_the_right = x > 0.75 * kWidth;
  return line(x, kTop, x, kHeight - kBottom, "stroke=\"#9ca3af\" stroke-dasharray=\"2 3\"") +
         text_at(at_the_right ? x - 6 : x + 6, kHeight - kBottom - 8, at_the_right ? "end" : "start", "#374151", 12,
                 fmt::format("{} from pair {} on", still ? "standing still" : "scaled", first));
}

std::string legend(const RopePlot& plot) {
  std::string svg;
  double x = kLeft;
  for (std::size_t i = 0; i < plot.curves.size(); ++i) {
    const char* colour = kColours[std::min(i, std::size(kColours) - 1)];
    svg += line(x, kTop - 18, x + 28, kTop - 18,
                fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", colour, i == 0 ? " stroke-dasharray=\"6 4\"" : ""));
    if (i > 0) svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", x + 14, kTop - 18, colour);
    svg += text_at(x + 36, kTop - 14, "start", "#111827", 13, plot.curves[i].name);
    x += 36 + 8.0 * static_cast<double>(plot.curves[i].name.size()) + 20;
  }
  return svg;
}

}  // namespace

std::string to_svg(const RopePlot& plot) {
  double lowest = 1e300, highest = 0;
  const auto include = [&](double value) {
    if (!std::isfinite(value) || value <= 0) return;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  };
  for (const auto& curve : plot.curves) std::for_each(curve.wavelengths.begin(), curve.wavelengths.end(), include);
  for (const auto& length : plot.lengths) include(length.positions);
  Scales scales{static_cast<double>(plot.curves.front().wavelengths.size()), std::floor(std::log10(lowest)),
                std::ceil(std::log10(highest))};
  if (scales.highest <= scales.lowest) scales.highest = scales.lowest + 1;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<title>{2}</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, kHeight, escaped(plot.title));
  svg += text_at(kLeft, 28, "start", "#111827", 18, plot.title);
  svg += text_at(kLeft, 48, "start", "#374151", 13, plot.subtitle);
  svg += legend(plot) + axes(scales) + bend(plot, scales);
  double above = -1e9;  // the name of a line that lies close over another goes to its lower side
  for (const auto& length : plot.lengths) {
    const double y = scales.y(length.positions);
    svg += line(kLeft, y, kWidth - kRight, y, "stroke=\"#047857\" stroke-width=\"1.2\"");
    svg += text_at(kLeft + 8, std::abs(y - above) < 16 ? y + 14 : y - 5, "start", "#047857", 12, length.name);
    above = y;
  }
  for (std::size_t i = 0; i < plot.curves.size(); ++i) svg += curve(plot.curves[i], i, scales);
  return svg + "</svg>\n";
}

}  // namespace ropepool::cli
