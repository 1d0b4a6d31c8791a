// Python's arrays as Tensors: NumPy's through __array_struct__, all others through DLPack.
#pragma once

#include <array>
#include <vector>

#include <nanobind/nanobind.h>
#include <ropepool/tensor.h>

struct DLManagedTensor;

namespace ropepool::python {

namespace nb = nanobind;

struct DLManagedTensorVersioned;

// Imports NumPy and ml_dtypes; once, before the others.
void load_array_libraries();

// Reads the arrays of one call and keeps alive what they lend until it goes. Needs the GIL, also when it goes.
class ArrayReader {
 public:
  static constexpr int kMaxArrays = 15;  // those of rope_pool_fused

  ArrayReader() = default;
  ArrayReader(const ArrayReader&) = delete;
  ArrayReader& operator=(const ArrayReader&) = delete;

  // At most kMaxArrays times. A TypeError names `argument` where `array` is no array.
  Tensor read(nb::handle array, const char* argument);

 private:
  // What keeps an array's memory: NumPy's array or capsule, or a tensor of DLPack that must be given back.
  struct Loan {
    ~Loan();
    nb::object kept;
    DLManagedTensor* tensor = nullptr;
    DLManagedTensorVersioned* versioned = nullptr;
  };

  Tensor read_numpy(nb::handle array, const char* argument, nb::object& capsule);
  Tensor read_dlpack(nb::handle array, nb::handle method, const char* argument, Loan& loan);
  DType numpy_dtype(nb::handle array, char kind, int item_size, bool swapped);

  std::array<Loan, kMaxArrays> loans_;
  int num_loans_ = 0;
  std::vector<nb::object> other_dtypes_;  // NumPy's dtypes that DType has no name for, each once
};

bool is_numpy(nb::handle array);

// A new array of the shape and dtype of `array`, which was read as `tensor`: from NumPy, or from the array's own library.
nb::object make_output(nb::handle array, const Tensor& tensor);

}  // namespace ropepool::python
