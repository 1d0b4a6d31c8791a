#include "calls.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include <ropepool/c_api.h>
#include <ropepool/ropepool.h>

#include "measure.h"

namespace bench {
namespace {

using ropepool::DType;
using ropepool::Tensor;

struct OneToken {
  explicit OneToken(Shape shape) : data({shape, DType::f32, 1, 16, Order::random, 0}) {
    data.args.slots = Tensor::contiguous(&slot, DType::i32, {1});
  }

  void call() {
    if (auto done = ropepool::rope_pool_fused(data.args); !done) throw std::runtime_error(done.error().message());
  }

  Case data;
  std::int32_t slot = 3;
};

// The same arguments as DLPack tensors.
struct OneTokenC {
  explicit OneTokenC(Shape shape) : token(shape) {
    const ropepool::RopePoolFusedArgs& args = token.data.args;
    const Tensor* const from[] = {&args.q,      &args.k,      &args.v,     &args.positions, &args.slots,
                                  &args.k_pool, &args.v_pool, &args.q_out, &args.k_out};
    for (int i = 0; i < 9; ++i) {
      const Tensor& t = *from[i];
      std::copy(t.shape.begin(), t.shape.end(), shapes[i]);
      const DLDataType f32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1}, i64 = {kDLInt, 64, 1};
      const DLDataType dtype = t.dtype == DType::f32 ? f32 : t.dtype == DType::i32 ? i32 : i64;
      tensors[i] = {t.data, {kDLCPU, 0}, t.rank(), dtype, shapes[i], nullptr, 0};
    }
  }

  void call() {
    const auto& args = token.data.args;
    const DLTensor* t = tensors;
    if (ropepool_rope_pool_fused(t, t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7, t + 8, args.head_dim, args.num_qo_heads,
                                 args.num_kv_heads, args.rope_base) != ROPEPOOL_OK) {
      throw std::runtime_error(ropepool_last_error_message());
    }
  }

  OneToken token;
  std::int64_t shapes[9][3];
  DLTensor tensors[9];
};

constexpr Shape kOneHead{1, 1, 64}, kLlama{32, 8, 128};

void one_head(long count) {
  OneToken token(kOneHead);
  for (long i = 0; i < count; ++i) token.call();
}

void one_head_c(long count) {
  OneTokenC token(kOneHead);
  for (long i = 0; i < count; ++i) token.call();
}

void llama(long count) {
  OneToken token(kLlama);
  for (long i = 0; i < count; ++i) token.call();
}

// Biases of q, k and v, and norms of q and k.
void head_ops(long count) {
  OneToken token(kLlama);
  const std::vector<float> ones(static_cast<std::size_t>(kLlama.num_qo_heads * kLlama.head_dim), 1.0f);
  const auto of_heads = [&](std::int64_t heads) {
    return Tensor::contiguous(ones.data(), DType::f32, {heads, kLlama.head_dim});
  };
  const ropepool::HeadNorm norm{.weight = Tensor::contiguous(ones.data(), DType::f32, {kLlama.head_dim}), .eps = 1e-6};
  const ropepool::HeadOps ops{.q_bias = of_heads(kLlama.num_qo_heads),
                              .k_bias = of_heads(kLlama.num_kv_heads),
                              .v_bias = of_heads(kLlama.num_kv_heads),
                              .q_norm = norm,
                              .k_norm = norm};
  token.data.args.head_ops = &ops;
  for (long i = 0; i < count; ++i) token.call();
}

// As a caller meets it who looks at the text.
void refused(long count) {
  OneToken token(kLlama);
  token.slot = 99;
  for (long i = 0; i < count; ++i) {
    const auto done = ropepool::rope_pool_fused(token.data.args);
    if (done || done.error().message().empty()) throw std::runtime_error("slot 99 of 16 was not refused");
  }
}

constexpr std::pair<const char*, void (*)(long)> kScenarios[] = {
    {"one-head", one_head}, {"one-head-c", one_head_c}, {"llama-3-8b", llama}, {"head-ops", head_ops}, {"refused", refused}};

}  // namespace

std::vector<CallTime> time_calls(double seconds) {
  OneToken token(kOneHead);
  OneTokenC token_c(kOneHead);
  constexpr int kCalls = 1000;
  const auto timed = [](auto& caller) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) caller.call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls;
  };
  std::vector<double> cpp, c;
  double spent = 0;
  timed(token), timed(token_c);
  while (spent < seconds || cpp.size() < 7) {
    cpp.push_back(timed(token));
    c.push_back(timed(token_c));
    spent += kCalls * (cpp.back() + c.back());
  }
  std::vector<CallTime> times;
  for (auto& [name, values] : {std::pair{"C++", &cpp}, std::pair{"C", &c}}) {
    std::sort(values->begin(), values->end());
    times.push_back({name, values->front(), (*values)[values->size() / 2]});
  }
  return times;
}

void run_scenario(const std::string& name, long count) {
  for (const auto& [known, run] : kScenarios) {
    if (name == known) return run(count);
  }
  throw std::invalid_argument("there is no scenario '" + name + "', only " + scenario_names());
}

std::string scenario_names() {
  std::string names;
  for (const auto& scenario : kScenarios) names += (names.empty() ? "" : ", ") + std::string(scenario.first);
  return names;
}

}  // namespace bench
