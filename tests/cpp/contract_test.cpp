// The 21 refusals of rope_pool_fused: which, in what order, in what words, and with nothing written.
#include <set>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "contract_model.h"
#include "message_template.h"
#include "mutations.h"
#include "ops/rope_pool_fused.h"
#include "oracle.h"
#include "sanitizers.h"

namespace ropepool::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

std::vector<int> numbers_of(const std::vector<Error>& errors) {
  std::vector<int> result;
  for (const Error& error : errors) result.push_back(error.number());
  return result;
}

// Runs a call that must be refused first for what the model says, and compares every byte of memory.
void expect_refused(const OpCase& c, const std::vector<int>& refusals) {
  const auto before = c.memory.copy();
  EXPECT_EQ(numbers_of(check(c.args)), refusals);
  const auto result = c.run();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().number(), refusals.front()) << result.error().message();
  EXPECT_TRUE(c.memory.equals(before)) << "a refused call has written";
}

// The rest needs a Rope: tests/python/test_rope.py.
constexpr int kLastOfPlainCalls = 21;

TEST(Contract, TheValidCallIsTaken) {
  for (const DType dtype : kFloats) {
    OpCase c = valid_case(dtype);
    EXPECT_TRUE(ContractModel(c.args).refusals().empty());
    const auto before = c.memory.copy();
    EXPECT_TRUE(check(c.args).empty());
    EXPECT_TRUE(c.memory.equals(before)) << "check has written";
    expect_right(c);
  }
}

TEST(Contract, EachMutationRaisesItsRefusal) {
  for (const Mutation& m : mutations()) {
    SCOPED_TRACE(m.name);
    OpCase c = valid_case();
    m.apply(c);
    const auto expected = ContractModel(c.args).refusals();
    ASSERT_FALSE(expected.empty());
    ASSERT_EQ(expected.front(), m.code);
    expect_refused(c, expected);
  }
}

TEST(Contract, EveryRefusalIsRaisedByAMutation) {
  std::set<int> raised;
  for (const Mutation& m : mutations()) {
    OpCase c = valid_case();
    m.apply(c);
    raised.insert(c.run().error().number());
  }
  for (const CatalogEntry& entry : catalog()) {
    if (static_cast<int>(entry.refusal) > kLastOfPlainCalls) break;
    EXPECT_TRUE(raised.contains(static_cast<int>(entry.refusal))) << entry.code << " has no mutation in mutations.h";
  }
}

TEST(Contract, MessagesAndFields) {
  for (const Mutation& m : mutations()) {
    SCOPED_TRACE(m.name);
    OpCase c = valid_case();
    m.apply(c);
    const auto result = c.run();
    ASSERT_FALSE(result.ok());
    const Error& error = result.error();
    const CatalogEntry& entry = catalog()[static_cast<std::size_t>(m.code - 1)];
    EXPECT_EQ(error.kind(), Error::Kind::refusal);
    EXPECT_EQ(error.refusal(), entry.refusal);
    EXPECT_EQ(error.code(), entry.code);
    EXPECT_EQ(error.name(), entry.name);
    EXPECT_EQ(error.url(), entry.url);
    EXPECT_EQ(error.url(), "errors/" + std::string(entry.code) + ".html");
    if (!m.first_line.empty()) {
      EXPECT_EQ(error.summary(), m.first_line);
    }
    EXPECT_TRUE(is_made_from(error.summary(), entry.message)) << error.summary() << "\n" << entry.message;
    // One of those the entry names.
    EXPECT_NE((", " + std::string(entry.argument) + ", ").find(", " + error.argument() + ", "), std::string::npos)
        << error.argument();
    EXPECT_FALSE(error.expected().empty());
    EXPECT_FALSE(error.actual().empty());
    EXPECT_FALSE(error.hint().empty());
    std::string whole = error.summary();
    if (!error.cause().empty()) whole += "\ncause: " + error.cause();
    whole += "\nmend:  " + error.hint() + "\n" + std::string(entry.code) + " " + std::string(entry.name) +
             ": ropepool explain " + std::string(entry.code);
    EXPECT_EQ(error.message(), whole);
    EXPECT_EQ(find_refusal(error.message()), entry.refusal);
    EXPECT_EQ(find_refusal(error.summary()), entry.refusal) << error.summary();
  }
}

TEST(Contract, TheWholeMessageOfTheOriginalsRefusal) {
  OpCase c({DType::f32, 4, 8, 2, 64, 16}, 1, 8);
  c.args.v = shaped(c.args.v, {4, 10, 64});
  const auto result = c.run();
  ASSERT_FALSE(result.ok());
  const Error& error = result.error();
  const std::string cause =
      "v has 10 heads = num_qo_heads + num_kv_heads (8 + 2): it was sliced from kv_size of the packed QKV instead of q_size + "
      "kv_size, and k from 0, so k holds Q's data";
  const std::string hint = "k = qkv[..., q_size : q_size + kv_size]; v = qkv[..., q_size + kv_size :]";
  EXPECT_EQ(error.message(), "v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)\ncause: " + cause + "\nmend:  " + hint +
                                 "\nRP006 v-shape-mismatch: ropepool explain RP006");
  EXPECT_EQ(error.code(), "RP006");
  EXPECT_EQ(error.name(), "v-shape-mismatch");
  EXPECT_EQ(error.argument(), "v");
  EXPECT_EQ(error.expected(), "(4, 2, 64)");
  EXPECT_EQ(error.actual(), "(4, 10, 64)");
  EXPECT_EQ(error.cause(), cause);
  EXPECT_EQ(error.hint(), hint);
  EXPECT_EQ(error.url(), "errors/RP006.html");
}

// Two faults at once: the one that comes first in the contract is raised, and check lists both.
TEST(Contract, OfTwoFaultsTheFirstIsRaised) {
  std::set<std::pair<int, int>> met;
  const auto& list = mutations();
  const std::size_t step = kSlow ? 5 : 1;
  for (std::size_t n = 0; n < list.size() * list.size(); n += step) {
    const Mutation &first = list[n / list.size()], &second = list[n % list.size()];
    if (&first == &second) continue;
    SCOPED_TRACE(first.name + ", then " + second.name);
    OpCase c = valid_case(kFloats[n % 2 == 0 ? 0 : n / 2 % 3]);
    first.apply(c);
    second.apply(c);
    if (ContractModel(c.args).is_beyond_comparison()) continue;
    const auto expected = ContractModel(c.args).refusals();
    if (expected.empty()) continue;  // the second undid the first
    expect_refused(c, expected);
    for (const int i : expected) {
      for (const int j : expected) met.emplace(i, j);
    }
    if (HasFailure()) return;
  }
  if (kSlow) return;  // with a part of the pairs
  for (int i = 1; i <= kLastOfPlainCalls; ++i) {
    for (int j = i + 1; j <= kLastOfPlainCalls; ++j) {
      EXPECT_TRUE(met.contains({i, j})) << "no case has both RP" << i << " and RP" << j;
    }
  }
}

TEST(Contract, OfManyFaultsTheFirstIsRaised) {
  Random random(11);
  const auto& list = mutations();
  for (int n = 0; n < (kSlow ? 300 : 3000); ++n) {
    OpCase c = valid_case(kFloats[n % 3]);
    std::string names;
    for (std::int64_t i = uniform(random, 3, 6); i > 0; --i) {
      const auto& m = list[static_cast<std::size_t>(uniform(random, 0, static_cast<std::int64_t>(list.size()) - 1))];
      m.apply(c);
      names += m.name + ", ";
    }
    SCOPED_TRACE(names);
    if (ContractModel(c.args).is_beyond_comparison()) continue;
    const auto expected = ContractModel(c.args).refusals();
    if (expected.empty()) continue;
    expect_refused(c, expected);
    if (HasFailure()) return;
  }
}

// Descriptors of pure nonsense: nothing may overflow, crash or be taken.
TEST(Contract, ExtremeDescriptors) {
  Random random(12);
  const std::vector<std::int64_t> extremes = {std::numeric_limits<std::int64_t>::min(),
                                              std::numeric_limits<std::int64_t>::min() + 1,
                                              -(std::int64_t{1} << 62),
                                              -(std::int64_t{1} << 32),
                                              -1,
                                              0,
                                              1,
                                              2,
                                              8,
                                              std::int64_t{1} << 31,
                                              std::int64_t{1} << 61,
                                              std::int64_t{1} << 62,
                                              std::numeric_limits<std::int64_t>::max()};
  const auto extreme = [&] {
    return extremes[static_cast<std::size_t>(uniform(random, 0, static_cast<std::int64_t>(extremes.size()) - 1))];
  };
  constexpr DType kTypes[] = {DType::f32, DType::u8, DType::bf16, DType::complex128, DType::other, DType::i64, DType::none};
  for (int n = 0; n < (kSlow ? 5000 : 20000); ++n) {
    OpCase c = valid_case();
    const auto nothing_changed = c.memory.copy();
    for (Tensor* tensor : all_arrays(c.args)) {
      // positions and slots are read, so their lengths and strides stay within their memory.
      const bool index = tensor == &c.args.positions || tensor == &c.args.slots;
      const auto axis = static_cast<int>(uniform(random, 0, 2));
      if (axis < tensor->rank() && uniform(random, 0, 2) == 0) {
        const std::int64_t length = extreme();
        tensor->shape[axis] = index ? std::min<std::int64_t>(length, 4) : length;
      }
      if (axis < tensor->rank() && uniform(random, 0, 2) == 0) {
        tensor->strides[axis] = index ? uniform(random, -1, 2) : extreme();
      }
      if (uniform(random, 0, 9) == 0) tensor->dtype = index ? DType::u8 : kTypes[uniform(random, 0, 6)];
    }
    if (uniform(random, 0, 1) == 0) c.args.num_qo_heads = extreme();
    if (uniform(random, 0, 1) == 0) c.args.num_kv_heads = extreme();
    if (uniform(random, 0, 3) == 0) c.args.head_dim = extreme();
    SCOPED_TRACE(describe(c.args));
    const auto errors = check(c.args);
    for (const Error& error : errors) ASSERT_FALSE(error.message().empty());
    if (errors.empty()) continue;
    const auto result = c.run();
    ASSERT_FALSE(result.ok());
    ASSERT_EQ(result.error().number(), errors.front().number());
    ASSERT_TRUE(c.memory.equals(nothing_changed));
  }
}

TEST(Contract, TheFirstBadTokenIsNamed) {
  OpCase c({DType::f32, 40, 2, 1, 8, 16});
  set_indices(c.args.slots, std::vector<std::int64_t>(40, -1));
  set_index(c.args.slots, 33, 99);
  set_index(c.args.slots, 31, 16);
  auto result = c.run();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().summary(), "slots[31] is 16, but the pools have 16 slots");
  EXPECT_EQ(result.error().actual(), "16");
  set_index(c.args.slots, 31, 15);
  set_index(c.args.slots, 33, -5);
  set_index(c.args.positions, 20, -2147483648LL);
  set_index(c.args.positions, 21, 2147483648LL);
  result = c.run();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().summary(), "positions[20] is -2147483648, beyond +-2147483647");
}

TEST(Contract, ShapesArePrintedAsPythonPrintsTuples) {
  EXPECT_EQ(to_string(Shape{}), "()");
  EXPECT_EQ(to_string(Shape{4}), "(4,)");
  EXPECT_EQ(to_string(Shape{4, 8, 64}), "(4, 8, 64)");
  EXPECT_EQ(to_string(Shape{0, -1}), "(0, -1)");
}

// ---- What must not be refused

TEST(Contract, LegalEdges) {
  const std::pair<const char*, std::function<void(OpCase&)>> edges[] = {
      {"k is v", [](OpCase& c) { c.args.v = c.args.k; }},
      {"q, k and v overlap", [](OpCase& c) { c.args.k.data = c.args.v.data = element(c.args.q, 0, 1); }},
      {"positions are the slots",
       [](OpCase& c) {
         c.args.positions = c.args.slots;
         set_indices(c.args.slots, {3, 0, 15, 7});
       }},
      {"inputs are read-only",
       [](OpCase& c) {
         for (Tensor* t : {&c.args.q, &c.args.k, &c.args.v, &c.args.positions, &c.args.slots}) t->read_only = true;
       }},
      {"in place",
       [](OpCase& c) {
         c.args.q_out = c.args.q;
         c.args.k_out = c.args.k;
       }},
      {"inputs are one head, broadcast",
       [](OpCase& c) {
         c.args.q.strides = {0, 0, 1};
         c.args.k.strides = {16, 0, 1};
       }},
      {"num_qo_heads is no multiple",
       [](OpCase& c) {
         c.args.num_qo_heads = 3;
         c.args.q = slice(c.args.q, 1, 1, 3);
         c.args.q_out = slice(c.args.q_out, 1, 0, 3);
       }},
      {"fewer query heads than KV heads",
       [](OpCase& c) {
         c.args.num_qo_heads = 1;
         c.args.q = slice(c.args.q, 1, 1, 1);
         c.args.q_out = slice(c.args.q_out, 1, 3, 1);
       }},
      {"positions at the limits",
       [](OpCase& c) {
         set_indices(c.args.positions, {2147483647, -2147483647, 0, -1});
       }},
      {"no slot is used",
       [](OpCase& c) {
         set_indices(c.args.slots, {-1, -1, -9, -2147483648LL});
       }},
      {"all slots are one",
       [](OpCase& c) {
         set_indices(c.args.slots, {0, 0, 0, 0});
       }},
      {"rows turned around",
       [](OpCase& c) {
         for (Tensor* t : {&c.args.q, &c.args.k_out, &c.args.k_pool}) *t = reversed(*t, 0);
         c.args.v_pool = reversed(reversed(c.args.v_pool, 1), 0);
       }},
      {"on an unnumbered pinned device",
       [](OpCase& c) {
         c.args.q.device = {DeviceType::cpu, 0};
       }},
      {"float32 angles", [](OpCase& c) { c.args.angles = Angles::float32; }},
  };
  for (const auto& [name, apply] : edges) {
    SCOPED_TRACE(name);
    OpCase c = valid_case();
    apply(c);
    EXPECT_TRUE(ContractModel(c.args).refusals().empty());
    const auto errors = check(c.args);
    ASSERT_TRUE(errors.empty()) << errors.front().message();
    expect_right(c);
  }
}

TEST(Contract, AnyStrideOfAnAxisOfOneIsLegal) {
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{-7}, std::numeric_limits<std::int64_t>::max(),
                                    std::numeric_limits<std::int64_t>::min(), std::int64_t{1} << 62}) {
    OpCase c({DType::f32, 1, 1, 1, 8, 1});
    set_index(c.args.slots, 0, 0);
    for (Tensor* t : float_arrays(c.args)) t->strides = {stride, stride, 1};
    c.args.positions.strides = c.args.slots.strides = {stride};
    const auto errors = check(c.args);
    ASSERT_TRUE(errors.empty()) << stride << ": " << errors.front().message();
    const auto result = c.run();
    ASSERT_TRUE(result.ok());
    // The oracle walks axes of one with a stride of its own.
    for (Tensor* t : float_arrays(c.args)) t->strides = {8, 8, 1};
    c.args.positions.strides = c.args.slots.strides = {1};
    expect_right(c);
  }
}

TEST(Contract, AnyLayoutOfAnEmptyArrayIsLegal) {
  OpCase c({DType::f32, 0, 4, 2, 8, 16});
  for (Tensor* t : {&c.args.q, &c.args.k, &c.args.v, &c.args.q_out, &c.args.k_out}) {
    t->data = nullptr;
    t->strides = {std::numeric_limits<std::int64_t>::min(), 0, 5};
    t->unaligned = true;
  }
  c.args.positions.strides = c.args.slots.strides = {-4};
  EXPECT_TRUE(check(c.args).empty());
  const auto before = c.memory.copy();
  EXPECT_TRUE(c.run().ok());
  EXPECT_TRUE(c.memory.equals(before));
}

// A product of a stride with the item size would overflow.
TEST(Contract, AnyStridesOfAPoolWithoutSlotsAreLegal) {
  for (const std::int64_t stride : {std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::min()}) {
    OpCase c({DType::f32, 4, 4, 2, 8, 0});
    c.args.k_pool.strides = c.args.v_pool.strides = {stride, stride, 1};
    EXPECT_TRUE(check(c.args).empty());
    expect_right(c);
  }
}

TEST(Contract, TinyRopeBasesAreLegal) {
  for (const double base : {5e-324, 2.2250738585072014e-308, 1e-5, 0.5, 1.0}) {
    OpCase c = valid_case();
    c.args.rope_base = base;
    EXPECT_TRUE(check(c.args).empty()) << base;
  }
}

TEST(Contract, LayoutsOfEngines) {
  for (const DType dtype : kFloats) {
    OpCase c({dtype, 6, 4, 2, 16, 12});
    const Tensor qkv = c.memory.make(dtype, {6, 8, 16});
    c.args.q = c.args.q_out = slice(qkv, 1, 0, 4);
    c.args.k = c.args.k_out = slice(qkv, 1, 4, 2);
    c.args.v = slice(qkv, 1, 6, 2);
    const Tensor pool = c.memory.make(dtype, {12, 2, 2, 16});
    c.args.k_pool = select(pool, 1, 0);
    c.args.v_pool = select(pool, 1, 1);
    Random random(9);
    c.fill_inputs(random);
    EXPECT_TRUE(ContractModel(c.args).refusals().empty());
    EXPECT_TRUE(check(c.args).empty());
    expect_right(c);
    // The same with k_out one head into v: one byte too far is seen.
    c.args.k_out = slice(qkv, 1, 5, 2);
    EXPECT_EQ(ContractModel(c.args).refusals(), std::vector<int>{19});
    EXPECT_EQ(numbers_of(check(c.args)), std::vector<int>{19});
  }
}

// ---- For front-ends that make the outputs themselves

TEST(Contract, OutputsThatAreMadeLaterAreNotMissed) {
  OpCase c = valid_case();
  c.args.q_out = {};
  c.args.k_out = {};
  EXPECT_FALSE(contract::first_refusal(c.args, contract::Outputs::made_later).has_value());
  EXPECT_EQ(contract::first_refusal(c.args, contract::Outputs::required)->number(), 17);
  EXPECT_TRUE(contract::all_refusals(c.args, contract::Outputs::made_later).empty());
  c.args.k_pool.read_only = true;
  EXPECT_EQ(contract::first_refusal(c.args, contract::Outputs::made_later)->number(), 17);
  c.args.k_pool.read_only = false;
  c.args.q_out = c.args.q;  // in place in one, made later in the other
  EXPECT_FALSE(contract::first_refusal(c.args, contract::Outputs::made_later).has_value());
  c.args.q_out.dtype = DType::bf16;
  EXPECT_EQ(contract::first_refusal(c.args, contract::Outputs::made_later)->number(), 17);
}

}  // namespace
}  // namespace ropepool::test
