#include "mutations.h"

#include <limits>

namespace ropepool::test {

namespace {

// Where another mutation has left an array of indices; else nothing.
void write_index(const Tensor& tensor, std::int64_t i, std::int64_t value) {
  const bool there = (tensor.dtype == DType::i32 || tensor.dtype == DType::i64) && tensor.data != nullptr &&
                     tensor.rank() == 1 && i < tensor.shape[0];
  if (there) set_index(tensor, i, value);
}
void write_indices(const Tensor& tensor, const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) write_index(tensor, static_cast<std::int64_t>(i), values[i]);
}

}  // namespace

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> list = [] {
    std::vector<Mutation> m;
    const auto add = [&](int code, const char* name, const char* first_line, std::function<void(OpCase&)> apply) {
      m.push_back({code, name, first_line, std::move(apply)});
    };
    const Shape ten_axes = [] {
      const std::int64_t lengths[] = {4, 1, 1, 1, 1, 1, 1, 2, 2, 8};
      return Shape(lengths, 10);
    }();
    constexpr std::int64_t kMin64 = std::numeric_limits<std::int64_t>::min(), kMax64 = std::numeric_limits<std::int64_t>::max();

    constexpr const char* kQkv3d = "rope_pool_fused expects q/k/v to be 3-D";
    add(1, "q has 4 axes", kQkv3d, [](OpCase& c) { c.args.q = shaped(c.args.q, {1, 4, 4, 8}); });
    add(1, "k has 2 axes", kQkv3d, [](OpCase& c) { c.args.k = shaped(c.args.k, {4, 16}); });
    add(1, "v has no axis", kQkv3d, [](OpCase& c) { c.args.v = shaped(c.args.v, {}); });
    add(1, "q has no axis", kQkv3d, [](OpCase& c) { c.args.q = shaped(c.args.q, {}); });
    add(1, "q has 10 axes", kQkv3d, [ten_axes](OpCase& c) { c.args.q = shaped(c.args.q, ten_axes); });
    add(1, "q has 10 axes, in place", kQkv3d, [ten_axes](OpCase& c) { c.args.q = c.args.q_out = shaped(c.args.q, ten_axes); });
    add(1, "q is not given", kQkv3d, [](OpCase& c) { c.args.q = {}; });

    constexpr const char* kIndices1d = "rope_pool_fused expects positions/slots to be 1-D";
    add(2, "positions has 2 axes", kIndices1d, [](OpCase& c) { c.args.positions = shaped(c.args.positions, {2, 2}); });
    add(2, "slots has no axis", kIndices1d, [](OpCase& c) { c.args.slots = shaped(c.args.slots, {}); });
    add(2, "slots is not given", kIndices1d, [](OpCase& c) { c.args.slots = {}; });

    constexpr const char* kPools3d = "rope_pool_fused expects pool tensors to be 3-D";
    add(3, "k_pool is paged", kPools3d, [](OpCase& c) { c.args.k_pool = shaped(c.args.k_pool, {4, 4, 2, 8}); });
    add(3, "v_pool has 2 axes", kPools3d, [](OpCase& c) { c.args.v_pool = shaped(c.args.v_pool, {16, 16}); });
    add(3, "k_pool has no axis", kPools3d, [](OpCase& c) { c.args.k_pool = shaped(c.args.k_pool, {}); });
    add(3, "v_pool has 10 axes", kPools3d, [ten_axes](OpCase& c) { c.args.v_pool = shaped(c.args.v_pool, ten_axes); });

    add(4, "q has 3 heads", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 3, 8)", [](OpCase& c) {
      c.args.q = shaped(c.args.q, {4, 3, 8});
    });
    add(4, "num_qo_heads is another", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 4, 8)",
        [](OpCase& c) { c.args.num_qo_heads = 8; });
    add(4, "head_dim is another", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 4, 8)",
        [](OpCase& c) { c.args.head_dim = 16; });
    add(4, "head_dim is the least number", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 4, 8)",
        [](OpCase& c) { c.args.head_dim = kMin64; });

    add(5, "k has 3 tokens", "k shape must be [num_tokens, num_kv_heads, head_dim], got (3, 2, 8)", [](OpCase& c) {
      c.args.k = shaped(c.args.k, {3, 2, 8});
    });
    add(5, "num_kv_heads is another", "k shape must be [num_tokens, num_kv_heads, head_dim], got (4, 2, 8)",
        [](OpCase& c) { c.args.num_kv_heads = 4; });
    add(5, "k has heads in front", "k shape must be [num_tokens, num_kv_heads, head_dim], got (2, 4, 8)", [](OpCase& c) {
      c.args.k = shaped(c.args.k, {2, 4, 8});
    });

    add(6, "v has q's heads and its own", "v shape must match k shape, got (4, 6, 8) vs (4, 2, 8)", [](OpCase& c) {
      c.args.v = shaped(c.args.v, {4, 6, 8});
    });
    add(6, "v has q's heads", "v shape must match k shape, got (4, 4, 8) vs (4, 2, 8)", [](OpCase& c) {
      c.args.v = shaped(c.args.v, {4, 4, 8});
    });
    add(6, "v has 3 tokens", "v shape must match k shape, got (3, 2, 8) vs (4, 2, 8)", [](OpCase& c) {
      c.args.v = shaped(c.args.v, {3, 2, 8});
    });

    constexpr const char* kCounts = "positions/slots must have one entry per token";
    add(7, "positions has 3 entries", kCounts, [](OpCase& c) { c.args.positions = shaped(c.args.positions, {3}); });
    add(7, "slots has 5 entries", kCounts, [](OpCase& c) { c.args.slots = shaped(c.args.slots, {5}); });
    add(7, "slots is empty", kCounts, [](OpCase& c) { c.args.slots = shaped(c.args.slots, {0}); });

    add(8, "k_pool has 1 head", "k_pool has incompatible shape (16, 1, 8)", [](OpCase& c) {
      c.args.k_pool = shaped(c.args.k_pool, {16, 1, 8});
    });
    add(8, "k_pool has heads in front", "k_pool has incompatible shape (2, 16, 8)", [](OpCase& c) {
      c.args.k_pool = shaped(c.args.k_pool, {2, 16, 8});
    });

    add(9, "v_pool has 15 slots", "v_pool shape must match k_pool shape, got (15, 2, 8) vs (16, 2, 8)", [](OpCase& c) {
      c.args.v_pool = shaped(c.args.v_pool, {15, 2, 8});
    });
    add(9, "k_pool has 17 slots", "v_pool shape must match k_pool shape, got (16, 2, 8) vs (17, 2, 8)", [](OpCase& c) {
      c.args.k_pool = shaped(c.args.k_pool, {17, 2, 8});
    });

    add(10, "k is float16", "q/k/v dtypes must match", [](OpCase& c) { c.args.k.dtype = DType::f16; });
    add(10, "v is uint16", "q/k/v dtypes must match", [](OpCase& c) { c.args.v.dtype = DType::u16; });
    add(10, "k is byte-swapped", "q/k/v dtypes must match", [](OpCase& c) { c.args.k.dtype = DType::f32_swapped; });

    add(10, "q and k are two unknown types", "q/k/v dtypes must match", [](OpCase& c) {
      c.args.q.dtype = static_cast<DType>(static_cast<std::uint32_t>(DType::other) + 1);
      c.args.k.dtype = static_cast<DType>(static_cast<std::uint32_t>(DType::other) + 2);
      c.args.v.dtype = c.args.q.dtype;
    });

    add(11, "v_pool is float16", "pool dtypes must match q/k/v dtype", [](OpCase& c) { c.args.v_pool.dtype = DType::f16; });
    add(11, "k_pool is int32", "pool dtypes must match q/k/v dtype", [](OpCase& c) { c.args.k_pool.dtype = DType::i32; });
    add(11, "all but the pools are float16", "pool dtypes must match q/k/v dtype", [](OpCase& c) {
      for (Tensor* t : {&c.args.q, &c.args.k, &c.args.v, &c.args.q_out, &c.args.k_out}) t->dtype = DType::f16;
    });
    add(11, "two unknown types", "pool dtypes must match q/k/v dtype", [](OpCase& c) {
      set_dtypes(c.args, static_cast<DType>(static_cast<std::uint32_t>(DType::other) + 1));
      c.args.v_pool.dtype = static_cast<DType>(static_cast<std::uint32_t>(DType::other) + 2);
    });

    for (const DType dtype : {DType::f64, DType::u16, DType::f32_swapped, DType::i8, DType::other}) {
      m.push_back({12, "all are " + to_string(dtype), "", [dtype](OpCase& c) { set_dtypes(c.args, dtype); }});
    }
    for (const DType dtype : {DType::f32, DType::u32, DType::i32_swapped, DType::u8, DType::i16, DType::boolean}) {
      m.push_back({13, "slots is " + to_string(dtype), "", [dtype](OpCase& c) { c.args.slots.dtype = dtype; }});
    }
    add(13, "positions is float64", "", [](OpCase& c) { c.args.positions.dtype = DType::f64; });

    add(14, "head_dim is 7", "", [](OpCase& c) { resize(c.args, 4, 4, 2, 7); });
    add(14, "head_dim is 1", "", [](OpCase& c) { resize(c.args, 4, 4, 2, 1); });
    add(14, "head_dim is 0", "", [](OpCase& c) { resize(c.args, 4, 4, 2, 0); });
    add(14, "head_dim is -2", "", [](OpCase& c) { resize(c.args, 4, 4, 2, -2); });
    add(14, "no query heads", "", [](OpCase& c) { resize(c.args, 4, 0, 2, 8); });
    add(14, "no KV heads", "", [](OpCase& c) { resize(c.args, 4, 4, 0, 8); });
    add(14, "-1 KV heads", "", [](OpCase& c) { resize(c.args, 4, 4, -1, 8); });

    for (const double base : {0.0, -0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
      m.push_back({15, "rope_base is " + std::to_string(base), "", [base](OpCase& c) { c.args.rope_base = base; }});
    }
    add(15, "unknown angles", "angles must be 'exact' or 'float32', got 7",
        [](OpCase& c) { c.args.angles = static_cast<Angles>(7); });

    add(16, "q has an innermost stride of 2", "", [](OpCase& c) { c.args.q.strides[2] = 2; });
    add(16, "k_out runs backwards", "", [](OpCase& c) { c.args.k_out = reversed(c.args.k_out, 2); });
    add(16, "v has an innermost stride of 0", "", [](OpCase& c) { c.args.v.strides[2] = 0; });
    add(16, "positions has a stride of 2", "", [](OpCase& c) { c.args.positions.strides[0] = 2; });
    add(16, "slots has a stride of 0", "", [](OpCase& c) { c.args.slots.strides[0] = 0; });
    add(16, "k_pool is off by a byte", "", [](OpCase& c) { c.args.k_pool = moved(c.args.k_pool, 1); });
    add(16, "positions is off by 4 bytes", "", [](OpCase& c) { c.args.positions = moved(c.args.positions, 4); });
    add(16, "v has odd strides in bytes", "", [](OpCase& c) { c.args.v.unaligned = true; });
    add(16, "q has no data", "", [](OpCase& c) { c.args.q.data = nullptr; });
    add(16, "q_out has no data", "", [](OpCase& c) { c.args.q_out.data = nullptr; });
    add(16, "all lengths are -1", "", [](OpCase& c) { resize(c.args, -1, 4, 2, 8); });
    add(16, "the pools have -3 slots", "", [](OpCase& c) {
      for (Tensor* t : {&c.args.k_pool, &c.args.v_pool}) *t = shaped(*t, {-3, 2, 8});
    });
    add(16, "the pools have the least number of slots", "", [](OpCase& c) {
      for (Tensor* t : {&c.args.k_pool, &c.args.v_pool}) *t = shaped(*t, {kMin64, 2, 8});
    });
    add(16, "q's token stride is 2^62", "", [](OpCase& c) { c.args.q.strides[0] = std::int64_t{1} << 62; });
    add(16, "v_pool's slot stride is the least number", "", [](OpCase& c) { c.args.v_pool.strides[0] = kMin64; });
    add(16, "k's head stride is the greatest number", "", [](OpCase& c) { c.args.k.strides[1] = kMax64; });
    add(16, "the pools have 2^61 slots", "", [](OpCase& c) {
      for (Tensor* t : {&c.args.k_pool, &c.args.v_pool}) *t = shaped(*t, {std::int64_t{1} << 61, 2, 8});
    });

    add(12, "lanes of q are the least number of bytes apart", "", [](OpCase& c) {
      resize(c.args, 4, 4, 2, 2);
      set_dtypes(c.args, DType::u8);
      c.args.q.strides[2] = kMin64;
    });
    add(12, "slots of a pool are the least number of bytes apart", "", [](OpCase& c) {
      set_dtypes(c.args, DType::u8);
      c.args.k_pool.shape[0] = c.args.v_pool.shape[0] = 2;
      c.args.k_pool.strides[0] = kMin64;
    });

    add(17, "q_out is not given", "", [](OpCase& c) { c.args.q_out = {}; });
    add(17, "k_out is not given", "", [](OpCase& c) { c.args.k_out = {}; });
    add(17, "q_out has 3 tokens", "", [](OpCase& c) { c.args.q_out = shaped(c.args.q_out, {3, 4, 8}); });
    add(17, "q_out has another rank", "", [](OpCase& c) { c.args.q_out = shaped(c.args.q_out, {4, 32}); });
    add(17, "k_out is float16", "", [](OpCase& c) { c.args.k_out.dtype = DType::f16; });
    add(17, "k_pool is read-only", "", [](OpCase& c) { c.args.k_pool.read_only = true; });
    add(17, "v_pool is read-only", "", [](OpCase& c) { c.args.v_pool.read_only = true; });
    add(17, "q_out is read-only", "", [](OpCase& c) { c.args.q_out.read_only = true; });
    add(17, "k_out is read-only", "", [](OpCase& c) { c.args.k_out.read_only = true; });

    add(18, "all are on cuda:0", "", [](OpCase& c) {
      for (Tensor* t : all_arrays(c.args)) t->device = {DeviceType::cuda, 0};
    });
    add(18, "slots is on cuda:0", "", [](OpCase& c) { c.args.slots.device = {DeviceType::cuda, 0}; });
    add(18, "k_out is on cuda:0, where v has its address", "", [](OpCase& c) {
      c.args.k_out.data = c.args.v.data;
      c.args.k_out.device = {DeviceType::cuda, 0};
    });
    add(18, "q is on metal:0", "", [](OpCase& c) { c.args.q.device = {DeviceType::metal, 0}; });
    add(18, "k_out is on an unknown device", "", [](OpCase& c) { c.args.k_out.device = {DeviceType::other, 3}; });

    add(19, "q_out is q, one head on", "", [](OpCase& c) { c.args.q_out = moved(c.args.q, 8 * item_size(c.args.q.dtype)); });
    add(19, "q_out is q, one head back", "", [](OpCase& c) { c.args.q_out = moved(c.args.q, -8 * item_size(c.args.q.dtype)); });
    add(19, "q_out is q with other strides", "", [](OpCase& c) {
      c.args.q_out = c.args.q;
      c.args.q_out.strides = {8, 32, 1};
    });
    add(19, "q_out lies on k", "", [](OpCase& c) { c.args.q_out.data = c.args.k.data; });
    add(19, "k_out is v", "", [](OpCase& c) { c.args.k_out = c.args.v; });
    add(19, "k_out lies in q_out", "", [](OpCase& c) { c.args.k_out.data = c.args.q_out.data; });
    add(19, "the pools are one", "", [](OpCase& c) { c.args.v_pool = c.args.k_pool; });
    add(19, "the pools share a byte's neighbourhood", "",
        [](OpCase& c) { c.args.v_pool = moved(c.args.k_pool, (16 * 2 * 8 - 1) * item_size(c.args.q.dtype)); });
    add(19, "v lies in v_pool", "", [](OpCase& c) { c.args.v.data = c.args.v_pool.data; });
    add(19, "slots lies in k_pool", "", [](OpCase& c) {
      const std::vector<std::int64_t> values = {1, 2, 3, 4};
      c.args.slots.data = c.args.k_pool.data;
      write_indices(c.args.slots, values);
    });
    add(19, "q_out has one head for all", "", [](OpCase& c) { c.args.q_out.strides[1] = 0; });
    add(19, "k_pool has one row for all", "", [](OpCase& c) { c.args.k_pool.strides[0] = 0; });
    add(19, "k_out's heads run into each other", "", [](OpCase& c) { c.args.k_out.strides[1] = 4; });
    add(19, "in place, but q is k", "", [](OpCase& c) {
      resize(c.args, 4, 2, 2, 8);
      c.args.q = c.args.k;
      c.args.q_out = c.args.q;
    });
    add(19, "in place, but v is k", "", [](OpCase& c) {
      c.args.v = c.args.k;
      c.args.k_out = c.args.k;
    });
    add(19, "k_out is k with other strides", "", [](OpCase& c) {
      c.args.k_out = c.args.k;
      c.args.k_out.strides = {8, 32, 1};
    });

    add(20, "a slot is num_slots", "", [](OpCase& c) { write_index(c.args.slots, 2, 16); });
    add(20, "a slot is the greatest int32", "", [](OpCase& c) { write_index(c.args.slots, 3, 2147483647); });
    add(20, "a slot is the greatest int64", "", [](OpCase& c) {
      c.args.slots = c.memory.make(DType::i64, {4});
      set_indices(c.args.slots, {0, kMax64, 1, 2});
    });
    add(20, "a slot is 2^32", "", [](OpCase& c) {
      c.args.slots = c.memory.make(DType::i64, {4});
      set_indices(c.args.slots, {0, -1, 1, std::int64_t{1} << 32});
    });
    add(20, "the pools have no slots", "", [](OpCase& c) {
      for (Tensor* t : {&c.args.k_pool, &c.args.v_pool}) *t = shaped(*t, {0, 2, 8});
    });

    add(21, "a position is 2^31", "", [](OpCase& c) { write_index(c.args.positions, 1, std::int64_t{1} << 31); });
    add(21, "a position is -2^31", "", [](OpCase& c) { write_index(c.args.positions, 3, -(std::int64_t{1} << 31)); });
    add(21, "a position is the least int32", "", [](OpCase& c) {
      c.args.positions = c.memory.make(DType::i32, {4});
      set_indices(c.args.positions, {0, 1, 2, -2147483647 - 1});
    });
    add(21, "a position is the greatest int64", "", [](OpCase& c) { write_index(c.args.positions, 0, kMax64); });
    add(21, "a position is the least int64", "", [](OpCase& c) { write_index(c.args.positions, 0, kMin64); });
    return m;
  }();
  return list;
}

}  // namespace ropepool::test
