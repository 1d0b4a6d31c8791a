// Tensor, its shapes and types; Error and Result.
#include <set>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

namespace ropepool::test {
namespace {

constexpr DType kTypes[] = {DType::none,        DType::f32,         DType::f16,         DType::bf16,         DType::i32,
                            DType::i64,         DType::f64,         DType::boolean,     DType::i8,           DType::i16,
                            DType::u8,          DType::u16,         DType::u32,         DType::u64,          DType::complex64,
                            DType::complex128,  DType::f32_swapped, DType::f16_swapped, DType::bf16_swapped, DType::f64_swapped,
                            DType::i32_swapped, DType::i64_swapped};

TEST(DTypes, EachHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const DType dtype : kTypes) EXPECT_TRUE(names.insert(to_string(dtype)).second) << to_string(dtype);
  EXPECT_EQ(to_string(DType::bf16), "bfloat16");
  EXPECT_EQ(to_string(DType::f32_swapped), "float32 (byte-swapped)");
  EXPECT_EQ(to_string(DType::other), "an unsupported type");
  EXPECT_EQ(to_string(static_cast<DType>(0xFFFFFFFF)), "an unsupported type");
  EXPECT_EQ(to_string(static_cast<DType>(23)), "an unsupported type");
}

TEST(DTypes, Sizes) {
  const std::pair<DType, std::int64_t> sizes[] = {{DType::none, 0},
                                                  {DType::f32, 4},
                                                  {DType::f16, 2},
                                                  {DType::bf16, 2},
                                                  {DType::i32, 4},
                                                  {DType::i64, 8},
                                                  {DType::f64, 8},
                                                  {DType::boolean, 1},
                                                  {DType::complex128, 16},
                                                  {DType::bf16_swapped, 2},
                                                  {DType::i64_swapped, 8},
                                                  {DType::other, 0},
                                                  {static_cast<DType>(0xFFFFFFFF), 0}};
  for (const auto& [dtype, size] : sizes) EXPECT_EQ(item_size(dtype), size) << to_string(dtype);
}

TEST(Tensor, Contiguous) {
  float data[24];
  const Tensor tensor = Tensor::contiguous(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(tensor.data, data);
  EXPECT_EQ(tensor.dtype, DType::f32);
  EXPECT_EQ(tensor.shape, (Shape{2, 3, 4}));
  EXPECT_EQ(tensor.strides, (Strides{12, 4, 1}));
  EXPECT_EQ(tensor.device, Device{});
  EXPECT_FALSE(tensor.read_only);
  EXPECT_FALSE(tensor.unaligned);
  EXPECT_TRUE(tensor.given());
  EXPECT_FALSE(tensor.empty());
  const float* constant = data;
  EXPECT_TRUE(Tensor::contiguous(constant, DType::f32, {24}).read_only);
  EXPECT_EQ(Tensor::contiguous(data, DType::f32, Shape{}).rank(), 0);
  EXPECT_TRUE(Tensor::contiguous(data, DType::f32, {2, 0, 4}).empty());
  EXPECT_FALSE(Tensor{}.given());
  // A shape whose product is beyond 64 bits: nothing but what it says matters.
  EXPECT_EQ(Tensor::contiguous(data, DType::f32, {std::int64_t{1} << 62, std::int64_t{1} << 62, -3}).rank(), 3);
}

TEST(Dims, OfAnyRank) {
  std::vector<std::int64_t> lengths(20);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int64_t>(i + 1);
  const Shape eight(lengths.data(), 8), nine(lengths.data(), 9), twenty(lengths.data(), 20);
  EXPECT_EQ(eight.rank(), 8);
  EXPECT_EQ(eight[7], 8);
  EXPECT_EQ(nine.rank(), 9);
  EXPECT_EQ(twenty.rank(), 20);
  EXPECT_EQ(twenty.end() - twenty.begin(), 8);
  EXPECT_NE(eight, nine);
  EXPECT_NE(nine, twenty);
  EXPECT_NE((Shape{1, 2}), (Shape{1, 2, 3}));
  EXPECT_NE((Shape{1, 2}), (Shape{1, 3}));
  EXPECT_EQ(Shape{}, Shape{});
  EXPECT_EQ(to_string(eight), "(1, 2, 3, 4, 5, 6, 7, 8)");
  EXPECT_EQ(to_string(twenty), "(1, 2, 3, 4, 5, 6, 7, 8, ...)");
}

TEST(Devices, Names) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{DeviceType::cuda, 1}), "cuda:1");
  EXPECT_EQ(to_string(Device{DeviceType::metal, 0}), "metal:0");
  EXPECT_EQ(to_string(Device{DeviceType::other, 5}), "another device");
}

TEST(Errors, ThatAreNoRefusals) {
  const Error memory = Error::out_of_memory(), runtime = Error::runtime("ROPEPOOL_TARGET is odd");
  EXPECT_EQ(memory.kind(), Error::Kind::out_of_memory);
  EXPECT_EQ(memory.number(), -1);
  EXPECT_EQ(memory.message(), "out of memory");
  EXPECT_EQ(runtime.kind(), Error::Kind::runtime);
  EXPECT_EQ(runtime.number(), -2);
  EXPECT_EQ(runtime.message(), "ROPEPOOL_TARGET is odd");
  for (const Error* error : {&memory, &runtime}) {
    EXPECT_FALSE(error->refusal().has_value());
    for (const std::string_view text : {error->code(), error->name(), error->url()}) EXPECT_EQ(text, "");
  }
}

TEST(Errors, AHintThatIsMissingIsTheCatalogsFirstSolution) {
  const Error error(Refusal::overlap, {"q_out must share no memory with v", "q_out", "", "", "", ""});
  const std::string_view solutions = catalog_entry(Refusal::overlap).solutions;
  EXPECT_EQ(error.hint(), solutions.substr(0, solutions.find('\n')));
  EXPECT_EQ(error.message(),
            "q_out must share no memory with v\nmend:  " + error.hint() + "\nRP019 overlap: ropepool explain RP019");
}

TEST(Results, HoldAValueOrAnError) {
  Result<int> value = 7;
  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(static_cast<bool>(value));
  EXPECT_EQ(*value, 7);
  value.value() = 8;
  EXPECT_EQ(value.value(), 8);
  const Result<int> none = Error::out_of_memory();
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.error().number(), -1);
  EXPECT_TRUE(Result<void>().ok());
  EXPECT_FALSE(Result<void>(Error::runtime("x")).ok());
}

}  // namespace
}  // namespace ropepool::test
