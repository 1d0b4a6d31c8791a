// Rope: how positions become rotations, as a model's config says it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include <ropepool/export.h>
#include <ropepool/result.h>
#include <ropepool/tensor.h>

namespace ropepool {

// How the angle of a pair is computed from a position and the pair's frequency.
enum class Angles {
  // position * frequency as in real arithmetic, then cos and sin; off by at most 2e-7 at any position (for a base >= 2^-32).
  exact,
  // As Hugging Face transformers does, but for its float32 power, which may be 2 ulp off this one: inverse frequency times
  // position, in float32. Differs from the true angle by 5e-4 at position 4,000, 6e-2 at 1,000,000 (head_dim 128, base 1e4).
  float32,
};

// Which lanes of the rotated part make a pair.
enum class Pairing {
  neox,         // i and i + rotary_dim / 2: GPT-NeoX, Llama in Hugging Face's layout, nearly all others
  interleaved,  // 2i and 2i + 1: GPT-J, Cohere, GLM, DeepSeek, Meta's own Llama checkpoints
};

// ---- Scaling: what a model does to its frequencies base^(-2i / rotary_dim) to reach farther than it was trained.

// Frequencies over `factor` (position interpolation, arXiv:2306.15595). Config: rope_type linear.
struct LinearScaling {
  double factor;
};

// The base grows with the length of the sequence once that is above `original_length`: base * (factor * length /
// original_length - (factor - 1))^(d / (d - 2)), d = rotary_dim. Config: rope_type dynamic, original_length =
// max_position_embeddings. A sequence must keep one length, since its keys are in the pool already: see Rope::join.
struct DynamicNtkScaling {
  double factor;
  std::int64_t original_length;
  std::int64_t length;
};

// The base times alpha^(d / (d - 2)), whatever the length. Config: rope_type dynamic with alpha (HunYuan).
struct NtkAlphaScaling {
  double alpha;
};

// Slow pairs are interpolated, fast ones are not, a ramp lies between (arXiv:2309.00071). Config: rope_type yarn.
struct YarnScaling {
  double factor;
  std::int64_t original_length;  // original_max_position_embeddings
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;  // whether the ramp's ends go to whole pairs; gpt-oss has false
  // What cos and sin are multiplied by. Where it is not given: 0.1 * ln(factor) + 1, or, with both of these (DeepSeek),
  // the quotient (0.1 * mscale * ln(factor) + 1) / (0.1 * mscale_all_dim * ln(factor) + 1).
  std::optional<double> attention_factor = {};
  std::optional<double> mscale = {}, mscale_all_dim = {};
};

// Wavelengths above original_length / low_freq_factor are scaled by `factor`, those below original_length / high_freq_factor
// are not, a ramp lies between, or a step where the two factors are equal (Llama 4). Config: rope_type llama3.
struct Llama3Scaling {
  double factor, low_freq_factor, high_freq_factor;
  std::int64_t original_length;
};

// Frequencies over a factor of each pair's own; one set for sequences up to original_length tokens, one for longer ones
// (arXiv:2402.13753). Config: rope_type longrope (Phi-3, Phi-4). The Rope has two sets: 0 short, 1 long.
struct LongRopeScaling {
  std::vector<double> short_factor, long_factor;  // [rotary_dim / 2]
  std::int64_t original_length;
  double factor;                                // max_position_embeddings / original_length where the config has none
  std::optional<double> attention_factor = {};  // not given: sqrt(1 + ln(factor) / ln(original_length)), 1 for factor <= 1
  std::optional<std::int64_t> length = {};      // given: the one set that sequences of this length need
};

// Only the first `proportion` of the pairs turn, with the frequencies of the whole head, over `factor`; the others stand
// still. Config: rope_type proportional (Gemma 4).
struct ProportionalScaling {
  double proportion;
  double factor = 1.0;
};

// M-RoPE: pairs that follow different axes of a position (arXiv:2409.12191).
struct Sections {
  enum class Order {
    blocks,       // the first pairs follow axis 0, the next axis 1 ...: Qwen2-VL, mrope_section
    interleaved,  // pairs follow axes 0, 1, 2, 0, 1, 2 ..., and axis 0 where an axis has no more: Qwen3-VL
  };
  std::vector<std::int64_t> pairs;  // one an axis, as many as there are pairs in all; 3 or 4 axes
  Order order = Order::blocks;
};

// What a Rope is made of.
struct RopeForm {
  double base = std::numeric_limits<double>::quiet_NaN();  // rope_theta
  std::int64_t rotary_dim = 0;                             // lanes that are rotated: head_dim, or fewer
  std::int64_t rotary_offset = 0;                          // the first of them; DeepSeek's stand last
  Pairing pairing = Pairing::neox;
  std::variant<std::monostate, LinearScaling, DynamicNtkScaling, NtkAlphaScaling, YarnScaling, Llama3Scaling, LongRopeScaling,
               ProportionalScaling>
      scaling = {};
  std::optional<Sections> sections = {};
  double attention_scale = 1.0;  // cos and sin times this, beside what the scaling has
};

struct RopeTables;

// A resolved rope: frequencies, and which lanes they turn. Copies share what they hold, which never changes.
class ROPEPOOL_API Rope {
 public:
  // Refuses a form that makes no sense (RP022).
  static Result<Rope> make(const RopeForm& form);
  // Frequencies of the caller's own, in radians a position: [rotary_dim / 2]. `form` has neither base nor scaling.
  static Result<Rope> from_frequencies(const std::vector<double>& frequencies, const RopeForm& form);
  // cos and sin of the caller's own: [positions, rotary_dim], the cos of all pairs, then their sin; float32, float16 or
  // bfloat16, on the CPU, with an innermost stride of 1. It is read at each call and must outlive the Rope. Positions outside
  // it are refused (RP026). `form` has neither base nor scaling nor attention_scale.
  static Result<Rope> from_table(const Tensor& cos_sin, const RopeForm& form);
  // Several ropes that differ in nothing but frequencies and attention scale as one with a set for each of theirs, so that
  // tokens of one call may use different ones: say which by RopePoolFusedArgs::rope_sets.
  static Result<Rope> join(const std::vector<Rope>& ropes);

  std::int64_t rotary_dim() const;
  std::int64_t rotary_offset() const;
  Pairing pairing() const;
  std::int64_t num_sets() const;
  std::int64_t num_axes() const;  // of a position: 1 but for M-RoPE
  // Of one set, in radians a position; empty where a table says it.
  std::vector<double> frequencies(std::int64_t set = 0) const;
  double attention_scale(std::int64_t set = 0) const;

  const RopeTables& tables() const { return *tables_; }  // for kernels

 private:
  explicit Rope(std::shared_ptr<const RopeTables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const RopeTables> tables_;
};

}  // namespace ropepool
