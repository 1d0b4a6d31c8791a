// Reads the safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include <ropepool/tensor.h>

namespace ropepool::safetensors {

// Says which tensor is wrong and what is wrong with it.
class Malformed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Entry {
  DType dtype = DType::none;    // types without a name in ropepool have values from DType::other on, a value each
  std::string_view dtype_name;  // as the format spells it: "BF16"
  Shape shape;
  std::size_t offset = 0, size = 0;  // in bytes, from the start of the file; at any alignment
};

struct File {
  std::map<std::string, Entry, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
};

// What a file of these bytes holds. Throws Malformed, and uses memory in proportion to the header at most, whatever the bytes.
// As the reference implementation does, it demands that the tensors tile the data: none overlap, no byte is left over. It is
// stricter in two points, where a mistake would pass in silence: a key may appear once only, and a tensor has no keys but
// dtype, shape and data_offsets.
File parse(std::span<const std::byte> bytes);

struct DTypeName {
  std::string_view name;
  int bits;
  DType dtype;
};

// Every type that the format knows.
std::span<const DTypeName> dtypes();

// Text from a file, in quotes, fit to be shown: control characters escaped, long text cut.
std::string in_quotes(std::string_view text);

}  // namespace ropepool::safetensors
