// ropepool run: the op on the tensors of a file, timed, and compared where expected values are at hand.
#include "commands.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ropepool/ropepool.h>

#include "comparison.h"
#include "files.h"
#include "input.h"
#include "ops/rope_pool_fused.h"
#include "terminal.h"

namespace ropepool::cli {
namespace {

// An output of the op, under its name in files.
struct Output {
  std::string name;
  Tensor tensor;
};

std::int64_t size_in_bytes(const Tensor& tensor) {
  std::int64_t size = item_size(tensor.dtype);
  for (const std::int64_t length : tensor.shape) size *= length;
  return size;
}

Tensor make_like(const Tensor& tensor, std::vector<AlignedBytes>& memory) {
  memory.push_back(allocate_aligned(static_cast<std::size_t>(size_in_bytes(tensor))));
  return Tensor::contiguous(static_cast<void*>(memory.back().get()), tensor.dtype, tensor.shape);
}

std::int64_t integer_at(const Tensor& tensor, std::int64_t index) {
  return tensor.dtype == DType::i32 ? static_cast<const std::int32_t*>(tensor.data)[index]
                                    : static_cast<const std::int64_t*>(tensor.data)[index];
}

// Bytes that the op must read and write: each input and output once, of the pools the rows that are named.
std::int64_t traffic(const RopePoolFusedArgs& op) {
  std::unordered_set<std::int64_t> rows;
  for (std::int64_t token = 0; token < op.slots.shape[0]; ++token) {
    if (const std::int64_t slot = integer_at(op.slots, token); slot >= 0) rows.insert(slot);
  }
  const std::int64_t row = op.num_kv_heads * op.head_dim * item_size(op.k_pool.dtype);
  return 2 * size_in_bytes(op.q) + 2 * size_in_bytes(op.k) + size_in_bytes(op.v) + size_in_bytes(op.positions) +
         size_in_bytes(op.slots) + size_in_bytes(op.rope_sets) + 2 * static_cast<std::int64_t>(rows.size()) * row;
}

double largest_position(const Tensor& positions) {
  double largest = 0;
  for (std::int64_t i = 0; i < size_in_bytes(positions) / item_size(positions.dtype); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(integer_at(positions, i))));
  }
  return largest;
}

struct Timing {
  double min = 0, median = 0;  // in seconds
};

// The first run touches fresh memory, starts the threads and is not counted. Further runs give the same bits.
Result<Timing> time_runs(const RopePoolFusedArgs& op, int repeat) {
  if (auto first = rope_pool_fused(op); !first) return first.error();
  std::vector<double> seconds;
  for (int i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (auto again = rope_pool_fused(op); !again) return again.error();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::sort(seconds);
  const std::size_t middle = seconds.size() / 2;
  const double median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  return Timing{seconds.front(), median};
}

void write_file(const std::string& path, std::span<const Output> outputs, const safetensors::File& input,
                const Arguments& arguments) {
  Json metadata = Json::object();
  for (const auto& [key, value] : input.metadata) metadata[key] = value;
  if (arguments.op.rope != nullptr) metadata.erase("rope_base");
  for (const Found& parameter : arguments.parameters) metadata[parameter.name] = parameter.value;
  metadata["ropepool"] = version();
  Json header;
  header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const Output& output : outputs) {
    const Tensor& tensor = output.tensor;
    const auto dtypes = safetensors::dtypes();
    const auto name = std::ranges::find(dtypes, tensor.dtype, &safetensors::DTypeName::dtype)->name;
    const std::int64_t end = offset + size_in_bytes(tensor);
    header[output.name] = {{"dtype", name},
                           {"shape", Json(std::vector(tensor.shape.begin(), tensor.shape.end()))},
                           {"data_offsets", Json::array({offset, end})}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data lie aligned

  std::byte length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(text.size() >> 8 * i);
  OutputFile file(path);
  file.write(length);
  file.write(std::as_bytes(std::span(text)));
  for (const Output& output : outputs) {
    file.write({static_cast<const std::byte*>(output.tensor.data), static_cast<std::size_t>(size_in_bytes(output.tensor))});
  }
  file.commit();
}

// Compares each output for which `expected` has a tensor; `bare_names`: "q_rot" serves where there is no "expected.q_rot".
std::vector<Comparison> compare_all(std::span<const Output> outputs, const Input& expected, bool bare_names,
                                    const RunOptions& options, const RopePoolFusedArgs& op) {
  const Tolerance rotated = options.tolerance
                                ? Tolerance{*options.tolerance, 0, fmt::format("{}", *options.tolerance)}
                                : rotated_tolerance(op.q.dtype, op.angles == Angles::float32, largest_position(op.positions));
  const TurnedLanes turned = op.rope == nullptr
                                 ? TurnedLanes{0, op.head_dim, Pairing::neox}
                                 : TurnedLanes{op.rope->rotary_offset(), op.rope->rotary_dim(), op.rope->pairing()};
  const Tolerance copied = options.tolerance ? rotated : Tolerance{0, 0, "0, since v is copied"};
  // A misspelt name must not look like results that are as expected.
  constexpr std::string_view kPrefix = "expected.";
  for (const auto& [name, entry] : expected.file.tensors) {
    const bool known =
        std::ranges::any_of(outputs, [&](const Output& output) { return name == std::string(kPrefix) + output.name; });
    if (name.starts_with(kPrefix) && !known) {
      throw Failure(Exit::file, fmt::format("{}: {} is the name of no result: these are q_rot, k_rot, k_pool, v_pool",
                                            expected.bytes.name(), safetensors::in_quotes(name)));
    }
  }
  std::vector<Comparison> comparisons;
  std::vector<AlignedBytes> copies;
  for (const Output& output : outputs) {
    auto position = expected.file.tensors.find("expected." + output.name);
    if (position == expected.file.tensors.end() && bare_names) position = expected.file.tensors.find(output.name);
    if (position == expected.file.tensors.end()) continue;
    const Tensor tensor = tensor_at(position->second, expected.bytes.bytes(), copies);
    comparisons.push_back(compare(output.name, output.tensor, tensor, output.name == "v_pool" ? copied : rotated, turned));
    copies.clear();
  }
  return comparisons;
}

std::string index_text(const std::vector<std::int64_t>& index) { return fmt::format("({})", fmt::join(index, ", ")); }

std::string describe(const Comparison& comparison, const Terminal& terminal) {
  std::string text = fmt::format("{:<13} ", comparison.name);
  if (!comparison.fault.empty()) {
    return text + fmt::format("{}: {}\n", terminal.red("not comparable"), comparison.fault);
  }
  if (comparison.index.empty()) {
    text += "no error";
  } else {
    text += fmt::format("largest error {:.3g} at {}: got {:.9g}, expected {:.9g}", comparison.largest_error,
                        index_text(comparison.index), comparison.got, comparison.expected);
  }
  if (comparison.num_past == 0) return text + fmt::format("  {}\n", terminal.green("ok"));
  return text + fmt::format("\n{:<13} {} of {} elements are past the tolerance, {}\n", "",
                            terminal.red(fmt::format("{}", comparison.num_past)), comparison.num_elements,
                            comparison.tolerance);
}

Json comparison_json(const Comparison& comparison) {
  return {{"name", comparison.name},
          {"ok", comparison.ok()},
          {"fault", comparison.fault},
          {"largest_error", number_json(comparison.largest_error)},
          {"index", comparison.index},
          {"got", number_json(comparison.got)},
          {"expected", number_json(comparison.expected)},
          {"num_elements", comparison.num_elements},
          {"num_past_tolerance", comparison.num_past},
          {"tolerance", comparison.tolerance}};
}

std::string duration(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

Exit refuse(const Error& error, bool json) {
  complain(error.message());
  if (json) print_json(Json{{"ok", false}, {"error", error_json(error)}});
  return exit_for(error);
}

}  // namespace

Exit run(const RunOptions& options) {
  if (options.output == "-") throw Failure(Exit::usage, "OUT must be a file");
  if (options.tolerance && !(*options.tolerance >= 0)) throw Failure(Exit::usage, "--tolerance must be 0 or more");
  const int repeat = options.repeat.value_or(5);
  if (repeat < 1) throw Failure(Exit::usage, "--repeat must be 1 or more");
  if ((options.input == "-") + (options.expect == "-") + (options.parameters.rope == "-") > 1) {
    throw Failure(Exit::usage, "only one of IN, FILE and CONFIG can be standard input");
  }
  const Input input(options.input);
  std::optional<Input> expect_file;
  if (options.expect) expect_file.emplace(*options.expect);
  const Input& expected = expect_file ? *expect_file : input;
  std::optional<RopeInput> rope_file;
  if (options.parameters.rope) rope_file.emplace(options.parameters);
  if (options.output && (input.bytes.is(*options.output) || expected.bytes.is(*options.output) ||
                         (rope_file && rope_file->file().is(*options.output)))) {
    throw Failure(Exit::usage, fmt::format("{} is an input of this run and would be overwritten", *options.output));
  }
  if (options.threads) {
    if (auto set = set_num_threads(*options.threads); !set) throw Failure(Exit::usage, set.error().message());
  }

  std::optional<Rope> rope;
  if (rope_file) {
    auto made = rope_file->rope();
    if (!made) return refuse(made.error(), options.json);
    rope = std::move(made.value());
  }
  Arguments arguments = input.arguments(options.parameters, rope ? &*rope : nullptr);
  RopePoolFusedArgs& op = arguments.op;
  if (const auto refusal = contract::first_refusal(op, contract::Outputs::made_later)) {
    return refuse(contract::with_angles(*refusal, arguments.parameters.back().value), options.json);
  }
  op.q_out = make_like(op.q, arguments.copies);
  op.k_out = make_like(op.k, arguments.copies);
  const Result<Timing> timing = time_runs(op, repeat);
  if (!timing) return refuse(timing.error(), options.json);

  const Output outputs[] = {{"q_rot", op.q_out}, {"k_rot", op.k_out}, {"k_pool", op.k_pool}, {"v_pool", op.v_pool}};
  const std::vector<Comparison> comparisons = compare_all(outputs, expected, expect_file.has_value(), options, op);
  if (expect_file && comparisons.empty()) {
    throw Failure(Exit::file,
                  fmt::format("{}: it has none of the tensors q_rot, k_rot, k_pool, v_pool, with or without 'expected.'",
                              expected.bytes.name()));
  }
  if (options.output) write_file(*options.output, outputs, input.file, arguments);

  const bool ok = std::ranges::all_of(comparisons, &Comparison::ok);
  const std::int64_t bytes = traffic(op);
  const double gigabytes_per_second = static_cast<double>(bytes) / timing.value().min / 1e9;
  if (options.json) {
    Json json{{"ok", ok}};
    describe(arguments, input.file, json);
    json["seconds"] = {{"min", timing.value().min}, {"median", timing.value().median}, {"runs", repeat}};
    json["bytes"] = bytes;
    json["gigabytes_per_second"] = number_json(gigabytes_per_second);
    json["simd_target"] = simd_target().value();
    json["threads"] = get_num_threads();
    json["output"] = options.output ? Json(*options.output) : Json();
    json["comparisons"] = Json::array();
    for (const Comparison& comparison : comparisons) json["comparisons"].push_back(comparison_json(comparison));
    print_json(json);
  } else {
    const Terminal terminal = Terminal::standard_output();
    std::string text = describe(arguments, input.file);
    text += fmt::format("{:<13} {} min, {} median of {} runs\n", "time", duration(timing.value().min),
                        duration(timing.value().median), repeat);
    text +=
        fmt::format("{:<13} {} bytes read and written: {:.2f} GB/s in the min time\n", "traffic", bytes, gigabytes_per_second);
    text += fmt::format("{:<13} {}\n", "SIMD target", simd_target().value());
    text += fmt::format("{:<13} {} at most\n", "threads", get_num_threads());
    if (options.output) text += fmt::format("{:<13} {}\n", "written", *options.output);
    for (const Comparison& comparison : comparisons) text += describe(comparison, terminal);
    print(text);
  }
  if (ok) return Exit::ok;
  // v is copied, and what can't be compared has another reason.
  const bool rotated_differ = std::ranges::any_of(comparisons, [](const Comparison& comparison) {
    return !comparison.ok() && comparison.fault.empty() && std::isfinite(comparison.largest_error) &&
           comparison.name != "v_pool";
  });
  complain(op.angles == Angles::exact && rotated_differ
               ? "the results differ from the expected ones; where those were made with float32 angles, as Hugging Face "
                 "transformers does, pass --angles float32"
               : "the results differ from the expected ones");
  return Exit::differs;
}

}  // namespace ropepool::cli
