// rope_pool_fused_qkv: the packed projection's own rules, then the contract of rope_pool_fused for its parts, then its kernel.
#include <ropepool/rope_pool_fused_qkv.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include <fmt/format.h>

#include "core/dtype.h"
#include "core/environment.h"
#include "ops/other_ops.h"

namespace ropepool {
namespace {

using contract::must;
using Args = RopePoolFusedQkvArgs;

// Whether head counts and head_dim make sense, each by itself: if not, rope_pool_fused has a refusal for it.
bool sensible(const Args& a) { return a.head_dim >= 1 && a.num_qo_heads >= 1 && a.num_kv_heads >= 1; }

// Lanes of a token, or nothing where 64 bits don't hold them.
std::optional<std::int64_t> width_of(const Args& a) {
  std::int64_t heads = 0, lanes = 0;
  if (__builtin_mul_overflow(a.num_kv_heads, 2, &heads) || __builtin_add_overflow(heads, a.num_qo_heads, &heads) ||
      __builtin_mul_overflow(heads, a.head_dim, &lanes)) {
    return {};
  }
  return lanes;
}

std::optional<Error> qkv_rank(const Args& a) {
  if (a.qkv.rank() == 2) return {};
  std::string hint;
  if (a.qkv.rank() == 1) hint = "keep the token axis: qkv[None]";
  if (a.qkv.rank() > 2) hint = "qkv = qkv.reshape(num_tokens, -1), which is a view where the last axes have no gaps";
  return Error(Refusal::qkv_not_2d,
               {"rope_pool_fused_qkv expects qkv to be 2-D", "qkv", "2 axes", to_string(a.qkv.shape),
                a.qkv.rank() == 3 ? "it has a batch axis, or its heads are split already" : "", std::move(hint)});
}

std::string cause_of_width(const Args& a) {
  const std::int64_t lanes = a.qkv.shape[1], q = a.num_qo_heads, kv = a.num_kv_heads, d = a.head_dim;
  if (std::max({q, kv, d}) > 1 << 20) return "";  // no length that a user meant, and products of them might not fit
  if (lanes == 3 * q * d) return fmt::format("it has {0} heads each for Q, K and V: num_kv_heads is {0}, not {1}", q, kv);
  if (lanes == (q + kv) * d) return "it has Q and one of K and V only";
  if (lanes == 2 * kv * d) return "it is the K and V of a projection without Q";
  if (lanes == q * d) return "it is Q alone";
  if (lanes == (kv + 2 * q) * d) return "num_qo_heads and num_kv_heads are exchanged";
  if (lanes % (q + 2 * kv) == 0) return fmt::format("its heads may have {} lanes, not {}", lanes / (q + 2 * kv), d);
  return "";
}

std::optional<Error> qkv_width(const Args& a) {
  const auto lanes = width_of(a);
  if (!sensible(a) || a.qkv.shape[1] == lanes) return {};
  const std::string expected = lanes ? std::to_string(*lanes) : "more than 2^63", actual = std::to_string(a.qkv.shape[1]);
  return Error(Refusal::qkv_width_mismatch, {fmt::format("qkv must have {} lanes per token, got {}", expected, actual), "qkv",
                                             expected, actual, cause_of_width(a), ""});
}

std::optional<Error> qkv_order(const Args& a) {
  const auto refused = [](const char* argument, const char* expected, std::string actual) {
    return Error(Refusal::qkv_order_unsuitable, must(argument, "be", expected, std::move(actual)));
  };
  if (a.order != QkvOrder::blocks && a.order != QkvOrder::groups) {
    return refused("order", "'blocks' or 'groups'", std::to_string(static_cast<int>(a.order)));
  }
  if (a.order == QkvOrder::groups && a.num_kv_heads > 0 && a.num_qo_heads % a.num_kv_heads != 0) {
    return refused("num_qo_heads", "a multiple of num_kv_heads", fmt::format("{} and {}", a.num_qo_heads, a.num_kv_heads));
  }
  for (const auto& [name, out] : {std::pair{"q_out", &a.q_out}, std::pair{"k_out", &a.k_out}}) {
    if (!a.in_place || !out->given()) continue;
    Error::Finding finding = must(name, "be", "left out with in_place", to_string(out->shape));
    finding.hint = "leave q_out and k_out out, or in_place";
    return Error(Refusal::qkv_order_unsuitable, std::move(finding));
  }
  return {};
}

// Heads within qkv, `gap` lanes from one to the next.
Tensor heads_of(const Args& a, std::int64_t first_lane, std::int64_t num_heads, std::int64_t step) {
  Tensor heads = a.qkv;
  const auto bytes = static_cast<std::uint64_t>(first_lane) * static_cast<std::uint64_t>(item_size_of(a.qkv.dtype));
  heads.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(a.qkv.data) + bytes);
  heads.shape = {a.qkv.shape[0], num_heads, a.head_dim};
  heads.strides = {a.qkv.strides[0], step, 1};
  return heads;
}

// Where the parts of a token stand: of q the first group.
struct Split {
  std::int64_t q, k, v, kv_step;
};
Split split_of(const Args& a) {
  const std::int64_t d = a.head_dim;
  if (a.order == QkvOrder::blocks) return {0, a.num_qo_heads * d, (a.num_qo_heads + a.num_kv_heads) * d, d};
  const std::int64_t group = a.num_qo_heads / a.num_kv_heads;
  return {0, group * d, (group + 1) * d, (group + 2) * d};
}

// `bias` as heads_of has qkv; its groups of q as an axis of their own.
Tensor bias_of(const Args& a, std::int64_t first_lane, const Shape& shape, const Strides& strides) {
  Tensor bias = a.bias;
  bias.data = static_cast<std::byte*>(a.bias.data) + first_lane * item_size_of(a.bias.dtype);
  bias.shape = shape;
  bias.strides = strides;
  return bias;
}

RopePoolFusedArgs parts_of(const Args& a, const HeadOps& head_ops) {
  const Split at = split_of(a);
  RopePoolFusedArgs args{.q = heads_of(a, at.q, a.num_qo_heads, a.head_dim),
                         .k = heads_of(a, at.k, a.num_kv_heads, at.kv_step),
                         .v = heads_of(a, at.v, a.num_kv_heads, at.kv_step),
                         .positions = a.positions,
                         .slots = a.slots,
                         .k_pool = a.k_pool,
                         .v_pool = a.v_pool,
                         .q_out = a.q_out,
                         .k_out = a.k_out,
                         .head_dim = a.head_dim,
                         .num_qo_heads = a.num_qo_heads,
                         .num_kv_heads = a.num_kv_heads,
                         .rope_base = a.rope_base,
                         .angles = a.angles,
                         .rope = a.rope,
                         .rope_sets = a.rope_sets,
                         .head_ops = &head_ops};
  if (a.in_place) args.q_out = args.q, args.k_out = args.k;
  return args;
}

}  // namespace

constexpr contract::Op::Word kWords[] = {{"rope_pool_fused", "rope_pool_fused_qkv"}, {"q/k/v", "qkv"}, {"q", "qkv"}};

namespace contract {

std::optional<Error> first_refusal(const RopePoolFusedQkvArgs& a, Outputs outputs) {
  for (const auto rule : {qkv_rank, qkv_width, qkv_order}) {
    if (auto refusal = rule(a)) return refusal;
  }
  const HeadOps ops{.q_norm = a.q_norm, .k_norm = a.k_norm, .q_scale = a.q_scale};
  // With geometry that makes no sense there are no parts, and the refusal that says so needs none.
  Args split = a;
  if (!sensible(a)) split.head_dim = split.num_qo_heads = split.num_kv_heads = 1;
  RopePoolFusedArgs args = parts_of(split, ops);
  args.head_dim = a.head_dim, args.num_qo_heads = a.num_qo_heads, args.num_kv_heads = a.num_kv_heads;
  if (!sensible(a)) {
    args.q.shape = {a.qkv.shape[0], a.num_qo_heads, a.head_dim};
    args.k.shape = args.v.shape = {a.qkv.shape[0], a.num_kv_heads, a.head_dim};
  }
  const Op op{
      .stand_ins = bit(k) | bit(v) | (a.in_place ? bit(k_out) : 0), .words = kWords, .packed = &a.qkv, .in_place = a.in_place};
  if (auto refusal = first_refusal(args, outputs, op)) {
    if (refusal->refusal() != Refusal::overlap) return refusal;
    const std::string& written = refusal->argument();  // the diagnosis knows arrays one by one only
    Error::Finding finding{refusal->summary(), written, refusal->expected(), refusal->actual(), "", ""};
    if (written.ends_with("_out")) {
      finding.hint = "say in_place=True, without q_out and k_out, to turn heads within qkv; else give outputs of their own";
    } else if (written == "qkv") {
      finding.hint = "keep what is turned in place apart from the pools and from all else that is read";
    } else {
      return refusal;
    }
    return Error(Refusal::overlap, std::move(finding));
  }
  auto finding = float_array("bias", a.bias, a.qkv.dtype, {Shape{a.qkv.shape[1]}});
  if (!finding) return {};
  finding->hint = "hand over the projection's own bias, whole and in the order of qkv";
  return Error(Refusal::head_ops_unsuitable, *std::move(finding));
}

}  // namespace contract

static Result<void> run(const RopePoolFusedQkvArgs& a, Executor* executor) {
  const std::int64_t d = a.head_dim, num_kv = a.num_kv_heads, item = item_size_of(a.qkv.dtype);
  const Split at = split_of(a);
  HeadOps ops{.q_norm = a.q_norm, .k_norm = a.k_norm, .q_scale = a.q_scale};
  if (a.bias.given()) {
    const bool blocks = a.order == QkvOrder::blocks;
    ops.q_bias = blocks ? bias_of(a, at.q, {a.num_qo_heads, d}, {d, 1})
                        : bias_of(a, at.q, {num_kv, a.num_qo_heads / num_kv * d}, {at.kv_step, 1});
    ops.k_bias = bias_of(a, at.k, {num_kv, d}, {at.kv_step, 1});
    ops.v_bias = bias_of(a, at.v, {num_kv, d}, {at.kv_step, 1});
  }
  RopePoolFusedArgs args = parts_of(a, ops);
  if (!a.bias.given() && !a.q_norm && !a.k_norm && a.q_scale == 1.0) args.head_ops = nullptr;
  const std::int64_t gap = a.order == QkvOrder::groups ? 2 * d * item : 0;
  return run_packed(args, gap, a.in_place ? gap : 0, executor);
}

Result<void> rope_pool_fused_qkv(const RopePoolFusedQkvArgs& args, Executor* executor) try {
  if (const Error* error = environment_error()) return *error;
  if (auto refusal = contract::first_refusal(args, contract::Outputs::required)) return std::move(*refusal);
  return run(args, executor);
} catch (const std::bad_alloc&) {
  return Error::out_of_memory();
}

}  // namespace ropepool
