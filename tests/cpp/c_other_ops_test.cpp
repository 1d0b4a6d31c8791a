// HeadOps, v_head_dim and the other ops in C, each beside the C++ call that it must be: the same bits, the same refusals, the
// same words.
#include <ropepool/c_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "c_call.h"
#include "mutations.h"
#include "op_case.h"

namespace ropepool::test {
namespace {

constexpr double kNotGiven = std::numeric_limits<double>::quiet_NaN();

// ---- One rope in both languages

struct Twin {
  Rope cpp;
  ropepool_rope* c = nullptr;
};

Twin of_form(const RopeForm& form) {
  Twin twin{Rope::make(form).value()};
  ropepool_rope_form c{};
  c.size = sizeof c;
  c.base = form.base;
  c.rotary_dim = form.rotary_dim;
  c.rotary_offset = form.rotary_offset;
  c.pairing = form.pairing == Pairing::neox ? ROPEPOOL_PAIRING_NEOX : ROPEPOOL_PAIRING_INTERLEAVED;
  EXPECT_EQ(ropepool_rope_make(&c, &twin.c), ROPEPOOL_OK) << ropepool_last_error_message();
  return twin;
}

Twin of_config(const char* json) {
  Twin twin{rope_from_config(json).value()};
  EXPECT_EQ(ropepool_rope_from_config(json, nullptr, 0, &twin.c), ROPEPOOL_OK) << ropepool_last_error_message();
  return twin;
}

Twin of_table() {
  static float cos_sin[31 * 8];
  for (int i = 0; i < 31 * 8; ++i) cos_sin[i] = std::sin(static_cast<float>(i));
  const Tensor table = Tensor::contiguous(static_cast<const float*>(cos_sin), DType::f32, {31, 8});
  RopeForm form;
  form.rotary_dim = 8;
  Twin twin{Rope::from_table(table, form).value()};
  ropepool_rope_form c{};
  c.size = sizeof c;
  c.rotary_dim = 8;
  const DlView view(table);
  EXPECT_EQ(ropepool_rope_from_table(&view.tensor, &c, &twin.c), ROPEPOOL_OK) << ropepool_last_error_message();
  return twin;
}

// Of heads with 8 lanes, but for the one that is too wide.
struct Ropes {
  Twin plain = of_form({.base = 5e5, .rotary_dim = 4, .rotary_offset = 4, .pairing = Pairing::interleaved});
  Twin wide = of_form({.base = 1e4, .rotary_dim = 64});
  Twin two_sets = of_config(R"({"head_dim": 8, "rope_theta": 10000.0, "max_position_embeddings": 32, "rope_scaling": {
    "rope_type": "longrope", "short_factor": [1, 1, 1.5, 2], "long_factor": [1, 2, 4, 8],
    "original_max_position_embeddings": 8}})");
  Twin table = of_table();
  ~Ropes() {
    for (const Twin* twin : all()) ropepool_rope_free(twin->c);
  }
  std::vector<const Twin*> all() const { return {&plain, &wide, &two_sets, &table}; }
};
const Ropes& ropes() {
  static const Ropes made;
  return made;
}
const ropepool_rope* twin_of(const Rope* cpp) {
  for (const Twin* twin : ropes().all()) {
    if (&twin->cpp == cpp) return twin->c;
  }
  return nullptr;
}

// ---- The calls of C with the arguments of C++

const DLTensor* if_given(const Tensor& tensor, const DlView& view) { return tensor.given() ? &view.tensor : nullptr; }

struct CNorm {
  explicit CNorm(const std::optional<HeadNorm>& norm) : given(norm.has_value()), weight(norm ? norm->weight : Tensor{}) {
    if (!norm) return;
    c.size = sizeof c;
    c.eps = norm->eps;
    c.weight = if_given(norm->weight, weight);
    c.kind = norm->kind == HeadNorm::Kind::rms ? ROPEPOOL_NORM_RMS : ROPEPOOL_NORM_LAYER;
    c.unit_offset = norm->unit_offset;
  }
  const ropepool_head_norm* get() const { return given ? &c : nullptr; }

  bool given;
  DlView weight;
  ropepool_head_norm c{};
};

struct CHeadOps {
  explicit CHeadOps(const HeadOps& ops)
      : q_bias(ops.q_bias), k_bias(ops.k_bias), v_bias(ops.v_bias), q_norm(ops.q_norm), k_norm(ops.k_norm) {
    c.size = sizeof c;
    c.q_bias = if_given(ops.q_bias, q_bias);
    c.k_bias = if_given(ops.k_bias, k_bias);
    c.v_bias = if_given(ops.v_bias, v_bias);
    c.q_norm = q_norm.get();
    c.k_norm = k_norm.get();
    c.q_scale = ops.q_scale;
  }

  DlView q_bias, k_bias, v_bias;
  CNorm q_norm, k_norm;
  ropepool_head_ops c{};
};

template <class Options, class Args>
void set_rope(Options& options, const Args& a) {
  options.rope_base = a.rope_base;
  options.angles = static_cast<std::int32_t>(a.angles);
  options.rope = twin_of(a.rope);
}

struct CFused {
  explicit CFused(const RopePoolFusedArgs& a) : call(a), ops(a.head_ops != nullptr ? *a.head_ops : HeadOps{}) {
    call.options.rope = twin_of(a.rope);
    call.options.v_head_dim = a.v_head_dim.value_or(0);
    if (a.head_ops != nullptr) call.options.head_ops = &ops.c;
  }
  int run() const { return call.run(); }

  CCall call;
  CHeadOps ops;
  ropepool_rope_pool_fused_options& options = call.options;
};

struct CQkv {
  explicit CQkv(const RopePoolFusedQkvArgs& a)
      : views{DlView(a.qkv),    DlView(a.positions), DlView(a.slots), DlView(a.k_pool),
              DlView(a.v_pool), DlView(a.q_out),     DlView(a.k_out)},
        rope_sets(a.rope_sets),
        bias(a.bias),
        q_norm(a.q_norm),
        k_norm(a.k_norm) {
    for (std::size_t i = 0; i < 7; ++i) arrays[i] = &views[i].tensor;
    arrays[5] = if_given(a.q_out, views[5]);
    arrays[6] = if_given(a.k_out, views[6]);
    options.size = sizeof options;
    options.head_dim = a.head_dim;
    options.num_qo_heads = a.num_qo_heads;
    options.num_kv_heads = a.num_kv_heads;
    set_rope(options, a);
    options.rope_sets = if_given(a.rope_sets, rope_sets);
    options.order = static_cast<std::int32_t>(a.order);
    options.in_place = a.in_place ? -7 : 0;
    options.bias = if_given(a.bias, bias);
    options.q_norm = q_norm.get();
    options.k_norm = k_norm.get();
    options.q_scale = a.q_scale == 1 ? 0 : a.q_scale;
  }
  int run() const {
    return ropepool_rope_pool_fused_qkv(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6], given);
  }

  static constexpr const char* kNames[] = {"qkv", "positions", "slots", "k_pool", "v_pool", "q_out", "k_out"};
  static constexpr int kRequired = 5;
  DlView views[7], rope_sets, bias;
  CNorm q_norm, k_norm;
  const DLTensor* arrays[7];
  ropepool_rope_pool_fused_qkv_options options{};
  const ropepool_rope_pool_fused_qkv_options* given = &options;
};

struct CApplyRope {
  explicit CApplyRope(const RopeArgs& a)
      : views{DlView(a.q), DlView(a.k), DlView(a.positions), DlView(a.q_out), DlView(a.k_out)}, rope_sets(a.rope_sets) {
    for (std::size_t i = 0; i < 5; ++i) arrays[i] = &views[i].tensor;
    arrays[3] = if_given(a.q_out, views[3]);
    arrays[4] = if_given(a.k_out, views[4]);
    options.size = sizeof options;
    options.head_dim = a.head_dim;
    options.num_qo_heads = a.num_qo_heads;
    options.num_kv_heads = a.num_kv_heads;
    set_rope(options, a);
    options.rope_sets = if_given(a.rope_sets, rope_sets);
  }
  int run() const { return ropepool_apply_rope(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], given); }

  static constexpr const char* kNames[] = {"q", "k", "positions", "q_out", "k_out"};
  static constexpr int kRequired = 3;
  DlView views[5], rope_sets;
  const DLTensor* arrays[5];
  ropepool_apply_rope_options options{};
  const ropepool_apply_rope_options* given = &options;
};

struct CWriteKv {
  explicit CWriteKv(const WriteKvArgs& a)
      : views{DlView(a.k), DlView(a.v), DlView(a.slots), DlView(a.k_pool), DlView(a.v_pool)} {
    for (std::size_t i = 0; i < 5; ++i) arrays[i] = &views[i].tensor;
    options.size = sizeof options;
    options.head_dim = a.head_dim;
    options.num_kv_heads = a.num_kv_heads;
    options.v_head_dim = a.v_head_dim.value_or(0);
  }
  int run() const { return ropepool_write_kv(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], given); }

  static constexpr const char* kNames[] = {"k", "v", "slots", "k_pool", "v_pool"};
  static constexpr int kRequired = 5;
  DlView views[5];
  const DLTensor* arrays[5];
  ropepool_write_kv_options options{};
  const ropepool_write_kv_options* given = &options;
};

struct CRerotate {
  explicit CRerotate(const RerotateArgs& a)
      : views{DlView(a.k_pool), DlView(a.slots), DlView(a.old_positions), DlView(a.new_positions)},
        old_sets(a.old_sets),
        new_sets(a.new_sets) {
    for (std::size_t i = 0; i < 4; ++i) arrays[i] = &views[i].tensor;
    options.size = sizeof options;
    options.head_dim = a.head_dim;
    options.num_kv_heads = a.num_kv_heads;
    set_rope(options, a);
    options.old_sets = if_given(a.old_sets, old_sets);
    options.new_sets = if_given(a.new_sets, new_sets);
  }
  int run() const { return ropepool_rerotate(arrays[0], arrays[1], arrays[2], arrays[3], given); }

  static constexpr const char* kNames[] = {"k_pool", "slots", "old_positions", "new_positions"};
  static constexpr int kRequired = 4;
  DlView views[4], old_sets, new_sets;
  const DLTensor* arrays[4];
  ropepool_rerotate_options options{};
  const ropepool_rerotate_options* given = &options;
};

Result<void> in_cpp(const RopePoolFusedArgs& args) { return rope_pool_fused(args); }
Result<void> in_cpp(const RopePoolFusedQkvArgs& args) { return rope_pool_fused_qkv(args); }
Result<void> in_cpp(const RopeArgs& args) { return rope(args); }
Result<void> in_cpp(const WriteKvArgs& args) { return write_kv(args); }
Result<void> in_cpp(const RerotateArgs& args) { return rerotate(args); }

CFused in_c(const RopePoolFusedArgs& args) { return CFused(args); }
CQkv in_c(const RopePoolFusedQkvArgs& args) { return CQkv(args); }
CApplyRope in_c(const RopeArgs& args) { return CApplyRope(args); }
CWriteKv in_c(const WriteKvArgs& args) { return CWriteKv(args); }
CRerotate in_c(const RerotateArgs& args) { return CRerotate(args); }

// ---- Cases: the arguments of each op, and the memory they lie in

template <class Args>
struct Case {
  Memory memory;
  Args args;
};

OpCase small(DType dtype, std::uint64_t seed = 1) {
  OpCase c({dtype, 4, 4, 2, 8, 16, DType::i64, DType::i32}, seed, 4);
  set_indices(c.args.positions, {0, 7, 30, 2});
  return c;
}
Tensor indices(Memory& memory, const std::vector<std::int64_t>& values) {
  const Tensor made = memory.make(DType::i32, {static_cast<std::int64_t>(values.size())});
  set_indices(made, values);
  return made;
}
Tensor floats(Memory& memory, DType dtype, const Shape& shape) {
  Tensor made = memory.make(dtype, shape);
  Tensor flat = made;  // fill() takes three axes
  flat.shape = {1, shape.rank() == 2 ? shape[0] : 1, shape[shape.rank() - 1]};
  flat.strides = {0, shape.rank() == 2 ? shape[1] : 0, 1};
  Random random(7);
  fill(flat, random, 1.0);
  return made;
}

Case<RopePoolFusedQkvArgs> qkv_case(DType dtype = DType::f32) {
  OpCase c = small(dtype);
  const RopePoolFusedArgs& a = c.args;
  RopePoolFusedQkvArgs args{.qkv = floats(c.memory, dtype, {4, 64}),
                            .positions = a.positions,
                            .slots = a.slots,
                            .k_pool = a.k_pool,
                            .v_pool = a.v_pool,
                            .q_out = a.q_out,
                            .k_out = a.k_out,
                            .head_dim = 8,
                            .num_qo_heads = 4,
                            .num_kv_heads = 2,
                            .rope_base = 1e4};
  return {std::move(c.memory), args};
}
Case<RopeArgs> rope_case(DType dtype = DType::f32) {
  OpCase c = small(dtype);
  const RopePoolFusedArgs& a = c.args;
  RopeArgs args{.q = a.q,
                .k = a.k,
                .positions = a.positions,
                .q_out = a.q_out,
                .k_out = a.k_out,
                .head_dim = 8,
                .num_qo_heads = 4,
                .num_kv_heads = 2,
                .rope_base = 1e4};
  return {std::move(c.memory), args};
}
Case<WriteKvArgs> write_kv_case(DType dtype = DType::f32) {
  OpCase c = small(dtype);
  const RopePoolFusedArgs& a = c.args;
  WriteKvArgs args{
      .k = a.k, .v = a.v, .slots = a.slots, .k_pool = a.k_pool, .v_pool = a.v_pool, .head_dim = 8, .num_kv_heads = 2};
  return {std::move(c.memory), args};
}
Case<RerotateArgs> rerotate_case(DType dtype = DType::f32) {
  OpCase c = small(dtype);
  Random random(5);
  fill(c.args.k_pool, random);
  RerotateArgs args{.k_pool = c.args.k_pool,
                    .slots = c.args.slots,
                    .old_positions = c.args.positions,
                    .new_positions = indices(c.memory, {5, 0, 9, 28}),
                    .head_dim = 8,
                    .num_kv_heads = 2,
                    .rope_base = 1e4};
  return {std::move(c.memory), args};
}

template <class Args>
void expect_same_bits(Memory& memory, const Args& args) {
  const auto before = memory.copy();
  const auto result = in_cpp(args);
  ASSERT_TRUE(result.ok()) << result.error().message();
  const auto right = memory.copy();
  EXPECT_FALSE(memory.equals(before));
  auto call = in_c(args);
  for (const int threads : {0, 1, 3}) {
    memory.restore(before);
    call.options.num_threads = threads;
    EXPECT_EQ(call.run(), ROPEPOOL_OK) << ropepool_last_error_message();
    EXPECT_TRUE(memory.equals(right));
  }
  memory.restore(before);
}

template <class Args>
void expect_refused(Memory& memory, const Args& args, int number) {
  SCOPED_TRACE(number);
  const auto before = memory.copy();
  const auto right = in_cpp(args);
  ASSERT_FALSE(right.ok());
  EXPECT_EQ(right.error().number(), number) << right.error().message();
  EXPECT_EQ(in_c(args).run(), number);
  EXPECT_EQ(ropepool_last_error_message(), right.error().message());
  EXPECT_TRUE(memory.equals(before));
}

// `make` gives a case that goes through; each change makes it one that is refused.
template <class Args>
using Changes = std::vector<std::pair<int, std::function<void(Args&)>>>;
template <class Args>
void expect_refusals(const std::function<Case<Args>()>& make, const Changes<Args>& changes, const std::set<int>& numbers) {
  std::set<int> met;
  for (const auto& [number, change] : changes) {
    Case<Args> c = make();
    ASSERT_TRUE(in_cpp(c.args).ok());
    change(c.args);
    expect_refused(c.memory, c.args, number);
    met.insert(number);
  }
  EXPECT_EQ(met, numbers);
}

template <class Args>
void use(Args& args, const Twin& twin) {
  args.rope = &twin.cpp;
  args.rope_base = kNotGiven;
}

// ---- rope_pool_fused with more

TEST(COtherOps, HeadOpsGiveTheBitsOfCpp) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (int kind = 0; kind < 6; ++kind) {
      SCOPED_TRACE(kind);
      OpCase c = small(dtype);
      HeadOps ops;
      ops.q_norm = HeadNorm{kind % 2 == 0 ? HeadNorm::Kind::rms : HeadNorm::Kind::layer, {}, 1e-5, kind == 2};
      if (kind == 1) ops.q_norm->weight = floats(c.memory, dtype, {8});
      if (kind == 2) ops.q_norm->weight = floats(c.memory, DType::f32, {4, 8});
      if (kind == 3) ops.k_norm = HeadNorm{HeadNorm::Kind::layer, floats(c.memory, DType::f32, {16}), 1e-6};
      if (kind == 4) ops.q_bias = floats(c.memory, dtype, {4, 8}), ops.q_norm.reset(), ops.q_scale = 0.125;
      if (kind == 5) ops.k_bias = floats(c.memory, dtype, {16}), ops.v_bias = floats(c.memory, DType::f32, {2, 8});
      c.args.head_ops = &ops;
      expect_same_bits(c.memory, c.args);
      use(c.args, ropes().plain);
      expect_same_bits(c.memory, c.args);
    }
  }
}

TEST(COtherOps, ZeroedHeadOpsAreNone) {
  OpCase c = small(DType::f32);
  const auto before = c.memory.copy();
  ASSERT_TRUE(c.run().ok());
  const auto right = c.memory.copy();
  c.memory.restore(before);
  CCall call(c.args);
  ropepool_head_ops ops{};
  ops.size = sizeof ops;
  call.options.head_ops = &ops;
  EXPECT_EQ(call.run(), ROPEPOOL_OK) << ropepool_last_error_message();
  EXPECT_TRUE(c.memory.equals(right));
}

TEST(COtherOps, ValuesOfAnotherWidth) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    OpCase c = small(dtype);
    HeadOps ops;
    ops.v_bias = floats(c.memory, DType::f32, {2, 5});
    c.args.v = c.memory.make(dtype, {4, 2, 5});
    c.args.v_pool = c.memory.make(dtype, {16, 2, 5});
    Random random(3);
    fill(c.args.v, random);
    c.args.v_head_dim = 5;
    expect_same_bits(c.memory, c.args);
    c.args.head_ops = &ops;
    expect_same_bits(c.memory, c.args);
    c.args.v_head_dim.reset();
    expect_refused(c.memory, c.args, 6);
    c.args.v_head_dim = -1;
    expect_refused(c.memory, c.args, 6);
  }
}

TEST(COtherOps, HeadOpsAreRefusedInTheWordsOfCpp) {
  for (const auto& change : std::vector<std::function<void(HeadOps&, Memory&)>>{
           [](auto&ops, auto&memory) {
             ops.q_bias = floats(memory, DType::f32, {4, 7});
           },
           [](auto&ops, auto&memory) { ops.k_bias = floats(memory, DType::f32, {8}); },
           [](auto&ops, auto&memory) {
             ops.v_bias = memory.make(DType::f64, {2, 8});
           },
           [](auto&ops, auto&memory) {
             ops.q_norm->weight = floats(memory, DType::f32, {3, 8});
           },
           [](auto&ops, auto&) { ops.q_norm->eps = kNotGiven; },
           [](auto&ops, auto&) {
             ops.k_norm = HeadNorm{HeadNorm::Kind::layer, {}, -1e-6};
           },
           [](auto&ops, auto&) { ops.q_scale = INFINITY; },
       }) {
    OpCase c = small(DType::f32);
    HeadOps ops;
    ops.q_norm = HeadNorm{HeadNorm::Kind::rms, {}, 1e-6};
    c.args.head_ops = &ops;
    ASSERT_TRUE(c.run().ok());
    change(ops, c.memory);
    expect_refused(c.memory, c.args, 34);
  }
}

TEST(COtherOps, AnEpsOfZeroIsNotGiven) {
  OpCase c = small(DType::f32);
  HeadOps ops;
  ops.q_norm = HeadNorm{};
  c.args.head_ops = &ops;
  const auto right = c.run();
  ASSERT_FALSE(right.ok());
  CFused call(c.args);
  call.ops.q_norm.c.eps = 0;
  EXPECT_EQ(call.run(), 34);
  EXPECT_EQ(ropepool_last_error_message(), right.error().message());
}

TEST(COtherOps, NonsenseInHeadOps) {
  OpCase c = small(DType::f32);
  HeadOps ops;
  ops.q_norm = ops.k_norm = HeadNorm{HeadNorm::Kind::rms, floats(c.memory, DType::f32, {8}), 1e-6};
  ops.q_bias = ops.k_bias = ops.v_bias = floats(c.memory, DType::f32, {2, 8});
  ops.q_bias = floats(c.memory, DType::f32, {4, 8});
  c.args.head_ops = &ops;
  ASSERT_EQ(CFused(c.args).run(), ROPEPOOL_OK) << ropepool_last_error_message();
  const auto before = c.memory.copy();
  struct Nonsense {
    const char* words;
    std::function<void(CHeadOps&)> change;
  };
  for (const auto& [words, change] : std::vector<Nonsense>{
           {"options->head_ops->size is 0,", [](auto& o) { o.c.size = 0; }},
           {"options->head_ops->size is 64,", [](auto& o) { o.c.size = sizeof o.c + 8; }},
           {"options->head_ops->q_norm->size is 0,", [](auto& o) { o.q_norm.c.size = 0; }},
           {"options->head_ops->k_norm->size is 40,", [](auto& o) { o.k_norm.c.size = sizeof o.k_norm.c + 8; }},
           {"options->head_ops->q_norm->kind is 2", [](auto& o) { o.q_norm.c.kind = 2; }},
           {"options->head_ops->k_norm->kind is -1", [](auto& o) { o.k_norm.c.kind = -1; }},
           {"options->head_ops->q_norm->weight->shape is NULL", [](auto& o) { o.q_norm.weight.tensor.shape = nullptr; }},
           {"options->head_ops->q_bias->shape is NULL", [](auto& o) { o.q_bias.tensor.shape = nullptr; }},
           {"options->head_ops->k_bias->shape is NULL", [](auto& o) { o.k_bias.tensor.shape = nullptr; }},
           {"options->head_ops->v_bias->shape is NULL", [](auto& o) { o.v_bias.tensor.shape = nullptr; }},
       }) {
    CFused call(c.args);
    change(call.ops);
    EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT) << words;
    EXPECT_TRUE(std::string(ropepool_last_error_message()).starts_with(words)) << ropepool_last_error_message();
  }
  EXPECT_TRUE(c.memory.equals(before));
}

// ---- The other ops

TEST(COtherOps, PackedQkvGivesTheBitsOfCpp) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const QkvOrder order : {QkvOrder::blocks, QkvOrder::groups}) {
      for (const bool in_place : {false, true}) {
        auto c = qkv_case(dtype);
        c.args.order = order;
        c.args.in_place = in_place;
        if (in_place) c.args.q_out = c.args.k_out = {};
        expect_same_bits(c.memory, c.args);
        c.args.bias = floats(c.memory, DType::f32, {64});
        c.args.q_norm = HeadNorm{HeadNorm::Kind::rms, floats(c.memory, dtype, {8}), 1e-6, true};
        c.args.k_norm = HeadNorm{HeadNorm::Kind::layer, {}, 1e-5};
        c.args.q_scale = 0.5;
        c.args.angles = Angles::float32;
        expect_same_bits(c.memory, c.args);
        use(c.args, ropes().two_sets);
        c.args.rope_sets = indices(c.memory, {1, 0, 0, 1});
        expect_same_bits(c.memory, c.args);
      }
    }
  }
}

TEST(COtherOps, ApplyRopeGivesTheBitsOfCpp) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    auto c = rope_case(dtype);
    expect_same_bits(c.memory, c.args);
    c.args.angles = Angles::float32;
    expect_same_bits(c.memory, c.args);
    use(c.args, ropes().table);
    expect_same_bits(c.memory, c.args);
    use(c.args, ropes().two_sets);
    c.args.rope_sets = indices(c.memory, {1, 0, 0, 1});
    expect_same_bits(c.memory, c.args);
    c.args.q_out = c.args.q, c.args.k_out = c.args.k;
    expect_same_bits(c.memory, c.args);
  }
}

TEST(COtherOps, WriteKvGivesTheBitsOfCpp) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    auto c = write_kv_case(dtype);
    set_indices(c.args.slots, {3, -1, 3, 15});
    expect_same_bits(c.memory, c.args);
    c.args.v = c.memory.make(dtype, {4, 2, 3});
    c.args.v_pool = c.memory.make(dtype, {16, 2, 3});
    Random random(3);
    fill(c.args.v, random);
    c.args.v_head_dim = 3;
    expect_same_bits(c.memory, c.args);
  }
}

TEST(COtherOps, RerotateGivesTheBitsOfCpp) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    auto c = rerotate_case(dtype);
    expect_same_bits(c.memory, c.args);
    c.args.angles = Angles::float32;
    expect_same_bits(c.memory, c.args);
    use(c.args, ropes().plain);
    expect_same_bits(c.memory, c.args);
    use(c.args, ropes().two_sets);
    c.args.old_sets = indices(c.memory, {0, 0, 1, 1});
    c.args.new_sets = indices(c.memory, {0, 1, 0, 1});
    expect_same_bits(c.memory, c.args);
  }
}

// ---- Refusals

TEST(COtherOps, PackedQkvIsRefusedInTheWordsOfCpp) {
  using Args = RopePoolFusedQkvArgs;
  expect_refusals<Args>(
      [] { return qkv_case(); },
      {
          {2,
           [](Args& a) {
             a.positions.shape = a.positions.strides = {2, 2};
           }},
          {3,
           [](Args& a) {
             a.k_pool.shape = a.k_pool.strides = {16, 16};
           }},
          {7, [](Args& a) { a.slots.shape[0] = 3; }},
          {8, [](Args& a) { a.k_pool.shape[2] = 4; }},
          {9, [](Args& a) { a.v_pool.shape[0] = 15; }},
          {11, [](Args& a) { a.v_pool.dtype = DType::f16; }},
          {12, [](Args& a) { a.qkv.dtype = a.k_pool.dtype = a.v_pool.dtype = DType::i32; }},
          {13, [](Args& a) { a.positions.dtype = DType::u32; }},
          {14,
           [](Args& a) {
             a.head_dim = 1, a.num_qo_heads = 60, a.num_kv_heads = 2;
             for (Tensor* pool : {&a.k_pool, &a.v_pool}) pool->shape[2] = 1;
           }},
          {15, [](Args& a) { a.rope_base = 0; }},
          {16, [](Args& a) { a.qkv.strides[1] = 2; }},
          {17, [](Args& a) { a.q_out = {}; }},
          {18,
           [](Args& a) {
             a.slots.device = {DeviceType::cuda, 1};
           }},
          {19, [](Args& a) { a.q_out.data = a.qkv.data; }},
          {20, [](Args& a) { set_index(a.slots, 2, 16); }},
          {21, [](Args& a) { set_index(a.positions, 2, std::int64_t{1} << 31); }},
          {23, [](Args& a) { use(a, ropes().wide); }},
          {24, [](Args& a) { use(a, ropes().two_sets); }},
          {25, [](Args& a) { use(a, ropes().two_sets), a.rope_sets = a.positions; }},
          {26, [](Args& a) { use(a, ropes().table), set_index(a.positions, 3, 31); }},
          {31,
           [](Args& a) {
             a.qkv.shape = {4, 8, 8}, a.qkv.strides = {64, 8, 1};
           }},
          {32, [](Args& a) { a.qkv.shape[1] = 63; }},
          {33, [](Args& a) { a.order = static_cast<QkvOrder>(2); }},
          {33, [](Args& a) { a.in_place = true; }},
          {34, [](Args& a) { a.bias = a.rope_sets = {}, a.bias = Tensor::contiguous(a.qkv.data, DType::f32, {7}); }},
          {34, [](Args& a) { a.q_norm = HeadNorm{}; }},
          {34, [](Args& a) { a.q_scale = INFINITY; }},
      },
      {2, 3, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 31, 32, 33, 34});
}

TEST(COtherOps, ApplyRopeIsRefusedInTheWordsOfCpp) {
  using Args = RopeArgs;
  expect_refusals<Args>([] { return rope_case(); },
                        {
                            {1,
                             [](Args& a) {
                               a.k.shape = a.k.strides = {4, 16};
                             }},
                            {2,
                             [](Args& a) {
                               a.positions.shape = a.positions.strides = {2, 2};
                             }},
                            {4, [](Args& a) { a.num_qo_heads = 3; }},
                            {5, [](Args& a) { a.num_kv_heads = 3; }},
                            {7, [](Args& a) { a.positions.shape[0] = 3; }},
                            {10, [](Args& a) { a.k.dtype = DType::f16; }},
                            {12, [](Args& a) { a.q.dtype = a.k.dtype = DType::i32; }},
                            {13, [](Args& a) { a.positions.dtype = DType::u32; }},
                            {14,
                             [](Args& a) {
                               a.head_dim = 7;
                               for (Tensor* heads : {&a.q, &a.k, &a.q_out, &a.k_out}) heads->shape[2] = 7;
                             }},
                            {15, [](Args& a) { a.angles = static_cast<Angles>(2); }},
                            {16, [](Args& a) { a.k.data = nullptr; }},
                            {17, [](Args& a) { a.k_out = {}; }},
                            {18,
                             [](Args& a) {
                               a.q.device = {DeviceType::cuda, 0};
                             }},
                            {19, [](Args& a) { a.k_out.data = a.q_out.data; }},
                            {21, [](Args& a) { set_index(a.positions, 2, std::int64_t{1} << 31); }},
                            {23, [](Args& a) { use(a, ropes().wide); }},
                            {24, [](Args& a) { use(a, ropes().two_sets); }},
                            {25, [](Args& a) { use(a, ropes().two_sets), a.rope_sets = a.positions; }},
                            {26, [](Args& a) { use(a, ropes().table), set_index(a.positions, 3, 31); }},
                        },
                        {1, 2, 4, 5, 7, 10, 12, 13, 14, 15, 16, 17, 18, 19, 21, 23, 24, 25, 26});
}

TEST(COtherOps, WriteKvIsRefusedInTheWordsOfCpp) {
  using Args = WriteKvArgs;
  expect_refusals<Args>([] { return write_kv_case(); },
                        {
                            {1,
                             [](Args& a) {
                               a.v.shape = a.v.strides = {4, 16};
                             }},
                            {2,
                             [](Args& a) {
                               a.slots.shape = a.slots.strides = {2, 2};
                             }},
                            {3,
                             [](Args& a) {
                               a.v_pool.shape = a.v_pool.strides = {16, 16};
                             }},
                            {5, [](Args& a) { a.num_kv_heads = 3; }},
                            {6, [](Args& a) { a.v_head_dim = 7; }},
                            {7, [](Args& a) { a.slots.shape[0] = 3; }},
                            {8, [](Args& a) { a.k_pool.shape[2] = 4; }},
                            {9, [](Args& a) { a.v_pool.shape[0] = 15; }},
                            {10, [](Args& a) { a.v.dtype = DType::f16; }},
                            {11, [](Args& a) { a.v_pool.dtype = DType::f16; }},
                            {12, [](Args& a) { a.k.dtype = a.v.dtype = a.k_pool.dtype = a.v_pool.dtype = DType::i32; }},
                            {13, [](Args& a) { a.slots.dtype = DType::u32; }},
                            {14, [](Args& a) { a.v_head_dim = a.v.shape[2] = a.v_pool.shape[2] = -1; }},
                            {16, [](Args& a) { a.v.strides[2] = 2; }},
                            {18,
                             [](Args& a) {
                               a.k_pool.device = {DeviceType::metal, 0};
                             }},
                            {19, [](Args& a) { a.v_pool.data = a.k_pool.data; }},
                            {20, [](Args& a) { set_index(a.slots, 2, 16); }},
                        },
                        {1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 19, 20});
}

TEST(COtherOps, RerotateIsRefusedInTheWordsOfCpp) {
  using Args = RerotateArgs;
  expect_refusals<Args>([] { return rerotate_case(); },
                        {
                            {2,
                             [](Args& a) {
                               a.old_positions.shape = a.old_positions.strides = {2, 2};
                             }},
                            {3,
                             [](Args& a) {
                               a.k_pool.shape = a.k_pool.strides = {16, 16};
                             }},
                            {7, [](Args& a) { a.new_positions.shape[0] = 3; }},
                            {8, [](Args& a) { a.num_kv_heads = 3; }},
                            {12, [](Args& a) { a.k_pool.dtype = DType::i32; }},
                            {13, [](Args& a) { a.new_positions.dtype = DType::u32; }},
                            {14, [](Args& a) { a.head_dim = a.k_pool.shape[2] = 7; }},
                            {15, [](Args& a) { a.rope_base = -1; }},
                            {15, [](Args& a) { a.rope = &ropes().plain.cpp; }},
                            {16, [](Args& a) { a.k_pool.strides[2] = 2; }},
                            {18,
                             [](Args& a) {
                               a.old_positions.device = {DeviceType::cuda, 0};
                             }},
                            {19, [](Args& a) { a.k_pool.strides[0] = 8; }},
                            {20, [](Args& a) { set_index(a.slots, 2, 16); }},
                            {21, [](Args& a) { set_index(a.old_positions, 2, std::int64_t{1} << 31); }},
                            {23, [](Args& a) { use(a, ropes().wide); }},
                            {24, [](Args& a) { use(a, ropes().two_sets); }},
                            {25, [](Args& a) { use(a, ropes().two_sets), a.old_sets = a.new_sets = a.new_positions; }},
                            {35, [](Args& a) { use(a, ropes().table); }},
                        },
                        {2, 3, 7, 8, 12, 13, 14, 15, 16, 18, 19, 20, 21, 23, 24, 25, 35});
}

// ---- What is C's alone: NULL, sizes, numbers of threads

template <class Args>
void expect_nonsense_refused(Case<Args> c, const char* type) {
  const auto before = c.memory.copy();
  using Call = decltype(in_c(c.args));
  const int num_arrays = static_cast<int>(std::size(Call::kNames));
  for (int i = 0; i < num_arrays; ++i) {
    const std::string name = Call::kNames[i];
    Call call(c.args);
    DLTensor shapeless = *call.arrays[i];
    shapeless.shape = nullptr;
    call.arrays[i] = &shapeless;
    EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT) << name;
    EXPECT_EQ(ropepool_last_error_message(), name + "->shape is NULL");
    call.arrays[i] = nullptr;
    if (i < Call::kRequired) {
      EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT) << name;
      EXPECT_EQ(ropepool_last_error_message(), name + " is NULL");
    } else {
      EXPECT_EQ(call.run(), 17) << name;
      EXPECT_TRUE(std::string(ropepool_last_error_message()).starts_with(name)) << ropepool_last_error_message();
    }
  }
  Call call(c.args);
  const std::size_t known = sizeof call.options;
  for (const std::size_t size : {std::size_t{0}, known - 8, known - 1, known + 8, ~std::size_t{0}}) {
    call.options.size = size;
    EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT) << size;
    EXPECT_EQ(ropepool_last_error_message(), "options->size is " + std::to_string(size) + ", but this library knows the size " +
                                                 std::to_string(known) + ": set it to sizeof(" + type +
                                                 ") of the header that came with the library");
  }
  call.options.size = known;
  call.options.num_threads = -1;
  EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT);
  EXPECT_STREQ(ropepool_last_error_message(), "options->num_threads is -1");
  call.given = nullptr;
  EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT);
  EXPECT_STREQ(ropepool_last_error_message(), "options is NULL");
  EXPECT_TRUE(c.memory.equals(before));
}

TEST(COtherOps, NullAndNonsense) {
  expect_nonsense_refused(qkv_case(), "ropepool_rope_pool_fused_qkv_options");
  expect_nonsense_refused(rope_case(), "ropepool_apply_rope_options");
  expect_nonsense_refused(write_kv_case(), "ropepool_write_kv_options");
  expect_nonsense_refused(rerotate_case(), "ropepool_rerotate_options");
}

TEST(COtherOps, ArraysInOptionsWithoutAShape) {
  DLTensor shapeless{};
  shapeless.ndim = 1;
  const auto words_of = [](const auto& call) {
    EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT);
    return std::string(ropepool_last_error_message());
  };
  const auto packed = qkv_case();
  for (const auto& [member, words] :
       {std::pair{&ropepool_rope_pool_fused_qkv_options::rope_sets, "options->rope_sets->shape is NULL"},
        {&ropepool_rope_pool_fused_qkv_options::bias, "options->bias->shape is NULL"}}) {
    CQkv call(packed.args);
    call.options.*member = &shapeless;
    EXPECT_EQ(words_of(call), words);
  }
  ropepool_head_norm norm{};
  CQkv qkv(packed.args);
  qkv.options.k_norm = &norm;
  EXPECT_TRUE(words_of(qkv).starts_with("options->k_norm->size is 0, ")) << ropepool_last_error_message();
  norm.size = sizeof norm;
  norm.weight = &shapeless;
  EXPECT_EQ(words_of(qkv), "options->k_norm->weight->shape is NULL");
  qkv.options.q_norm = &norm;
  norm.kind = 2;
  EXPECT_EQ(words_of(qkv), "options->q_norm->kind is 2");
  const auto alone = rope_case();
  CApplyRope apply(alone.args);
  apply.options.rope_sets = &shapeless;
  EXPECT_EQ(words_of(apply), "options->rope_sets->shape is NULL");
  const auto moved = rerotate_case();
  CRerotate rerotate(moved.args);
  rerotate.options.new_sets = &shapeless;
  EXPECT_EQ(words_of(rerotate), "options->new_sets->shape is NULL");
  rerotate.options.old_sets = &shapeless;
  EXPECT_EQ(words_of(rerotate), "options->old_sets->shape is NULL");
}

// What lies behind the options of an older header is somebody else's.
TEST(COtherOps, OptionsOfTheSecondHeader) {
  auto c = small(DType::f32);
  use(c.args, ropes().two_sets);
  c.args.rope_sets = indices(c.memory, {1, 0, 0, 1});
  const auto before = c.memory.copy();
  ASSERT_TRUE(c.run().ok());
  const auto right = c.memory.copy();
  c.memory.restore(before);
  CFused call(c.args);
  call.options.size = offsetof(ropepool_rope_pool_fused_options, v_head_dim);
  EXPECT_EQ(call.options.size, 64u);
  call.options.v_head_dim = -3;
  call.options.head_ops = reinterpret_cast<const ropepool_head_ops*>(&before);
  EXPECT_EQ(call.run(), ROPEPOOL_OK) << ropepool_last_error_message();
  EXPECT_TRUE(c.memory.equals(right));
}

TEST(COtherOps, StridesMayBeMissingAndBytesOffset) {
  auto c = write_kv_case(DType::bf16);
  const auto before = c.memory.copy();
  ASSERT_TRUE(write_kv(c.args).ok());
  const auto right = c.memory.copy();
  c.memory.restore(before);
  CWriteKv call(c.args);
  for (DlView& view : call.views) {
    view.tensor.strides = nullptr;
    view.tensor.data = static_cast<std::byte*>(view.tensor.data) - 64;
    view.tensor.byte_offset = 64;
  }
  EXPECT_EQ(call.run(), ROPEPOOL_OK) << ropepool_last_error_message();
  EXPECT_TRUE(c.memory.equals(right));
}

TEST(COtherOps, SeveralThreadsMayCall) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      auto c = qkv_case(DType::bf16);
      use(c.args, ropes().plain);
      for (int n = 0; n < 20; ++n) expect_same_bits(c.memory, c.args);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ropepool::test
