// The commands, a file each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "arguments.h"
#include "failure.h"

namespace ropepool::cli {

struct RunOptions {
  std::string input;
  std::optional<std::string> output, expect;
  Parameters parameters;
  std::optional<int> repeat, threads;
  std::optional<double> tolerance;
  bool json = false;
};
Exit run(const RunOptions& options);

struct CheckOptions {
  std::string input;
  Parameters parameters;
  bool json = false;
};
Exit check(const CheckOptions& options);

struct ErrorsOptions {
  bool json = false;
};
Exit errors(const ErrorsOptions& options);

struct ExplainOptions {
  std::string what;  // "-": standard input
  bool json = false;
};
Exit explain(const ExplainOptions& options);

struct RopeOptions {
  std::string input;
  std::optional<std::string> layer_type, plot;
  std::optional<std::int64_t> length;
  bool json = false;
};
Exit rope(const RopeOptions& options);

struct DoctorOptions {
  bool json = false;
};
Exit doctor(const DoctorOptions& options);
std::string cpu_model();

struct BenchOptions {
  std::optional<std::int64_t> num_qo_heads, num_kv_heads, head_dim, num_slots;
  std::string dtype = "bfloat16", tokens = "1,8,64,512,4096";
  std::optional<int> threads;
  std::optional<double> seconds;
  bool json = false;
};
Exit bench(const BenchOptions& options);

}  // namespace ropepool::cli
