// The extension ropepool._ext: all of the package that is not plain Python.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <ropepool/catalog.h>
#include <ropepool/executor.h>
#include <ropepool/runtime.h>

#include "arguments.h"
#include "arrays.h"
#include "core/environment.h"
#include "errors.h"
#include "head_ops.h"
#include "rope.h"
#include "rope_pool_fused.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

nb::list lines(std::string_view text) {
  nb::list found;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    found.append(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return found;
}

// The keys of `ropepool errors --json`, in its order.
nb::dict to_dict(const CatalogEntry& entry) {
  nb::dict example, where, found;
  const std::string setup = std::string(example_setup()) + "\n";  // so that each is a whole script
  example["failing"] = setup + std::string(entry.failing);
  example["mended"] = setup + std::string(entry.mended);
  where["file"] = entry.file;
  where["function"] = entry.function;
  found["code"] = entry.code;
  found["name"] = entry.name;
  found["message"] = entry.message;
  found["argument"] = entry.argument;
  found["meaning"] = entry.meaning;
  found["trigger"] = entry.trigger;
  found["situations"] = lines(entry.situations);
  found["solutions"] = lines(entry.solutions);
  found["example"] = example;
  found["guard"] = entry.guard;
  found["related"] = lines(entry.related);
  found["url"] = entry.url;
  found["where"] = where;
  return found;
}

}  // namespace

NB_MODULE(_ext, module) {
  nb::set_leak_warnings(false);  // a Rope that a module holds lives until the interpreter goes
  load_errors();
  load_array_libraries();
  add_rope(module);
  add_head_ops(module);
  add_rope_pool_fused(module);
  add_rope_pool_fused_qkv(module);
  add_rope_alone(module);
  add_write_kv(module);
  add_rerotate(module);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&stop_returning_threads));

  module.def(
      "errors",
      [] {
        nb::list found;
        for (const CatalogEntry& entry : catalog()) found.append(to_dict(entry));
        return found;
      },
      "All entries of the error reference, in the order of their codes, each as `explain` returns it.");
  module.def(
      "find_error",
      [](std::string_view text) -> nb::object {
        if (auto refusal = find_refusal(text)) return to_dict(catalog_entry(*refusal));
        return nb::none();
      },
      nb::arg("text"), "The entry that `text` speaks of, or None.");

  module.def(
      "set_num_threads",
      [](nb::object num_threads) {
        constexpr std::int64_t kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
        const std::int64_t number = std::clamp(to_int64(num_threads, "num_threads"), kLeast, kMost);
        if (const auto done = set_num_threads(static_cast<int>(number)); !done) {
          PyErr_Format(PyExc_ValueError, "the number of threads must be from 1 to %d, got %S", kMaxThreads, num_threads.ptr());
          throw nb::python_error();
        }
      },
      nb::sig("def set_num_threads(num_threads: int) -> None"), nb::arg("num_threads"),
      "Let calls use at most so many threads, the caller's included; 1 starts none. Safe from any thread, also while calls "
      "run. Raises ValueError where it is not from 1 to 1024.\n\n"
      "At the start it is what ROPEPOOL_NUM_THREADS says, or the physical cores that this process may run on.");
  module.def("get_num_threads", &get_num_threads, "How many threads a call may use, the caller's included.");

  module.def(
      "check_environment",
      [] {
        if (auto done = check_environment(); !done) raise(done.error());
      },
      "Raise RuntimeError where ROPEPOOL_TARGET or ROPEPOOL_NUM_THREADS makes no sense.");
  module.def(
      "simd_target",
      [] {
        auto target = simd_target();
        if (!target) raise(target.error());
        return *target;
      },
      "The SIMD target in use, by Highway's name: the best of this machine, or what ROPEPOOL_TARGET said at the start.");
  module.def("simd_targets", &simd_targets, "The SIMD targets that this build was made for and this CPU can run, best first.");
  module.def("compiled_simd_targets", &compiled_simd_targets, "All SIMD targets that this build was made for.");
  module.attr("__version__") = version();
}

}  // namespace ropepool::python
