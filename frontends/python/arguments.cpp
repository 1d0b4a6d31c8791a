#include "arguments.h"

#include <limits>

#include "ops/rope_pool_fused.h"
#include "rope.h"

namespace ropepool::python {

std::int64_t to_int64(nb::handle value, const char* argument) {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    raise_type_error("%s must be an integer, not %U", argument, nb::inst_name(value).ptr());
  }
  int overflow = 0;
  const std::int64_t number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0) return number;
  const auto odd = static_cast<std::int64_t>(PyLong_AsUnsignedLongLongMask(index.ptr()) & 1);
  return overflow > 0 ? std::numeric_limits<std::int64_t>::max() - 1 + odd : std::numeric_limits<std::int64_t>::min() + odd;
}

double to_double(nb::handle value, const char* argument) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1.0 || !PyErr_Occurred()) return number;
  if (PyErr_ExceptionMatches(PyExc_OverflowError) && PyLong_Check(value.ptr())) {
    PyErr_Clear();
    int sign = 0;  // beyond every double, so infinite: the contract says what it thinks of that
    PyLong_AsLongLongAndOverflow(value.ptr(), &sign);
    return sign * std::numeric_limits<double>::infinity();
  }
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  raise_type_error("%s must be a real number, not %U", argument, nb::inst_name(value).ptr());
}

double to_rope_base(nb::handle value) {
  return value ? to_double(value, "rope_base") : std::numeric_limits<double>::quiet_NaN();
}

Angles to_angles(nb::handle value) {
  if (!value) return Angles::exact;
  if (!PyUnicode_Check(value.ptr())) {
    raise_type_error("angles must be a string, not %U", nb::inst_name(value).ptr());
  }
  if (PyUnicode_CompareWithASCIIString(value.ptr(), "exact") == 0) return Angles::exact;
  if (PyUnicode_CompareWithASCIIString(value.ptr(), "float32") == 0) return Angles::float32;
  return static_cast<Angles>(-1);  // the core refuses it
}

const Rope* to_rope(nb::handle value) {
  if (!value) return nullptr;
  if (!nb::isinstance<PyRope>(value)) raise_type_error("rope must be a ropepool.Rope, not %U", nb::inst_name(value).ptr());
  return &nb::inst_ptr<PyRope>(value)->rope;
}

bool to_bool(nb::handle value, const char* argument) {
  if (!value) return false;
  if (!PyBool_Check(value.ptr())) raise_type_error("%s must be True or False, not %U", argument, nb::inst_name(value).ptr());
  return value.ptr() == Py_True;
}

Error with_angles(const Error& error, nb::handle angles) {
  return angles ? contract::with_angles(error, nb::repr(angles).c_str()) : error;
}

void add_function(nb::module_& module, PyMethodDef& method) {
  module.attr(method.ml_name) = nb::steal(PyCFunction_NewEx(&method, module.ptr(), nb::str("ropepool").ptr()));
}

}  // namespace ropepool::python
