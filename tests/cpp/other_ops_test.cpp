// HeadOps, v_head_dim and the ops beside rope_pool_fused, on every SIMD target. What rope_pool_fused itself gives is the oracle
// where both must have the same bits.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "oracle.h"
#include "sanitizers.h"

namespace ropepool::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

class OtherOps : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* wanted = std::getenv("ROPEPOOL_TARGET");
    if (wanted == nullptr) return;
    const auto usable = simd_targets();
    if (std::find(usable.begin(), usable.end(), wanted) == usable.end()) GTEST_SKIP() << wanted << " can't run here";
  }
};

::testing::AssertionResult done(const Result<void>& result) {
  if (result.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.error().message();
}

Rope rope_of(const RopeForm& form) {
  auto rope = Rope::make(form);
  EXPECT_TRUE(rope.ok()) << rope.error().message();
  return rope.value();
}

// ---- HeadOps

// Lane i of head h of the q or k of one token after HeadOps, before the rotation.
std::vector<std::vector<Real>> prepared(const Tensor& heads, std::int64_t t, const Tensor& bias,
                                        const std::optional<HeadNorm>& norm, Real scale) {
  const std::int64_t num_heads = heads.shape[1], d = heads.shape[2];
  const auto at = [&](const Tensor& array, std::int64_t h, std::int64_t i) {
    const std::int64_t flat = h * d + i;
    const std::int64_t index = array.rank() == 1 && array.shape[0] == d ? i : flat;
    return array.rank() == 1 ? decode(array.dtype, bits_at(array, index, 0, 0)) : decode(array.dtype, bits_at(array, h, i, 0));
  };
  std::vector<std::vector<Real>> x(static_cast<std::size_t>(num_heads), std::vector<Real>(static_cast<std::size_t>(d)));
  const auto lane = [&](std::int64_t h, std::int64_t i) -> Real& {
    return x[static_cast<std::size_t>(h)][static_cast<std::size_t>(i)];
  };
  for (std::int64_t h = 0; h < num_heads; ++h) {
    for (std::int64_t i = 0; i < d; ++i) {
      lane(h, i) = value_at(heads, t, h, i) + (bias.given() ? at(bias, h, i) : 0);
    }
  }
  if (norm) {
    const bool over_all = norm->weight.rank() == 1 && norm->weight.shape[0] > d;
    const std::int64_t group = over_all ? num_heads : 1;
    for (std::int64_t first = 0; first < num_heads; first += group) {
      Real mean = 0, squares = 0;
      for (std::int64_t h = first; h < first + group; ++h) {
        for (std::int64_t i = 0; i < d; ++i) mean += lane(h, i) / static_cast<Real>(group * d);
      }
      if (norm->kind == HeadNorm::Kind::rms) mean = 0;
      for (std::int64_t h = first; h < first + group; ++h) {
        for (std::int64_t i = 0; i < d; ++i) squares += (lane(h, i) - mean) * (lane(h, i) - mean);
      }
      const Real factor = 1 / std::sqrt(squares / static_cast<Real>(group * d) + static_cast<Real>(norm->eps));
      for (std::int64_t h = first; h < first + group; ++h) {
        for (std::int64_t i = 0; i < d; ++i) {
          const Real weight = norm->weight.given() ? at(norm->weight, h, i) + (norm->unit_offset ? 1 : 0) : 1;
          lane(h, i) = (lane(h, i) - mean) * factor * weight;
        }
      }
    }
  }
  for (auto& head : x) {
    for (Real& value : head) value *= scale;
  }
  return x;
}

// Compares one output with the oracle. A float32 result may be off by 4e-6 of the largest lane of its token: sums of up to 64
// terms in a row, each rounded, a quotient, three products and cos and sin; less would do, but a fault is far above.
void expect_heads(const RopePoolFusedArgs& a, const Tensor& in, const Tensor& out, const Tensor& bias,
                  const std::optional<HeadNorm>& norm, Real scale, const Rope& rope) {
  const std::int64_t half = rope.rotary_dim() / 2;
  const std::vector<double> frequencies = rope.frequencies();
  for (std::int64_t t = 0; t < in.shape[0]; ++t) {
    const auto x = prepared(in, t, bias, norm, scale);
    for (std::int64_t h = 0; h < in.shape[1]; ++h) {
      std::vector<Real> expected = x[static_cast<std::size_t>(h)];
      Real largest = 0;
      for (const auto& head : x) {
        for (const Real value : head) largest = std::max(largest, std::abs(value));
      }
      for (std::int64_t i = 0; i < half; ++i) {
        const Real angle =
            static_cast<Real>(index_at(a.positions, t)) * static_cast<Real>(frequencies[static_cast<std::size_t>(i)]);
        const bool neox = rope.pairing() == Pairing::neox;
        const auto low = static_cast<std::size_t>(rope.rotary_offset() + (neox ? i : 2 * i));
        const auto high = low + static_cast<std::size_t>(neox ? half : 1);
        const Real u = expected[low], w = expected[high];
        expected[low] = u * std::cos(angle) - w * std::sin(angle);
        expected[high] = w * std::cos(angle) + u * std::sin(angle);
      }
      for (std::int64_t i = 0; i < a.head_dim; ++i) {
        const Real value = expected[static_cast<std::size_t>(i)], allowed = 4e-6L * largest + 0x1p-148L;
        const std::int64_t low = rank_of(out.dtype, encode(out.dtype, value - allowed));
        const std::int64_t high = rank_of(out.dtype, encode(out.dtype, value + allowed));
        const std::int64_t got = rank_of(out.dtype, bits_at(out, t, h, i));
        ASSERT_TRUE(got >= low && got <= high)
            << "token " << t << ", head " << h << ", lane " << i << " of " << a.head_dim << ": "
            << static_cast<double>(value_at(out, t, h, i)) << " instead of " << static_cast<double>(value);
      }
    }
  }
}

TEST_F(OtherOps, HeadOpsAreRight) {
  std::vector<std::int64_t> head_dims = {2, 6, 18, 64, 80, 96, 128};
  if (!kSlow) head_dims.insert(head_dims.end(), {34, 192, 256, 576, 1030});
  for (const DType dtype : kFloats) {
    for (const std::int64_t d : head_dims) {
      for (int kind = 0; kind < 8; ++kind) {
        OpCase c({dtype, 3, 19, 2, d, 9}, static_cast<std::uint64_t>(d + kind));
        RopePoolFusedArgs& a = c.args;
        set_indices(a.positions, {0, 7, -3});
        Random random(static_cast<std::uint64_t>(d * 8 + kind));
        const auto array = [&](DType type, const Shape& shape) {
          Tensor tensor = c.memory.make(type, shape);
          Tensor rows = tensor;  // fill() takes three axes
          rows.shape = shape.rank() == 1 ? Shape{1, 1, shape[0]} : Shape{1, shape[0], shape[1]};
          rows.strides = {0, shape.rank() == 1 ? 0 : shape[1], 1};
          fill(rows, random, 1.0);
          return tensor;
        };
        const auto weight = [&](std::int64_t heads) -> Tensor {
          const DType type = kind % 2 == 0 ? DType::f32 : dtype;
          switch (kind % 4) {
            case 0:
              return array(type, {d});
            case 1:
              return array(type, {heads, d});
            case 2:
              return array(type, {heads * d});
            default:
              return {};
          }
        };
        const auto norm_kind = kind < 4 ? HeadNorm::Kind::rms : HeadNorm::Kind::layer;
        HeadOps ops;
        ops.q_norm = HeadNorm{norm_kind, weight(19), 1e-5, kind % 3 == 0};
        if (kind != 5) ops.k_norm = HeadNorm{norm_kind, weight(2), 1e-5, false};
        if (kind % 2 == 1) {
          ops.q_bias = array(dtype, {19, d});
          ops.k_bias = array(DType::f32, {2 * d});
          ops.v_bias = array(DType::f32, {2, d});
        }
        if (kind == 6) ops.q_scale = 0.125;
        RopeForm form{.base = 10000.0, .rotary_dim = d};
        if (kind % 3 == 1) form.pairing = Pairing::interleaved;
        if (kind % 3 == 2 && d % 4 == 0) form.rotary_dim = form.rotary_offset = d / 2;
        const Rope rope = rope_of(form);
        a.rope = &rope;
        a.rope_base = std::numeric_limits<double>::quiet_NaN();
        a.head_ops = &ops;
        ASSERT_TRUE(done(c.run()));
        SCOPED_TRACE(to_string(dtype) + ", kind " + std::to_string(kind));
        expect_heads(a, a.q, a.q_out, ops.q_bias, ops.q_norm, ops.q_scale, rope);
        expect_heads(a, a.k, a.k_out, ops.k_bias, ops.k_norm, 1, rope);
        for (const auto& [row, t] : winners(a)) {
          const auto v = prepared(a.v, t, ops.v_bias, {}, 1);
          for (std::int64_t h = 0; h < 2; ++h) {
            for (std::int64_t i = 0; i < d; ++i) {
              ASSERT_EQ(bits_at(a.k_pool, row, h, i), bits_at(a.k_out, t, h, i));
              // A sum of two that are exact in float32 is rounded once more than the true one where that is 16 bits wide.
              const std::int64_t right =
                  rank_of(dtype, encode(dtype, v[static_cast<std::size_t>(h)][static_cast<std::size_t>(i)]));
              ASSERT_LE(std::abs(rank_of(dtype, bits_at(a.v_pool, row, h, i)) - right), ops.v_bias.given() ? 1 : 0);
            }
          }
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

// In place, in many calls, and past the caches: the same bits.
TEST_F(OtherOps, HeadOpsGiveTheSameBitsEverywhere) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t d : {64, 128, 1030}) {
      const std::int64_t tokens = d == 128 && dtype == DType::bf16 && !kSlow ? 840 : 12;  // 840: outputs go past the caches
      OpCase c({dtype, tokens, 8, 2, d, 2 * tokens}, 3);
      align(c);
      Random random(5);
      Tensor weight = c.memory.make(DType::f32, {1, 1, d});
      fill(weight, random);
      weight.shape = weight.strides = {d};
      weight.strides = {1};
      HeadOps ops;
      ops.q_norm = ops.k_norm = HeadNorm{HeadNorm::Kind::rms, weight, 1e-6};
      c.args.head_ops = &ops;
      OpCase single({dtype, tokens, 8, 2, d, 2 * tokens}, 3);
      align(single);
      for (const Tensor* pool : {&c.args.k_pool, &c.args.v_pool, &single.args.k_pool, &single.args.v_pool}) fill(*pool, 9);
      single.args.head_ops = &ops;
      single.args.q_out = single.args.q, single.args.k_out = single.args.k;
      ASSERT_TRUE(done(c.run()));
      for (std::int64_t t = 0; t < tokens; ++t) {
        RopePoolFusedArgs one = single.args;
        for (Tensor* tensor : {&one.q, &one.k, &one.v, &one.positions, &one.slots, &one.q_out, &one.k_out}) {
          *tensor = slice(*tensor, 0, t, 1);
        }
        ASSERT_TRUE(done(rope_pool_fused(one)));
      }
      const auto expect_same = [](const Tensor& x, const Tensor& y) {
        std::int64_t differing = 0;
        for_each_element(x, [&](auto t, auto h, auto i) { differing += bits_at(x, t, h, i) != bits_at(y, t, h, i); });
        EXPECT_EQ(differing, 0);
      };
      expect_same(c.args.q_out, single.args.q_out);
      expect_same(c.args.k_out, single.args.k_out);
      expect_same(c.args.k_pool, single.args.k_pool);
      expect_same(c.args.v_pool, single.args.v_pool);
    }
  }
}

// ---- Packed QKV

struct Packed {
  OpCase c;  // the call on the split
  RopePoolFusedQkvArgs args;

  Packed(DType dtype, QkvOrder order, std::int64_t tokens, std::int64_t qo, std::int64_t kv, std::int64_t d)
      : c({dtype, tokens, qo, kv, d, tokens + 3}, static_cast<std::uint64_t>(d + tokens)) {
    RopePoolFusedArgs& a = c.args;
    const std::int64_t width = (qo + 2 * kv) * d;
    args.qkv = c.memory.make(dtype, {tokens, width}, {width + 5, 1});
    for_each_element(a.q, [&](auto t, auto h, auto i) { put(t, q_lane(order, h) + i, bits_at(a.q, t, h, i)); });
    for_each_element(a.k, [&](auto t, auto h, auto i) { put(t, kv_lane(order, h, 0) + i, bits_at(a.k, t, h, i)); });
    for_each_element(a.v, [&](auto t, auto h, auto i) { put(t, kv_lane(order, h, 1) + i, bits_at(a.v, t, h, i)); });
    args.positions = a.positions;
    args.slots = a.slots;
    args.k_pool = c.memory.make(dtype, a.k_pool.shape);
    args.v_pool = c.memory.make(dtype, a.v_pool.shape);
    fill(args.k_pool, Real{0}), fill(args.v_pool, Real{0});
    fill(a.k_pool, Real{0}), fill(a.v_pool, Real{0});
    args.head_dim = d, args.num_qo_heads = qo, args.num_kv_heads = kv;
    args.rope_base = a.rope_base;
    args.order = order;
  }
  std::int64_t q_lane(QkvOrder order, std::int64_t h) const {
    const RopePoolFusedArgs& a = c.args;
    const std::int64_t group = a.num_qo_heads / a.num_kv_heads;
    return (order == QkvOrder::blocks ? h : h / group * (group + 2) + h % group) * a.head_dim;
  }
  std::int64_t kv_lane(QkvOrder order, std::int64_t h, std::int64_t is_v) const {
    const RopePoolFusedArgs& a = c.args;
    const std::int64_t group = a.num_qo_heads / a.num_kv_heads;
    const std::int64_t head =
        order == QkvOrder::blocks ? a.num_qo_heads + is_v * a.num_kv_heads + h : h * (group + 2) + group + is_v;
    return head * a.head_dim;
  }
  void put(std::int64_t t, std::int64_t lane, std::uint32_t bits) const { set_bits(args.qkv, t, lane, 0, bits); }
};

TEST_F(OtherOps, PackedQkvGivesTheBitsOfItsParts) {
  for (const DType dtype : kFloats) {
    for (const QkvOrder order : {QkvOrder::blocks, QkvOrder::groups}) {
      for (const auto& [qo, kv, d] : {std::array<std::int64_t, 3>{8, 2, 64}, {3, 3, 80}, {6, 1, 128}, {12, 4, 6}}) {
        for (const bool with_ops : {false, true}) {
          for (const bool in_place : {false, true}) {
            for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{kSlow ? 9 : 30}}) {
              Packed p(dtype, order, tokens, qo, kv, d);
              RopePoolFusedArgs& a = p.c.args;
              Random random(9);
              const auto floats = [&](std::int64_t heads) {
                Tensor tensor = p.c.memory.make(DType::f32, {1, heads, d});
                fill(tensor, random);
                tensor.shape = {heads, d}, tensor.strides = {d, 1};
                return tensor;
              };
              HeadOps ops;
              if (with_ops) {
                ops.q_bias = floats(qo), ops.k_bias = floats(kv), ops.v_bias = floats(kv);
                Tensor flat = floats(qo);
                flat.shape = {qo * d}, flat.strides = {1};
                ops.q_norm = HeadNorm{HeadNorm::Kind::rms, flat, 1e-6};
                ops.k_norm = HeadNorm{HeadNorm::Kind::layer, floats(kv), 1e-6};
                a.head_ops = &ops;
                p.args.q_norm = ops.q_norm, p.args.k_norm = ops.k_norm;
                p.args.bias = p.c.memory.make(DType::f32, {(qo + 2 * kv) * d});
                const auto put = [&](const Tensor& bias, std::int64_t h, std::int64_t lane) {
                  for (std::int64_t i = 0; i < d; ++i) set_bits(p.args.bias, lane + i, 0, 0, bits_at(bias, h, i, 0));
                };
                for (std::int64_t h = 0; h < qo; ++h) put(ops.q_bias, h, p.q_lane(order, h));
                for (std::int64_t h = 0; h < kv; ++h) put(ops.k_bias, h, p.kv_lane(order, h, 0));
                for (std::int64_t h = 0; h < kv; ++h) put(ops.v_bias, h, p.kv_lane(order, h, 1));
              }
              p.args.in_place = in_place;
              if (!in_place) {
                p.args.q_out = p.c.memory.make(dtype, a.q.shape);
                p.args.k_out = p.c.memory.make(dtype, a.k.shape);
              }
              ASSERT_TRUE(done(rope_pool_fused_qkv(p.args)));
              ASSERT_TRUE(done(p.c.run()));
              std::int64_t differing = 0;
              const auto q_at = [&](auto t, auto h, auto i) {
                return in_place ? bits_at(p.args.qkv, t, p.q_lane(order, h) + i, 0) : bits_at(p.args.q_out, t, h, i);
              };
              const auto k_at = [&](auto t, auto h, auto i) {
                return in_place ? bits_at(p.args.qkv, t, p.kv_lane(order, h, 0) + i, 0) : bits_at(p.args.k_out, t, h, i);
              };
              for_each_element(a.q, [&](auto t, auto h, auto i) { differing += q_at(t, h, i) != bits_at(a.q_out, t, h, i); });
              for_each_element(a.k, [&](auto t, auto h, auto i) { differing += k_at(t, h, i) != bits_at(a.k_out, t, h, i); });
              for_each_element(a.v, [&](auto t, auto h, auto i) {
                differing += bits_at(p.args.qkv, t, p.kv_lane(order, h, 1) + i, 0) != bits_at(a.v, t, h, i);
              });
              for_each_element(a.k_pool, [&](auto row, auto h, auto i) {
                differing += bits_at(a.k_pool, row, h, i) != bits_at(p.args.k_pool, row, h, i);
                differing += bits_at(a.v_pool, row, h, i) != bits_at(p.args.v_pool, row, h, i);
              });
              ASSERT_EQ(differing, 0) << to_string(dtype) << " " << qo << "/" << kv << "x" << d << " tokens " << tokens
                                      << (in_place ? " in place" : "") << (with_ops ? " with ops" : "");
            }
          }
        }
      }
    }
  }
}

TEST_F(OtherOps, PackedQkvIsRefusedWithNothingWritten) {
  Packed p(DType::f32, QkvOrder::groups, 4, 8, 2, 16);
  p.args.q_out = p.c.memory.make(DType::f32, p.c.args.q.shape);
  p.args.k_out = p.c.memory.make(DType::f32, p.c.args.k.shape);
  const auto refused = [&](std::function<void(RopePoolFusedQkvArgs&)> change) -> std::pair<int, std::string> {
    RopePoolFusedQkvArgs args = p.args;
    change(args);
    const auto before = p.c.memory.copy();
    const auto result = rope_pool_fused_qkv(args);
    EXPECT_TRUE(p.c.memory.equals(before));
    if (result.ok()) return {0, ""};
    return {static_cast<int>(result.error().refusal().value()), result.error().argument()};
  };
  using Args = RopePoolFusedQkvArgs;
  using Answer = std::pair<int, std::string>;
  EXPECT_EQ(refused([](Args& a) { a.qkv.shape = {4}, a.qkv.strides = {1}; }), Answer(31, "qkv"));
  EXPECT_EQ(refused([](Args& a) { a.qkv.shape[1] -= 1; }), Answer(32, "qkv"));
  EXPECT_EQ(refused([](Args& a) { a.order = static_cast<QkvOrder>(7); }), Answer(33, "order"));
  EXPECT_EQ(refused([](Args& a) { a.in_place = true; }), Answer(33, "q_out"));
  EXPECT_EQ(refused([](Args& a) { a.q_out = {}; }), Answer(17, "q_out"));
  EXPECT_EQ(refused([](Args& a) { a.qkv.dtype = DType::i32; }), Answer(11, "k_pool"));
  EXPECT_EQ(refused([](Args& a) { a.qkv.strides[1] = 2; }), Answer(16, "qkv"));
  EXPECT_EQ(refused([](Args& a) { a.qkv.data = nullptr; }), Answer(16, "qkv"));
  EXPECT_EQ(refused([](Args& a) { a.num_kv_heads = 0; }).first, 8);
  EXPECT_EQ(refused([](Args& a) { a.head_dim = std::numeric_limits<std::int64_t>::max(); }), Answer(32, "qkv"));
  EXPECT_EQ(refused([](Args& a) {
              a.k_pool.data = a.qkv.data;
              a.k_pool.strides = {a.qkv.strides[0], 16, 1};
              a.k_pool.shape[0] = 4;
              a.v_pool.shape[0] = 4;
              a.in_place = true, a.q_out = a.k_out = {};
            }),
            Answer(19, "qkv"));
  EXPECT_EQ(refused([](Args& a) {
              a.in_place = true, a.q_out = a.k_out = {};
              a.qkv.read_only = true;
            }),
            Answer(17, "qkv"));
  EXPECT_EQ(refused([](Args& a) { a.bias = Tensor::contiguous(a.qkv.data, DType::f32, {7}); }), Answer(34, "bias"));
}

// ---- Values with a head_dim of their own

TEST_F(OtherOps, ValuesMayHaveOtherHeads) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t v_dim : {1, 3, 40, 96, 512}) {
      OpCase c({dtype, 12, 4, 2, 64, 30}, 4);
      RopePoolFusedArgs& a = c.args;
      a.v = c.memory.make(dtype, {12, 2, v_dim});
      a.v_pool = c.memory.make(dtype, {30, 2, v_dim});
      a.v_head_dim = v_dim;
      Random random(7);
      fill(a.v, random);
      fill(a.v_pool, Real{0});
      ASSERT_TRUE(done(c.run()));
      const auto rows = winners(a);
      for_each_element(a.v_pool, [&](auto row, auto h, auto i) {
        const auto token = rows.find(row);
        const std::uint32_t right = token == rows.end() ? encode(dtype, 0) : bits_at(a.v, token->second, h, i);
        EXPECT_EQ(bits_at(a.v_pool, row, h, i), right);
      });
      a.v_head_dim = v_dim + 1;
      EXPECT_EQ(c.run().error().code(), "RP006");
      a.v_head_dim = 0;
      EXPECT_FALSE(c.run().ok());
    }
  }
}

// DeepSeek: the latent in front of a pool's row, the turned part of k behind it.
TEST_F(OtherOps, LatentRowsAreViewsOfOnePool) {
  for (const std::int64_t tokens : {1, kSlow ? 9 : 200}) {
    OpCase c({DType::bf16, tokens, 16, 1, 64, 3 * tokens}, 8);
    RopePoolFusedArgs& a = c.args;
    const Tensor pool = c.memory.make(DType::bf16, {3 * tokens, 1, 576});
    const auto before = c.memory.copy();
    a.k_pool = slice(pool, 2, 512, 64);
    a.v_pool = slice(pool, 2, 0, 512);
    a.v = c.memory.make(DType::bf16, {tokens, 1, 512});
    a.v_head_dim = 512;
    Random random(2);
    fill(a.v, random);
    const Rope rope = rope_of({.base = 10000.0, .rotary_dim = 64, .pairing = Pairing::interleaved});
    a.rope = &rope;
    a.rope_base = std::numeric_limits<double>::quiet_NaN();
    ASSERT_TRUE(done(c.run()));
    const auto rows = winners(a);
    const auto [block, offset] = c.memory.find(pool.data);
    for_each_element(pool, [&](auto row, auto h, auto i) {
      const auto token = rows.find(row);
      std::uint32_t right = 0;
      std::memcpy(&right, before[block].data() + offset + static_cast<std::size_t>((row * 576 + i) * 2), 2);
      if (token != rows.end()) {
        right = i < 512 ? bits_at(a.v, token->second, h, i) : bits_at(a.k_out, token->second, h, i - 512);
      }
      EXPECT_EQ(bits_at(pool, row, h, i), right);
    });
  }
}

// ---- rope, write_kv, rerotate

TEST_F(OtherOps, RopeAloneGivesTheSameBits) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t tokens : {1, 7, kSlow ? 20 : 900}) {
      OpCase c({dtype, tokens, 6, 2, 80, tokens}, 6);
      const RopePoolFusedArgs& a = c.args;
      RopeArgs alone{.q = a.q,
                     .k = a.k,
                     .positions = a.positions,
                     .q_out = c.memory.make(dtype, a.q.shape),
                     .k_out = c.memory.make(dtype, a.k.shape),
                     .head_dim = 80,
                     .num_qo_heads = 6,
                     .num_kv_heads = 2,
                     .rope_base = a.rope_base};
      ASSERT_TRUE(done(rope(alone)));
      ASSERT_TRUE(done(c.run()));
      std::int64_t differing = 0;
      for_each_element(
          a.q, [&](auto t, auto h, auto i) { differing += bits_at(a.q_out, t, h, i) != bits_at(alone.q_out, t, h, i); });
      for_each_element(
          a.k, [&](auto t, auto h, auto i) { differing += bits_at(a.k_out, t, h, i) != bits_at(alone.k_out, t, h, i); });
      EXPECT_EQ(differing, 0);
      alone.positions.shape[0] -= 1;
      EXPECT_EQ(rope(alone).error().summary(), "positions must have one entry per token");
      alone.positions = a.positions;
      alone.k.shape = {tokens, 160}, alone.k.strides = {160, 1};
      EXPECT_EQ(rope(alone).error().summary(), "rope expects q/k to be 3-D");
      alone.k = a.k, alone.k.dtype = DType::f64;
      EXPECT_EQ(rope(alone).error().summary(), "q/k dtypes must match");
      alone.k = a.k, alone.k_out = alone.q_out;
      EXPECT_FALSE(rope(alone).ok());
    }
  }
}

TEST_F(OtherOps, WriteKvStoresTheBits) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t d : {1, 7, 64, 130}) {
      for (const std::int64_t tokens : {1, 6, kSlow ? 20 : 700}) {
        OpCase c({dtype, tokens, 1, 3, 2, 2 * tokens}, static_cast<std::uint64_t>(d));
        Random random(1);
        const std::int64_t v_dim = d == 7 ? 5 : d;
        const WriteKvArgs args{.k = c.memory.make(dtype, {tokens, 3, d}),
                               .v = c.memory.make(dtype, {tokens, 3, v_dim}),
                               .slots = c.args.slots,
                               .k_pool = c.memory.make(dtype, {2 * tokens, 3, d}),
                               .v_pool = c.memory.make(dtype, {2 * tokens, 3, v_dim}),
                               .head_dim = d,
                               .num_kv_heads = 3,
                               .v_head_dim = v_dim == d ? std::nullopt : std::optional(v_dim)};
        for_each_element(args.k,
                         [&](auto t, auto h, auto i) { set_bits(args.k, t, h, i, static_cast<std::uint32_t>(random())); });
        for_each_element(args.v,
                         [&](auto t, auto h, auto i) { set_bits(args.v, t, h, i, static_cast<std::uint32_t>(random())); });
        if (tokens == 6) set_indices(args.slots, {3, 5, 3, -1, 0, 3});
        RopePoolFusedArgs tokens_of = c.args;
        tokens_of.q = args.k, tokens_of.slots = args.slots;
        const auto rows = winners(tokens_of);
        const auto before = c.memory.copy();
        ASSERT_TRUE(done(write_kv(args)));
        const auto is_right = [&](const Tensor& pool, const Tensor& from) {
          const auto [block, offset] = c.memory.find(pool.data);
          std::int64_t differing = 0;
          for_each_element(pool, [&](auto row, auto h, auto i) {
            const auto token = rows.find(row);
            const auto at = static_cast<std::size_t>((row * 3 + h) * from.shape[2] + i);
            std::uint32_t right = 0;
            const auto item = static_cast<std::size_t>(item_size(dtype));
            std::memcpy(&right, before[block].data() + offset + at * item, item);
            if (token != rows.end()) right = bits_at(from, token->second, h, i);
            differing += bits_at(pool, row, h, i) != right;
          });
          return differing == 0;
        };
        EXPECT_TRUE(is_right(args.k_pool, args.k) && is_right(args.v_pool, args.v))
            << to_string(dtype) << " " << d << " " << tokens;
        WriteKvArgs wrong = args;
        wrong.num_kv_heads = 0;
        EXPECT_FALSE(write_kv(wrong).ok());
        wrong = args;
        set_index(wrong.slots, 0, 2 * tokens);
        EXPECT_EQ(write_kv(wrong).error().code(), "RP020");
      }
    }
  }
}

// A key at p that is turned on to p' is the key at p', but for one more rounding.
TEST_F(OtherOps, RerotatedKeysAreThoseOfTheNewPosition) {
  const auto scaled = [](double factor) {
    return rope_of({.base = 10000.0, .rotary_dim = 64, .scaling = LinearScaling{factor}});
  };
  const auto joined = Rope::join({scaled(1.0), scaled(4.0)});
  ASSERT_TRUE(joined.ok());
  const Rope ropes[] = {
      rope_of({.base = 10000.0, .rotary_dim = 64}),
      rope_of({.base = 10000.0, .rotary_dim = 64, .pairing = Pairing::interleaved}),
      rope_of({.base = 10000.0, .rotary_dim = 32, .rotary_offset = 32}),
      rope_of({.base = 10000.0, .rotary_dim = 64, .scaling = YarnScaling{.factor = 4, .original_length = 128}}),
      rope_of({.base = 10000.0, .rotary_dim = 64, .sections = Sections{{8, 12, 12}}}),
      joined.value(),
  };
  for (const Rope& each : ropes) {
    for (const DType dtype : kFloats) {
      for (const Angles angles : {Angles::exact, Angles::float32}) {
        const std::int64_t axes = each.num_axes();
        OpCase c({dtype, 6, 2, 2, 64, 20}, 11);
        RopePoolFusedArgs& a = c.args;
        a.rope = &each;
        a.rope_base = std::numeric_limits<double>::quiet_NaN();
        a.angles = angles;
        const Tensor from = c.memory.make(DType::i64, {axes, 6}), to = c.memory.make(DType::i32, {axes, 6});
        const Tensor old_sets = c.memory.make(DType::i64, {6}), new_sets = c.memory.make(DType::i64, {6});
        const std::int64_t limit = angles == Angles::exact ? 2147483647 : 2000;
        Random random(12);
        for (std::int64_t i = 0; i < 6 * axes; ++i) {
          set_index(select(from, 0, i / 6), i % 6, uniform(random, -limit, limit));
          set_index(select(to, 0, i / 6), i % 6, uniform(random, -limit, limit));
        }
        set_indices(old_sets, {0, 1, 0, 1, 0, 0});
        set_indices(new_sets, {1, 0, 0, 1, 1, 0});
        set_indices(a.slots, {4, 9, 2, 7, 11, 0});
        const auto positions = [&](const Tensor& tensor) { return axes == 1 ? select(tensor, 0, 0) : tensor; };
        a.positions = positions(to);
        if (each.num_sets() > 1) a.rope_sets = new_sets;
        ASSERT_TRUE(done(c.run()));
        std::vector<Real> right;
        for (std::int64_t t = 0; t < 6; ++t) {
          for (std::int64_t i = 0; i < 128; ++i) right.push_back(value_at(a.k_out, t, i / 64, i % 64));
        }
        a.positions = positions(from);
        if (each.num_sets() > 1) a.rope_sets = old_sets;
        ASSERT_TRUE(done(c.run()));
        RerotateArgs args{.k_pool = a.k_pool,
                          .slots = a.slots,
                          .old_positions = positions(from),
                          .new_positions = positions(to),
                          .head_dim = 64,
                          .num_kv_heads = 2,
                          .angles = angles,
                          .rope = &each};
        if (each.num_sets() > 1) args.old_sets = old_sets, args.new_sets = new_sets;
        const auto before = c.memory.copy();
        ASSERT_TRUE(done(rerotate(args)));
        const Real ulp = dtype == DType::f32 ? 0x1p-22L : dtype == DType::f16 ? 0x1p-10L : 0x1p-7L;
        std::size_t n = 0;
        for (std::int64_t t = 0; t < 6; ++t) {
          for (std::int64_t i = 0; i < 128; ++i, ++n) {
            const Real got = value_at(a.k_pool, index_at(a.slots, t), i / 64, i % 64);
            ASSERT_NEAR(static_cast<double>(got), static_cast<double>(right[n]), static_cast<double>(6 * ulp)) << n;
          }
        }
        // Rows that no slot names, and everything else, are as before.
        const auto after = c.memory.copy();
        c.memory.restore(before);
        for (const std::int64_t row : {4, 9, 2, 7, 11, 0}) fill(slice(a.k_pool, 0, row, 1), Real{0});
        const auto untouched = c.memory.copy();
        c.memory.restore(after);
        for (const std::int64_t row : {4, 9, 2, 7, 11, 0}) fill(slice(a.k_pool, 0, row, 1), Real{0});
        EXPECT_TRUE(c.memory.equals(untouched));
      }
    }
  }
}

TEST_F(OtherOps, ASlotThatStandsTwiceIsTurnedOnce) {
  OpCase c({DType::f32, 4, 1, 1, 8, 10});
  const Tensor to = c.memory.make(DType::i64, {4});
  set_indices(c.args.positions, {0, 0, 0, 0});
  set_indices(c.args.slots, {3, 3, -1, 5});
  set_indices(to, {100, 7, 9, 0});
  fill(c.args.k_pool, Real{1});
  RerotateArgs args{.k_pool = c.args.k_pool,
                    .slots = c.args.slots,
                    .old_positions = c.args.positions,
                    .new_positions = to,
                    .head_dim = 8,
                    .num_kv_heads = 1,
                    .rope_base = 10000.0};
  ASSERT_TRUE(done(rerotate(args)));
  EXPECT_NEAR(static_cast<double>(value_at(args.k_pool, 3, 0, 0)), std::cos(7.0) - std::sin(7.0), 1e-6);
  EXPECT_EQ(value_at(args.k_pool, 5, 0, 0), 1);
  EXPECT_EQ(value_at(args.k_pool, 9, 0, 7), 1);

  const auto before = c.memory.copy();
  RerotateArgs wrong = args;
  wrong.new_positions.dtype = DType::f64;
  EXPECT_EQ(rerotate(wrong).error().argument(), "new_positions");
  wrong = args;
  wrong.old_positions.shape[0] = 3;
  EXPECT_EQ(rerotate(wrong).error().summary(), "old_positions/new_positions/slots must have one entry per token");
  wrong = args;
  wrong.k_pool.read_only = true;
  EXPECT_EQ(rerotate(wrong).error().argument(), "k_pool");
  wrong = args;
  wrong.num_kv_heads = 2;
  EXPECT_EQ(rerotate(wrong).error().code(), "RP008");
  const Tensor cos_sin = Tensor::contiguous(c.args.q.data, DType::f32, {4, 8});
  const auto table = Rope::from_table(cos_sin, {.rotary_dim = 8});
  ASSERT_TRUE(table.ok());
  wrong = args;
  wrong.rope = &table.value();
  EXPECT_EQ(rerotate(wrong).error().code(), "RP035");
  EXPECT_TRUE(c.memory.equals(before));
}

// Numbers that no array needs to hold, so that nothing but the contract stops them.
TEST_F(OtherOps, NumbersBeyondAllSenseAreRefused) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset : {kHuge, kHuge - 7, std::int64_t{65537}}) {
    const auto rope = Rope::make({.base = 10000.0, .rotary_dim = 8, .rotary_offset = offset});
    ASSERT_FALSE(rope.ok());
    EXPECT_EQ(rope.error().argument(), "rotary_offset");
  }
  for (const double scale : {0.0, 1e-50, 1e39}) {
    EXPECT_FALSE(Rope::make({.base = 10000.0, .rotary_dim = 8, .attention_scale = scale}).ok()) << scale;
  }
  OpCase c({DType::f16, 1, 1, 1, 8, 4});
  HeadOps ops{.q_scale = 1e39};
  c.args.head_ops = &ops;
  EXPECT_EQ(c.run().error().argument(), "q_scale");
  ops = {.q_norm = HeadNorm{.eps = 1e39}};
  EXPECT_EQ(c.run().error().argument(), "eps");
  ops = {.q_bias = Tensor::contiguous(c.args.q.data, DType::f32, {3})};
  RopePoolFusedArgs wide = c.args;
  wide.head_dim = std::int64_t{1} << 62, wide.num_qo_heads = 4;
  EXPECT_FALSE(check(wide).empty());

  // No row turns, so heads may be as long as they like, and cost nothing.
  Tensor no_rows = c.args.k_pool;
  no_rows.shape = {0, 1, std::int64_t{1} << 40};
  set_index(c.args.slots, 0, -1);
  EXPECT_TRUE(done(rerotate({.k_pool = no_rows,
                             .slots = c.args.slots,
                             .old_positions = c.args.positions,
                             .new_positions = c.args.positions,
                             .head_dim = std::int64_t{1} << 40,
                             .num_kv_heads = 1,
                             .rope_base = 10000.0})));
}

TEST_F(OtherOps, HeadsOfZerosStayZerosWithAnyEpsAboveZero) {
  for (const double eps : {1e-50, 1e-45, 1e-6}) {
    for (const auto kind : {HeadNorm::Kind::rms, HeadNorm::Kind::layer}) {
      OpCase c({DType::f32, 2, 2, 1, 16, 4});
      fill(c.args.q, Real{0});
      const HeadOps ops{.q_norm = HeadNorm{.kind = kind, .eps = eps}};
      c.args.head_ops = &ops;
      ASSERT_TRUE(done(c.run()));
      for_each_element(c.args.q_out, [&](auto t, auto h, auto i) { EXPECT_EQ(value_at(c.args.q_out, t, h, i), 0); });
    }
  }
}

TEST_F(OtherOps, NoTokensAreNoWork) {
  OpCase c({DType::f32, 0, 2, 1, 8, 4});
  const RopePoolFusedArgs& a = c.args;
  const auto before = c.memory.copy();
  EXPECT_TRUE(done(write_kv(
      {.k = a.k, .v = a.v, .slots = a.slots, .k_pool = a.k_pool, .v_pool = a.v_pool, .head_dim = 8, .num_kv_heads = 1})));
  EXPECT_TRUE(done(rope({.q = a.q,
                         .k = a.k,
                         .positions = a.positions,
                         .q_out = a.q_out,
                         .k_out = a.k_out,
                         .head_dim = 8,
                         .num_qo_heads = 2,
                         .num_kv_heads = 1,
                         .rope_base = 1e4})));
  EXPECT_TRUE(done(rerotate({.k_pool = a.k_pool,
                             .slots = a.slots,
                             .old_positions = a.positions,
                             .new_positions = a.positions,
                             .head_dim = 8,
                             .num_kv_heads = 1,
                             .rope_base = 1e4})));
  EXPECT_TRUE(done(rope_pool_fused_qkv({.qkv = Tensor::contiguous(a.q.data, DType::f32, {0, 32}),
                                        .positions = a.positions,
                                        .slots = a.slots,
                                        .k_pool = a.k_pool,
                                        .v_pool = a.v_pool,
                                        .q_out = a.q_out,
                                        .k_out = a.k_out,
                                        .head_dim = 8,
                                        .num_qo_heads = 2,
                                        .num_kv_heads = 1,
                                        .rope_base = 1e4})));
  EXPECT_TRUE(c.memory.equals(before));
}

}  // namespace
}  // namespace ropepool::test
