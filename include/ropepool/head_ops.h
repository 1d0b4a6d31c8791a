// HeadOps: what happens to heads on their way from the projection to the rotation, in the same pass over memory.
#pragma once

#include <limits>
#include <optional>

#include <ropepool/tensor.h>

namespace ropepool {

// Heads normalized before they turn (QK-norm). The shape of `weight` says over what:
//   [head_dim]               each head by itself, all with the same weight (Qwen3, Gemma 3)
//   [num_heads, head_dim]    each head by itself, with a weight of its own (Cohere)
//   [num_heads * head_dim]   all heads of a token at once (OLMo 2)
//   not given                each head by itself, with a weight of 1
// float32 or the data's dtype. Sums and quotients are float32 or better, and nothing is rounded to the data's dtype between
// norm and rotation, where Hugging Face transformers rounds.
struct HeadNorm {
  enum class Kind {
    rms,    // x / sqrt(mean(x^2) + eps) * weight (arXiv:1910.07467)
    layer,  // (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight (arXiv:1607.06450, without bias)
  };
  Kind kind = Kind::rms;
  Tensor weight = {};
  double eps = std::numeric_limits<double>::quiet_NaN();  // a model's rms_norm_eps or layer_norm_eps; NaN: not given
  bool unit_offset = false;                               // 1 + weight (Gemma)
};

// In this order: bias, norm, rotation, scale. A bias is [num_heads, head_dim] or [num_heads * head_dim], that of v with
// v_head_dim, float32 or the data's dtype. v with a bias is rounded once; without one its bits are copied. Lanes that do not
// turn have all of these too. The arrays are read whole before anything is written.
struct HeadOps {
  Tensor q_bias = {}, k_bias = {}, v_bias = {};  // Qwen 2's
  std::optional<HeadNorm> q_norm = {}, k_norm = {};
  double q_scale = 1.0;
};

}  // namespace ropepool
