// ropepool.Rope and the scalings it is made of.
#pragma once

#include <memory>

#include <nanobind/nanobind.h>
#include <ropepool/rope.h>

#include "arrays.h"

namespace ropepool::python {

struct PyRope {
  Rope rope;
  // What a table of the caller's own needs to stay where it is.
  std::shared_ptr<ArrayReader> reader = {};
  nb::object table = {};
};

void add_rope(nb::module_& module);

}  // namespace ropepool::python
