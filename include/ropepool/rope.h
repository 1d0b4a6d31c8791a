// How positions become rotations.
#pragma once

namespace ropepool {

// How the angle of a pair is computed from a position and the pair's frequency rope_base^(-2i/head_dim).
enum class Angles {
  // position * frequency as in real arithmetic, then cos and sin; off by at most 2e-7 at any position (for rope_base >= 2^-32).
  exact,
  // As Hugging Face transformers does, but for its float32 power, which may be 2 ulp off this one: inverse frequency times
  // position, in float32. Differs from the true angle by 5e-4 at position 4,000, 6e-2 at 1,000,000 (head_dim 128, base 1e4).
  float32,
};

}  // namespace ropepool
