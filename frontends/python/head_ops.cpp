#include "head_ops.h"

#include <string>

#include "errors.h"

namespace ropepool::python {
namespace {

using namespace nb::literals;

struct PyRmsNorm : PyHeadNorm {};
struct PyLayerNorm : PyHeadNorm {};

// The weight may hold what holds the norm.
template <class Norm>
int traverse(PyObject* self, visitproc visit, void* arg) {
#if PY_VERSION_HEX >= 0x03090000
  Py_VISIT(Py_TYPE(self));
#endif
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Norm>(self)->weight.ptr());
  return 0;
}
template <class Norm>
int clear(PyObject* self) {
  nb::inst_ptr<Norm>(self)->weight = nb::none();
  return 0;
}
template <class Norm>
PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<Norm>)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear<Norm>)},
                       {0, nullptr}};

constexpr const char* kRmsNormDoc = R"(x / sqrt(mean(x**2) + eps) * weight, over the lanes of a head (arXiv:1910.07467).

weight: float32 or the data's dtype, [head_dim], the same for each head (Qwen 3); [num_heads, head_dim], one for each; or
[num_heads * head_dim], with the mean over all heads of a token (OLMo 2); None: 1. It is read at each call.
eps: the model's rms_norm_eps. unit_offset: multiply by 1 + weight (Gemma).)";

constexpr const char* kLayerNormDoc =
    R"((x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * weight, over the lanes of a head (arXiv:1607.06450).

weight: as RMSNorm has it; Cohere's is [num_heads, head_dim]. eps: the model's layer_norm_eps. There is no bias.)";

}  // namespace

std::optional<HeadNorm> to_norm(nb::handle value, const char* argument, ArrayReader& reader) {
  if (!value) return {};
  const PyHeadNorm* given = nullptr;
  if (nb::isinstance<PyRmsNorm>(value)) given = nb::inst_ptr<PyRmsNorm>(value);
  if (nb::isinstance<PyLayerNorm>(value)) given = nb::inst_ptr<PyLayerNorm>(value);
  if (given == nullptr) {
    raise_type_error("%s must be a ropepool.RMSNorm or LayerNorm, not %U", argument, nb::inst_name(value).ptr());
  }
  HeadNorm norm = given->norm;
  if (!given->weight.is_none()) norm.weight = reader.read(given->weight, (std::string(argument) + ".weight").c_str());
  return norm;
}

void add_head_ops(nb::module_& module) {
  nb::class_<PyRmsNorm>(module, "RMSNorm", nb::type_slots(slots<PyRmsNorm>), kRmsNormDoc)
      .def(
          "__init__",
          [](PyRmsNorm* self, nb::object weight, double eps, bool unit_offset) {
            new (self) PyRmsNorm{{{HeadNorm::Kind::rms, {}, eps, unit_offset}, std::move(weight)}};
          },
          "weight"_a = nb::none(), nb::kw_only(), "eps"_a, "unit_offset"_a = false)
      .def_prop_ro("weight", [](const PyRmsNorm& self) { return self.weight; })
      .def_prop_ro("eps", [](const PyRmsNorm& self) { return self.norm.eps; })
      .def_prop_ro("unit_offset", [](const PyRmsNorm& self) { return self.norm.unit_offset; });
  nb::class_<PyLayerNorm>(module, "LayerNorm", nb::type_slots(slots<PyLayerNorm>), kLayerNormDoc)
      .def(
          "__init__",
          [](PyLayerNorm* self, nb::object weight, double eps) {
            new (self) PyLayerNorm{{{HeadNorm::Kind::layer, {}, eps, false}, std::move(weight)}};
          },
          "weight"_a = nb::none(), nb::kw_only(), "eps"_a)
      .def_prop_ro("weight", [](const PyLayerNorm& self) { return self.weight; })
      .def_prop_ro("eps", [](const PyLayerNorm& self) { return self.norm.eps; });
}

}  // namespace ropepool::python
