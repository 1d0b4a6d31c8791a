// The kernels by themselves, with all they touch in the caches, by Google Benchmark: where a change to one shows before the
// machine's memory hides it. `./dev bench --kernels` runs it with the flags of Google Benchmark that follow.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <ropepool/ropepool.h>

namespace {

using namespace ropepool;

constexpr std::int64_t kTokens = 8, kQueryHeads = 32, kKeyHeads = 8, kHeadDim = 128, kWidth = kQueryHeads + 2 * kKeyHeads;

// The arrays of a call of 32 and 8 heads of 128, zeros, each at a cache line: what is in them costs nothing.
class Arrays {
 public:
  explicit Arrays(DType dtype) : dtype_(dtype) {
    for (std::int64_t t = 0; t < kTokens; ++t) positions_[t] = 1000 + t, slots_[t] = t;
  }
  ~Arrays() {
    for (void* each : memory_) std::free(each);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  Tensor heads(std::int64_t count) { return make(dtype_, {kTokens, count, kHeadDim}); }
  Tensor make(DType dtype, const Shape& shape) {
    std::size_t bytes = static_cast<std::size_t>(item_size(dtype));
    for (const std::int64_t length : shape) bytes *= static_cast<std::size_t>(length);
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(data, 0, bytes);
    memory_.push_back(data);
    return Tensor::contiguous(data, dtype, shape);
  }
  Tensor positions() { return Tensor::contiguous(positions_, DType::i64, {kTokens}); }
  Tensor slots() { return Tensor::contiguous(slots_, DType::i64, {kTokens}); }

  RopePoolFusedArgs call() {
    return {.q = heads(kQueryHeads),
            .k = heads(kKeyHeads),
            .v = heads(kKeyHeads),
            .positions = positions(),
            .slots = slots(),
            .k_pool = heads(kKeyHeads),
            .v_pool = heads(kKeyHeads),
            .q_out = heads(kQueryHeads),
            .k_out = heads(kKeyHeads),
            .head_dim = kHeadDim,
            .num_qo_heads = kQueryHeads,
            .num_kv_heads = kKeyHeads};
  }

 private:
  DType dtype_;
  std::int64_t positions_[kTokens], slots_[kTokens];
  std::vector<void*> memory_;
};

// Time of a call over its tokens.
void run(benchmark::State& state, const std::function<Result<void>()>& call) {
  for (auto _ : state) {
    if (const auto done = call(); !done.ok()) return state.SkipWithError(done.error().message().c_str());
  }
  state.counters["per_token"] =
      benchmark::Counter(kTokens, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void add(const std::string& name, std::function<void(benchmark::State&)> body) {
  benchmark::RegisterBenchmark(name.c_str(), std::move(body));
}

void add_form(const std::string& name, DType dtype, const RopeForm& form, Angles angles = Angles::exact) {
  add(name, [=](benchmark::State& state) {
    Arrays arrays(dtype);
    const auto rope = Rope::make(form);
    RopePoolFusedArgs args = arrays.call();
    args.rope = &rope.value();
    args.angles = angles;
    run(state, [&] { return rope_pool_fused(args); });
  });
}

void add_head_ops(const std::string& name, DType dtype, const std::function<HeadOps(Arrays&)>& make) {
  add(name, [=](benchmark::State& state) {
    Arrays arrays(dtype);
    const HeadOps ops = make(arrays);
    RopePoolFusedArgs args = arrays.call();
    args.rope_base = 10000.0;
    args.head_ops = &ops;
    run(state, [&] { return rope_pool_fused(args); });
  });
}

void add_all(DType dtype) {
  const std::string type = "/" + to_string(dtype);
  const RopeForm plain{.base = 10000.0, .rotary_dim = kHeadDim};
  RopeForm interleaved = plain, half = plain;
  interleaved.pairing = Pairing::interleaved;
  half.rotary_dim = kHeadDim / 2;
  add_form("plain" + type, dtype, plain);
  add_form("float32_angles" + type, dtype, plain, Angles::float32);
  add_form("interleaved" + type, dtype, interleaved);
  add_form("half_of_the_head" + type, dtype, half);

  const auto norm = [](Arrays& arrays, const Shape& shape) {
    return HeadNorm{.weight = arrays.make(DType::f32, shape), .eps = 1e-6};
  };
  add_head_ops("scale" + type, dtype, [](Arrays&) { return HeadOps{.q_scale = 0.125}; });
  add_head_ops("norm" + type, dtype,
               [=](Arrays& arrays) { return HeadOps{.q_norm = norm(arrays, {kHeadDim}), .k_norm = norm(arrays, {kHeadDim})}; });
  add_head_ops("norm_over_all_heads" + type, dtype, [=](Arrays& arrays) {
    return HeadOps{.q_norm = norm(arrays, {kQueryHeads * kHeadDim}), .k_norm = norm(arrays, {kKeyHeads * kHeadDim})};
  });
  add_head_ops("biases" + type, dtype, [](Arrays& arrays) {
    return HeadOps{.q_bias = arrays.make(DType::f32, {kQueryHeads, kHeadDim}),
                   .k_bias = arrays.make(DType::f32, {kKeyHeads, kHeadDim}),
                   .v_bias = arrays.make(DType::f32, {kKeyHeads, kHeadDim})};
  });

  for (const auto& [name, order] : {std::pair{"packed", QkvOrder::blocks}, {"packed_by_groups", QkvOrder::groups}}) {
    add(name + type, [=, order = order](benchmark::State& state) {
      Arrays arrays(dtype);
      const RopePoolFusedArgs parts = arrays.call();
      const RopePoolFusedQkvArgs args{.qkv = arrays.make(dtype, {kTokens, kWidth * kHeadDim}),
                                      .positions = parts.positions,
                                      .slots = parts.slots,
                                      .k_pool = parts.k_pool,
                                      .v_pool = parts.v_pool,
                                      .q_out = parts.q_out,
                                      .k_out = parts.k_out,
                                      .head_dim = kHeadDim,
                                      .num_qo_heads = kQueryHeads,
                                      .num_kv_heads = kKeyHeads,
                                      .rope_base = 10000.0,
                                      .order = order};
      run(state, [&] { return rope_pool_fused_qkv(args); });
    });
  }
  add("rope_alone" + type, [=](benchmark::State& state) {
    Arrays arrays(dtype);
    const RopePoolFusedArgs parts = arrays.call();
    const RopeArgs args{.q = parts.q,
                        .k = parts.k,
                        .positions = parts.positions,
                        .q_out = parts.q_out,
                        .k_out = parts.k_out,
                        .head_dim = kHeadDim,
                        .num_qo_heads = kQueryHeads,
                        .num_kv_heads = kKeyHeads,
                        .rope_base = 10000.0};
    run(state, [&] { return rope(args); });
  });
  add("write_kv" + type, [=](benchmark::State& state) {
    Arrays arrays(dtype);
    const RopePoolFusedArgs parts = arrays.call();
    const WriteKvArgs args{.k = parts.k,
                           .v = parts.v,
                           .slots = parts.slots,
                           .k_pool = parts.k_pool,
                           .v_pool = parts.v_pool,
                           .head_dim = kHeadDim,
                           .num_kv_heads = kKeyHeads};
    run(state, [&] { return write_kv(args); });
  });
  add("rerotate" + type, [=](benchmark::State& state) {
    Arrays arrays(dtype);
    const RopePoolFusedArgs parts = arrays.call();
    const RerotateArgs args{.k_pool = parts.k_pool,
                            .slots = parts.slots,
                            .old_positions = parts.positions,
                            .new_positions = parts.slots,
                            .head_dim = kHeadDim,
                            .num_kv_heads = kKeyHeads,
                            .rope_base = 10000.0};
    run(state, [&] { return rerotate(args); });
  });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto target = simd_target();
  benchmark::AddCustomContext("SIMD target", target.ok() ? target.value() : target.error().message());
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) add_all(dtype);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
