// The ops as functions of Python, a source file each.
#pragma once

#include <nanobind/nanobind.h>

namespace ropepool::python {

void add_rope_pool_fused(nanobind::module_& module);  // and check
void add_rope_pool_fused_qkv(nanobind::module_& module);
void add_rope_alone(nanobind::module_& module);
void add_write_kv(nanobind::module_& module);
void add_rerotate(nanobind::module_& module);

}  // namespace ropepool::python
