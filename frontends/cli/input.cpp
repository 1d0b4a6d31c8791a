#include "input.h"

#include <iterator>
#include <vector>

#include <fmt/format.h>

#include <ropepool/rope_config.h>

#include "failure.h"

namespace ropepool::cli {
namespace {

safetensors::File parse(const InputFile& bytes) {
  try {
    return safetensors::parse(bytes.bytes());
  } catch (const safetensors::Malformed& fault) {
    throw Failure(Exit::file, fmt::format("{}: {}", bytes.name(), fault.what()));
  }
}

// The format's name where ropepool has none.
std::string dtype_of(const safetensors::Entry& entry) {
  return entry.dtype >= DType::other ? std::string(entry.dtype_name) : to_string(entry.dtype);
}

std::vector<std::string_view> tensors_of(const Arguments& arguments) {
  std::vector<std::string_view> names(std::begin(kTensors), std::end(kTensors));
  if (arguments.op.rope_sets.given()) names.push_back(kRopeSets);
  return names;
}

}  // namespace

Input::Input(const std::string& path) : bytes(path), file(parse(bytes)) {}

Arguments Input::arguments(const Parameters& given, const Rope* rope) const {
  try {
    return arguments_from(file, bytes.bytes(), given, rope);
  } catch (const safetensors::Malformed& fault) {
    throw Failure(Exit::file, fmt::format("{}: {}", bytes.name(), fault.what()));
  }
}

RopeInput::RopeInput(const Parameters& given) : given_(given), file_(config_path(*given.rope)) {}

Result<Rope> RopeInput::rope() const { return rope_from_config(text_of(file_), {given_.layer_type, given_.length}); }

std::string describe(const Arguments& arguments, const safetensors::File& file) {
  std::string text;
  for (const std::string_view name : tensors_of(arguments)) {
    const safetensors::Entry& entry = file.tensors.find(name)->second;
    text += fmt::format("{:<13} {} {}\n", name, to_string(entry.shape), dtype_of(entry));
  }
  for (const Found& parameter : arguments.parameters) {
    text += fmt::format("{:<13} {} ({})\n", parameter.name, parameter.value, parameter.source);
  }
  return text;
}

void describe(const Arguments& arguments, const safetensors::File& file, Json& json) {
  for (const std::string_view name : tensors_of(arguments)) {
    const safetensors::Entry& entry = file.tensors.find(name)->second;
    json["tensors"][std::string(name)] = {{"shape", Json(std::vector(entry.shape.begin(), entry.shape.end()))},
                                          {"dtype", dtype_of(entry)}};
  }
  const RopePoolFusedArgs& op = arguments.op;
  const bool base_given = op.rope_base == op.rope_base;
  const Json rope = op.rope != nullptr ? Json(arguments.parameters[3].value) : base_given ? number_json(op.rope_base) : Json();
  const Json values[] = {op.head_dim, op.num_qo_heads, op.num_kv_heads, rope, arguments.parameters.back().value};
  std::size_t at = 0;
  for (const Found& parameter : arguments.parameters) {
    json["parameters"][parameter.name] = {{"value", values[at++]}, {"source", parameter.source}};
  }
}

}  // namespace ropepool::cli
