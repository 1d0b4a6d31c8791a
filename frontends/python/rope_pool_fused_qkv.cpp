#include <ropepool/rope_pool_fused_qkv.h>

#include "arguments.h"
#include "head_ops.h"
#include "ops/other_ops.h"
#include "rope_pool_fused.h"
#include "without_gil.h"

namespace ropepool::python {
namespace {

enum Argument {
  kQkv,
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
  kOrder,
  kBias,
  kQNorm,
  kKNorm,
  kQScale,
  kInPlace,
  kQOut,
  kKOut,
  kNumArguments
};
Signature<kNumArguments> signature = {
    "rope_pool_fused_qkv", kNumPositional, kNumRequired, {"qkv",       "positions",    "slots",        "k_pool",    "v_pool",
                                                          "head_dim",  "num_qo_heads", "num_kv_heads", "rope_base", "rope",
                                                          "rope_sets", "angles",       "order",        "bias",      "q_norm",
                                                          "k_norm",    "q_scale",      "in_place",     "q_out",     "k_out"}};

nb::handle outputs;  // the module ropepool._outputs, for good

constexpr const char* kDoc =
    "rope_pool_fused_qkv(qkv, positions, slots, k_pool, v_pool, *, head_dim, num_qo_heads, num_kv_heads, rope_base=None, "
    "rope=None, rope_sets=None, angles='exact', order='blocks', bias=None, q_norm=None, k_norm=None, q_scale=1.0, "
    "in_place=False, q_out=None, k_out=None)\n--\n\n"
    R"(`rope_pool_fused` on the output of a packed QKV projection, which it splits itself.

    qkv    [num_tokens, (num_qo_heads + 2 * num_kv_heads) * head_dim]   any row stride
    bias   [(num_qo_heads + 2 * num_kv_heads) * head_dim]               of the projection, in the order of qkv

order says how heads follow each other in qkv: "blocks", the default, all of Q, then all of K, then all of V (Llama, Qwen,
Phi-3, and Falcon 7B with its one key/value head); "groups", for each key/value head its query heads, then its K, then its V
(InternLM2, Falcon 40B, and with one query head a group GPT-NeoX and BLOOM).

With in_place=True q and k are turned where they stand, and q_rot and k_rot are views of qkv: [num_tokens, heads, head_dim],
q_rot by groups [num_tokens, num_kv_heads, num_qo_heads // num_kv_heads, head_dim]. V stays as it is; the pool gets it with
its bias. Without it qkv is only read. All other arguments mean what they mean to `rope_pool_fused`; its q_bias,
k_bias, v_bias and v_head_dim have no place here.

Returns
-------
(q_rot, k_rot, k_pool, v_pool)
    q_out and k_out, new arrays, or views of qkv; then the pools: the very objects that were passed in.

Raises
------
ContractError
    RP031 to RP033, and what `rope_pool_fused` refuses, with qkv in the place of q, k and v. Nothing was written.
TypeError, MemoryError, BufferError, RuntimeError
    As `rope_pool_fused` does.

Safe from several threads at once that write different arrays.

Examples
--------
>>> import numpy as np
>>> import ropepool
>>> qkv = np.ones((1, (2 + 2 * 1) * 4), np.float32)    # 2 query heads and 1 key/value head of 4 lanes
>>> k_pool, v_pool = np.zeros((2, 8, 1, 4), np.float32)
>>> q_rot, k_rot, _, _ = ropepool.rope_pool_fused_qkv(
...     qkv, np.array([1]), np.array([5]), k_pool, v_pool, head_dim=4, num_qo_heads=2, num_kv_heads=1, rope_base=10000.0)
>>> q_rot.shape, [round(float(x), 3) for x in k_pool[5, 0]]
((1, 2, 4), [-0.301, 0.99, 1.382, 1.01])
)";

QkvOrder to_order(nb::handle value) {
  if (!value) return QkvOrder::blocks;
  if (!PyUnicode_Check(value.ptr())) raise_type_error("order must be a string, not %U", nb::inst_name(value).ptr());
  if (PyUnicode_CompareWithASCIIString(value.ptr(), "blocks") == 0) return QkvOrder::blocks;
  if (PyUnicode_CompareWithASCIIString(value.ptr(), "groups") == 0) return QkvOrder::groups;
  return static_cast<QkvOrder>(-1);  // the core refuses it
}

// Has a refusal of `order` say the caller's word.
Error with_order(const Error& error, nb::handle order) {
  if (error.refusal() != Refusal::qkv_order_unsuitable || error.argument() != "order") return error;
  return Error(*error.refusal(), contract::must("order", "be", error.expected(), nb::repr(order).c_str()));
}

PyObject* call(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keywords) {
  return guarded([&]() -> nb::object {
    const Arguments given(signature, values, num_positional, keywords);
    ArrayReader reader;
    const auto read = [&](PyObject* array, Argument place) { return array ? reader.read(array, given.name(place)) : Tensor(); };
    RopePoolFusedQkvArgs args{.qkv = read(given[kQkv], kQkv),
                              .positions = read(given[kPositions], kPositions),
                              .slots = read(given[kSlots], kSlots),
                              .k_pool = read(given[kKPool], kKPool),
                              .v_pool = read(given[kVPool], kVPool),
                              .q_out = read(given.optional(kQOut), kQOut),
                              .k_out = read(given.optional(kKOut), kKOut),
                              .head_dim = to_int64(given[kHeadDim], "head_dim"),
                              .num_qo_heads = to_int64(given[kNumQoHeads], "num_qo_heads"),
                              .num_kv_heads = to_int64(given[kNumKvHeads], "num_kv_heads"),
                              .rope_base = to_rope_base(given.optional(kRopeBase)),
                              .angles = to_angles(given[kAngles]),
                              .rope = to_rope(given.optional(kRope)),
                              .rope_sets = read(given.optional(kRopeSets), kRopeSets),
                              .order = to_order(given[kOrder]),
                              .in_place = to_bool(given[kInPlace], "in_place"),
                              .bias = read(given.optional(kBias), kBias),
                              .q_norm = to_norm(given.optional(kQNorm), "q_norm", reader),
                              .k_norm = to_norm(given.optional(kKNorm), "k_norm", reader),
                              .q_scale = given[kQScale] ? to_double(given[kQScale], "q_scale") : 1.0};
    const auto raise_in_words = [&](const Error& error) {
      raise(with_order(with_angles(error, given[kAngles]), given[kOrder]));
    };
    nb::object q_out = nb::borrow(given.optional(kQOut)), k_out = nb::borrow(given.optional(kKOut));
    if (args.in_place || !q_out || !k_out) {  // what is missing is made only for a call that goes through
      if (auto refusal = contract::first_refusal(args, contract::Outputs::made_later)) raise_in_words(*refusal);
    }
    const nb::handle qkv = given[kQkv];
    if (args.in_place) {
      const nb::object views = outputs.attr("views_of_qkv")(qkv, args.num_qo_heads, args.num_kv_heads, args.head_dim,
                                                            args.order == QkvOrder::groups);
      q_out = views[0];
      k_out = views[1];
      // A library whose slices are copies would hand back what was not turned.
      for (const nb::object& view : {q_out, k_out}) {
        const auto past =
            reinterpret_cast<std::uintptr_t>(reader.read(view, "qkv").data) - reinterpret_cast<std::uintptr_t>(args.qkv.data);
        const auto bytes = static_cast<std::uint64_t>(args.qkv.shape[1] * item_size(args.qkv.dtype));
        if (past >= bytes && !args.qkv.empty()) {
          raise_type_error("in_place returns views of qkv, and slices of a %U are copies", nb::inst_name(qkv).ptr());
        }
      }
    } else if (!q_out || !k_out) {
      const nb::object made =
          outputs.attr("outputs_of_qkv")(qkv, args.qkv.shape[0], nb::make_tuple(args.num_qo_heads, args.num_kv_heads),
                                         args.head_dim, to_string(args.qkv.dtype).c_str());
      if (!q_out) args.q_out = reader.read(q_out = made[0], "q_out");
      if (!k_out) args.k_out = reader.read(k_out = made[1], "k_out");
    }
    const Result<void> done = [&] {
      const WithoutGil without_gil;
      return ropepool::rope_pool_fused_qkv(args);
    }();
    if (!done) raise_in_words(done.error());
    return nb::steal(PyTuple_Pack(4, q_out.ptr(), k_out.ptr(), given[kKPool], given[kVPool]));
  });
}

PyMethodDef method = {"rope_pool_fused_qkv", as_function(call), kFastCall, kDoc};

}  // namespace

void add_rope_pool_fused_qkv(nb::module_& module) {
  signature.intern();
  outputs = nb::module_::import_("ropepool._outputs").release();
  add_function(module, method);
}

}  // namespace ropepool::python
