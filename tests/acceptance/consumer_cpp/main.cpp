// A program that knows the installed headers only.
#include <cmath>
#include <cstdio>
#include <vector>

#include <ropepool/ropepool.h>

using ropepool::DType;
using ropepool::Tensor;

int main() {
  std::vector<float> q{1, 2, 3, 4}, k = q, v{5, 6, 7, 8}, k_pool(8, 99.0f), v_pool(8, 99.0f);
  std::vector<std::int64_t> positions{1}, slots{1};
  ropepool::RopePoolFusedArgs args;
  args.q = args.q_out = Tensor::contiguous(q.data(), DType::f32, {1, 1, 4});
  args.k = args.k_out = Tensor::contiguous(k.data(), DType::f32, {1, 1, 4});
  args.v = Tensor::contiguous(v.data(), DType::f32, {1, 1, 4});
  args.positions = Tensor::contiguous(positions.data(), DType::i64, {1});
  args.slots = Tensor::contiguous(slots.data(), DType::i64, {1});
  args.k_pool = Tensor::contiguous(k_pool.data(), DType::f32, {2, 1, 4});
  args.v_pool = Tensor::contiguous(v_pool.data(), DType::f32, {2, 1, 4});
  args.head_dim = 4;
  args.num_qo_heads = args.num_kv_heads = 1;
  args.rope_base = 10000.0;
  if (auto done = ropepool::rope_pool_fused(args); !done) {
    std::printf("refused: %s\n", done.error().message().c_str());
    return 1;
  }
  const float rotated[] = {-1.984111f, 1.959901f, 2.462378f, 4.019800f};
  for (int i = 0; i < 4; ++i) {
    if (std::abs(q[i] - rotated[i]) > 1e-6f || q[i] != k[i] || k_pool[4 + i] != k[i] || v_pool[4 + i] != v[i] ||
        k_pool[i] != 99 || v_pool[i] != 99) {
      std::printf("lane %d is wrong: %f\n", i, q[i]);
      return 1;
    }
  }

  args.v.shape[1] = 3;
  const auto refused = ropepool::rope_pool_fused(args);
  if (refused.ok() || refused.error().code() != "RP006" || refused.error().number() != 6 || ropepool::check(args).empty())
    return 1;
  if (ropepool::catalog_entry(ropepool::Refusal::v_shape_mismatch).code != "RP006") return 1;
  std::printf("ropepool %s on %s\n%s\n", ropepool::version(), ropepool::simd_target().value().c_str(),
              refused.error().message().c_str());
}
