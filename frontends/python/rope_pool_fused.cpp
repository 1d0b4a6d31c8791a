#include "rope_pool_fused.h"

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "arrays.h"
#include "errors.h"
#include "ops/rope_pool_fused.h"
#include "rope.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

// These two functions are called once a layer and token, so they are plain CPython functions: nanobind's dispatch would cost
// as much again as all of their own work on arguments, and inspect.signature() could not read them.

enum Argument {
  kQ,
  kK,
  kV,
  kPositions,
  kSlots,
  kKPool,
  kVPool,
  kNumPositional,
  kHeadDim = kNumPositional,
  kNumQoHeads,
  kNumKvHeads,
  kNumRequired,
  kRopeBase = kNumRequired,
  kRope,
  kRopeSets,
  kAngles,
  kQOut,
  kKOut,
  kNumArguments
};

#define ROPEPOOL_SIGNATURE                                                                                           \
  "(q, k, v, positions, slots, k_pool, v_pool, *, head_dim, num_qo_heads, num_kv_heads, rope_base=None, rope=None, " \
  "rope_sets=None, angles='exact', q_out=None, k_out=None)\n--\n\n"

constexpr const char* kNames[kNumArguments] = {
    "q",         "k",    "v",         "positions", "slots", "k_pool", "v_pool", "head_dim", "num_qo_heads", "num_kv_heads",
    "rope_base", "rope", "rope_sets", "angles",    "q_out", "k_out"};
PyObject* interned_names[kNumArguments];

// The arguments by their place in Argument, borrowed from the caller; those not given null, as
// are optional ones that are None where that means the same.
class Arguments {
 public:
  Arguments(const char* function, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
    if (num_positional > kNumPositional) {
      raise_type_error("%s() takes %d positional arguments but %zd were given", function, int{kNumPositional}, num_positional);
    }
    for (Py_ssize_t i = 0; i < num_positional; ++i) values_[static_cast<std::size_t>(i)] = values[i];
    const Py_ssize_t num_keywords = keywords ? PyTuple_Size(keywords) : 0;
    int guess = static_cast<int>(num_positional);  // most calls name the arguments in their order
    for (Py_ssize_t i = 0; i < num_keywords; ++i) {
      PyObject* keyword = PyTuple_GetItem(keywords, i);
      const int place = find(keyword, guess);
      if (place < 0) raise_type_error("%s() got an unexpected keyword argument '%U'", function, keyword);
      PyObject*& value = values_[static_cast<std::size_t>(place)];
      if (value) raise_type_error("%s() got multiple values for argument '%s'", function, kNames[place]);
      value = values[num_positional + i];
      guess = place + 1;
    }
    for (int place = 0; place < kNumRequired; ++place) {
      if (!(*this)[place]) raise_type_error("%s() missing required argument: '%s'", function, kNames[place]);
    }
    for (int place = kNumRequired; place < kNumArguments; ++place) {
      PyObject*& value = values_[static_cast<std::size_t>(place)];
      if (value == Py_None && place != kAngles) value = nullptr;
    }
  }

  PyObject* operator[](int place) const { return values_[static_cast<std::size_t>(place)]; }

 private:
  static int find(PyObject* keyword, int guess) {
    for (int i = 0; i < kNumArguments; ++i) {  // callers' names are interned too, so the pointers nearly always say it
      const int place = (guess + i) % kNumArguments;
      if (keyword == interned_names[place]) return place;
    }
    for (int place = 0; place < kNumArguments; ++place) {
      if (PyUnicode_CompareWithASCIIString(keyword, kNames[place]) == 0) return place;
    }
    return -1;
  }

  std::array<PyObject*, kNumArguments> values_{};
};

constexpr double kNotGiven = std::numeric_limits<double>::quiet_NaN();

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

Angles to_angles(nb::handle value) {
  if (!PyUnicode_Check(value.ptr())) {
    raise_type_error("angles must be a string, not %U", nb::inst_name(value).ptr());
  }
  if (PyUnicode_CompareWithASCIIString(value.ptr(), "exact") == 0) return Angles::exact;
  if (PyUnicode_CompareWithASCIIString(value.ptr(), "float32") == 0) return Angles::float32;
  return static_cast<Angles>(-1);  // the core refuses it
}

Error with_angles(const Error& error, nb::handle angles) {
  return angles ? contract::with_angles(error, nb::repr(angles).c_str()) : error;
}

RopePoolFusedArgs to_core(const Arguments& arguments, ArrayReader& reader) {
  auto read = [&](Argument place) { return arguments[place] ? reader.read(arguments[place], kNames[place]) : Tensor(); };
  auto integer = [&](Argument place) { return to_int64(arguments[place], kNames[place]); };
  const Rope* rope = nullptr;
  if (const nb::handle given = arguments[kRope]) {
    if (!nb::isinstance<PyRope>(given)) raise_type_error("rope must be a ropepool.Rope, not %U", nb::inst_name(given).ptr());
    rope = &nb::inst_ptr<PyRope>(given)->rope;
  }
  return {
      // In one expression, so that each is made where it stays: to copy them would cost a tenth of a small call.
      .q = read(kQ),
      .k = read(kK),
      .v = read(kV),
      .positions = read(kPositions),
      .slots = read(kSlots),
      .k_pool = read(kKPool),
      .v_pool = read(kVPool),
      .q_out = read(kQOut),
      .k_out = read(kKOut),
      .head_dim = integer(kHeadDim),
      .num_qo_heads = integer(kNumQoHeads),
      .num_kv_heads = integer(kNumKvHeads),
      .rope_base = arguments[kRopeBase] ? to_double(arguments[kRopeBase], "rope_base") : kNotGiven,
      .angles = arguments[kAngles] ? to_angles(arguments[kAngles]) : Angles::exact,
      .rope = rope,
      .rope_sets = read(kRopeSets),
  };
}

PyObject* call_rope_pool_fused(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Arguments arguments("rope_pool_fused", values, num_positional, keywords);
    ArrayReader reader;
    RopePoolFusedArgs args = to_core(arguments, reader);
    nb::object q_out = nb::borrow(arguments[kQOut]), k_out = nb::borrow(arguments[kKOut]);
    const bool made = !q_out && !k_out;
    if (!q_out || !k_out) {
      // What is missing is made only for a call that goes through.
      if (auto refusal = contract::first_refusal(args, contract::Outputs::made_later)) {
        raise(with_angles(*refusal, arguments[kAngles]));
      }
      if (!q_out) {
        q_out = make_output(arguments[kQ], args.q);
        args.q_out = reader.read(q_out, "q_out");
      }
      if (!k_out) {
        k_out = make_output(arguments[kK], args.k);
        args.k_out = reader.read(k_out, "k_out");
      }
    }
    Result<void> done = [&] {
      const WithoutGil without_gil;
      // New arrays need no contract: only those that were given can be unsuitable.
      return made ? ropepool::run(args, nullptr) : ropepool::rope_pool_fused(args);
    }();
    if (!done) raise(with_angles(done.error(), arguments[kAngles]));
    return nb::steal(PyTuple_Pack(4, q_out.ptr(), k_out.ptr(), arguments[kKPool], arguments[kVPool]));
  });
}

PyObject* call_check(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Arguments arguments("check", values, num_positional, keywords);
    ArrayReader reader;
    const RopePoolFusedArgs args = to_core(arguments, reader);
    const std::vector<Error> refusals = [&] {
      const WithoutGil without_gil;
      return contract::all_refusals(args, contract::Outputs::made_later);
    }();
    nb::list found;
    for (const Error& refusal : refusals) {
      if (refusal.kind() != Error::Kind::refusal) raise(refusal);
      found.append(to_contract_error(with_angles(refusal, arguments[kAngles])));
    }
    return found;
  });
}

constexpr const char* kRopePoolFusedDoc =
    "rope_pool_fused" ROPEPOOL_SIGNATURE
    R"(Rotate q and k by their positions and store rotated k, and v, in the pool rows that slots name, in one pass.

Shapes, and what happens to each array:

    q               [num_tokens, num_qo_heads, head_dim]   read
    k, v            [num_tokens, num_kv_heads, head_dim]   read
    positions       [num_tokens]                           read; [axes, num_tokens] with M-RoPE
    slots           [num_tokens]                           read; a negative slot leaves the pools alone
    rope_sets       [num_tokens]                           read
    k_pool, v_pool  [num_slots, num_kv_heads, head_dim]    written in place, in the rows that slots name, nowhere else
    q_out, k_out    as q and k                             written whole; made where not given

For each token t, lanes i and i + head_dim / 2 of every head of q and k are turned by the angle, in radians,

    positions[t] * rope_base ** (-2 * i / head_dim)        for i < head_dim / 2

which is the rotary embedding of RoFormer (arXiv:2104.09864) in the pairing of GPT-NeoX. Row slots[t] of k_pool gets the
rotated k, row slots[t] of v_pool the bits of v. Where several tokens name one slot, the last wins, for K and V alike.

Arrays are NumPy's (bfloat16 from ml_dtypes) or any on the CPU that export DLPack, such as PyTorch's. Views are read and
written where they lie, with any strides whose innermost one is 1: parts of a packed QKV, halves of a unified pool.

Parameters
----------
q, k, v, k_pool, v_pool : float32, float16 or bfloat16, one dtype for all
positions, slots : int32 or int64, each on its own
    Positions count tokens, within +-(2**31 - 1); negative ones turn backwards. Slots count rows of the pools.
head_dim, num_qo_heads, num_kv_heads : int
    head_dim is even.
rope_base : float
    The model's rope_theta, without a unit.
rope : Rope
    Instead of rope_base, for every other form: scaled, partial, interleaved, M-RoPE, frequencies or a table of your own.
rope_sets : int32 or int64
    Which of the rope's sets of frequencies a token takes, where it has several (LongRoPE, dynamic NTK): decide it once for a
    sequence, since its keys are in the pool already.
angles : "exact" or "float32"
    "exact" computes position * frequency as in real arithmetic, off by at most 2e-7 at any position. "float32" computes it
    as Hugging Face transformers does, off by 5e-4 at position 4,000.
q_out, k_out : arrays of the shape and dtype of q and k
    q_out=q and k_out=k rotate in place. Apart from these two, what is written must share no memory with any other array.

Returns
-------
(q_rot, k_rot, k_pool, v_pool)
    q_out and k_out or the new arrays, then the pools: the very objects that were passed in.

Raises
------
ContractError
    RP001 to RP021 and RP023 to RP026, a ValueError. Nothing was written. `ropepool.check` lists all that apply,
    `ropepool.explain` says more.
TypeError
    An argument is no array, or no number where one is needed; a masked array that hides something; an unexpected or missing
    argument.
MemoryError
    There is no memory for the outputs or for the call itself. Nothing was written.
BufferError
    An array is exported by a version of DLPack other than 0.x and 1.x. What else an array's own library raises when it
    exports one comes through as it is, with a note that names the argument.
RuntimeError
    ROPEPOOL_TARGET or ROPEPOOL_NUM_THREADS makes no sense, which importing ropepool says already.

Threads
-------
The GIL is released while the call computes, on as many threads as `get_num_threads()` says where there is enough to do.
Calls that write different arrays may run at once, also where they read the same ones. Calls that write the same memory
must not, nor may another thread write an array while a call reads it. Results are the same bits for any number of threads.

Examples
--------
>>> import numpy as np
>>> import ropepool
>>> q = np.ones((2, 4, 8), np.float32)               # 2 tokens, 4 query heads of 8 lanes
>>> k = np.ones((2, 1, 8), np.float32)               # 1 key/value head
>>> v = np.full((2, 1, 8), 7, np.float32)
>>> k_pool, v_pool = np.zeros((2, 16, 1, 8), np.float32)
>>> q_rot, k_rot, _, _ = ropepool.rope_pool_fused(
...     q, k, v, np.array([0, 1]), np.array([5, -1]), k_pool, v_pool,
...     head_dim=8, num_qo_heads=4, num_kv_heads=1, rope_base=10000.0)
>>> [round(float(x), 3) for x in k_rot[1, 0]]        # cos - sin in the first half, cos + sin in the second
[-0.301, 0.895, 0.99, 0.999, 1.382, 1.095, 1.01, 1.001]
>>> bool((k_pool[5] == k_rot[0]).all()), float(v_pool[5].sum()), int(v_pool.any(axis=(1, 2)).sum())
(True, 56.0, 1)
)";

constexpr const char* kCheckDoc =
    "check" ROPEPOOL_SIGNATURE
    R"(Every refusal that `rope_pool_fused` with these arguments would run into, as a list of ContractErrors in its order.

An empty list means that the call would go through. Reads slots and positions, writes nothing, makes no outputs. Arguments
and their shapes are those of `rope_pool_fused`; what is no array or no number is a TypeError here too. Safe from any thread.

Examples
--------
>>> import numpy as np
>>> import ropepool
>>> q, k, pool = np.zeros((2, 4, 8)), np.zeros((2, 1, 8), np.float32), np.zeros((16, 1, 8), np.float32)
>>> [error.code for error in ropepool.check(
...     q, k, k, np.array([0, 1]), np.array([5, 16]), pool, pool.copy(),
...     head_dim=8, num_qo_heads=4, num_kv_heads=1, rope_base=10000.0)]
['RP010', 'RP011', 'RP012', 'RP020']
)";

PyCFunction as_function(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef functions[] = {
    {"rope_pool_fused", as_function(call_rope_pool_fused), METH_FASTCALL | METH_KEYWORDS, kRopePoolFusedDoc},
    {"check", as_function(call_check), METH_FASTCALL | METH_KEYWORDS, kCheckDoc},
};

}  // namespace

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

void add_rope_pool_fused(nb::module_& module) {
  for (int place = 0; place < kNumArguments; ++place) interned_names[place] = PyUnicode_InternFromString(kNames[place]);
  for (PyMethodDef& function : functions) {
    // Named as of the package, where users find them.
    module.attr(function.ml_name) = nb::steal(PyCFunction_NewEx(&function, module.ptr(), nb::str("ropepool").ptr()));
  }
}

}  // namespace ropepool::python
