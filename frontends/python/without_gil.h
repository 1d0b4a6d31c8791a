// Work without the GIL, also while Python ends.
#pragma once

#include <Python.h>

namespace ropepool::python {

// For as long as it lives, this thread does not hold the GIL.
//
// A daemon thread that asks for the GIL while Python ends has its stack unwound, through functions of C++ that may not be
// unwound: the process would abort. It waits for the process's end here instead, as Python 3.14 lets it do.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// To be called by Python's atexit.
void stop_returning_threads();

}  // namespace ropepool::python
