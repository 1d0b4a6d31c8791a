// rope_pool_fused against the oracle. CTest runs this program once for each SIMD target, with ROPEPOOL_TARGET set.
#include <bit>
#include <cstdlib>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "core/devices.h"
#include "ops/rope_pool_fused.h"
#include "oracle.h"
#include "sanitizers.h"
#include "views.h"

namespace ropepool::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

class RopePoolFused : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* wanted = std::getenv("ROPEPOOL_TARGET");
    if (wanted == nullptr) return;
    const auto usable = simd_targets();
    if (std::find(usable.begin(), usable.end(), wanted) == usable.end()) {
      GTEST_SKIP() << wanted << " is not compiled in, or this CPU can't run it";
    }
    const auto target = simd_target();
    ASSERT_TRUE(target.ok()) << target.error().message();
    ASSERT_EQ(target.value(), wanted);
  }
};

// ---- Shapes and dtypes

TEST_F(RopePoolFused, EveryDTypeAndHeadCount) {
  constexpr std::pair<std::int64_t, std::int64_t> kHeads[] = {{1, 1}, {2, 1}, {3, 2}, {9, 3}, {32, 8}, {64, 8}};
  for (const DType dtype : kFloats) {
    for (const auto& [qo, kv] : kHeads) {
      for (const std::int64_t tokens : {1, 2, 5}) {
        OpCase c({dtype, tokens, qo, kv, 64, 9}, static_cast<std::uint64_t>(qo * 10 + tokens));
        expect_right(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(RopePoolFused, EveryHeadDim) {
  std::vector<std::int64_t> head_dims = {48, 64, 80, 96, 112, 126, 128, 160, 192, 254, 256, 512, 2050};
  if (!kSlow) head_dims.insert(head_dims.end(), {1024, 2048, 2052, 4096, 4100, 6146});
  for (std::int64_t d = 2; d <= 42; d += 2) head_dims.push_back(d);
  for (const DType dtype : kFloats) {
    for (const std::int64_t head_dim : head_dims) {
      OpCase c({dtype, 3, 3, 2, head_dim, 4}, static_cast<std::uint64_t>(head_dim));
      set_indices(c.args.positions, {1, 131071, -77});
      expect_right(c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RopePoolFused, EveryPairOfIndexTypes) {
  for (const DType positions : {DType::i32, DType::i64}) {
    for (const DType slots : {DType::i32, DType::i64}) {
      OpCase c({DType::f32, 6, 2, 1, 16, 8, positions, slots});
      set_indices(c.args.positions, {0, 2147483647, -2147483647, 1, -1, 99});
      set_indices(c.args.slots, {7, -1, 3, 0, 5, -2147483647 - 1});
      expect_right(c);
    }
  }
}

TEST_F(RopePoolFused, ManyTokens) {
  for (const DType dtype : kFloats) {
    for (const Angles angles : {Angles::exact, Angles::float32}) {
      OpCase c({dtype, kSlow ? 80 : 700, 4, 2, 32, 1500});
      c.args.angles = angles;
      expect_right(c);
    }
  }
}

// ---- Angles

// cos and sin as the op uses them: what becomes of (1, 0).
struct CosSinProbe {
  OpCase c;
  CosSinProbe(std::int64_t head_dim, const std::vector<std::int64_t>& positions)
      : c({DType::f32, static_cast<std::int64_t>(positions.size()), 1, 1, head_dim, 1}) {
    set_indices(c.args.positions, positions);
    set_indices(c.args.slots, std::vector<std::int64_t>(positions.size(), -1));
    fill(slice(c.args.q, 2, 0, head_dim / 2), Real{1});
    fill(slice(c.args.q, 2, head_dim / 2, head_dim / 2), Real{0});
  }
  Real cos(std::int64_t token, std::int64_t pair) const { return value_at(c.args.q_out, token, 0, pair); }
  Real sin(std::int64_t token, std::int64_t pair) const { return value_at(c.args.q_out, token, 0, pair + c.args.head_dim / 2); }
};

TEST_F(RopePoolFused, ExactAnglesAreRightTo2e7AtAnyPosition) {
  const std::vector<std::int64_t> positions = {0, 1, -1, 4000, 131071, 1000000, 2147483647, -2147483647};
  std::vector<std::int64_t> head_dims = {2, 4, 6, 8, 64, 80, 96, 112, 128, 192, 256};
  if (!kSlow) head_dims.insert(head_dims.end(), {512, 2050, 4096});
  double worst = 0;
  for (const std::int64_t head_dim : head_dims) {
    CosSinProbe probe(head_dim, positions);
    for (const double base : {0.5, 1.0, 2.0, 100.0, 1e4, 1e4 + 0.5, 5e5, 1e6, 1e7, 1e9, 0x1p-32}) {
      probe.c.args.rope_base = base;
      ASSERT_TRUE(probe.c.run().ok());
      for (std::size_t t = 0; t < positions.size(); ++t) {
        for (std::int64_t i = 0; i < head_dim / 2; ++i) {
          // Where base is below 1, frequencies go up to 2^32: the oracle itself is then off by 2^31 * 2^32 * 2^-64, so leave
          // out what it can't judge.
          const Real angle = static_cast<Real>(positions[t]) * frequency(i, head_dim, base);
          if (std::abs(angle) > 0x1p34L) continue;
          const Real error = std::max(std::abs(probe.cos(static_cast<std::int64_t>(t), i) - std::cos(angle)),
                                      std::abs(probe.sin(static_cast<std::int64_t>(t), i) - std::sin(angle)));
          worst = std::max(worst, static_cast<double>(error));
          ASSERT_LE(error, 2e-7L) << "position " << positions[t] << ", pair " << i << ", head_dim " << head_dim << ", base "
                                  << base;
        }
      }
    }
  }
  RecordProperty("worst_error", std::to_string(worst));
}

TEST_F(RopePoolFused, PositionZeroTurnsNothing) {
  CosSinProbe probe(256, {0});
  for (const Angles angles : {Angles::exact, Angles::float32}) {
    probe.c.args.angles = angles;
    ASSERT_TRUE(probe.c.run().ok());
    for (std::int64_t i = 0; i < 128; ++i) {
      ASSERT_EQ(bits_at(probe.c.args.q_out, 0, 0, i), std::bit_cast<std::uint32_t>(1.0f)) << i;
      ASSERT_EQ(bits_at(probe.c.args.q_out, 0, 0, i + 128), std::bit_cast<std::uint32_t>(0.0f)) << i;
    }
  }
}

TEST_F(RopePoolFused, Float32AnglesAreHuggingFaces) {
  const std::vector<std::int64_t> positions = {0, 1, -1, 255, 257, 4000, 131071, 1000000, 16777217, 2147483647, -2147483647};
  double apart = 0;
  for (const std::int64_t head_dim : {2, 4, 64, 80, 96, 128, 256}) {
    CosSinProbe probe(head_dim, positions);
    probe.c.args.angles = Angles::float32;
    for (const double base : {1.0, 100.0, 1e4, 5e5, 1e6, 1e7}) {
      probe.c.args.rope_base = base;
      ASSERT_TRUE(probe.c.run().ok());
      for (std::size_t t = 0; t < positions.size(); ++t) {
        for (std::int64_t i = 0; i < head_dim / 2; ++i) {
          const Real angle = angle_of(probe.c.args, positions[t], i);
          const auto token = static_cast<std::int64_t>(t);
          ASSERT_NEAR(static_cast<double>(probe.cos(token, i) - std::cos(angle)), 0, 2e-7)
              << "position " << positions[t] << ", pair " << i << ", head_dim " << head_dim << ", base " << base;
          ASSERT_NEAR(static_cast<double>(probe.sin(token, i) - std::sin(angle)), 0, 2e-7);
          const Real exact = static_cast<Real>(positions[t]) * frequency(i, head_dim, base);
          if (positions[t] == 1000000 && base == 1e4 && head_dim == 128) {
            apart = std::max(apart, static_cast<double>(std::abs(std::sin(angle) - std::sin(exact))));
          }
        }
      }
    }
  }
  // The two kinds of angle are two: up to 6e-2 apart at this position, as rope.h says.
  EXPECT_GT(apart, 1e-2);
  EXPECT_LT(apart, 7e-2);
}

TEST_F(RopePoolFused, EveryBitOfRopeBaseCounts) {
  CosSinProbe a(128, {100000}), b(128, {100000});
  b.c.args.rope_base = 10000.5;
  ASSERT_TRUE(a.c.run().ok());
  ASSERT_TRUE(b.c.run().ok());
  EXPECT_NE(a.sin(0, 40), b.sin(0, 40));
  // And back again, from whatever is kept between calls.
  CosSinProbe again(128, {100000});
  ASSERT_TRUE(again.c.run().ok());
  EXPECT_EQ(a.sin(0, 40), again.sin(0, 40));
}

TEST_F(RopePoolFused, AnyPositiveBaseIsTaken) {
  for (const double base : {5e-324, 1e-310, 1e-300, 1e-40, 1e-20, 1e300, 1.7976931348623157e308}) {
    for (const Angles angles : {Angles::exact, Angles::float32}) {
      CosSinProbe probe(128, {1, 2147483647});
      probe.c.args.rope_base = base;
      probe.c.args.angles = angles;
      ASSERT_TRUE(probe.c.run().ok()) << base;
      // Pair 0 turns by the position itself, whatever the base.
      EXPECT_NEAR(static_cast<double>(probe.cos(0, 0)), 0.5403023058681398, 2e-7) << base;
      if (base < 1) continue;
      for (std::int64_t i = 0; i < 64; ++i) EXPECT_TRUE(std::isfinite(probe.cos(1, i))) << base << " pair " << i;
    }
  }
}

// ---- Views

TEST_F(RopePoolFused, RandomViews) {
  const int kCases = kSlow ? 60 : 300;
  for (int n = 0; n < kCases; ++n) {
    Random random(static_cast<std::uint64_t>(n));
    const DType dtype = kFloats[n % 3];
    OpCase c = random_views(random, dtype);
    SCOPED_TRACE("case " + std::to_string(n));
    expect_right(c);
    if (HasFailure()) return;
  }
}

TEST_F(RopePoolFused, PackedQkv) {
  for (const DType dtype : kFloats) {
    for (const bool in_place : {false, true}) {
      OpCase c({dtype, 7, 6, 2, 64, 16});
      const Tensor qkv = c.memory.make(dtype, {7, 6 + 2 + 2, 64});
      c.args.q = slice(qkv, 1, 0, 6);
      c.args.k = slice(qkv, 1, 6, 2);
      c.args.v = slice(qkv, 1, 8, 2);
      if (in_place) {
        c.args.q_out = c.args.q;
        c.args.k_out = c.args.k;
      }
      Random random(3);
      c.fill_inputs(random);
      expect_right(c);
    }
  }
}

TEST_F(RopePoolFused, UnifiedPools) {
  for (const DType dtype : kFloats) {
    for (int layout = 0; layout < 4; ++layout) {
      OpCase c({dtype, 7, 4, 2, 32, 16});
      if (layout == 0) {  // [slots, 2, heads, head_dim]
        const Tensor pool = c.memory.make(dtype, {16, 2, 2, 32});
        c.args.k_pool = select(pool, 1, 0);
        c.args.v_pool = select(pool, 1, 1);
      } else if (layout == 1) {  // [slots, heads, 2 head_dim]
        const Tensor pool = c.memory.make(dtype, {16, 2, 64});
        c.args.k_pool = slice(pool, 2, 0, 32);
        c.args.v_pool = slice(pool, 2, 32, 32);
      } else if (layout == 2) {  // heads first
        c.args.k_pool = transpose(c.memory.make(dtype, {2, 16, 32}), 0, 1);
        c.args.v_pool = transpose(c.memory.make(dtype, {2, 16, 32}), 0, 1);
      } else {  // one layer of [slots, layers, 2, heads, head_dim], from the last slot to the first
        const Tensor pool = c.memory.make(dtype, {16, 3, 2, 2, 32});
        c.args.k_pool = reversed(select(select(pool, 1, 1), 1, 0), 0);
        c.args.v_pool = reversed(select(select(pool, 1, 1), 1, 1), 0);
      }
      expect_right(c);
    }
  }
}

TEST_F(RopePoolFused, InPlaceGivesTheSameBits) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t head_dim : {2, 6, 64, 96, 2050}) {
      OpCase apart({dtype, 5, 4, 2, head_dim, 8}), in_place({dtype, 5, 4, 2, head_dim, 8});
      in_place.args.q_out = in_place.args.q;
      in_place.args.k_out = in_place.args.k;
      ASSERT_TRUE(apart.run().ok());
      ASSERT_TRUE(in_place.run().ok());
      for (const auto& [x, y] : {std::pair{&apart.args.q_out, &in_place.args.q},
                                 {&apart.args.k_out, &in_place.args.k},
                                 {&apart.args.k_pool, &in_place.args.k_pool},
                                 {&apart.args.v_pool, &in_place.args.v_pool}}) {
        for_each_element(*x, [&](auto a, auto b, auto i) { ASSERT_EQ(bits_at(*x, a, b, i), bits_at(*y, a, b, i)); });
      }
    }
  }
}

// What a head becomes depends on itself and its position only: not on its number, its place in memory, or the others.
TEST_F(RopePoolFused, EqualHeadsGiveEqualBits) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t head_dim : {2, 6, 8, 20, 64, 80, 128, 254}) {
      OpCase one({dtype, 1, 1, 1, head_dim, 2});
      OpCase many({dtype, 9, 5, 3, head_dim, 9});
      set_index(one.args.positions, 0, 12345);
      set_indices(many.args.positions, std::vector<std::int64_t>(9, 12345));
      for (std::int64_t i = 0; i < head_dim; ++i) {
        const std::uint32_t bits = bits_at(one.args.q, 0, 0, i);
        for (std::int64_t t = 0; t < 9; ++t) {
          for (std::int64_t h = 0; h < 5; ++h) set_bits(many.args.q, t, h, i, bits);
          for (std::int64_t h = 0; h < 3; ++h) set_bits(many.args.k, t, h, i, bits);
        }
      }
      ASSERT_TRUE(one.run().ok());
      ASSERT_TRUE(many.run().ok());
      for (const Tensor* out : {&many.args.q_out, &many.args.k_out, &many.args.k_pool}) {
        for_each_element(*out, [&](auto t, auto h, auto i) {
          ASSERT_EQ(bits_at(*out, t, h, i), bits_at(one.args.q_out, 0, 0, i)) << t << " " << h << " " << i;
        });
      }
    }
  }
}

// ---- Stores past the caches

static_assert(kCacheLine % kStreamAlignment == 0);

// Where keys go: past the caches with q_out, or through them while q_out goes past.
enum class Keys { past, in_place, off_lines };
constexpr Keys kAllKeys[] = {Keys::past, Keys::in_place, Keys::off_lines};

// Runs the kernel in all ways to store and fetch, and the op, which takes one of them.
void expect_same_bits_past_the_caches(OpCase& c, const HeadOps* head_ops, Keys keys) {
  align(c);
  if (keys == Keys::in_place) c.args.k_out = c.args.k;
  if (keys == Keys::off_lines) c.args.k_pool.data = static_cast<std::byte*>(c.args.k_pool.data) + 16;  // there is room behind
  c.args.head_ops = head_ops;
  const std::int64_t tokens = c.args.q.shape[0];
  set_indices(c.args.slots, {8, -1, 3, 0, 3, -5, 1});
  set_bits(c.args.q, 2, 0, 1, c.args.q.dtype == DType::f32 ? 0x7FC12345 : 0x7FC1);  // a NaN
  const auto before = c.memory.copy();
  const PoolRows rows(c.args.slots, c.args.k_pool.shape[0]);
  const auto frequencies = c.args.rope == nullptr ? plain_rope(c.args.head_dim, c.args.rope_base) : nullptr;
  std::optional<PrologueOfCall> prologue;
  if (head_ops != nullptr) prologue.emplace(*head_ops, c.args.head_dim);
  auto call = resolve(c.args, &rows, frequencies ? *frequencies : c.args.rope->tables(), prologue ? &prologue->get() : nullptr);
  const auto run = [&](bool q_out, bool k_out, bool pool, bool fetch) {
    c.memory.restore(before);
    call.stream_q_out = q_out;
    call.stream_k_out = k_out;
    call.stream_pool = pool;
    call.fetch_inputs = fetch;
    const Kernels& kernels = cpu_kernels().value();
    (head_ops == nullptr ? kernels.rope_pool_fused : kernels.rope_pool_fused_prologue)(call, 0, tokens);
    return c.memory.copy();
  };
  const auto regular = run(false, false, false, false);
  EXPECT_TRUE(run(false, false, true, false) == regular) << describe(c.args);
  for (const bool fetch : {false, true}) {
    EXPECT_TRUE(run(true, false, true, fetch) == regular) << describe(c.args);
    if (keys == Keys::past) {
      EXPECT_TRUE(run(true, true, true, fetch) == regular) << describe(c.args);
    }
  }
  c.memory.restore(before);
  ASSERT_TRUE(c.run().ok());
  EXPECT_TRUE(c.memory.equals(regular)) << describe(c.args);
}

TEST_F(RopePoolFused, StoresPastTheCachesWriteTheSameBits) {
  constexpr std::pair<std::int64_t, std::int64_t> kHeads[] = {{1, 1}, {8, 2}, {3, 2}, {2, 3}};
  for (const DType dtype : kFloats) {
    const std::int64_t least = 2 * kStreamAlignment / item_size(dtype);  // half a head is a multiple of the alignment
    for (const std::int64_t head_dim : {least, 3 * least, 4 * least, 2048 + 4 * least}) {
      for (const auto& [qo, kv] : kHeads) {
        for (const Keys keys : kAllKeys) {
          OpCase c({dtype, 7, qo, kv, head_dim, 9}, 5);
          expect_same_bits_past_the_caches(c, nullptr, keys);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The same for pairs of neighbours, lanes that pass before and behind those that turn, heads in parts, biases and norms.
TEST_F(RopePoolFused, StoresPastTheCachesWriteTheSameBitsOfEveryForm) {
  struct Form {
    std::int64_t head_lines, rotary_offset_lines, rotary_lines;
  };
  constexpr Form kForms[] = {{4, 0, 4}, {4, 0, 2}, {4, 2, 2}, {5, 1, 2}, {8, 0, 8}, {6, 0, 6}, {70, 1, 68}};
  for (const DType dtype : kFloats) {
    const std::int64_t line = kStreamAlignment / item_size(dtype);
    for (const auto& [head_lines, rotary_offset_lines, rotary_lines] : kForms) {
      for (const Pairing pairing : {Pairing::neox, Pairing::interleaved}) {
        const auto rope = Rope::make({.base = 10000.0,
                                      .rotary_dim = rotary_lines * line,
                                      .rotary_offset = rotary_offset_lines * line,
                                      .pairing = pairing});
        ASSERT_TRUE(rope.ok());
        for (const auto& [qo, kv] : {std::pair(8, 2), std::pair(3, 2)}) {
          for (int way = 0; way < 6; ++way) {
            const bool with_head_ops = way % 2 == 1;
            OpCase c({dtype, 7, qo, kv, head_lines * line, 9}, 5);
            c.args.rope = &rope.value();
            c.args.rope_base = std::numeric_limits<double>::quiet_NaN();
            Random random(7);
            const auto floats = [&](std::int64_t heads) {
              Tensor tensor = c.memory.make(DType::f32, {1, heads, head_lines * line});
              fill(tensor, random);
              return select(tensor, 0, 0);
            };
            HeadOps ops;
            ops.q_bias = floats(qo), ops.k_bias = floats(kv), ops.v_bias = floats(kv);
            ops.q_norm = ops.k_norm = HeadNorm{HeadNorm::Kind::rms, select(floats(1), 0, 0), 1e-6};
            expect_same_bits_past_the_caches(c, with_head_ops ? &ops : nullptr, kAllKeys[way / 2]);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// What decides over stores and fetches, without a call.
TEST_F(RopePoolFused, StoresGoPastTheCachesAndInputsAreFetchedWhereTheSizeCallsForIt) {
  const auto resolved = [](std::int64_t tokens, auto change) {
    OpCase c({DType::bf16, 1, 1, 1, 64, 1});
    RopePoolFusedArgs& a = c.args;
    auto* const address = reinterpret_cast<std::byte*>(1 << 20);
    a.num_qo_heads = 32, a.num_kv_heads = 8, a.head_dim = 128;
    for (Tensor* t : {&a.q, &a.q_out}) *t = Tensor::contiguous(address, DType::bf16, Shape{tokens, 32, 128});
    for (Tensor* t : {&a.k, &a.v, &a.k_out}) *t = Tensor::contiguous(address, DType::bf16, Shape{tokens, 8, 128});
    for (Tensor* t : {&a.k_pool, &a.v_pool}) *t = Tensor::contiguous(address, DType::bf16, Shape{1024, 8, 128});
    for (Tensor* t : {&a.q_out, &a.k_out}) t->data = address + (1 << 19);
    change(a);
    const PoolRows rows(a.slots, 1);
    const auto frequencies = plain_rope(a.head_dim, a.rope_base);
    return resolve(a, &rows, *frequencies, nullptr);
  };
  enum { kNone, kPool, kQOut, kAll };  // what goes past the caches, each with those before
  const auto stores = [&](std::int64_t tokens, auto change) {
    const auto call = resolved(tokens, change);
    EXPECT_TRUE(call.stream_pool || !call.stream_q_out);
    EXPECT_TRUE(call.stream_q_out || !call.stream_k_out);
    return call.stream_k_out ? kAll : call.stream_q_out ? kQOut : call.stream_pool ? kPool : kNone;
  };
  const auto fetches = [&](std::int64_t tokens, auto change) { return resolved(tokens, change).fetch_inputs; };
  const auto nothing = [](RopePoolFusedArgs&) {};
  EXPECT_EQ(stores(1, nothing), kNone);
  EXPECT_EQ(stores(7, nothing), kNone);
  EXPECT_EQ(stores(8, nothing), kPool);
  EXPECT_EQ(stores(204, nothing), kPool);
  EXPECT_EQ(stores(205, nothing), kAll);  // 2 MiB of outputs
  EXPECT_EQ(stores(4096, nothing), kAll);
  const auto move = [](Tensor& t, std::int64_t bytes) { t.data = static_cast<std::byte*>(t.data) + bytes; };
  EXPECT_EQ(stores(4096, [](auto& a) { a.q_out = a.q; }), kPool);
  EXPECT_EQ(stores(4096, [](auto& a) { a.k_out = a.k; }), kQOut);
  EXPECT_EQ(stores(4096, [&](auto& a) { move(a.q_out, 32); }), kPool);
  EXPECT_EQ(stores(4096, [&](auto& a) { move(a.k_out, 2); }), kQOut);
  EXPECT_EQ(stores(4096, [&](auto& a) { move(a.k_pool, 16); }), kQOut);  // as NumPy allocates
  EXPECT_EQ(stores(4096, [](auto& a) { a.q_out.strides[0] += 16; }), kPool);
  EXPECT_EQ(stores(4096, [](auto& a) { a.k_pool.strides[1] += 16; }), kQOut);
  EXPECT_EQ(stores(4096, [&](auto& a) { move(a.v_pool, 2); }), kAll);  // copied, so aligned on the way
  EXPECT_EQ(stores(4096, [](auto& a) { a.head_dim = 96; }), kPool);    // halves of 96 bytes
  EXPECT_FALSE(fetches(2730, nothing));
  EXPECT_TRUE(fetches(2731, nothing));  // 32 MiB of q, k and v
  const auto packed = [](auto& a) { a.q.strides[0] = a.k.strides[0] = a.v.strides[0] = 48 * 128; };
  EXPECT_TRUE(fetches(205, packed));
  EXPECT_FALSE(fetches(204, packed));  // outputs stay in the cache
  EXPECT_TRUE(fetches(205, [](auto& a) { a.k.strides[0] += 64; }));
  EXPECT_FALSE(fetches(4096, [](auto& a) { a.q_out = a.q; }));
}

// ---- Slots

TEST_F(RopePoolFused, OfTokensWithOneSlotTheLastWins) {
  for (const std::int64_t tokens : {2, 3, 16, 17, 40, 333}) {  // few and many: they take different ways
    for (const std::int64_t slots : {1, 2, 7, 50}) {
      OpCase c({DType::bf16, tokens, 1, 2, 8, slots});
      Random random(static_cast<std::uint64_t>(tokens * 100 + slots));
      for (std::int64_t t = 0; t < tokens; ++t) set_index(c.args.slots, t, uniform(random, -2, slots - 1));
      expect_right(c);
      if (HasFailure()) return;
    }
  }
}

TEST_F(RopePoolFused, AnyNegativeSlotWritesNothing) {
  OpCase c({DType::f16, 5, 2, 2, 16, 4, DType::i64, DType::i64});
  set_indices(c.args.slots, {-1, -2, std::numeric_limits<std::int64_t>::min(), -(std::int64_t{1} << 32), -4});
  expect_right(c);
  set_indices(c.args.slots, {-1, 3, -(std::int64_t{1} << 32) + 1, 0, -7});
  expect_right(c);
}

TEST_F(RopePoolFused, NoTokensAndNoSlots) {
  for (const DType dtype : kFloats) {
    OpCase no_tokens({dtype, 0, 4, 1, 64, 8});
    expect_right(no_tokens);
    OpCase nothing({dtype, 0, 4, 1, 64, 0});
    expect_right(nothing);
    OpCase no_slots({dtype, 3, 4, 1, 64, 0});  // and no token that wants one
    expect_right(no_slots);
    for (Tensor* tensor : {&no_tokens.args.q, &no_tokens.args.k, &no_tokens.args.v, &no_tokens.args.positions,
                           &no_tokens.args.slots, &no_tokens.args.q_out, &no_tokens.args.k_out}) {
      tensor->data = nullptr;
    }
    EXPECT_TRUE(no_tokens.run().ok());
  }
}

// ---- Conversions

// At position 0 a lane is multiplied by 1 and its partner by 0. A partner of +0 for a low lane, and of -0 for a high one,
// leaves every bit alone, even the sign of a zero. `pattern(n)` stands in each low lane in turn, then in each high lane.
template <class F>
void expect_every_pattern_back(DType dtype, std::int64_t head_dim, std::int64_t count, F pattern) {
  const FloatFormat format = format_of(dtype);
  const std::int64_t half = head_dim / 2, heads = (count + half - 1) / half;
  OpCase c({dtype, 1, 2 * heads, 1, head_dim, 1});
  set_index(c.args.positions, 0, 0);
  set_index(c.args.slots, 0, -1);
  const auto bits_of = [&](std::int64_t h, std::int64_t i) { return pattern(std::min(h * half + i, count - 1)); };
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < half; ++i) {
      set_bits(c.args.q, 0, h, i, bits_of(h, i));
      set_bits(c.args.q, 0, h, half + i, 0);
      set_bits(c.args.q, 0, heads + h, i, format.sign());
      set_bits(c.args.q, 0, heads + h, half + i, bits_of(h, i));
    }
  }
  ASSERT_TRUE(c.run().ok());
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < half; ++i) {
      const std::uint32_t was = bits_of(h, i);
      for (const std::uint32_t is : {bits_at(c.args.q_out, 0, h, i), bits_at(c.args.q_out, 0, heads + h, half + i)}) {
        if (format.is_nan(was)) {
          ASSERT_TRUE(format.is_nan(is)) << std::hex << was << " became " << is;
        } else {
          ASSERT_EQ(was, is) << std::hex << was << " became " << is;
        }
      }
    }
  }
}

TEST_F(RopePoolFused, EveryPatternOf16BitsComesBackFromPositionZero) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : {2, 30, 128}) {  // single lanes, halves of vectors, whole vectors
      expect_every_pattern_back(dtype, head_dim, 65536, [](std::int64_t n) { return static_cast<std::uint32_t>(n); });
      if (HasFailure()) return;
    }
  }
}

TEST_F(RopePoolFused, PatternsOf32BitsComeBackFromPositionZero) {
  // All exponents and signs, with fractions of few and of many bits.
  expect_every_pattern_back(DType::f32, 128, 512 * 64, [](std::int64_t n) {
    const auto fraction = static_cast<std::uint32_t>(n % 64);
    return static_cast<std::uint32_t>(n / 64) << 23 |
           (fraction < 24 ? (1u << fraction) >> 1 : fraction * 0x2492Bu % (1u << 23));
  });
}

TEST_F(RopePoolFused, VKeepsEveryBit) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    OpCase c({dtype, 8, 1, 64, 128, 8});
    std::uint32_t n = 0;
    for_each_element(c.args.v, [&](auto t, auto h, auto i) { set_bits(c.args.v, t, h, i, n++); });
    ASSERT_EQ(n, 65536u);
    expect_right(c);
  }
  OpCase c({DType::f32, 4, 1, 4, 64, 8});
  Random random(5);
  for_each_element(c.args.v, [&](auto t, auto h, auto i) {
    set_bits(c.args.v, t, h, i, static_cast<std::uint32_t>(random()) | (random() % 2 == 0 ? 0x7F800001u : 0u));
  });
  expect_right(c);
}

TEST_F(RopePoolFused, NanAndInfGoThroughTheArithmetic) {
  for (const DType dtype : kFloats) {
    const std::uint32_t inf = format_of(dtype).infinity();
    OpCase c({dtype, 1, 4, 1, 64, 2});
    set_index(c.args.positions, 0, 3);
    fill(c.args.q, Real{1});
    set_bits(c.args.q, 0, 0, 5, inf | 1);  // signalling NaN
    set_bits(c.args.q, 0, 1, 5, inf);      // cos(3 * f) and sin(3 * f) have a sign each
    set_bits(c.args.q, 0, 2, 37, inf | format_of(dtype).sign());
    set_bits(c.args.q, 0, 3, 5, inf);
    set_bits(c.args.q, 0, 3, 37, inf);  // Inf - Inf, or Inf + Inf
    ASSERT_TRUE(c.run().ok());
    const Real angle = angle_of(c.args, 3, 5), cos = std::cos(angle), sin = std::sin(angle);
    const auto value = [&](int head, int lane) { return value_at(c.args.q_out, 0, head, lane); };
    const Real kInf = std::numeric_limits<Real>::infinity();
    EXPECT_TRUE(std::isnan(value(0, 5)));
    EXPECT_TRUE(std::isnan(value(0, 37)));
    EXPECT_EQ(value(1, 5), std::copysign(kInf, cos));
    EXPECT_EQ(value(1, 37), std::copysign(kInf, sin));
    EXPECT_EQ(value(2, 5), std::copysign(kInf, sin));
    EXPECT_EQ(value(2, 37), std::copysign(kInf, -cos));
    EXPECT_TRUE(std::isnan(value(3, 5)) || std::isnan(value(3, 37)));
    for (int h = 0; h < 4; ++h) EXPECT_TRUE(std::isfinite(value(h, 6)));
  }
}

// A 16-bit result is the float32 result, which the same call in float32 gives, rounded once to nearest even. Inputs are chosen
// so that many results lie midway between two values, are denormal, or overflow.
class Rounding : public RopePoolFused {
 protected:
  struct Count {
    int ties = 0, denormals = 0, overflows = 0;
  };

  // y gets any pattern; x, which the rotation multiplies by about 2^-13 (in some lanes exactly), half an ulp of y over that.
  Count compare(DType dtype, std::int64_t head_dim, double base, std::int64_t position, std::int64_t heads) {
    const std::int64_t half = head_dim / 2;
    const FloatFormat format = format_of(dtype);
    CosSinProbe probe(head_dim, {position});
    probe.c.args.rope_base = base;
    EXPECT_TRUE(probe.c.run().ok());
    OpCase narrow({dtype, 1, heads, 1, head_dim, 1}), wide({DType::f32, 1, heads, 1, head_dim, 1});
    Random random(static_cast<std::uint64_t>(head_dim));
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < half; ++i) {
        // Every pattern in turn, in lanes that change; between them those where rounding is special.
        const std::uint32_t special[] = {format.infinity() - 1, format.infinity() - 2, 1, 2, 3, 1u << format.fraction_bits};
        const std::int64_t at = h * half + (i + h) % half;
        const auto n = static_cast<std::uint32_t>(kSlow ? 4 * at + h % 4 : at) & 0xFFFF;
        const std::uint32_t pattern = uniform(random, 0, 3) == 0 ? special[uniform(random, 0, 5)] | (n & format.sign()) : n;
        const std::uint32_t y = format.is_nan(pattern) ? 0 : pattern;
        const Real next = decode(dtype, y + 1), now = decode(dtype, y);
        const Real half_ulp = std::isfinite(next - now) ? (next - now) / 2 : (now - decode(dtype, y - 1)) / 2;
        const Real x = std::isfinite(half_ulp) ? half_ulp / probe.sin(0, i) * static_cast<Real>(uniform(random, -3, 3)) : 1;
        set_bits(narrow.args.q, 0, h, i, encode(dtype, x));
        set_bits(narrow.args.q, 0, h, half + i, y);
      }
    }
    for_each_element(narrow.args.q,
                     [&](auto t, auto h, auto i) { set_value(wide.args.q, t, h, i, value_at(narrow.args.q, t, h, i)); });
    for (OpCase* c : {&narrow, &wide}) {
      c->args.rope_base = base;
      set_index(c->args.positions, 0, position);
      set_index(c->args.slots, 0, -1);
      EXPECT_TRUE(c->run().ok());
    }
    Count count;
    for_each_element(narrow.args.q_out, [&](auto t, auto h, auto i) {
      const Real exact = value_at(wide.args.q_out, t, h, i);
      const std::uint32_t got = bits_at(narrow.args.q_out, t, h, i), want = encode(dtype, exact);
      if (format.is_nan(want)) {
        ASSERT_TRUE(format.is_nan(got));
        return;
      }
      ASSERT_EQ(got, want) << std::hexfloat << static_cast<double>(exact) << std::hex << ": got " << got << " instead of "
                           << want;
      const std::uint32_t magnitude = want & ~format.sign();
      for (const std::uint32_t neighbour : {want + 1, magnitude == 0 ? want + 1 : want - 1}) {
        if (std::isfinite(exact) && (decode(dtype, want) + decode(dtype, neighbour)) / 2 == exact) {
          ++count.ties;
          break;
        }
      }
      if (magnitude != 0 && magnitude < (1u << format.fraction_bits) && decode(dtype, want) != exact) ++count.denormals;
      if (magnitude == format.infinity() && std::isfinite(exact)) ++count.overflows;
    });
    return count;
  }
};

TEST_F(Rounding, IsToNearestEven) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Count all;
    constexpr std::int64_t kPatterns = kSlow ? 16384 : 65536;
    for (const std::int64_t head_dim : {4, 8, 64}) {
      const std::int64_t half = head_dim / 2;
      // At position 1 some pairs turn by 2^-13 and its powers, as exactly as float32 has them: there are the ties.
      const double base = std::exp2(13.0 * static_cast<double>(head_dim) / static_cast<double>(half == 2 ? 2 : half / 2));
      const Count count = compare(dtype, head_dim, base, 1, 2 * kPatterns / half);
      if (HasFailure()) return;
      all.ties += count.ties;
      all.denormals += count.denormals;
      all.overflows += count.overflows;
      // Ordinary angles too.
      const Count ordinary = compare(dtype, head_dim, 1e4, 1000, kPatterns / half);
      if (HasFailure()) return;
      all.denormals += ordinary.denormals;
      all.overflows += ordinary.overflows;
    }
    EXPECT_GT(all.ties, kPatterns / 8) << to_string(dtype);
    EXPECT_GT(all.denormals, dtype == DType::f16 ? 500 : 50) << to_string(dtype);
    EXPECT_GT(all.overflows, 0) << to_string(dtype);
  }
}

}  // namespace
}  // namespace ropepool::test
