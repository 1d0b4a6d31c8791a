// The op beside its floor: a line for each model, dtype, number of tokens, order of slots, size of the pool and number of
// threads. bench/bench.py runs this, adds peers and draws.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ropepool/ropepool.h>

#include "calls.h"
#include "measure.h"

namespace {

using Json = nlohmann::ordered_json;
using ropepool::DType;

struct Model {
  const char* name;
  bench::Shape shape;
};
constexpr Model kModels[] = {
    {"llama-3-8b", {32, 8, 128}},  // Mistral 7B too
    {"smollm2-135m", {9, 3, 64}}, {"qwen2.5-0.5b", {14, 2, 64}}, {"gemma-2-9b", {16, 8, 256}}, {"phi-2", {32, 32, 80}},
};
constexpr std::pair<const char*, DType> kDTypes[] = {
    {"bfloat16", DType::bf16}, {"float16", DType::f16}, {"float32", DType::f32}};
constexpr std::pair<const char*, bench::Order> kOrders[] = {
    {"random", bench::Order::random}, {"sorted", bench::Order::sorted}, {"consecutive", bench::Order::consecutive}};

template <class Table>
auto find(const Table& table, const std::string& name) {
  const auto found = std::find_if(std::begin(table), std::end(table), [&](const auto& row) { return name == row.first; });
  if (found == std::end(table)) throw std::invalid_argument(fmt::format("there is no '{}'", name));
  return found->second;
}

bench::Shape shape_of(const std::string& name) {
  for (const Model& model : kModels) {
    if (name == model.name) return model.shape;
  }
  bench::Shape shape;
  char rest = 0;
  if (std::sscanf(name.c_str(), "%ld/%ldx%ld%c", &shape.num_qo_heads, &shape.num_kv_heads, &shape.head_dim, &rest) == 3) {
    return shape;
  }
  throw std::invalid_argument(fmt::format("there is no model '{}'; a shape is written 32/8x128", name));
}

Json json_of(const bench::Line& line) {
  Json seconds, json;
  for (const auto& variant : line.variants) seconds[variant.name] = {{"min", variant.min()}, {"median", variant.median()}};
  const auto share = [](const bench::Quartiles& part) {
    return Json{{"low", part.low}, {"median", part.median}, {"high", part.high}};
  };
  json["rounds"] = line.op().seconds.size();
  json["bytes"] = line.bytes;
  json["seconds"] = seconds;
  json["floor"] = line.floor().name;
  json["share_of_floor"] = share(line.share_of(line.floor()));
  json["share_of_memcpy"] = share(line.share_of(line.memcpy()));
  return json;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("rope_pool_fused beside copies of the same traffic into cold pool rows");
  std::vector<std::string> models{"llama-3-8b"}, dtypes{"bfloat16", "float16", "float32"}, orders{"random"};
  std::vector<std::int64_t> tokens{1, 8, 64, 512, 4096}, slots{65536};
  std::vector<int> threads{1};
  double seconds = 1;
  std::string json_path, scenario;
  bool calls = false, huge_pages = false;
  long count = 1;
  std::string known = "of llama-3-8b (and mistral-7b), smollm2-135m, qwen2.5-0.5b, gemma-2-9b, phi-2, or a shape as 32/8x128";
  app.add_option("--model", models, known)->delimiter(',')->capture_default_str();
  app.add_option("--dtypes", dtypes, "of bfloat16, float16, float32")->delimiter(',')->capture_default_str();
  app.add_option("--tokens", tokens, "tokens a call")->delimiter(',')->capture_default_str()->check(CLI::Range(1L, 1L << 24));
  app.add_option("--slots", slots, "slots of the pools")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1L, (1L << 31) - 1));
  app.add_option("--order", orders, "of a call's slots: random, sorted, consecutive")->delimiter(',')->capture_default_str();
  app.add_option("--threads", threads, "for the op and the copies")->delimiter(',')->capture_default_str();
  app.add_flag("--huge-pages", huge_pages, "lay the arrays on huge pages, where Linux has them to give");
  app.add_option("--seconds", seconds, "for each line")->capture_default_str();
  app.add_option("--json", json_path, "write all figures to this file");
  app.add_flag("--calls", calls, "the time of a call that has nothing to do, and nothing else");
  app.add_option("--scenario", scenario, "only make --count calls of this kind, for callgrind: " + bench::scenario_names());
  app.add_option("--count", count)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto target = ropepool::simd_target();
  if (!target) throw std::runtime_error(target.error().message());
  if (!scenario.empty()) {
    bench::run_scenario(scenario, count);
    return 0;
  }

  Json json;
  json["ropepool"] = ropepool::version();
  json["target"] = target.value();
  if (calls) {
    fmt::print("one head, one token; ns a call\n");
    for (const bench::CallTime& time : bench::time_calls(seconds)) {
      fmt::print("{:4} {:8.0f} min {:8.0f} median\n", time.name, 1e9 * time.min, 1e9 * time.median);
      json["calls"][time.name] = {{"min", time.min}, {"median", time.median}};
    }
  } else {
    fmt::print("ropepool {}, {}; times in us, medians; above 1.00 of a copy's speed the op takes less time than it\n\n",
               ropepool::version(), target.value());
    fmt::print("{:14} {:8} {:>7} {:>8} {:11} {:>7} {:>9} {:>9} {:>9} {:10} {:>9} {:>6} {:>8} {:>9} {:>6}\n", "model", "dtype",
               "tokens", "slots", "order", "threads", "op min", "op", "floor", "stores", "memcpy", "GB/s", "of floor",
               "of memcpy", "rounds");
    json["lines"] = Json::array();
    const std::size_t lines = models.size() * dtypes.size() * tokens.size() * slots.size() * orders.size() * threads.size();
    for (const std::string& model : models) {
      for (const std::string& dtype : dtypes) {
        for (const int width : threads) {
          for (const std::int64_t num_slots : slots) {
            for (const std::string& order : orders) {
              for (const std::int64_t num_tokens : tokens) {
                const bench::Setting setting{
                    shape_of(model), find(kDTypes, dtype), num_tokens, num_slots, find(kOrders, order), seconds, huge_pages};
                if (const auto set = ropepool::set_num_threads(width); !set) throw std::runtime_error(set.error().message());
                const auto tell = [&](double done) {
                  bench::show_progress(fmt::format("line {} of {}, {:.0f} %: {} {}, {} tokens", json["lines"].size() + 1, lines,
                                                   100 * done, model, dtype, num_tokens));
                };
                tell(0);
                const auto measured = bench::measure(setting, tell);
                bench::show_progress("");
                if (!measured) throw std::runtime_error(measured.error().message());
                const bench::Line& line = measured.value();
                Json row{{"model", model},
                         {"num_qo_heads", setting.shape.num_qo_heads},
                         {"num_kv_heads", setting.shape.num_kv_heads},
                         {"head_dim", setting.shape.head_dim},
                         {"dtype", dtype},
                         {"num_tokens", num_tokens},
                         {"num_slots", line.num_slots},
                         {"order", order},
                         {"threads", width}};
                row.update(json_of(line));
                json["lines"].push_back(row);
                const double op = line.op().median();
                fmt::print(
                    "{:14} {:8} {:>7} {:>8} {:11} {:>7} {:>9} {:>9} {:>9} {:10} {:>9} {:>6.1f} {:>8.2f} {:>9.2f} {:>6}\n",
                    model, dtype, num_tokens, line.num_slots, order, width, bench::microseconds(line.op().min()),
                    bench::microseconds(op), bench::microseconds(line.floor().median()), line.floor().name,
                    bench::microseconds(line.memcpy().median()), static_cast<double>(line.bytes) / op / 1e9,
                    line.share_of(line.floor()).median, line.share_of(line.memcpy()).median, line.op().seconds.size());
                std::fflush(stdout);
              }
            }
          }
        }
      }
    }
  }
  if (!json_path.empty()) {
    std::ofstream file(json_path);
    file << json.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error(fmt::format("{} can't be written", json_path));
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "ropepool_bench: {}\n", error.what());
  return 1;
}
