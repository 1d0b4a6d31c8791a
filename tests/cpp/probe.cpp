// What a fresh process makes of its environment; run by environment_test.cpp. Links the shared library, as a user would.
//   ropepool_probe environment   what the first calls give
//   ropepool_probe results       hashes of what the op computes
#include <cstdio>
#include <cstring>
#include <string>

#include <ropepool/c_api.h>
#include <ropepool/ropepool.h>

#include "op_case.h"

namespace ropepool::test {
namespace {

void print(const char* what, const Result<void>& result) {
  std::printf("%s: %d %s\n", what, result.ok() ? 0 : result.error().number(),
              result.ok() ? "" : result.error().message().c_str());
}

DLTensor to_dlpack(Tensor& tensor) {
  const std::uint8_t bits = static_cast<std::uint8_t>(8 * item_size(tensor.dtype));
  DLTensor result{};
  result.data = tensor.data;
  result.device = {kDLCPU, 0};
  result.ndim = tensor.rank();
  result.dtype = {static_cast<std::uint8_t>(tensor.dtype == DType::f32 ? kDLFloat : kDLInt), bits, 1};
  result.shape = &tensor.shape[0];
  result.strides = &tensor.strides[0];
  return result;
}

int report_environment() {
  OpCase c(Geometry{});
  RopePoolFusedArgs& a = c.args;
  const auto before = c.memory.copy();
  print("op", rope_pool_fused(a));
  DLTensor q = to_dlpack(a.q), k = to_dlpack(a.k), v = to_dlpack(a.v), positions = to_dlpack(a.positions),
           slots = to_dlpack(a.slots), k_pool = to_dlpack(a.k_pool), v_pool = to_dlpack(a.v_pool), q_out = to_dlpack(a.q_out),
           k_out = to_dlpack(a.k_out);
  const int number = ropepool_rope_pool_fused(&q, &k, &v, &positions, &slots, &k_pool, &v_pool, &q_out, &k_out, a.head_dim,
                                              a.num_qo_heads, a.num_kv_heads, a.rope_base);
  std::printf("c: %d %s\n", number, ropepool_last_error_message());
  std::printf("written: %d\n", c.memory.equals(before) ? 0 : 1);
  print("check_environment", check_environment());
  const auto target = simd_target();
  std::printf("target: %s\n", target.ok() ? target.value().c_str() : ("error " + target.error().message()).c_str());
  std::printf("threads: %d\n", get_num_threads());
  return 0;
}

// Every bit of memory after calls of many kinds. All SIMD targets with fused multiply-add must agree on them.
int report_results() {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Angles angles : {Angles::exact, Angles::float32}) {
      std::uint64_t hash = 14695981039346656037u;
      for (const std::int64_t head_dim :
           {2, 4, 6, 8, 10, 14, 16, 24, 30, 32, 48, 62, 64, 80, 96, 112, 126, 128, 192, 254, 256, 2050, 4098}) {
        OpCase c({dtype, 9, 3, 2, head_dim, 12}, static_cast<std::uint64_t>(head_dim));
        c.args.angles = angles;
        c.args.rope_base = head_dim % 4 == 0 ? 10000.0 : 500000.0;
        set_indices(c.args.positions, {0, 1, -1, 4000, 131071, 1000000, 2147483647, -2147483647, 77});
        Random random(static_cast<std::uint64_t>(head_dim));
        // Values of every size, from denormals to what overflows.
        for_each_element(c.args.q, [&](auto t, auto h, auto i) {
          const auto bits = static_cast<std::uint32_t>(random());
          const FloatFormat format = format_of(dtype);
          const std::uint32_t pattern = dtype == DType::f32 ? bits : bits & 0xFFFF;
          set_bits(c.args.q, t, h, i, (pattern & ~format.sign()) >= format.infinity() ? 0 : pattern);
        });
        if (!c.run().ok()) return 1;
        // With a norm, whose sums must be added in one order on all targets.
        fill(c.args.q, random);
        HeadOps ops;
        ops.q_norm = HeadNorm{head_dim % 4 == 0 ? HeadNorm::Kind::rms : HeadNorm::Kind::layer, {}, 1e-6};
        c.args.head_ops = &ops;
        c.args.q_out = c.memory.make(dtype, c.args.q.shape);
        if (!c.run().ok()) return 1;
        for (const auto& block : c.memory.blocks()) {
          for (const std::byte byte : block) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
        }
      }
      std::printf("%s %s %016llx\n", to_string(dtype).c_str(), angles == Angles::exact ? "exact" : "float32",
                  static_cast<unsigned long long>(hash));
    }
  }
  return 0;
}

}  // namespace
}  // namespace ropepool::test

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "environment") == 0) return ropepool::test::report_environment();
  if (argc == 2 && std::strcmp(argv[1], "results") == 0) return ropepool::test::report_results();
  return 2;
}
