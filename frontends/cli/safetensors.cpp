#include "safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/dtype.h"

namespace ropepool::safetensors {
namespace {

// The reference implementation's limit.
constexpr std::uint64_t kMaxHeader = 100'000'000;

constexpr DTypeName kDTypes[] = {
    {"BOOL", 8, DType::boolean},
    {"U8", 8, DType::u8},
    {"I8", 8, DType::i8},
    {"U16", 16, DType::u16},
    {"I16", 16, DType::i16},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"U32", 32, DType::u32},
    {"I32", 32, DType::i32},
    {"F32", 32, DType::f32},
    {"U64", 64, DType::u64},
    {"I64", 64, DType::i64},
    {"F64", 64, DType::f64},
    {"C64", 64, DType::complex64},
    {"F8_E5M2", 8, other_dtype(12, 8)},
    {"F8_E4M3", 8, other_dtype(10, 8)},
    {"F8_E8M0", 8, other_dtype(14, 8)},
    {"F8_E4M3FNUZ", 8, other_dtype(11, 8)},
    {"F8_E5M2FNUZ", 8, other_dtype(13, 8)},
    {"F6_E2M3", 6, other_dtype(15, 6)},
    {"F6_E3M2", 6, other_dtype(16, 6)},
    {"F4", 4, other_dtype(17, 4)},
};

[[noreturn]] void malformed(std::string message) { throw Malformed(std::move(message)); }

std::string bytes_text(std::uint64_t count) { return fmt::format("{} byte{}", count, count == 1 ? "" : "s"); }

// A tensor as the header describes it.
struct Described {
  const DTypeName* dtype = nullptr;
  std::optional<Shape> shape;
  std::uint64_t num_elements = 1;
  std::uint64_t begin = 0, end = 0;
  bool offsets_seen = false;
  int num_offsets = 0;
};

// Takes the header as a stream of events, so that nothing that the format has no place for is ever stored.
class HeaderReader {
 public:
  std::map<std::string, Described, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;

  // What nlohmann::json::sax_parse calls, by its names. All return true: faults throw.
  bool start_object(std::size_t) {
    if (place_ == Place::outside) {
      place_ = Place::header;
    } else if (place_ == Place::header && name_ == "__metadata__") {
      place_ = Place::metadata;
    } else if (place_ == Place::header) {
      place_ = Place::tensor;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& key) {
    switch (place_) {
      case Place::header:
        name_ = key;
        if (name_ == "__metadata__") {
          if (std::exchange(metadata_seen_, true)) malformed("the header has two __metadata__");
        } else {
          const auto [position, added] = tensors.try_emplace(name_);
          if (!added) malformed(fmt::format("two tensors are named {}", in_quotes(name_)));
          tensor_ = &position->second;
        }
        break;
      case Place::metadata:
        key_ = key;
        if (metadata.contains(key_)) malformed(fmt::format("the metadata has the key {} twice", in_quotes(key_)));
        break;
      default:
        key_ = key;
        if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
          malformed(fmt::format("tensor {} has the key {}, which the format does not know", in_quotes(name_), in_quotes(key_)));
        }
        if ((key_ == "dtype" && tensor_->dtype != nullptr) || (key_ == "shape" && tensor_->shape) ||
            (key_ == "data_offsets" && tensor_->offsets_seen)) {
          malformed(fmt::format("tensor {} has two {}", in_quotes(name_), key_));
        }
    }
    return true;
  }

  bool string(std::string& text) {
    if (place_ == Place::metadata) {
      metadata.emplace(key_, text);
    } else if (place_ == Place::tensor && key_ == "dtype") {
      const auto found = std::ranges::find(kDTypes, std::string_view(text), &DTypeName::name);
      if (found == std::end(kDTypes)) malformed(fmt::format("tensor {}: unknown dtype {}", in_quotes(name_), in_quotes(text)));
      tensor_->dtype = found;
    } else {
      unexpected("the string " + in_quotes(text));
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
      rank_ = 0;
    } else if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      tensor_->offsets_seen = true;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (place_ == Place::shape) {
      add_length(value);
    } else if (place_ == Place::offsets) {
      if (tensor_->num_offsets == 2) malformed(fmt::format("tensor {}: data_offsets must be two numbers", in_quotes(name_)));
      (tensor_->num_offsets++ == 0 ? tensor_->begin : tensor_->end) = value;
    } else {
      unexpected(fmt::format("the number {}", value));
    }
    return true;
  }

  bool end_array() {
    if (place_ == Place::shape) {
      tensor_->shape = Shape(lengths_, rank_);
    } else if (tensor_->num_offsets != 2) {
      malformed(fmt::format("tensor {}: data_offsets must be two numbers", in_quotes(name_)));
    }
    place_ = Place::tensor;
    return true;
  }

  bool end_object() {
    if (place_ == Place::header) {
      place_ = Place::outside;
      return true;
    }
    if (place_ == Place::tensor) {
      if (tensor_->dtype == nullptr) malformed(fmt::format("tensor {} has no dtype", in_quotes(name_)));
      if (!tensor_->shape) malformed(fmt::format("tensor {} has no shape", in_quotes(name_)));
      if (tensor_->num_offsets != 2) malformed(fmt::format("tensor {} has no data_offsets", in_quotes(name_)));
    }
    place_ = Place::header;
    return true;
  }

  bool number_integer(std::int64_t value) { unexpected(value == 0 ? "-0" : fmt::format("the negative number {}", value)); }
  bool number_float(double, const std::string& text) { unexpected("the number " + in_quotes(text)); }
  bool boolean(bool value) { unexpected(value ? "true" : "false"); }
  bool null() { unexpected("null"); }
  bool binary(nlohmann::json::binary_t&) { unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& exception) {
    std::string_view reason = exception.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while parsing ...": from there on.
    if (const std::size_t found = reason.find(": "); found != reason.npos) reason.remove_prefix(found + 2);
    std::string text(reason.substr(0, 200));
    // It quotes what it read, which may be no text at all.
    std::ranges::replace_if(
        text, [](char c) { return static_cast<unsigned char>(c) >= 0x7F; }, '?');
    malformed(fmt::format("the header is not JSON, at byte {} of it: {}", position, text));
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };

  [[noreturn]] void unexpected(const std::string& what) const {
    switch (place_) {
      case Place::outside:
        malformed(fmt::format("the header must be a JSON object, it is {}", what));
      case Place::header:
        if (name_ == "__metadata__") malformed(fmt::format("__metadata__ must be an object of strings, it is {}", what));
        malformed(
            fmt::format("tensor {} must be an object with dtype, shape and data_offsets, it is {}", in_quotes(name_), what));
      case Place::metadata:
        malformed(fmt::format("metadata must be strings, {} is {}", in_quotes(key_), what));
      case Place::tensor:
        malformed(fmt::format("tensor {}: {} must be {}, it is {}", in_quotes(name_), key_,
                              key_ == "dtype" ? "a string" : "a list of numbers from 0 on", what));
      case Place::shape:
      case Place::offsets:
        malformed(fmt::format("tensor {}: {} must hold numbers from 0 on, it holds {}", in_quotes(name_), key_, what));
    }
    malformed("the header is not as the format has it");
  }

  void add_length(std::uint64_t length) {
    constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
    // In the reference's order: [0, 2**62, 2**62] has no elements, [2**62, 2**62, 0] is too large.
    if (length > kMax || (tensor_->num_elements != 0 && length > kMax / tensor_->num_elements) ||
        rank_ == std::numeric_limits<int>::max()) {
      malformed(fmt::format("tensor {}: its shape has too many elements to count", in_quotes(name_)));
    }
    tensor_->num_elements *= length;
    if (rank_ < Shape::kMaxRank) lengths_[rank_] = static_cast<std::int64_t>(length);
    ++rank_;
  }

  Place place_ = Place::outside;
  std::string name_, key_;  // of the tensor, and of the entry within it or within the metadata
  Described* tensor_ = nullptr;
  std::int64_t lengths_[Shape::kMaxRank]{};
  int rank_ = 0;
  bool metadata_seen_ = false;
};

// That each tensor has the bytes its shape and dtype need, and that together they tile the data.
void check_offsets(const HeaderReader& header, std::uint64_t data_size) {
  using Named = std::pair<const std::string, Described>;
  std::vector<const Named*> by_offset;
  for (const Named& tensor : header.tensors) {
    const auto& [name, described] = tensor;
    if (described.begin > described.end) {
      malformed(fmt::format("tensor {} begins at {}, after its end at {}", in_quotes(name), described.begin, described.end));
    }
    if (described.end > data_size) {
      malformed(
          fmt::format("tensor {} ends at byte {} of the data, which has {}: the file is cut short, or the offsets are wrong",
                      in_quotes(name), described.end, data_size));
    }
    const auto bits = static_cast<std::uint64_t>(described.dtype->bits);
    const std::uint64_t size = described.end - described.begin;  // at most the file's size, so that 8 * size is no overflow
    if (described.num_elements > std::numeric_limits<std::uint64_t>::max() / bits ||
        described.num_elements * bits != size * 8) {
      malformed(fmt::format("tensor {} has {}, which {} elements of {} do not fill", in_quotes(name), bytes_text(size),
                            described.num_elements, described.dtype->name));
    }
    by_offset.push_back(&tensor);
  }
  std::ranges::sort(by_offset, {}, [](const Named* tensor) { return std::pair(tensor->second.begin, tensor->second.end); });
  std::uint64_t end = 0;
  const Named* last = nullptr;
  for (const Named* tensor : by_offset) {
    if (tensor->second.begin < end) {
      malformed(fmt::format("tensors {} and {} overlap: one ends at byte {}, the other begins at {}", in_quotes(last->first),
                            in_quotes(tensor->first), end, tensor->second.begin));
    }
    if (tensor->second.begin > end) {
      malformed(fmt::format("no tensor covers the {} before tensor {}", bytes_text(tensor->second.begin - end),
                            in_quotes(tensor->first)));
    }
    end = tensor->second.end;
    last = tensor;
  }
  if (end != data_size) malformed(fmt::format("no tensor covers the last {} of the file", bytes_text(data_size - end)));
}

// How many bytes the character has that `text` begins with; 0 where that is no UTF-8.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Longer than need be, a surrogate, or past the last character.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

}  // namespace

std::span<const DTypeName> dtypes() { return kDTypes; }

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxShown = 100;
  std::string result = "'";
  for (std::size_t at = 0; at < text.size();) {
    if (at >= kMaxShown) return result + "...'";
    const std::size_t length = character_length(text.substr(at));
    const std::string_view character = text.substr(at, std::max<std::size_t>(length, 1));
    at += character.size();
    const auto last = static_cast<unsigned char>(character.back());
    // C1 control characters (U+0080 to U+009F) are C2 80 to C2 9F: terminals obey them too, and some the last byte alone.
    const bool c1 = length == 2 && character.front() == '\xC2' && last < 0xA0;
    if (character == "\n") {
      result += "\\n";
    } else if (length == 0 || c1 || last < 0x20 || last == 0x7F) {
      result += fmt::format("\\x{:02x}", last);
    } else {
      result += character;
    }
  }
  return result + "'";
}

File parse(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) malformed(fmt::format("{} bytes are too few for a safetensors file", bytes.size()));
  std::uint64_t header_size = 0;
  for (int i = 7; i >= 0; --i) header_size = header_size << 8 | static_cast<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  if (header_size > kMaxHeader) {
    malformed(fmt::format("its header would be {} bytes long, over the format's limit of {}: this is no safetensors file",
                          header_size, kMaxHeader));
  }
  const std::size_t data_start = 8 + static_cast<std::size_t>(header_size);
  if (data_start > bytes.size()) {
    malformed(
        fmt::format("its header would be {} bytes long, but only {} follow: the file is cut short, or no safetensors file",
                    header_size, bytes.size() - 8));
  }
  const char* header_text = reinterpret_cast<const char*>(bytes.data()) + 8;
  if (header_size == 0 || *header_text != '{') malformed("the header does not begin with '{': this is no safetensors file");
  // nlohmann-json takes one for the end of the text, whatever follows.
  if (const void* zero = std::memchr(header_text, 0, static_cast<std::size_t>(header_size))) {
    malformed(
        fmt::format("the header is not JSON, at byte {} of it: a zero byte", static_cast<const char*>(zero) - header_text + 1));
  }

  HeaderReader header;
  nlohmann::json::sax_parse(header_text, header_text + header_size, &header);
  check_offsets(header, bytes.size() - data_start);

  File file;
  file.metadata = std::move(header.metadata);
  while (!header.tensors.empty()) {
    auto node = header.tensors.extract(header.tensors.begin());
    const Described& described = node.mapped();
    const Entry entry{described.dtype->dtype, described.dtype->name, *described.shape,
                      data_start + static_cast<std::size_t>(described.begin),
                      static_cast<std::size_t>(described.end - described.begin)};
    file.tensors.emplace_hint(file.tensors.end(), std::move(node.key()), entry);
  }
  return file;
}

}  // namespace ropepool::safetensors
