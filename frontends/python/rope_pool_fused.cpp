#include "rope_pool_fused.h"

#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "arguments.h"
#include "arrays.h"
#include "errors.h"
#include "head_ops.h"
#include "ops/rope_pool_fused.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

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
  kVHeadDim,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kQScale,
  kQOut,
  kKOut,
  kNumArguments
};

#define ROPEPOOL_SIGNATURE                                                                                           \
  "(q, k, v, positions, slots, k_pool, v_pool, *, head_dim, num_qo_heads, num_kv_heads, rope_base=None, rope=None, " \
  "rope_sets=None, angles='exact', v_head_dim=None, q_bias=None, k_bias=None, v_bias=None, q_norm=None, "            \
  "k_norm=None, q_scale=1.0, q_out=None, k_out=None)\n--\n\n"

// As `function` has it.
constexpr Signature<kNumArguments> signature_of(const char* function) {
  return {function, kNumPositional, kNumRequired, {"q",         "k",      "v",         "positions",    "slots",
                                                   "k_pool",    "v_pool", "head_dim",  "num_qo_heads", "num_kv_heads",
                                                   "rope_base", "rope",   "rope_sets", "angles",       "v_head_dim",
                                                   "q_bias",    "k_bias", "v_bias",    "q_norm",       "k_norm",
                                                   "q_scale",   "q_out",  "k_out"}};
}
Signature<kNumArguments> signature = signature_of("rope_pool_fused"), check_signature = signature_of("check");
using Given = Arguments<kNumArguments>;

RopePoolFusedArgs to_core(const Given& given, ArrayReader& reader, HeadOps& head_ops) {
  auto read = [&](Argument place) { return given[place] ? reader.read(given[place], given.name(place)) : Tensor(); };
  auto read_optional = [&](Argument place) { return given.optional(place) ? read(place) : Tensor(); };
  auto integer = [&](Argument place) { return to_int64(given[place], given.name(place)); };
  RopePoolFusedArgs args{
      // In one expression, so that each is made where it stays: to copy them would cost a tenth of a small call.
      .q = read(kQ),
      .k = read(kK),
      .v = read(kV),
      .positions = read(kPositions),
      .slots = read(kSlots),
      .k_pool = read(kKPool),
      .v_pool = read(kVPool),
      .q_out = read_optional(kQOut),
      .k_out = read_optional(kKOut),
      .head_dim = integer(kHeadDim),
      .num_qo_heads = integer(kNumQoHeads),
      .num_kv_heads = integer(kNumKvHeads),
      .rope_base = to_rope_base(given.optional(kRopeBase)),
      .angles = to_angles(given[kAngles]),
      .rope = to_rope(given.optional(kRope)),
      .rope_sets = read_optional(kRopeSets),
  };
  if (given.optional(kVHeadDim)) args.v_head_dim = integer(kVHeadDim);
  bool any = given[kQScale] != nullptr;
  for (const Argument place : {kQBias, kKBias, kVBias, kQNorm, kKNorm}) any = any || given.optional(place);
  if (any) {
    head_ops = {.q_bias = read_optional(kQBias),
                .k_bias = read_optional(kKBias),
                .v_bias = read_optional(kVBias),
                .q_norm = to_norm(given.optional(kQNorm), "q_norm", reader),
                .k_norm = to_norm(given.optional(kKNorm), "k_norm", reader),
                .q_scale = given[kQScale] ? to_double(given[kQScale], "q_scale") : 1.0};
    args.head_ops = &head_ops;
  }
  return args;
}

PyObject* call_rope_pool_fused(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Given given(signature, values, num_positional, keywords);
    ArrayReader reader;
    HeadOps head_ops;
    RopePoolFusedArgs args = to_core(given, reader, head_ops);
    nb::object q_out = nb::borrow(given.optional(kQOut)), k_out = nb::borrow(given.optional(kKOut));
    const bool made_by_numpy = !q_out && !k_out && is_numpy(given[kQ]) && is_numpy(given[kK]);
    if (!q_out || !k_out) {
      // What is missing is made only for a call that goes through.
      if (auto refusal = contract::first_refusal(args, contract::Outputs::made_later)) {
        raise(with_angles(*refusal, given[kAngles]));
      }
      if (!q_out) {
        q_out = make_output(given[kQ], args.q);
        args.q_out = reader.read(q_out, "q_out");
      }
      if (!k_out) {
        k_out = make_output(given[kK], args.k);
        args.k_out = reader.read(k_out, "k_out");
      }
    }
    Result<void> done = [&] {
      const WithoutGil without_gil;
      // NumPy's new arrays need no contract: those that were given can be unsuitable, and what another library makes.
      return made_by_numpy ? ropepool::run(args, nullptr) : ropepool::rope_pool_fused(args);
    }();
    if (!done) raise(with_angles(done.error(), given[kAngles]));
    return nb::steal(PyTuple_Pack(4, q_out.ptr(), k_out.ptr(), given[kKPool], given[kVPool]));
  });
}

PyObject* call_check(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Given given(check_signature, values, num_positional, keywords);
    ArrayReader reader;
    HeadOps head_ops;
    const RopePoolFusedArgs args = to_core(given, reader, head_ops);
    const std::vector<Error> refusals = [&] {
      const WithoutGil without_gil;
      return contract::all_refusals(args, contract::Outputs::made_later);
    }();
    nb::list found;
    for (const Error& refusal : refusals) {
      if (refusal.kind() != Error::Kind::refusal) raise(refusal);
      found.append(to_contract_error(with_angles(refusal, given[kAngles])));
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
v_head_dim : int
    Lanes of v and v_pool, where they are not those of q and k.
q_bias, k_bias, v_bias : [num_heads, head_dim] or [num_heads * head_dim], float32 or the data's dtype
    What the projection left to add (Qwen 2), before all else.
q_norm, k_norm : RMSNorm or LayerNorm
    Normalize heads before they turn (Qwen 3, Gemma 3, OLMo 2, Cohere). Nothing is rounded between norm and rotation.
q_scale : float
    What turned queries are multiplied by.
q_out, k_out : arrays of the shape and dtype of q and k
    q_out=q and k_out=k rotate in place. Apart from these two, what is written must share no memory with any other array.

Returns
-------
(q_rot, k_rot, k_pool, v_pool)
    q_out and k_out or the new arrays, then the pools: the very objects that were passed in.

Raises
------
ContractError
    RP001 to RP021, RP023 to RP026 and RP034, a ValueError. Nothing was written. `ropepool.check` lists all that apply,
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

PyMethodDef functions[] = {
    {"rope_pool_fused", as_function(call_rope_pool_fused), kFastCall, kRopePoolFusedDoc},
    {"check", as_function(call_check), kFastCall, kCheckDoc},
};

}  // namespace

void add_rope_pool_fused(nb::module_& module) {
  signature.intern();
  check_signature.intern();
  for (PyMethodDef& function : functions) add_function(module, function);
}

}  // namespace ropepool::python
