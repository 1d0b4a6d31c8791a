// ropepool bench: the op beside copies of the same traffic, on this machine, in some seconds.
#include "commands.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ropepool/ropepool.h>

#include "bench/measure.h"
#include "terminal.h"

namespace ropepool::cli {
namespace {

constexpr std::pair<const char*, DType> kDTypes[] = {
    {"bfloat16", DType::bf16}, {"float16", DType::f16}, {"float32", DType::f32}};

// The number, which must be from 1 to `most`: with these, no product overflows.
std::int64_t bounded(const char* name, std::int64_t value, std::int64_t most) {
  if (value >= 1 && value <= most) return value;
  throw Failure(Exit::usage, fmt::format("{} must be from 1 to {}, got {}", name, most, value));
}

std::vector<std::int64_t> token_counts(const std::string& list) {
  std::vector<std::int64_t> counts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string part = list.substr(begin, end - begin);
    const auto count = number_from<std::int64_t>(part);
    if (!count) throw Failure(Exit::usage, fmt::format("--tokens must be integers with commas between, got '{}'", list));
    counts.push_back(bounded("--tokens", *count, std::int64_t{1} << 24));
    begin = end + 1;
  }
  return counts;
}

Json row_json(std::int64_t num_tokens, const bench::Line& line) {
  const auto times = [](const bench::Line::Variant& variant) {
    return Json{{"min", variant.min()}, {"median", variant.median()}};
  };
  return {{"num_tokens", num_tokens},
          {"num_slots", line.num_slots},
          {"bytes", line.bytes},
          {"rounds", line.op().seconds.size()},
          {"seconds", {{"op", times(line.op())}, {"floor", times(line.floor())}, {"memcpy", times(line.memcpy())}}},
          {"floor_stores", line.floor().name},
          {"share_of_floor", line.share_of(line.floor()).median},
          {"share_of_memcpy", line.share_of(line.memcpy()).median}};
}

}  // namespace

Exit bench(const BenchOptions& options) {
  bench::Setting setting;
  bench::Shape& shape = setting.shape;
  shape.num_qo_heads = bounded("--num-qo-heads", options.num_qo_heads.value_or(shape.num_qo_heads), 4096);
  shape.num_kv_heads = bounded("--num-kv-heads", options.num_kv_heads.value_or(shape.num_kv_heads), 4096);
  shape.head_dim = bounded("--head-dim", options.head_dim.value_or(shape.head_dim), 65536);
  setting.num_slots = bounded("--num-slots", options.num_slots.value_or(setting.num_slots), (std::int64_t{1} << 31) - 1);
  const auto* const dtype = std::ranges::find(kDTypes, options.dtype, &std::pair<const char*, DType>::first);
  setting.dtype = dtype->second;
  setting.seconds = options.seconds.value_or(0.5);
  if (!(setting.seconds >= 0 && setting.seconds <= 3600)) throw Failure(Exit::usage, "--seconds must be from 0 to 3600");
  const std::vector<std::int64_t> tokens = token_counts(options.tokens);
  if (options.threads) {
    if (auto set = set_num_threads(*options.threads); !set) throw Failure(Exit::usage, set.error().message());
  }
  const auto target = simd_target();
  if (!target) {
    complain(target.error().message());
    return Exit::machine;
  }

  std::string text = fmt::format("ropepool {}, SIMD target {}, {} threads at most, {}\n", version(), target.value(),
                                 get_num_threads(), cpu_model());
  text += fmt::format("{} query and {} key/value heads of {}, {}; pools of {} slots, taken in random order\n",
                      shape.num_qo_heads, shape.num_kv_heads, shape.head_dim, options.dtype, setting.num_slots);
  text += "times are medians in us; shares: 1.00 where the op is as fast as the copy, more where it is faster\n\n";
  text += fmt::format("{:>7} {:>9} {:>9} {:11} {:>9} {:>7} {:>9} {:>10}\n", "tokens", "op", "floor", "its stores", "memcpy",
                      "GB/s", "of floor", "of memcpy");
  Json rows = Json::array();
  for (const std::int64_t num_tokens : tokens) {
    setting.num_tokens = num_tokens;
    const auto progress = [&](double done) {
      bench::show_progress(
          fmt::format("{} tokens, {} of {}: {:.0f} %", num_tokens, rows.size() + 1, tokens.size(), 100 * done));
    };
    progress(0);
    const Result<bench::Line> measured = bench::measure(setting, progress);
    bench::show_progress("");
    if (!measured) {
      complain(measured.error().message());
      if (options.json) print_json(Json{{"ok", false}, {"error", error_json(measured.error())}});
      return exit_for(measured.error());
    }
    const bench::Line& line = measured.value();
    rows.push_back(row_json(num_tokens, line));
    text += fmt::format("{:>7} {:>9} {:>9} {:11} {:>9} {:>7.1f} {:>9.2f} {:>10.2f}\n", num_tokens,
                        bench::microseconds(line.op().median()), bench::microseconds(line.floor().median()), line.floor().name,
                        bench::microseconds(line.memcpy().median()), static_cast<double>(line.bytes) / line.op().median() / 1e9,
                        line.share_of(line.floor()).median, line.share_of(line.memcpy()).median);
  }
  if (options.json) {
    print_json({{"ok", true},
                {"version", version()},
                {"simd_target", target.value()},
                {"threads", get_num_threads()},
                {"cpu", cpu_model()},
                {"num_qo_heads", shape.num_qo_heads},
                {"num_kv_heads", shape.num_kv_heads},
                {"head_dim", shape.head_dim},
                {"dtype", options.dtype},
                {"lines", rows}});
  } else {
    print(text);
  }
  return Exit::ok;
}

}  // namespace ropepool::cli
