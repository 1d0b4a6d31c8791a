// The arguments of functions that CPython calls without nanobind between: called once a layer and token, where nanobind's
// dispatch would cost as much again as all of their own work on arguments; and inspect.signature() can read them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <nanobind/nanobind.h>
#include <ropepool/rope.h>

#include "arrays.h"
#include "errors.h"

namespace ropepool::python {

// Names in their order: those that may be given by place, other required ones, optional ones.
template <std::size_t kCount>
struct Signature {
  const char* function;
  int num_positional, num_required;
  std::array<const char*, kCount> names;
  std::array<PyObject*, kCount> interned = {};

  void intern() {
    for (std::size_t i = 0; i < kCount; ++i) interned[i] = PyUnicode_InternFromString(names[i]);
  }
};

// The arguments by their place in the signature, borrowed from the caller; those not given null, as are optional ones that are
// None where that means the same: all but those that have another default.
template <std::size_t kCount>
class Arguments {
 public:
  Arguments(const Signature<kCount>& signature, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords)
      : signature_(signature) {
    const char* function = signature.function;
    if (num_positional > signature.num_positional) {
      raise_type_error("%s() takes %d positional arguments but %zd were given", function, signature.num_positional,
                       num_positional);
    }
    for (Py_ssize_t i = 0; i < num_positional; ++i) values_[static_cast<std::size_t>(i)] = values[i];
    const Py_ssize_t num_keywords = keywords ? PyTuple_Size(keywords) : 0;
    auto guess = static_cast<std::size_t>(num_positional);  // most calls name the arguments in their order
    for (Py_ssize_t i = 0; i < num_keywords; ++i) {
      PyObject* keyword = PyTuple_GetItem(keywords, i);
      const std::size_t place = find(keyword, guess);
      if (place == kCount) raise_type_error("%s() got an unexpected keyword argument '%U'", function, keyword);
      PyObject*& value = values_[place];
      if (value) raise_type_error("%s() got multiple values for argument '%s'", function, signature.names[place]);
      value = values[num_positional + i];
      guess = place + 1;
    }
    for (std::size_t place = 0; place < static_cast<std::size_t>(signature.num_required); ++place) {
      if (!values_[place]) raise_type_error("%s() missing required argument: '%s'", function, signature.names[place]);
    }
  }

  PyObject* operator[](int place) const { return values_[static_cast<std::size_t>(place)]; }
  // Of an optional one for which None is the default.
  PyObject* optional(int place) const { return (*this)[place] == Py_None ? nullptr : (*this)[place]; }
  const char* name(int place) const { return signature_.names[static_cast<std::size_t>(place)]; }

 private:
  std::size_t find(PyObject* keyword, std::size_t guess) const {
    for (std::size_t i = 0; i < kCount; ++i) {  // callers' names are interned too, so the pointers nearly always say it
      const std::size_t place = (guess + i) % kCount;
      if (keyword == signature_.interned[place]) return place;
    }
    for (std::size_t place = 0; place < kCount; ++place) {
      if (PyUnicode_CompareWithASCIIString(keyword, signature_.names[place]) == 0) return place;
    }
    return kCount;
  }

  const Signature<kCount>& signature_;
  std::array<PyObject*, kCount> values_{};
};

// The integer that `value` is; one that 64 bits don't hold is the nearest that is odd or even as it is, which is as far beyond
// every shape. A TypeError names `argument` where it is none.
std::int64_t to_int64(nb::handle value, const char* argument);
// NaN where it is not given.
double to_rope_base(nb::handle value);
double to_double(nb::handle value, const char* argument);
// `exact` where it is not given; a word that is neither is a number that the core refuses.
Angles to_angles(nb::handle value);
// Null where it is not given.
const Rope* to_rope(nb::handle value);
bool to_bool(nb::handle value, const char* argument);

// Has a refusal of `angles` say the caller's word.
Error with_angles(const Error& error, nb::handle angles);

using FastFunction = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
// Adds `method` to the module, named as of the package, where users find it.
void add_function(nb::module_& module, PyMethodDef& method);
constexpr int kFastCall = METH_FASTCALL | METH_KEYWORDS;
inline PyCFunction as_function(FastFunction function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace ropepool::python
