// The Python functions ropepool.rope_pool_fused and ropepool.check.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

namespace ropepool::python {

// The integer that `value` is; one that 64 bits don't hold is the nearest that is odd or even as it is, which is as far beyond
// every shape. A TypeError names `argument` where it is none.
std::int64_t to_int64(nanobind::handle value, const char* argument);

void add_rope_pool_fused(nanobind::module_& module);

}  // namespace ropepool::python
