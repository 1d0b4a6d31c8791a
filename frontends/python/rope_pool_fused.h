// The Python functions ropepool.rope_pool_fused and ropepool.check.
#pragma once

#include <nanobind/nanobind.h>

namespace ropepool::python {

void add_rope_pool_fused(nanobind::module_& module);

}  // namespace ropepool::python
