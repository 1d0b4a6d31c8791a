// The picture of a rope: the wavelength of each pair, on a logarithmic scale.
#pragma once

#include <string>
#include <vector>

namespace ropepool::cli {

struct RopePlot {
  struct Curve {
    std::string name;
    std::vector<double> wavelengths;  // of each pair; infinite ones are left out
  };
  struct Length {
    std::string name;
    double positions;
  };
  std::string title, subtitle;
  std::vector<Curve> curves;    // the unscaled one first
  std::vector<Length> lengths;  // lines across
};

std::string to_svg(const RopePlot& plot);

}  // namespace ropepool::cli
