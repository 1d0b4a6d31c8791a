// Causes of refusals of biases, norms and scales.
#include <fmt/format.h>

#include "ops/rope_pool_fused.h"
#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool::diagnosis {
namespace {

using fmt::format;

struct Given {
  const Tensor& tensor;
  std::int64_t num_heads, head_dim;
};

Given given_as(const Args& a, std::string_view name) {
  const HeadOps& ops = *a.head_ops;
  static const Tensor kNone;
  const auto weight = [](const std::optional<HeadNorm>& norm) -> const Tensor& { return norm ? norm->weight : kNone; };
  if (name == "q_bias") return {ops.q_bias, a.num_qo_heads, a.head_dim};
  if (name == "k_bias") return {ops.k_bias, a.num_kv_heads, a.head_dim};
  if (name == "v_bias") return {ops.v_bias, a.num_kv_heads, a.v_head_dim.value_or(a.head_dim)};
  if (name == "q_norm") return {weight(ops.q_norm), a.num_qo_heads, a.head_dim};
  return {weight(ops.k_norm), a.num_kv_heads, a.head_dim};
}

Diagnosis shape(const Args& a, std::string_view name, const Given& given) {
  const bool is_bias = name.ends_with("bias");
  const std::int64_t d = given.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads, n = elements(given.tensor.shape);
  const auto& s = given.tensor.shape;
  if (is_bias && n == packed_heads(a) * a.head_dim) {
    return {format("{} has {} lanes: it is the bias of the whole packed projection", name, n),
            "q_bias, k_bias, v_bias = np.split(bias, [q_size, q_size + kv_size])"};
  }
  if (hq != hk && n == (given.num_heads == hq ? hk : hq) * d) {
    return {format("{} has the {} heads of {}: the two were exchanged, or this rank has other heads than the whole model", name,
                   n / d, given.num_heads == hq ? "k" : "q"),
            ""};
  }
  if (n == given.num_heads * d || (!is_bias && n == d)) {
    const bool transposed = s.rank() == 2 && s[0] == d && s[1] == given.num_heads;
    return {format("{} has the right number of lanes in the wrong shape", name),
            transposed ? "transpose it to [num_heads, head_dim]"
                       : format("{}.reshape(-1)", is_bias ? std::string(name) : std::string("weight"))};
  }
  if (is_bias && n == d) return {format("{} has the lanes of one head, and heads have biases of their own", name), ""};
  if (const std::int64_t ranks = times(n, given.num_heads * d); ranks > 1) {
    return {format("{} has {} times the lanes of this call's heads: it is the whole model's, and this is one rank of {} under "
                   "tensor parallelism",
                   name, ranks, ranks),
            "take the part of it that belongs to this rank's heads"};
  }
  if (!is_bias && s.rank() == 1) {
    return {format("{} has {} lanes, heads have {}: it may be the norm of the whole layer, or of another model", name, n, d),
            "pass the weight of the model's own q_norm or k_norm"};
  }
  return {};
}

}  // namespace

Diagnosis head_ops(const Args& a, const Finding& finding) {
  const std::string& name = finding.argument;
  if (name == "eps") {
    const auto& q_norm = a.head_ops->q_norm;
    const auto eps = format("eps of {}", q_norm && !contract::is_eps(q_norm->eps) ? "q_norm" : "k_norm");
    return {finding.actual == "nan" ? eps + " was not given, or is NaN" : "it is the " + eps,
            "take eps from the model's config: rms_norm_eps or layer_norm_eps"};
  }
  if (name == "q_scale") return {"", "pass the scale of the scores, such as head_dim ** -0.5, or leave q_scale out"};
  const Given given = given_as(a, name);
  if (finding.actual == to_string(given.tensor.shape)) return shape(a, name, given);
  if (finding.actual == to_string(given.tensor.dtype)) {
    return {format("{} is {}, and q is {}", name, finding.actual, to_string(a.q.dtype)),
            name.ends_with("bias") ? format("{0} = {0}.astype(numpy.float32)", name) : "weight = weight.astype(numpy.float32)"};
  }
  return {"", name.ends_with("bias") ? format("{0} = numpy.ascontiguousarray({0})", name)
                                     : "weight = numpy.ascontiguousarray(weight)"};
}

}  // namespace ropepool::diagnosis
