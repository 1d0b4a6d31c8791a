#include <ropepool/rope_alone.h>

#include "arguments.h"
#include "ops/other_ops.h"
#include "rope_pool_fused.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

enum Argument {
  kQ,
  kK,
  kPositions,
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
Signature<kNumArguments> signature = {"rope",
                                      kNumPositional,
                                      kNumRequired,
                                      {"q", "k", "positions", "head_dim", "num_qo_heads", "num_kv_heads", "rope_base", "rope",
                                       "rope_sets", "angles", "q_out", "k_out"}};

constexpr const char* kDoc =
    "rope(q, k, positions, *, head_dim, num_qo_heads, num_kv_heads, rope_base=None, rope=None, rope_sets=None, "
    "angles='exact', q_out=None, k_out=None)\n--\n\n"
    R"(Rotate q and k by their positions, without a pool: for encoders, and for engines with a cache of their own.

Arguments mean what they mean to `rope_pool_fused`, and q_rot and k_rot have the bits that it gives without biases, norms and
scale, for which there is no place here.

Returns
-------
(q_rot, k_rot)
    q_out and k_out, or new arrays.

Raises
------
ContractError
    What `rope_pool_fused` refuses of the arguments there are. Nothing was written.
TypeError, MemoryError, BufferError, RuntimeError
    As `rope_pool_fused` does.

Safe from several threads at once that write different arrays.

Examples
--------
>>> import numpy as np
>>> import ropepool
>>> q, k = np.ones((1, 2, 4), np.float32), np.ones((1, 1, 4), np.float32)
>>> q_rot, k_rot = ropepool.rope(q, k, np.array([1]), head_dim=4, num_qo_heads=2, num_kv_heads=1, rope_base=10000.0)
>>> [round(float(x), 3) for x in k_rot[0, 0]]
[-0.301, 0.99, 1.382, 1.01]
)";

PyObject* call(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Arguments given(signature, values, num_positional, keywords);
    ArrayReader reader;
    const auto read = [&](PyObject* array, Argument place) { return array ? reader.read(array, given.name(place)) : Tensor(); };
    RopeArgs args{.q = read(given[kQ], kQ),
                  .k = read(given[kK], kK),
                  .positions = read(given[kPositions], kPositions),
                  .q_out = read(given.optional(kQOut), kQOut),
                  .k_out = read(given.optional(kKOut), kKOut),
                  .head_dim = to_int64(given[kHeadDim], "head_dim"),
                  .num_qo_heads = to_int64(given[kNumQoHeads], "num_qo_heads"),
                  .num_kv_heads = to_int64(given[kNumKvHeads], "num_kv_heads"),
                  .rope_base = to_rope_base(given.optional(kRopeBase)),
                  .angles = to_angles(given[kAngles]),
                  .rope = to_rope(given.optional(kRope)),
                  .rope_sets = read(given.optional(kRopeSets), kRopeSets)};
    nb::object q_out = nb::borrow(given.optional(kQOut)), k_out = nb::borrow(given.optional(kKOut));
    if (!q_out || !k_out) {  // what is missing is made only for a call that goes through
      if (auto refusal = contract::first_refusal(args, contract::Outputs::made_later)) {
        raise(with_angles(*refusal, given[kAngles]));
      }
    }
    if (!q_out) args.q_out = reader.read(q_out = make_output(given[kQ], args.q), "q_out");
    if (!k_out) args.k_out = reader.read(k_out = make_output(given[kK], args.k), "k_out");
    const Result<void> done = [&] {
      const WithoutGil without_gil;
      return ropepool::rope(args);
    }();
    if (!done) raise(with_angles(done.error(), given[kAngles]));
    return nb::steal(PyTuple_Pack(2, q_out.ptr(), k_out.ptr()));
  });
}

PyMethodDef method = {"rope", as_function(call), kFastCall, kDoc};

}  // namespace

void add_rope_alone(nb::module_& module) {
  signature.intern();
  add_function(module, method);
}

}  // namespace ropepool::python
