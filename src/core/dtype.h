// The list of element types: one row each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include <ropepool/tensor.h>

namespace ropepool {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int item_size;
};

inline constexpr DTypeRow kDTypes[] = {
    {DType::none, "none", 0},
    {DType::f32, "float32", 4},
    {DType::f16, "float16", 2},
    {DType::bf16, "bfloat16", 2},
    {DType::i32, "int32", 4},
    {DType::i64, "int64", 8},
    {DType::f64, "float64", 8},
    {DType::boolean, "bool", 1},
    {DType::i8, "int8", 1},
    {DType::i16, "int16", 2},
    {DType::u8, "uint8", 1},
    {DType::u16, "uint16", 2},
    {DType::u32, "uint32", 4},
    {DType::u64, "uint64", 8},
    {DType::complex64, "complex64", 8},
    {DType::complex128, "complex128", 16},
    {DType::f32_swapped, "float32 (byte-swapped)", 4},
    {DType::f16_swapped, "float16 (byte-swapped)", 2},
    {DType::bf16_swapped, "bfloat16 (byte-swapped)", 2},
    {DType::f64_swapped, "float64 (byte-swapped)", 8},
    {DType::i32_swapped, "int32 (byte-swapped)", 4},
    {DType::i64_swapped, "int64 (byte-swapped)", 8},
};

// Row n is the type with the value n.
static_assert([] {
  for (std::size_t n = 0; n < std::size(kDTypes); ++n) {
    if (kDTypes[n].dtype != static_cast<DType>(n)) return false;
  }
  return true;
}());

constexpr const DTypeRow* row_of(DType dtype) {
  const auto n = static_cast<std::size_t>(dtype);
  return n < std::size(kDTypes) ? &kDTypes[n] : nullptr;
}

// item_size, where every nanosecond of a small call counts.
constexpr std::int64_t item_size_of(DType dtype) {
  const DTypeRow* row = row_of(dtype);
  return row == nullptr ? 0 : row->item_size;
}

// Types without a value of their own, as DLPack numbers them: different ones stay different, and a refusal can name them.
constexpr DType other_dtype(std::uint32_t code, std::uint32_t bits, std::uint32_t lanes = 1) {
  return static_cast<DType>(static_cast<std::uint32_t>(DType::other) + ((code << 8 | bits) << 8 | lanes));
}

struct OtherDTypeRow {
  DType dtype;
  std::string_view name;  // NumPy's, by ml_dtypes
};

inline constexpr OtherDTypeRow kOtherDTypes[] = {
    {other_dtype(7, 8), "float8_e3m4"},      {other_dtype(8, 8), "float8_e4m3"},      {other_dtype(9, 8), "float8_e4m3b11fnuz"},
    {other_dtype(10, 8), "float8_e4m3fn"},   {other_dtype(11, 8), "float8_e4m3fnuz"}, {other_dtype(12, 8), "float8_e5m2"},
    {other_dtype(13, 8), "float8_e5m2fnuz"}, {other_dtype(14, 8), "float8_e8m0fnu"},  {other_dtype(15, 6), "float6_e2m3fn"},
    {other_dtype(16, 6), "float6_e3m2fn"},   {other_dtype(17, 4), "float4_e2m1fn"},
};

// "" where it has none.
constexpr std::string_view name_of(DType dtype) {
  if (const DTypeRow* row = row_of(dtype)) return row->name;
  for (const OtherDTypeRow& row : kOtherDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "";
}

constexpr bool is_data_type(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }
constexpr bool is_index_type(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

}  // namespace ropepool
