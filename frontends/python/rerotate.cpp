#include <ropepool/rerotate.h>

#include "arguments.h"
#include "rope_pool_fused.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

enum Argument {
  kKPool,
  kSlots,
  kOldPositions,
  kNewPositions,
  kNumPositional,
  kHeadDim = kNumPositional,
  kNumKvHeads,
  kNumRequired,
  kRopeBase = kNumRequired,
  kRope,
  kOldSets,
  kNewSets,
  kAngles,
  kNumArguments
};
Signature<kNumArguments> signature = {"rerotate",
                                      kNumPositional,
                                      kNumRequired,
                                      {"k_pool", "slots", "old_positions", "new_positions", "head_dim", "num_kv_heads",
                                       "rope_base", "rope", "old_sets", "new_sets", "angles"}};

constexpr const char* kDoc =
    "rerotate(k_pool, slots, old_positions, new_positions, *, head_dim, num_kv_heads, rope_base=None, rope=None, "
    "old_sets=None, new_sets=None, angles='exact')\n--\n\n"
    R"(Turn keys that are in the pool on from old to new positions, in place: when a context shifts or a prefix moves.

    k_pool                         [num_slots, num_kv_heads, head_dim]   the rows that slots name are turned, no other
    slots                          [num_tokens]                          a negative slot is skipped
    old_positions, new_positions   [num_tokens]                          [axes, num_tokens] with M-RoPE
    old_sets, new_sets             [num_tokens]                          where the rope has several sets, both

Each row turns by the difference of two angles, which is exact, and is rounded once more to its dtype. The rope's attention
scale is in the row already and is not put in twice. A slot that stands twice is turned once, by its last token. old_sets and
new_sets say which set a row was turned by and shall be: from 0 to 1 when a sequence outgrows LongRoPE's short set.

Returns
-------
k_pool
    The very object that was passed in.

Raises
------
ContractError
    RP035 where the rope is a table, and what `rope_pool_fused` refuses of the arguments there are. Nothing was written.
TypeError, MemoryError, BufferError, RuntimeError
    As `rope_pool_fused` does.

Safe from several threads at once that turn different rows.

Examples
--------
>>> import numpy as np
>>> import ropepool
>>> heads = dict(head_dim=4, num_kv_heads=1, rope_base=10000.0)
>>> k, v = np.ones((1, 1, 4), np.float32), np.zeros((1, 1, 4), np.float32)
>>> k_pool, v_pool = np.zeros((2, 8, 1, 4), np.float32)
>>> _ = ropepool.rope_pool_fused(k, k, v, np.array([9]), np.array([5]), k_pool, v_pool, num_qo_heads=1, **heads)
>>> _ = ropepool.rerotate(k_pool, np.array([5]), np.array([9]), np.array([1]), **heads)
>>> [round(float(x), 3) for x in k_pool[5, 0]]       # as a key at position 1
[-0.301, 0.99, 1.382, 1.01]
)";

PyObject* call(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Arguments given(signature, values, num_positional, keywords);
    ArrayReader reader;
    const auto read = [&](PyObject* array, Argument place) { return array ? reader.read(array, given.name(place)) : Tensor(); };
    const RerotateArgs args{.k_pool = read(given[kKPool], kKPool),
                            .slots = read(given[kSlots], kSlots),
                            .old_positions = read(given[kOldPositions], kOldPositions),
                            .new_positions = read(given[kNewPositions], kNewPositions),
                            .head_dim = to_int64(given[kHeadDim], "head_dim"),
                            .num_kv_heads = to_int64(given[kNumKvHeads], "num_kv_heads"),
                            .rope_base = to_rope_base(given.optional(kRopeBase)),
                            .angles = to_angles(given[kAngles]),
                            .rope = to_rope(given.optional(kRope)),
                            .old_sets = read(given.optional(kOldSets), kOldSets),
                            .new_sets = read(given.optional(kNewSets), kNewSets)};
    const Result<void> done = [&] {
      const WithoutGil without_gil;
      return ropepool::rerotate(args);
    }();
    if (!done) raise(with_angles(done.error(), given[kAngles]));
    return nb::borrow(given[kKPool]);
  });
}

PyMethodDef method = {"rerotate", as_function(call), kFastCall, kDoc};

}  // namespace

void add_rerotate(nb::module_& module) {
  signature.intern();
  add_function(module, method);
}

}  // namespace ropepool::python
