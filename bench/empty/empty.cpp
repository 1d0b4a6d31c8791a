// What handing nine arrays from Python to C++ costs by itself.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;
using Array = nb::ndarray<nb::device::cpu>;

NB_MODULE(ropepool_empty, m) {
  m.def("nothing", [](const Array&, const Array&, const Array&, const Array&, const Array&, const Array&, const Array&,
                      const Array&, const Array&) {});
}
