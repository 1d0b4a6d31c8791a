// A call of rope_pool_fused for a test: its arguments and the memory they lie in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <ostream>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ropepool/rope_pool_fused.h>

#include "float_formats.h"

namespace ropepool::test {

using Random = std::mt19937_64;

inline std::int64_t uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// ---- Elements of a tensor

inline std::byte* element(const Tensor& tensor, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0) {
  const std::int64_t index[] = {a, b, c};
  std::int64_t offset = 0;
  for (int axis = 0; axis < tensor.rank(); ++axis) offset += index[axis] * tensor.strides[axis];
  return static_cast<std::byte*>(tensor.data) + offset * item_size(tensor.dtype);
}

inline std::uint32_t bits_at(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, element(tensor, a, b, c), static_cast<std::size_t>(item_size(tensor.dtype)));
  return bits;
}
inline void set_bits(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c, std::uint32_t bits) {
  std::memcpy(element(tensor, a, b, c), &bits, static_cast<std::size_t>(item_size(tensor.dtype)));
}

inline Real value_at(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c) {
  return decode(tensor.dtype, bits_at(tensor, a, b, c));
}
inline void set_value(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c, Real value) {
  set_bits(tensor, a, b, c, encode(tensor.dtype, value));
}

inline std::int64_t index_at(const Tensor& tensor, std::int64_t i) {
  std::int64_t wide = 0;
  std::int32_t narrow = 0;
  if (tensor.dtype == DType::i64) {
    std::memcpy(&wide, element(tensor, i), sizeof wide);
    return wide;
  }
  std::memcpy(&narrow, element(tensor, i), sizeof narrow);
  return narrow;
}
inline void set_index(const Tensor& tensor, std::int64_t i, std::int64_t value) {
  const auto narrow = static_cast<std::int32_t>(value);
  if (tensor.dtype == DType::i64) {
    std::memcpy(element(tensor, i), &value, sizeof value);
  } else {
    std::memcpy(element(tensor, i), &narrow, sizeof narrow);
  }
}
inline void set_indices(const Tensor& tensor, const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) set_index(tensor, static_cast<std::int64_t>(i), values[i]);
}

template <class F>  // f(a, b, c) for every element of a 3-D tensor
void for_each_element(const Tensor& tensor, F f) {
  for (std::int64_t a = 0; a < tensor.shape[0]; ++a) {
    for (std::int64_t b = 0; b < tensor.shape[1]; ++b) {
      for (std::int64_t c = 0; c < tensor.shape[2]; ++c) f(a, b, c);
    }
  }
}

inline void fill(const Tensor& tensor, Random& random, double scale = 2.0) {
  std::uniform_real_distribution<double> value(-scale, scale);
  for_each_element(tensor, [&](auto a, auto b, auto c) { set_value(tensor, a, b, c, value(random)); });
}
inline void fill(const Tensor& tensor, Real value) {
  for_each_element(tensor, [&](auto a, auto b, auto c) { set_value(tensor, a, b, c, value); });
}

// Axis `axis` from `begin` on, `length` long: a view.
inline Tensor slice(Tensor tensor, int axis, std::int64_t begin, std::int64_t length) {
  tensor.data = static_cast<std::byte*>(tensor.data) + begin * tensor.strides[axis] * item_size(tensor.dtype);
  tensor.shape[axis] = length;
  return tensor;
}
// The view with an axis taken out at `index`.
inline Tensor select(const Tensor& tensor, int axis, std::int64_t index) {
  Tensor view = slice(tensor, axis, index, 1);
  std::vector<std::int64_t> shape, strides;
  for (int i = 0; i < tensor.rank(); ++i) {
    if (i == axis) continue;
    shape.push_back(tensor.shape[i]);
    strides.push_back(tensor.strides[i]);
  }
  view.shape = Shape(shape.data(), static_cast<int>(shape.size()));
  view.strides = Strides(strides.data(), static_cast<int>(strides.size()));
  return view;
}
inline Tensor transpose(Tensor tensor, int a, int b) {
  std::swap(tensor.shape[a], tensor.shape[b]);
  std::swap(tensor.strides[a], tensor.strides[b]);
  return tensor;
}
// The view with an axis turned around.
inline Tensor reversed(Tensor tensor, int axis) {
  tensor.data =
      static_cast<std::byte*>(tensor.data) + (tensor.shape[axis] - 1) * tensor.strides[axis] * item_size(tensor.dtype);
  tensor.strides[axis] = -tensor.strides[axis];
  return tensor;
}

// ---- Memory

// Owns the memory of a call's arrays, with a margin before and behind each, so that a stray write is seen and descriptors may
// be made to lie.
class Memory {
 public:
  using Bytes = std::vector<std::byte>;

  Tensor make(DType dtype, const Shape& shape, const Strides& strides) {
    Tensor tensor{nullptr, dtype, shape, strides, {}, false, false};
    std::int64_t low = 0, high = tensor.empty() ? 0 : 1;
    for (int axis = 0; axis < shape.rank() && !tensor.empty(); ++axis) {
      (strides[axis] < 0 ? low : high) += (shape[axis] - 1) * strides[axis];
    }
    const std::int64_t item = item_size(dtype), margin = (high - low) * margin_ + 64;
    Bytes& bytes = blocks_.emplace_back(static_cast<std::size_t>((high - low + 2 * margin) * item));
    for (std::size_t i = 0; i < bytes.size(); i += kPatternBytes) {
      std::memcpy(bytes.data() + i, pattern().data(), std::min(kPatternBytes, bytes.size() - i));
    }
    tensor.data = bytes.data() + (margin - low) * item;
    return tensor;
  }
  Tensor make(DType dtype, const Shape& shape) { return make(dtype, shape, Tensor::contiguous(nullptr, dtype, shape).strides); }

  // How many times an array's own size the margins are.
  void set_margin(std::int64_t margin) { margin_ = margin; }

  const std::deque<Bytes>& blocks() const { return blocks_; }
  using Copy = std::deque<Bytes>;
  Copy copy() const { return blocks_; }
  // Puts back what copy() gave; addresses stay.
  void restore(const Copy& copy) {
    for (std::size_t i = 0; i < copy.size(); ++i) std::memcpy(blocks_[i].data(), copy[i].data(), copy[i].size());
  }
  // Whether every byte is as in `copy`.
  bool equals(const Copy& copy) const {
    return std::equal(blocks_.begin(), blocks_.end(), copy.begin(), copy.end(), [](const Bytes& x, const Bytes& y) {
      return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size()) == 0;
    });
  }

  // Where `address` lies: the number of the block and the offset in it.
  std::pair<std::size_t, std::size_t> find(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const std::byte* begin = blocks_[i].data();
      if (at >= begin && at < begin + blocks_[i].size()) return {i, static_cast<std::size_t>(at - begin)};
    }
    std::abort();  // an array of the test lies in no block: the test is wrong
  }

 private:
  static constexpr std::size_t kPatternBytes = 65521;
  // Without a period that a stride could have; as an index it is negative.
  static const Bytes& pattern() {
    static const Bytes& bytes = *[] {  // never destroyed, for calls in exit handlers
      auto* made = new Bytes(kPatternBytes);
      for (std::size_t i = 0; i < made->size(); ++i) (*made)[i] = static_cast<std::byte>((i * 37 + i / 251) | 0x81);
      return made;
    }();
    return bytes;
  }

  std::deque<Bytes> blocks_;
  std::int64_t margin_ = 0;
};

// ---- The call

struct Geometry {
  DType dtype = DType::f32;
  std::int64_t num_tokens = 4, num_qo_heads = 4, num_kv_heads = 2, head_dim = 8, num_slots = 16;
  DType positions = DType::i64, slots = DType::i32;
};

inline std::string describe(const Tensor& tensor) {
  if (!tensor.given()) return "none";
  return to_string(tensor.dtype) + to_string(tensor.shape) + " strides " + to_string(tensor.strides);
}
inline std::string describe(const RopePoolFusedArgs& a) {
  std::ostringstream out;
  out << "head_dim " << a.head_dim << ", heads " << a.num_qo_heads << "/" << a.num_kv_heads << ", rope_base " << a.rope_base
      << (a.angles == Angles::exact ? ", exact" : ", float32");
  for (const auto& [name, tensor] : {std::pair{"q", &a.q},
                                     {"k", &a.k},
                                     {"v", &a.v},
                                     {"positions", &a.positions},
                                     {"slots", &a.slots},
                                     {"k_pool", &a.k_pool},
                                     {"v_pool", &a.v_pool},
                                     {"q_out", &a.q_out},
                                     {"k_out", &a.k_out}}) {
    out << "\n  " << name << ": " << describe(*tensor);
  }
  return out.str();
}

// A legal call: contiguous arrays that are all apart, random values, slots in random order without repeats where the pool is
// large enough. A test changes `args` as it likes; what it puts there comes from `memory` too.
struct OpCase {
  Memory memory;
  RopePoolFusedArgs args;

  OpCase() = default;
  OpCase(OpCase&&) = default;  // never copied: `args` points into `memory`
  OpCase& operator=(OpCase&&) = default;
  explicit OpCase(const Geometry& g, std::uint64_t seed = 1, std::int64_t margin = 0) {
    Random random(seed);
    memory.set_margin(margin);
    args.head_dim = g.head_dim;
    args.num_qo_heads = g.num_qo_heads;
    args.num_kv_heads = g.num_kv_heads;
    args.rope_base = 10000.0;
    args.q = memory.make(g.dtype, {g.num_tokens, g.num_qo_heads, g.head_dim});
    args.k = memory.make(g.dtype, {g.num_tokens, g.num_kv_heads, g.head_dim});
    args.v = memory.make(g.dtype, args.k.shape);
    args.positions = memory.make(g.positions, {g.num_tokens});
    args.slots = memory.make(g.slots, {g.num_tokens});
    args.k_pool = memory.make(g.dtype, {g.num_slots, g.num_kv_heads, g.head_dim});
    args.v_pool = memory.make(g.dtype, args.k_pool.shape);
    args.q_out = memory.make(g.dtype, args.q.shape);
    args.k_out = memory.make(g.dtype, args.k.shape);
    fill_inputs(random);
  }

  void fill_inputs(Random& random) {
    fill(args.q, random);
    fill(args.k, random);
    fill(args.v, random);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(std::max<std::int64_t>(args.k_pool.shape[0], 1)));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
    std::shuffle(rows.begin(), rows.end(), random);
    for (std::int64_t t = 0; t < args.positions.shape[0]; ++t) set_index(args.positions, t, uniform(random, 0, 5000));
    for (std::int64_t t = 0; t < args.slots.shape[0]; ++t) {
      set_index(args.slots, t, args.k_pool.shape[0] == 0 ? -1 : rows[static_cast<std::size_t>(t) % rows.size()]);
    }
  }

  std::int64_t num_tokens() const { return args.q.shape[0]; }
  Result<void> run(Executor* executor = nullptr) const { return rope_pool_fused(args, executor); }
};

// At the beginning of a cache line, as stores past the caches want it.
constexpr std::int64_t kCacheLine = 64;
inline Tensor aligned(Memory& memory, DType dtype, const Shape& shape) {
  Shape longer = shape;
  longer[0] += 1 + kCacheLine;
  Tensor tensor = memory.make(dtype, longer);
  const auto past = reinterpret_cast<std::uintptr_t>(tensor.data) % kCacheLine;
  if (past != 0) tensor.data = static_cast<std::byte*>(tensor.data) + (kCacheLine - past);
  tensor.shape = shape;
  return tensor;
}
inline void align(OpCase& c) {
  for (Tensor* t : {&c.args.q_out, &c.args.k_out, &c.args.k_pool, &c.args.v_pool}) *t = aligned(c.memory, t->dtype, t->shape);
}

// Every byte of the case's memory, for a comparison of two cases of one layout.
inline bool same_memory(const OpCase& a, const OpCase& b) { return a.memory.equals(b.memory.blocks()); }

}  // namespace ropepool::test
