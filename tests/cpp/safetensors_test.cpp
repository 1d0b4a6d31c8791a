// The reader of safetensors files: what it takes, and that everything else is refused by name.
#include "safetensors.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "arguments.h"

namespace ropepool::safetensors {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string length_of(std::uint64_t size) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(size >> 8 * i);
  return text;
}

Bytes file_of(std::string_view header, std::string_view data = "") {
  return bytes_of(length_of(header.size()).append(header).append(data));
}

bool holds(std::string_view text, std::string_view words) { return text.find(words) != text.npos; }

// What the reader says against the bytes; "" for nothing.
std::string fault_in(const Bytes& bytes) {
  try {
    parse(bytes);
  } catch (const Malformed& fault) {
    return fault.what();
  }
  return "";
}

std::string fault_in(std::string_view header, std::string_view data = "") { return fault_in(file_of(header, data)); }

TEST(Safetensors, GivesTensorsAndMetadata) {
  const Bytes bytes =
      file_of(R"({"__metadata__":{"rope_base":"1e4","":"empty"},"q":{"dtype":"BF16","shape":[1,2],"data_offsets":[1,5]},)"
              R"("odd":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}   )",
              "xABCD");
  const File file = parse(bytes);
  ASSERT_EQ(file.tensors.size(), 2u);
  const Entry& q = file.tensors.at("q");
  EXPECT_EQ(q.dtype, DType::bf16);
  EXPECT_EQ(q.dtype_name, "BF16");
  EXPECT_EQ(q.shape, Shape({1, 2}));
  EXPECT_EQ(q.size, 4u);
  EXPECT_EQ(bytes[q.offset], std::byte{'A'});
  EXPECT_EQ(file.tensors.at("odd").shape.rank(), 0);
  EXPECT_EQ(file.metadata.at("rope_base"), "1e4");
  EXPECT_EQ(file.metadata.at(""), "empty");
}

TEST(Safetensors, TakesFilesWithoutElements) {
  EXPECT_EQ(fault_in("{}"), "");
  EXPECT_EQ(fault_in(R"({"__metadata__":{}})"), "");
  EXPECT_EQ(fault_in(R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]},)"
                     R"("b":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}})"),
            "");
}

TEST(Safetensors, KnowsEveryDType) {
  for (const DTypeName& dtype : dtypes()) {
    // Three bytes are a whole number of elements of 4, 6 and 8 bits.
    const std::string elements = std::to_string(dtype.bits <= 8 ? 24 / dtype.bits : 3);
    const std::string size = std::to_string(dtype.bits <= 8 ? 3 : 3 * dtype.bits / 8);
    const File file = parse(file_of(
        R"({"a":{"dtype":")" + std::string(dtype.name) + R"(","shape":[)" + elements + R"(],"data_offsets":[0,)" + size + "]}}",
        std::string(std::stoul(size), 'x')));
    EXPECT_EQ(file.tensors.at("a").dtype, dtype.dtype);
    EXPECT_EQ(file.tensors.at("a").dtype_name, dtype.name);
  }
}

TEST(Safetensors, TypesWithoutANameHereAreDifferentTypes) {
  for (const DTypeName& a : dtypes()) {
    for (const DTypeName& b : dtypes()) EXPECT_EQ(a.dtype == b.dtype, a.name == b.name) << a.name << " " << b.name;
  }
}

TEST(Safetensors, HoldsTheFirstLengthsOfManyAxes) {
  std::string ones = "1";
  for (int i = 0; i < 999; ++i) ones += ",1";
  const File file = parse(file_of(R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", "x"));
  EXPECT_EQ(file.tensors.at("a").shape.rank(), 1000);
}

struct Fault {
  std::string header, data, words;
};

TEST(Safetensors, NamesWhatIsWrong) {
  const Fault faults[] = {
      // What is no header at all.
      {"", "", "does not begin with '{'"},
      {"[]", "", "does not begin with '{'"},
      {" {}", "", "does not begin with '{'"},
      {"\xEF\xBB\xBF{}", "", "does not begin with '{'"},
      {"{", "", "the header is not JSON"},
      {"{}}", "", "the header is not JSON"},
      {"{} x", "", "the header is not JSON"},
      {R"({"a":NaN})", "", "the header is not JSON"},
      {R"({"a":Infinity})", "", "the header is not JSON"},
      {R"({"a":/* */{}})", "", "the header is not JSON"},
      {R"({"a":1e999})", "", "the header is not JSON"},
      {"{\"a\xFF\":1}", "", "the header is not JSON"},
      {"{\"\xC0\x80\":1}", "", "the header is not JSON"},
      {R"({"\ud800":1})", "", "the header is not JSON"},
      {std::string("{\"a\0\":1}", 8), "", "the header is not JSON, at byte 4 of it: a zero byte"},
      {std::string("{}  \0x", 6), "", "the header is not JSON, at byte 5 of it: a zero byte"},
      // Values where they have no place.
      {R"({"q":1})", "", "tensor 'q' must be an object"},
      {R"({"q":null})", "", "it is null"},
      {R"({"q":[[[[[[)", "", "tensor 'q' must be an object with dtype, shape and data_offsets, it is a list"},
      {R"({"q":{"shape":[[)", "", "tensor 'q': shape must hold numbers from 0 on, it holds a list"},
      {R"({"q":{"shape":{)", "", "tensor 'q': shape must be a list of numbers from 0 on, it is an object"},
      {R"({"q":{"shape":"[1]"}})", "", "tensor 'q': shape must be a list of numbers from 0 on, it is the string '[1]'"},
      {R"({"q":{"dtype":4}})", "", "tensor 'q': dtype must be a string, it is the number 4"},
      {R"({"q":{"dtype":"f32"}})", "", "tensor 'q': unknown dtype 'f32'"},
      {R"({"q":{"dtype":"F32\u0000"}})", "", "tensor 'q': unknown dtype 'F32\\x00'"},
      {R"({"q":{"strides":[1]}})", "", "tensor 'q' has the key 'strides'"},
      {R"({"__metadata__":1})", "", "__metadata__ must be an object of strings, it is the number 1"},
      {R"({"__metadata__":{"a":1}})", "", "metadata must be strings, 'a' is the number 1"},
      {R"({"__metadata__":{"a":{}}})", "", "metadata must be strings, 'a' is an object"},
      {R"({"__metadata__":{"a":null}})", "", "metadata must be strings, 'a' is null"},
      // Numbers.
      {R"({"q":{"shape":[-1]}})", "", "tensor 'q': shape must hold numbers from 0 on, it holds the negative number -1"},
      {R"({"q":{"shape":[-0]}})", "", "tensor 'q': shape must hold numbers from 0 on, it holds -0"},
      {R"({"q":{"shape":[2.0]}})", "", "tensor 'q': shape must hold numbers from 0 on, it holds the number '2.0'"},
      {R"({"q":{"shape":[18446744073709551616]}})", "", "tensor 'q': shape must hold numbers from 0 on"},
      {R"({"q":{"shape":[9223372036854775808]}})", "", "tensor 'q': its shape has too many elements"},
      {R"({"q":{"shape":[4294967296,4294967296]}})", "", "tensor 'q': its shape has too many elements"},
      {R"({"q":{"shape":[4611686018427387904,2,0]}})", "", "tensor 'q': its shape has too many elements"},
      {R"({"q":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", "", "tensor 'q' has 0 bytes"},
      {R"({"q":{"data_offsets":[0]}})", "", "tensor 'q': data_offsets must be two numbers"},
      {R"({"q":{"data_offsets":[]}})", "", "tensor 'q': data_offsets must be two numbers"},
      {R"({"q":{"data_offsets":[0,1,2]}})", "", "tensor 'q': data_offsets must be two numbers"},
      {R"({"q":{"data_offsets":[0,-1]}})", "", "tensor 'q': data_offsets must hold numbers from 0 on"},
      // What is missing or there twice.
      {R"({"q":{}})", "", "tensor 'q' has no dtype"},
      {R"({"q":{"dtype":"U8","data_offsets":[0,0]}})", "", "tensor 'q' has no shape"},
      {R"({"q":{"dtype":"U8","shape":[]}})", "", "tensor 'q' has no data_offsets"},
      {R"({"q":{"dtype":"U8","dtype":"U8"}})", "", "tensor 'q' has two dtype"},
      {R"({"q":{"shape":[],"shape":[]}})", "", "tensor 'q' has two shape"},
      {R"({"q":{"data_offsets":[0,0],"data_offsets":[0,0]}})", "", "tensor 'q' has two data_offsets"},
      {R"({"q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"q":{}})", "", "two tensors are named 'q'"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "two __metadata__"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "", "the metadata has the key 'a' twice"},
      // Offsets.
      {R"({"q":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", "xx", "tensor 'q' begins at 2, after its end at 0"},
      {R"({"q":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "xx", "tensor 'q' ends at byte 3 of the data, which has 2"},
      {R"({"q":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})", "x",
       "tensor 'q' ends at"},
      {R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "xxxx", "tensor 'q' has 4 bytes, which 2 elements of F32"},
      {R"({"q":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "xx", "tensor 'q' has 2 bytes, which 3 elements of F4"},
      {R"({"q":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx", "no tensor covers the 1 byte before tensor 'q'"},
      {R"({"q":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xxx", "no tensor covers the last 2 bytes of the file"},
      {"{}", "x", "no tensor covers the last 1 byte of the file"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "xxx",
       "tensors 'a' and 'b' overlap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x",
       "tensors 'a' and 'b' overlap"},
  };
  for (const Fault& fault : faults) EXPECT_PRED2(holds, fault_in(fault.header, fault.data), fault.words) << fault.header;
}

TEST(Safetensors, NamesALengthThatCannotBe) {
  EXPECT_PRED2(holds, fault_in(Bytes{}), "0 bytes are too few");
  EXPECT_PRED2(holds, fault_in(bytes_of("1234567")), "7 bytes are too few");
  EXPECT_PRED2(holds, fault_in(bytes_of(length_of(3) + "{}")), "its header would be 3 bytes long, but only 2 follow");
  EXPECT_PRED2(holds, fault_in(bytes_of(length_of(100'000'000) + "{}")), "only 2 follow");
  EXPECT_PRED2(holds, fault_in(bytes_of(length_of(100'000'001) + "{}")), "over the format's limit");
  EXPECT_PRED2(holds, fault_in(bytes_of(length_of(UINT64_MAX) + "{}")), "over the format's limit");
  EXPECT_PRED2(holds, fault_in(bytes_of("PK\3\4 a zip file, as torch.save makes")), "no safetensors file");
}

TEST(Safetensors, DeepNestingIsRefusedAtItsFirstLevel) {
  EXPECT_PRED2(holds, fault_in(R"({"a":)" + std::string(10'000'000, '[')), "tensor 'a' must be an object");
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += R"("a":{)";
  EXPECT_PRED2(holds, fault_in(objects), "tensor 'a' has the key 'a'");
}

TEST(Safetensors, FaultsShowNamesWithoutObeyingThem) {
  const std::string fault = fault_in(R"({"\u001b[31m\n\u009b":1})");
  EXPECT_PRED2(holds, fault, R"('\x1b[31m\n\x9b')");
  EXPECT_LT(fault_in("{\"" + std::string(1'000'000, 'a') + "\":1}").size(), 300u);
  EXPECT_EQ(in_quotes("\xC3\xA9"), "'\xC3\xA9'");
  EXPECT_EQ(in_quotes("\xE2\x82\xAC\xF0\x9F\x98\x80"), "'\xE2\x82\xAC\xF0\x9F\x98\x80'");
  // Bytes that are no UTF-8, which a terminal may obey.
  EXPECT_EQ(in_quotes("\x9B"
                      "31m"),
            R"('\x9b31m')");
  EXPECT_EQ(in_quotes("\xC3"
                      "a\xE2\x82"),
            R"('\xc3a\xe2\x82')");
  EXPECT_EQ(in_quotes("\xC0\x80\xED\xA0\x80\xF4\x90\x80\x80\xFF"), R"('\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xff')");
  EXPECT_EQ(in_quotes(std::string(99, 'x') + "\xE2\x82\xAC."), "'" + std::string(99, 'x') + "\xE2\x82\xAC...'");
}

// Every way to cut a good file short, and every single byte of it changed: an error or a file, never anything else.
TEST(Safetensors, AnyDamageIsAnErrorOrAFile) {
  const Bytes good =
      file_of(R"({"__metadata__":{"rope_base":"1e4"},"q":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}})", "ABCD");
  ASSERT_EQ(fault_in(good), "");
  for (std::size_t size = 0; size < good.size(); ++size) {
    // On the heap and exactly so large, so that AddressSanitizer sees a read past the end.
    EXPECT_NE(fault_in(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))), "") << size;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      Bytes changed = good;
      changed[at] = static_cast<std::byte>(value);
      fault_in(changed);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Bytes changed = good;
    for (int change = 0; change < 4; ++change) changed[random() % changed.size()] = static_cast<std::byte>(random());
    fault_in(changed);
  }
}

// ---- From a file to the arguments of the op.

// A file of one token, two query heads and one key head of two lanes, behind `before` bytes of padding.
Bytes step(std::string_view metadata, std::size_t before = 0, std::string_view name_of_slots = "slots") {
  std::string header = R"({"__metadata__":)" + std::string(metadata);
  std::string data(before, 'x');
  const auto add = [&](std::string_view name, std::string_view dtype, std::string_view shape, std::size_t size) {
    header += R"(,")" + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) +
              R"(,"data_offsets":[)" + std::to_string(data.size()) + "," + std::to_string(data.size() + size) + "]}";
    data.append(size, '\0');
  };
  if (before > 0) {
    data.clear();
    add("padding", "U8", "[" + std::to_string(before) + "]", before);
  }
  add("q", "F32", "[1,2,2]", 16);
  add("k", "F32", "[1,1,2]", 8);
  add("v", "F32", "[1,1,2]", 8);
  add("positions", "I64", "[1]", 8);
  add(name_of_slots, "I32", "[1]", 4);
  add("k_pool", "F32", "[3,1,2]", 24);
  add("v_pool", "F32", "[3,1,2]", 24);
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return file_of(header, data);
}

TEST(ArgumentsOfAFile, FlagsWinOverMetadataOverShapes) {
  Bytes bytes = step(R"({"rope_base":"500000.5","head_dim":"128","angles":"float32"})");
  const File file = parse(bytes);
  cli::Parameters given;
  const cli::Arguments found = cli::arguments_from(file, bytes, given);
  EXPECT_EQ(found.op.head_dim, 128);
  EXPECT_EQ(found.op.num_qo_heads, 2);
  EXPECT_EQ(found.op.num_kv_heads, 1);
  EXPECT_EQ(found.op.rope_base, 500000.5);
  EXPECT_EQ(found.op.angles, Angles::float32);
  given.head_dim = 2;
  given.rope_base = 1e4;
  given.angles = "exact";
  const cli::Arguments overridden = cli::arguments_from(file, bytes, given);
  EXPECT_EQ(overridden.op.head_dim, 2);
  EXPECT_EQ(overridden.op.rope_base, 1e4);
  EXPECT_EQ(overridden.op.angles, Angles::exact);
  EXPECT_TRUE(check(overridden.op).size() == 1 && check(overridden.op)[0].code() == "RP017") << "q_out and k_out are missing";
}

TEST(ArgumentsOfAFile, TensorsAreTakenWhereTheyLieOrCopiedToAlignedMemory) {
  Bytes aligned = step("{}");
  const cli::Arguments in_place = cli::arguments_from(parse(aligned), aligned, {});
  EXPECT_TRUE(in_place.copies.empty());
  EXPECT_GE(static_cast<std::byte*>(in_place.op.k_pool.data), aligned.data());
  EXPECT_LT(static_cast<std::byte*>(in_place.op.k_pool.data), aligned.data() + aligned.size());
  Bytes odd = step("{}", 1);
  const cli::Arguments copied = cli::arguments_from(parse(odd), odd, {});
  EXPECT_EQ(copied.copies.size(), 7u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(copied.op.k_pool.data) % 64, 0u);
}

TEST(ArgumentsOfAFile, SayWhatIsMissingOrNoNumber) {
  const auto fault_of = [](Bytes bytes) -> std::string {
    try {
      cli::arguments_from(parse(bytes), bytes, {});
    } catch (const Malformed& fault) {
      return fault.what();
    }
    return "";
  };
  EXPECT_EQ(fault_of(step("{}")), "");
  EXPECT_PRED2(holds, fault_of(step("{}", 0, "slot_mapping")),
               "no tensor slots; it holds 'k', 'k_pool', 'positions', 'q', 'slot_mapping'");
  EXPECT_PRED2(holds, fault_of(file_of("{}")), "it holds none at all");
  EXPECT_PRED2(holds, fault_of(step(R"({"head_dim":"64.0"})")), "metadata head_dim must be an integer, it is '64.0'");
  EXPECT_PRED2(holds, fault_of(step(R"({"num_kv_heads":""})")), "metadata num_kv_heads must be an integer, it is ''");
  EXPECT_PRED2(holds, fault_of(step(R"({"head_dim":"99999999999999999999"})")), "must be an integer");
  EXPECT_PRED2(holds, fault_of(step(R"({"rope_base":"1e4f"})")), "metadata rope_base must be a number, it is '1e4f'");
}

TEST(ArgumentsOfAFile, UnknownAnglesAreRefusedByTheContract) {
  Bytes bytes = step(R"({"rope_base":"1e4","angles":"fast"})");
  const std::vector<Error> refusals = check(cli::arguments_from(parse(bytes), bytes, {}).op);
  EXPECT_EQ(refusals.at(0).code(), "RP015");
}

}  // namespace
}  // namespace ropepool::safetensors
