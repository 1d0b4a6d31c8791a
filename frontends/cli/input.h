// A safetensors file as `run` and `check` take it, and how they tell what they found in it.
#pragma once

#include <string>

#include "arguments.h"
#include "files.h"
#include "safetensors.h"
#include "terminal.h"

namespace ropepool::cli {

// Throws Failure where the file can't be read or is malformed.
class Input {
 public:
  explicit Input(const std::string& path);

  Arguments arguments(const Parameters& given, const Rope* rope) const;  // as arguments_from

  const InputFile bytes;
  const safetensors::File file;
};

// The file of the config that --rope names.
class RopeInput {
 public:
  explicit RopeInput(const Parameters& given);

  Result<Rope> rope() const;
  const InputFile& file() const { return file_; }

 private:
  const Parameters& given_;
  const InputFile file_;
};

// Shapes, dtypes and parameters, a line each.
std::string describe(const Arguments& arguments, const safetensors::File& file);
void describe(const Arguments& arguments, const safetensors::File& file, Json& json);

}  // namespace ropepool::cli
