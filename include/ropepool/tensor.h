// Tensor: a strided view of memory that somebody else owns, as every op takes it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include <ropepool/export.h>

namespace ropepool {

// Element types. Ops say which of them they take; the others have names so that a refusal can name them.
// Values from `other` on stand for types without a name here: two that differ in value are different types.
enum class DType : std::uint32_t {
  none,  // the Tensor stands for "no tensor given"
  f32,
  f16,
  bf16,
  i32,
  i64,
  // Refused by every op of this version.
  f64,
  boolean,
  i8,
  i16,
  u8,
  u16,
  u32,
  u64,
  complex64,
  complex128,
  f32_swapped,  // in the other byte order
  f16_swapped,
  bf16_swapped,
  f64_swapped,
  i32_swapped,
  i64_swapped,
  other = 0x10000000,
};

// Bytes of one element; 0 where it is not known (none, other).
ROPEPOOL_API std::int64_t item_size(DType dtype);
// "float32", "bfloat16", "int64", "float32 (byte-swapped)" ...
ROPEPOOL_API std::string to_string(DType dtype);

// Up to kMaxRank lengths, one an axis, outermost first. Of an array with more axes the rank is right and the first kMaxRank
// lengths are held, which is enough to refuse it.
class Dims {
 public:
  static constexpr int kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(values.begin(), static_cast<int>(values.size())) {}
  Dims(const std::int64_t* values, int rank) { assign(values, rank); }
  // In place: a copy of a Dims that was just written waits for the writes, some 10 ns.
  void assign(const std::int64_t* values, int rank) {
    rank_ = rank;
    for (int axis = 0, held = std::min(rank, kMaxRank); axis < held; ++axis) (*this)[axis] = values[axis];
  }

  void set_rank(int rank) { rank_ = rank; }

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) { return values_[static_cast<std::size_t>(axis)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + std::min(rank_, kMaxRank); }
  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int axis = 0, held = std::min(a.rank_, kMaxRank); axis < held; ++axis) {
      if (a[axis] != b[axis]) return false;
    }
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

using Shape = Dims;
using Strides = Dims;

// As Python prints a tuple: "(4, 8, 64)", "(4,)", "()".
ROPEPOOL_API std::string to_string(const Dims& dims);

enum class DeviceType : std::int32_t { cpu, cuda, metal, other };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:1", "metal:0" ...
ROPEPOOL_API std::string to_string(const Device& device);

struct Tensor {
  void* data = nullptr;  // the element at index (0, ..., 0)
  DType dtype = DType::none;
  Shape shape;
  Strides strides;  // in elements; may be negative, or zero in an input
  Device device;
  bool read_only = false;  // may not be written
  bool unaligned = false;  // data or a byte stride is no multiple of the item size, so that `strides` can't say it

  // A row-major tensor without gaps.
  ROPEPOOL_API static Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape);
  ROPEPOOL_API static Tensor contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);  // read-only
  ROPEPOOL_API static Tensor contiguous(void* data, DType dtype, const Shape& shape);

  // The strides of a row-major array without gaps.
  void set_contiguous() {
    strides.set_rank(shape.rank());
    std::int64_t stride = 1;
    for (int axis = std::min(shape.rank(), Dims::kMaxRank) - 1; axis >= 0; --axis) {
      strides[axis] = stride;
      // A shape whose product overflows is refused by every op; here it must only not be undefined.
      stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) * static_cast<std::uint64_t>(shape[axis]));
    }
  }

  bool given() const { return dtype != DType::none; }
  int rank() const { return shape.rank(); }
  bool empty() const { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }
};

}  // namespace ropepool
