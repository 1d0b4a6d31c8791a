#include "arrays.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "../c/dlpack.h"
#include "core/dtype.h"
#include "errors.h"

namespace ropepool::python {

// What DLPack 1.0 added; headers before it lack these.
struct DLPackVersion {
  std::uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

namespace {

constexpr std::uint64_t kDLPackReadOnly = 1;  // DLPACK_FLAG_BITMASK_READ_ONLY

// What NumPy's __array_struct__ points at; fixed for good by NumPy's array interface protocol, version 3.
struct PyArrayInterface {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // in bytes
  void* data;
  PyObject* descr;
};
constexpr int kNotSwapped = 0x200;
constexpr int kWriteable = 0x400;

// Types without a name that come through DLPack are numbered below this, NumPy's from here on.
constexpr std::uint32_t kFirstOfNumPy = 0x08000000;

// Fetched once and never given back: the interpreter may be gone before static objects are.
struct Globals {
  nb::object ndarray = nb::module_::import_("numpy").attr("ndarray");
  nb::object empty = nb::module_::import_("numpy").attr("empty");
  nb::object bfloat16 = nb::module_::import_("ml_dtypes").attr("bfloat16");
  nb::object bfloat16_dtype = nb::module_::import_("numpy").attr("dtype")(bfloat16);
  // 'V' as of ml_dtypes 0.6. Asked for, since float16 has bfloat16's size.
  char bfloat16_kind = nb::cast<nb::str>(bfloat16_dtype.attr("kind")).c_str()[0];
  nb::object output_like = nb::module_::import_("ropepool._outputs").attr("output_like");
  nb::object empty_at_line = nb::module_::import_("ropepool._outputs").attr("empty");
  std::int64_t large = nb::cast<std::int64_t>(nb::module_::import_("ropepool._outputs").attr("LARGE"));

  nb::object array_struct = nb::steal(PyUnicode_InternFromString("__array_struct__"));
  nb::object dlpack = nb::steal(PyUnicode_InternFromString("__dlpack__"));
  nb::object is_neg = nb::steal(PyUnicode_InternFromString("is_neg"));
  nb::object shape = nb::steal(PyUnicode_InternFromString("shape"));
  nb::object dtype = nb::steal(PyUnicode_InternFromString("dtype"));
  nb::object max_version_names = nb::make_tuple("max_version");
  nb::object max_version = nb::make_tuple(1, 0);
};
const Globals* globals = nullptr;

}  // namespace

bool is_numpy(nb::handle array) {
  return PyObject_TypeCheck(array.ptr(), reinterpret_cast<PyTypeObject*>(globals->ndarray.ptr()));
}

namespace {

nb::object checked(PyObject* result) {
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

[[noreturn]] void raise_not_an_array(nb::handle object, const char* argument) {
  raise_type_error("%s must be a NumPy array or an array that exports DLPack, not %U", argument, nb::inst_name(object).ptr());
}

// A masked array's memory holds anything where its mask hides it.
void refuse_hidden(nb::handle array, const char* argument) {
  if (!nb::cast<bool>(nb::module_::import_("numpy.ma").attr("is_masked")(array))) return;
  raise_type_error("%s is a masked array that hides elements, and no mask is read: pass %s.filled(...) or %s.data", argument,
                   argument, argument);
}

// A tensor of torch can stand for the negative of what lies in its memory, which its DLPack does not say.
void refuse_negated(nb::handle array, const char* argument) {
  if (!PyObject_HasAttr(array.ptr(), globals->is_neg.ptr())) return;
  if (!nb::cast<bool>(checked(PyObject_CallMethodObjArgs(array.ptr(), globals->is_neg.ptr(), nullptr)))) return;
  raise_type_error("%s stands for the negative of what lies in its memory: pass %s.resolve_neg()", argument, argument);
}

DType native_dtype(char kind, int item_size) {
  switch (kind) {
    case 'f':
      return item_size == 4 ? DType::f32 : item_size == 2 ? DType::f16 : item_size == 8 ? DType::f64 : DType::other;
    case 'b':
      return item_size == 1 ? DType::boolean : DType::other;
    case 'c':
      return item_size == 8 ? DType::complex64 : item_size == 16 ? DType::complex128 : DType::other;
    case 'i':
      switch (item_size) {
        case 1:
          return DType::i8;
        case 2:
          return DType::i16;
        case 4:
          return DType::i32;
        case 8:
          return DType::i64;
        default:
          return DType::other;
      }
    case 'u':
      switch (item_size) {
        case 1:
          return DType::u8;
        case 2:
          return DType::u16;
        case 4:
          return DType::u32;
        case 8:
          return DType::u64;
        default:
          return DType::other;
      }
    default:
      return DType::other;
  }
}

DType swapped_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return DType::f32_swapped;
    case DType::f16:
      return DType::f16_swapped;
    case DType::bf16:
      return DType::bf16_swapped;
    case DType::f64:
      return DType::f64_swapped;
    case DType::i32:
      return DType::i32_swapped;
    case DType::i64:
      return DType::i64_swapped;
    default:
      return DType::other;
  }
}

// A stride of `bytes`, rounded down where it is not `whole`.
std::int64_t in_elements(std::int64_t bytes, int item_size, bool& whole) {
  const std::int64_t divisor = std::max(item_size, 1);
  if ((divisor & (divisor - 1)) == 0) {  // spares two dozen divisions a call
    whole = (bytes & (divisor - 1)) == 0;
    return bytes >> std::countr_zero(static_cast<std::uint64_t>(divisor));
  }
  whole = bytes % divisor == 0;
  return bytes / divisor;
}

// An array like `array`, which is `tensor`: a large one begins at a cache line.
nb::object empty_numpy(nb::handle array, const Tensor& tensor) {
  std::int64_t bytes = item_size(tensor.dtype);
  for (std::int64_t length : tensor.shape) bytes *= length;
  const nb::object& empty = bytes < globals->large ? globals->empty : globals->empty_at_line;
  nb::object shape = checked(PyObject_GetAttr(array.ptr(), globals->shape.ptr()));
  nb::object dtype = checked(PyObject_GetAttr(array.ptr(), globals->dtype.ptr()));
  PyObject* arguments[] = {nullptr, shape.ptr(), dtype.ptr()};
  return checked(PyObject_Vectorcall(empty.ptr(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

// Calls array.__dlpack__, in the way of DLPack 1.0 or, where the library does not know that, the old one.
nb::object export_dlpack(nb::handle method, const char* argument) {
  PyObject* arguments[] = {nullptr, globals->max_version.ptr()};
  PyObject* capsule =
      PyObject_Vectorcall(method.ptr(), arguments + 1, 0 | PY_VECTORCALL_ARGUMENTS_OFFSET, globals->max_version_names.ptr());
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    capsule = PyObject_CallNoArgs(method.ptr());
  }
  if (capsule) return nb::steal(capsule);
  nb::python_error error;  // torch, for one, exports no tensor that requires a gradient
  error.value().attr("add_note")(nb::str("while ropepool read the argument ") + nb::str(argument));
  throw error;
}

}  // namespace

void load_array_libraries() { globals = new Globals; }

ArrayReader::Loan::~Loan() {
  if (tensor && tensor->deleter) tensor->deleter(tensor);
  if (versioned && versioned->deleter) versioned->deleter(versioned);
}

Tensor ArrayReader::read(nb::handle array, const char* argument) {
  Loan& loan = loans_[static_cast<std::size_t>(num_loans_++)];
  if (Py_TYPE(array.ptr()) == reinterpret_cast<PyTypeObject*>(globals->ndarray.ptr())) {
    // The array keeps its memory. The capsule, which only describes it, goes at once, so that NumPy allocates the same block
    // for each: an empty call takes 790 instructions less of 16,300.
    loan.kept = nb::borrow(array);
    nb::object capsule;
    return read_numpy(array, argument, capsule);
  }
  if (is_numpy(array)) {
    refuse_hidden(array, argument);
    return read_numpy(array, argument, loan.kept);
  }
  nb::object method = nb::steal(PyObject_GetAttr(array.ptr(), globals->dlpack.ptr()));
  if (!method) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
    PyErr_Clear();
    raise_not_an_array(array, argument);
  }
  refuse_negated(array, argument);
  return read_dlpack(array, method, argument, loan);
}

Tensor ArrayReader::read_numpy(nb::handle array, const char* argument, nb::object& capsule) {
  capsule = checked(PyObject_GetAttr(array.ptr(), globals->array_struct.ptr()));
  const auto* source = static_cast<const PyArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (source == nullptr) PyErr_Clear();
  if (source == nullptr || source->two != 2) raise_not_an_array(array, argument);

  Tensor tensor;  // filled where it stays: copies of a Dims that was just written wait for the writes
  tensor.data = source->data;
  tensor.dtype = numpy_dtype(array, source->typekind, source->itemsize, (source->flags & kNotSwapped) == 0);
  tensor.read_only = (source->flags & kWriteable) == 0;
  // NumPy clears all flags of structured arrays.
  if (tensor.dtype >= DType::other) tensor.read_only = !nb::cast<bool>(array.attr("flags").attr("writeable"));
  tensor.shape.assign(source->shape, source->nd);
  tensor.strides.set_rank(source->nd);
  for (int axis = 0; axis < std::min(source->nd, Dims::kMaxRank); ++axis) {
    bool whole = true;
    tensor.strides[axis] = in_elements(source->strides[axis], source->itemsize, whole);
    // Along an axis of one element nobody steps, so NumPy leaves anything there.
    if (!whole && source->shape[axis] > 1) tensor.unaligned = true;
  }
  return tensor;
}

Tensor ArrayReader::read_dlpack(nb::handle array, nb::handle method, const char* argument, Loan& loan) {
  nb::object capsule = export_dlpack(method, argument);
  const DLTensor* source = nullptr;
  bool read_only = false;
  // A capsule that was renamed is ours: its tensor is given back by the loan, whatever comes next.
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* versioned = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned") != 0) throw nb::python_error();
    loan.versioned = versioned;
    if (versioned->version.major != 1) {  // what follows the deleter may lie elsewhere
      PyErr_Format(PyExc_BufferError, "%s is exported by DLPack %u.%u, ropepool reads 1.x", argument, versioned->version.major,
                   versioned->version.minor);
      throw nb::python_error();
    }
    source = &versioned->dl_tensor;
    read_only = (versioned->flags & kDLPackReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    if (PyCapsule_SetName(capsule.ptr(), "used_dltensor") != 0) throw nb::python_error();
    loan.tensor = managed;
    source = &managed->dl_tensor;
  } else {
    raise_not_an_array(array, argument);
  }

  Tensor tensor;
  from_dlpack(*source, tensor);
  tensor.read_only = read_only;
  return tensor;
}

DType ArrayReader::numpy_dtype(nb::handle array, char kind, int item_size, bool swapped) {
  nb::object dtype;
  if (kind == globals->bfloat16_kind && item_size == 2) {
    dtype = checked(PyObject_GetAttr(array.ptr(), globals->dtype.ptr()));
    if (dtype.is(globals->bfloat16_dtype)) return DType::bf16;
    if (dtype.attr("type").is(globals->bfloat16)) return swapped ? DType::bf16_swapped : DType::bf16;
  }
  const DType native = native_dtype(kind, item_size);
  const DType found = swapped ? swapped_dtype(native) : native;
  if (found != DType::other) return found;
  if (!dtype.is_valid()) dtype = checked(PyObject_GetAttr(array.ptr(), globals->dtype.ptr()));
  const nb::str name = nb::str(dtype.attr("name"));
  for (const OtherDTypeRow& row : kOtherDTypes) {
    if (row.name == name.c_str()) return row.dtype;
  }
  auto seen = std::find_if(other_dtypes_.begin(), other_dtypes_.end(), [&](nb::handle other) { return dtype.equal(other); });
  const auto index = static_cast<std::uint32_t>(seen - other_dtypes_.begin());
  if (seen == other_dtypes_.end()) other_dtypes_.push_back(dtype);
  return static_cast<DType>(static_cast<std::uint32_t>(DType::other) + kFirstOfNumPy + index);
}

nb::object make_output(nb::handle array, const Tensor& tensor) {
  if (is_numpy(array)) return empty_numpy(array, tensor);
  nb::list shape;
  for (std::int64_t length : tensor.shape) shape.append(length);
  return globals->output_like(array, nb::tuple(shape), to_string(tensor.dtype).c_str());
}

}  // namespace ropepool::python
