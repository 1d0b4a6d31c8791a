// ropepool.RMSNorm and ropepool.LayerNorm.
#pragma once

#include <optional>

#include <nanobind/nanobind.h>
#include <ropepool/head_ops.h>

#include "arrays.h"

namespace ropepool::python {

struct PyHeadNorm {
  HeadNorm norm;      // without the weight, which is read at each call
  nb::object weight;  // None: not given
};

// What `value`, a PyHeadNorm, says, or nothing where it is not given. A TypeError names `argument` where it is neither.
std::optional<HeadNorm> to_norm(nb::handle value, const char* argument, ArrayReader& reader);

void add_head_ops(nb::module_& module);

}  // namespace ropepool::python
