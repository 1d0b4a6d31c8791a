// ./dev bench: rope_pool_fused beside copies of the same traffic, interleaved in one run.
//
// Pool rows are cold: every variant walks the whole pool with slots of its own, so that none finds rows that another warmed.
// Shares are medians over rounds of (copy's time / op's time), so that noise that lasts longer than a round cancels out.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <ropepool/ropepool.h>

#include "floor.h"

namespace {

using ropepool::DType;
using ropepool::Tensor;

struct Shape {
  std::int64_t num_qo_heads = 32, num_kv_heads = 8, head_dim = 128;
};

struct AlignedFree {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
};
using Buffer = std::unique_ptr<std::byte[], AlignedFree>;

Buffer buffer(std::int64_t bytes) {
  auto* p = static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(bytes), std::align_val_t{4096}));
  std::memset(p, 0x3c, static_cast<std::size_t>(bytes));  // about 0.01 in every type, and every page is there
  return Buffer(p);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Variant {
  std::string name;
  std::function<void(const std::int32_t* slots)> run;
  std::vector<double> seconds;
  std::vector<std::int32_t> pool_walk;  // a permutation of all slots
  std::size_t next = 0;
};

void measure(const Shape& shape, DType dtype, std::int64_t num_tokens, std::int64_t num_slots, double budget_seconds) {
  const std::int64_t item = ropepool::item_size(dtype);
  const std::int64_t q_row = shape.num_qo_heads * shape.head_dim * item, kv_row = shape.num_kv_heads * shape.head_dim * item;
  const Buffer q = buffer(num_tokens * q_row), k = buffer(num_tokens * kv_row), v = buffer(num_tokens * kv_row),
               q_out = buffer(num_tokens * q_row), k_out = buffer(num_tokens * kv_row), k_pool = buffer(num_slots * kv_row),
               v_pool = buffer(num_slots * kv_row);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(num_tokens));
  std::iota(positions.begin(), positions.end(), 1000);

  ropepool::RopePoolFusedArgs args;
  args.q = Tensor::contiguous(q.get(), dtype, {num_tokens, shape.num_qo_heads, shape.head_dim});
  args.k = Tensor::contiguous(k.get(), dtype, {num_tokens, shape.num_kv_heads, shape.head_dim});
  args.v = Tensor::contiguous(v.get(), dtype, {num_tokens, shape.num_kv_heads, shape.head_dim});
  args.q_out = Tensor::contiguous(q_out.get(), dtype, {num_tokens, shape.num_qo_heads, shape.head_dim});
  args.k_out = Tensor::contiguous(k_out.get(), dtype, {num_tokens, shape.num_kv_heads, shape.head_dim});
  args.k_pool = Tensor::contiguous(k_pool.get(), dtype, {num_slots, shape.num_kv_heads, shape.head_dim});
  args.v_pool = Tensor::contiguous(v_pool.get(), dtype, {num_slots, shape.num_kv_heads, shape.head_dim});
  args.positions = Tensor::contiguous(positions.data(), DType::i64, {num_tokens});
  args.head_dim = shape.head_dim;
  args.num_qo_heads = shape.num_qo_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.rope_base = 500000.0;

  const auto copy = [&](void (*function)(const bench::Traffic&)) {
    return [&, function](const std::int32_t* slots) {
      function(
          {num_tokens, q_row, kv_row, q.get(), k.get(), v.get(), q_out.get(), k_out.get(), k_pool.get(), v_pool.get(), slots});
    };
  };
  std::vector<Variant> variants;
  variants.push_back({"op",
                      [&](const std::int32_t* slots) {
                        args.slots = Tensor::contiguous(slots, DType::i32, {num_tokens});
                        if (const auto result = ropepool::rope_pool_fused(args); !result) {
                          throw std::runtime_error(result.error().message());
                        }
                      },
                      {},
                      {},
                      0});
  variants.push_back({"regular", copy(bench::copy_regular), {}, {}, 0});
  variants.push_back({"mixed", copy(bench::copy_mixed), {}, {}, 0});
  variants.push_back({"streaming", copy(bench::copy_streaming), {}, {}, 0});

  std::mt19937 random(1);
  for (Variant& variant : variants) {
    variant.pool_walk.resize(static_cast<std::size_t>(num_slots));
    std::iota(variant.pool_walk.begin(), variant.pool_walk.end(), 0);
    std::shuffle(variant.pool_walk.begin(), variant.pool_walk.end(), random);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  for (int round = 0; round < 10000 && (round < 7 || elapsed(start) < budget_seconds); ++round) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      Variant& variant = variants[(i + static_cast<std::size_t>(round)) % variants.size()];  // the order rotates
      if (variant.next + static_cast<std::size_t>(num_tokens) > variant.pool_walk.size()) variant.next = 0;
      const std::int32_t* slots = variant.pool_walk.data() + variant.next;
      variant.next += static_cast<std::size_t>(num_tokens);
      const auto begin = std::chrono::steady_clock::now();
      variant.run(slots);
      if (round > 0) variant.seconds.push_back(elapsed(begin));
    }
  }
  const auto share = [&](auto floor) {
    std::vector<double> shares;
    for (std::size_t r = 0; r < variants[0].seconds.size(); ++r) shares.push_back(floor(r) / variants[0].seconds[r]);
    return median(shares);
  };
  const double against_regular = share([&](std::size_t r) { return variants[1].seconds[r]; });
  const double against_best = share([&](std::size_t r) {
    return std::min({variants[1].seconds[r], variants[2].seconds[r], variants[3].seconds[r]});
  });
  std::string line = fmt::format("{:8} {:>7}", ropepool::to_string(dtype), num_tokens);
  for (const Variant& variant : variants) {
    line += fmt::format(" {:>10.2f} {:>10.2f}", 1e6 * *std::min_element(variant.seconds.begin(), variant.seconds.end()),
                        1e6 * median(variant.seconds));
  }
  const double bytes = static_cast<double>(num_tokens * (2 * q_row + 5 * kv_row));
  fmt::print("{} {:>7.1f} {:>9.2f} {:>9.2f} {:>6}\n", line, bytes / median(variants[0].seconds) / 1e9, against_regular,
             against_best, variants[0].seconds.size());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"rope_pool_fused beside copies of the same traffic with cold pool rows"};
  Shape shape;
  std::vector<std::int64_t> tokens{1, 8, 64, 512, 4096};
  std::vector<std::string> dtypes{"bfloat16", "float16", "float32"};
  int threads = 1;
  double seconds = 2.0;
  std::int64_t num_slots = 65536;
  app.add_option("--tokens", tokens, "Tokens a call")->delimiter(',')->capture_default_str();
  app.add_option("--dtypes", dtypes, "float32, float16, bfloat16")->delimiter(',')->capture_default_str();
  app.add_option("--qo-heads", shape.num_qo_heads)->capture_default_str();
  app.add_option("--kv-heads", shape.num_kv_heads)->capture_default_str();
  app.add_option("--head-dim", shape.head_dim, "A multiple of 32")->capture_default_str();
  app.add_option("--slots", num_slots, "Slots of the pool")->capture_default_str();
  app.add_option("--threads", threads, "For the op; copies run on one")->capture_default_str();
  app.add_option("--seconds", seconds, "For each line")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (const auto set = ropepool::set_num_threads(threads); !set) throw std::runtime_error(set.error().message());
  if (const auto target = ropepool::simd_target(); !target) throw std::runtime_error(target.error().message());

  fmt::print("ropepool {}, {}, {} thread(s); {} query and {} key/value heads, head_dim {}, {} slots\n", ropepool::version(),
             ropepool::simd_target().value(), threads, shape.num_qo_heads, shape.num_kv_heads, shape.head_dim, num_slots);
  fmt::print("times in us, min and median; a copy moves the op's bytes; shares are copy / op: above 1 the op is faster\n\n");
  fmt::print("{:8} {:>7} {:>21} {:>21} {:>21} {:>21} {:>7} {:>9} {:>9} {:>6}\n", "dtype", "tokens", "op",
             "copy, regular stores", "copy, mixed", "copy, streaming", "GB/s", "regular", "best", "rounds");
  for (const std::string& name : dtypes) {
    const DType dtype = name == "float32" ? DType::f32 : name == "float16" ? DType::f16 : DType::bf16;
    for (std::int64_t num_tokens : tokens) measure(shape, dtype, num_tokens, std::max(num_slots, num_tokens), seconds);
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
