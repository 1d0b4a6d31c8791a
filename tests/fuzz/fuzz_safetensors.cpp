// Fuzzes the reader of safetensors files, and the way from a parsed file to the contract's check.
//
//   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_safetensors
//   cp -r tests/fuzz/corpus/safetensors /tmp/corpus
//   build/fuzz/tests/fuzz/fuzz_safetensors -max_total_time=120 -dict=tests/fuzz/safetensors.dict /tmp/corpus
//
// libFuzzer adds what it finds to the first folder it is given, hence the copy. Without -max_total_time it runs until it finds
// a crash, a leak, undefined behaviour, or an input that takes more than 2 GB or 20 minutes; the input is then written to
// crash-*, and `fuzz_safetensors crash-...` runs it alone. Inputs of any interest belong into the corpus.
//
// An input is a file as it stands. One that begins with '{' is a header instead, up to the first zero byte if there is one,
// with the data behind: its length is put in front, so that the fuzzer need not keep the two in step.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "arguments.h"
#include "ops/rope_pool_fused.h"
#include "safetensors.h"

namespace {

std::vector<std::byte> file_from(std::span<const std::byte> input) {
  if (input.empty() || input.front() != std::byte{'{'}) return {input.begin(), input.end()};
  std::size_t header_size = 0;
  while (header_size < input.size() && input[header_size] != std::byte{0}) ++header_size;
  std::vector<std::byte> file(8);
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header_size >> 8 * i);
  file.insert(file.end(), input.begin(), input.begin() + static_cast<std::ptrdiff_t>(header_size));
  if (header_size < input.size())
    file.insert(file.end(), input.begin() + static_cast<std::ptrdiff_t>(header_size) + 1, input.end());
  return file;
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace safetensors = ropepool::safetensors;
  std::vector<std::byte> bytes = file_from({reinterpret_cast<const std::byte*>(data), size});
  try {
    const safetensors::File file = safetensors::parse(bytes);
    std::size_t total = 0;
    for (const auto& [name, entry] : file.tensors) {
      require(entry.offset <= bytes.size() && entry.size <= bytes.size() - entry.offset);
      total += entry.size;
    }
    require(total <= bytes.size());
    const ropepool::cli::Arguments arguments = ropepool::cli::arguments_from(file, bytes, {});
    const auto outputs = ropepool::contract::Outputs::made_later;
    const auto refusals = ropepool::contract::all_refusals(arguments.op, outputs);
    const auto first = ropepool::contract::first_refusal(arguments.op, outputs);
    require(first.has_value() == !refusals.empty() && (!first || first->code() == refusals.front().code()));
    for (const ropepool::Error& refusal : refusals) require(!refusal.message().empty());
  } catch (const safetensors::Malformed& fault) {
    require(std::strlen(fault.what()) > 0);
  }
  return 0;
}
