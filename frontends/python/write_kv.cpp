#include <ropepool/write_kv.h>

#include "arguments.h"
#include "rope_pool_fused.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

enum Argument {
  kK,
  kV,
  kSlots,
  kKPool,
  kVPool,
  kNumPositional,
  kHeadDim = kNumPositional,
  kNumKvHeads,
  kNumRequired,
  kVHeadDim = kNumRequired,
  kNumArguments
};
Signature<kNumArguments> signature = {"write_kv",
                                      kNumPositional,
                                      kNumRequired,
                                      {"k", "v", "slots", "k_pool", "v_pool", "head_dim", "num_kv_heads", "v_head_dim"}};

constexpr const char* kDoc =
    "write_kv(k, v, slots, k_pool, v_pool, *, head_dim, num_kv_heads, v_head_dim=None)\n--\n\n"
    R"(Store k and v as they are in the pool rows that slots name: for layers without a rope (Llama 4, SmolLM3).

Arguments are those of `rope_pool_fused`; head_dim may be odd, since nothing turns. A negative slot writes nothing, and of
tokens with one slot the last wins, for K and V alike.

Returns
-------
(k_pool, v_pool)
    The very objects that were passed in.

Raises
------
ContractError
    What `rope_pool_fused` refuses of the arguments there are. Nothing was written.
TypeError, MemoryError, BufferError, RuntimeError
    As `rope_pool_fused` does.

Safe from several threads at once that write different rows.

Examples
--------
>>> import numpy as np
>>> import ropepool
>>> k, v = np.full((1, 1, 4), 2, np.float32), np.full((1, 1, 4), 3, np.float32)
>>> k_pool, v_pool = np.zeros((2, 8, 1, 4), np.float32)
>>> _ = ropepool.write_kv(k, v, np.array([5]), k_pool, v_pool, head_dim=4, num_kv_heads=1)
>>> float(k_pool[5, 0, 0]), float(v_pool[5, 0, 0]), float(k_pool.sum())
(2.0, 3.0, 8.0)
)";

PyObject* call(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Arguments given(signature, values, num_positional, keywords);
    ArrayReader reader;
    const auto read = [&](Argument place) { return reader.read(given[place], given.name(place)); };
    WriteKvArgs args{.k = read(kK),
                     .v = read(kV),
                     .slots = read(kSlots),
                     .k_pool = read(kKPool),
                     .v_pool = read(kVPool),
                     .head_dim = to_int64(given[kHeadDim], "head_dim"),
                     .num_kv_heads = to_int64(given[kNumKvHeads], "num_kv_heads")};
    if (PyObject* v_head_dim = given.optional(kVHeadDim)) args.v_head_dim = to_int64(v_head_dim, "v_head_dim");
    const Result<void> done = [&] {
      const WithoutGil without_gil;
      return ropepool::write_kv(args);
    }();
    if (!done) raise(done.error());
    return nb::steal(PyTuple_Pack(2, given[kKPool], given[kVPool]));
  });
}

PyMethodDef method = {"write_kv", as_function(call), kFastCall, kDoc};

}  // namespace

void add_write_kv(nb::module_& module) {
  signature.intern();
  add_function(module, method);
}

}  // namespace ropepool::python
