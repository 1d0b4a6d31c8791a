// Errors of the core as Python's exceptions.
#pragma once

#include <new>

#include <nanobind/nanobind.h>
#include <ropepool/result.h>

namespace ropepool::python {

namespace nb = nanobind;

// Imports ropepool.ContractError; once, before the others.
void load_errors();

// The ContractError of a refusal.
nb::object to_contract_error(const Error& error);

// Raises what fits: ContractError, MemoryError or RuntimeError.
[[noreturn]] void raise(const Error& error);

// Throws a TypeError; `format` is as for PyErr_Format.
[[noreturn]] void raise_type_error(const char* format, ...);

// For functions that CPython calls without nanobind between: runs body() and turns what it throws into Python's error.
template <class Body>
PyObject* guarded(Body&& body) noexcept {
  try {
    return body().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace ropepool::python
