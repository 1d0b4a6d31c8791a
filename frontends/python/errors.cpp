#include "errors.h"

#include <cstdarg>
#include <string>
#include <string_view>

namespace ropepool::python {
namespace {

PyObject* contract_error = nullptr;

nb::str text(std::string_view value) { return nb::str(value.data(), value.size()); }

}  // namespace

void load_errors() {
  contract_error = nb::object(nb::module_::import_("ropepool._error").attr("ContractError")).release().ptr();
}

nb::object to_contract_error(const Error& error) {
  return nb::handle(contract_error)(text(error.message()), text(error.code()), text(error.name()), text(error.argument()),
                                    text(error.expected()), text(error.actual()), text(error.cause()), text(error.hint()),
                                    text(error.url()), text(error.summary()));
}

void raise(const Error& error) {
  switch (error.kind()) {
    case Error::Kind::refusal:
      PyErr_SetObject(contract_error, to_contract_error(error).ptr());
      break;
    case Error::Kind::out_of_memory:
      PyErr_SetString(PyExc_MemoryError, error.message().c_str());
      break;
    case Error::Kind::runtime:
      PyErr_SetString(PyExc_RuntimeError, error.message().c_str());
      break;
  }
  throw nb::python_error();
}

void raise_type_error(const char* format, ...) {
  va_list values;
  va_start(values, format);
  PyErr_FormatV(PyExc_TypeError, format, values);
  va_end(values);
  throw nb::python_error();
}

}  // namespace ropepool::python
