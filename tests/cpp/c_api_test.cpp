// The C interface through the shared library, and beside it the C++ one: the same numbers and the same words.
#include <ropepool/c_api.h>

#include <cstddef>
#include <thread>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "c_call.h"
#include "executors.h"
#include "mutations.h"
#include "oracle.h"

namespace ropepool::test {
namespace {

// What DLPack can't say: swapped bytes, read-only, strides between elements; and what C takes for something else: no tensor.
bool can_be_said_in_c(const OpCase& c, const Mutation& m) {
  for (const Tensor* t : {&c.args.q, &c.args.slots, &c.args.positions}) {
    if (!t->given()) return false;
  }
  for (const Tensor* t : {&c.args.q, &c.args.k, &c.args.v, &c.args.positions, &c.args.slots, &c.args.k_pool, &c.args.v_pool,
                          &c.args.q_out, &c.args.k_out}) {
    if (t->read_only || t->unaligned) return false;
  }
  return m.name.find("swapped") == std::string::npos && m.name.find("unknown") == std::string::npos;
}

TEST(CApi, RefusalsHaveTheNumbersAndWordsOfCpp) {
  int compared = 0;
  for (const Mutation& m : mutations()) {
    SCOPED_TRACE(m.name);
    OpCase c = valid_case();
    m.apply(c);
    if (!can_be_said_in_c(c, m)) continue;
    ++compared;
    const auto before = c.memory.copy();
    const auto expected = rope_pool_fused(c.args);
    ASSERT_FALSE(expected.ok());
    const CCall call(c.args);
    EXPECT_EQ(call.run(), m.code);
    EXPECT_EQ(ropepool_last_error_message(), expected.error().message());
    EXPECT_TRUE(c.memory.equals(before));
  }
  EXPECT_GT(compared, 70);
}

TEST(CApi, ResultsAreThoseOfCpp) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Angles angles : {Angles::exact, Angles::float32}) {
      OpCase c({dtype, 50, 4, 2, 64, 60}), d({dtype, 50, 4, 2, 64, 60});
      c.args.angles = d.args.angles = angles;
      for (OpCase* one : {&c, &d}) {
        one->args.q = reversed(one->args.q, 0);
        one->args.k_pool = reversed(one->args.k_pool, 1);
      }
      ASSERT_TRUE(c.run().ok());
      EXPECT_EQ(CCall(d.args).run(), ROPEPOOL_OK);
      EXPECT_TRUE(same_memory(c, d));
    }
  }
}

TEST(CApi, StridesMayBeMissing) {
  OpCase c({DType::bf16, 5, 4, 2, 8, 9}), d({DType::bf16, 5, 4, 2, 8, 9});
  ASSERT_TRUE(c.run().ok());
  CCall call(d.args);
  for (DlView* view :
       {&call.q, &call.k, &call.v, &call.positions, &call.slots, &call.k_pool, &call.v_pool, &call.q_out, &call.k_out}) {
    view->tensor.strides = nullptr;
  }
  EXPECT_EQ(call.run(), ROPEPOOL_OK);
  EXPECT_TRUE(same_memory(c, d));
}

TEST(CApi, ByteOffsets) {
  OpCase c({DType::f16, 5, 4, 2, 8, 9}), d({DType::f16, 5, 4, 2, 8, 9});
  for (OpCase* one : {&c, &d}) {
    one->args.q = slice(one->args.q, 0, 2, 3);
    one->args.k = slice(one->args.k, 0, 2, 3);
    one->args.v = slice(one->args.v, 0, 1, 3);
    one->args.positions = slice(one->args.positions, 0, 2, 3);
    one->args.slots = slice(one->args.slots, 0, 0, 3);
    one->args.q_out = slice(one->args.q_out, 0, 0, 3);
    one->args.k_out = slice(one->args.k_out, 0, 1, 3);
  }
  ASSERT_TRUE(c.run().ok());
  CCall call(d.args);
  for (const auto& [view, bytes] : {std::pair{&call.q, 2 * 32 * 2},
                                    {&call.k, 2 * 16 * 2},
                                    {&call.v, 16 * 2},
                                    {&call.positions, 2 * 8},
                                    {&call.k_out, 16 * 2}}) {
    view->tensor.data = static_cast<std::byte*>(view->tensor.data) - bytes;
    view->tensor.byte_offset = static_cast<std::uint64_t>(bytes);
  }
  EXPECT_EQ(call.run(), ROPEPOOL_OK);
  EXPECT_TRUE(same_memory(c, d));
  // An offset between two elements.
  call.v.tensor.byte_offset = 33;
  EXPECT_EQ(call.run(), 16);
}

TEST(CApi, DTypes) {
  const auto with_all = [](DLDataType type) {
    OpCase c = valid_case();
    CCall call(c.args);
    for (DlView* view : {&call.q, &call.k, &call.v, &call.k_pool, &call.v_pool, &call.q_out, &call.k_out})
      view->tensor.dtype = type;
    const int number = call.run();
    return std::pair{number, std::string(number == 0 ? "" : ropepool_last_error_message())};
  };
  EXPECT_EQ(with_all({kDLFloat, 32, 1}).first, 0);
  EXPECT_EQ(with_all({kDLFloat, 16, 1}).first, 0);
  EXPECT_EQ(with_all({kDLBfloat, 16, 1}).first, 0);
  for (const auto& [type, name] : {std::pair<DLDataType, const char*>{{kDLFloat, 64, 1}, "float64"},
                                   {{kDLInt, 8, 1}, "int8"},
                                   {{kDLInt, 16, 1}, "int16"},
                                   {{kDLInt, 32, 1}, "int32"},
                                   {{kDLInt, 64, 1}, "int64"},
                                   {{kDLUInt, 8, 1}, "uint8"},
                                   {{kDLUInt, 16, 1}, "uint16"},
                                   {{kDLUInt, 32, 1}, "uint32"},
                                   {{kDLUInt, 64, 1}, "uint64"},
                                   {{6, 8, 1}, "bool"},
                                   {{kDLComplex, 64, 1}, "complex64"},
                                   {{kDLComplex, 128, 1}, "complex128"},
                                   {{10, 8, 1}, "float8_e4m3fn"},
                                   {{12, 8, 1}, "float8_e5m2"},
                                   {{17, 4, 1}, "float4_e2m1fn"},
                                   {{17, 4, 2}, "an unsupported type"},
                                   {{kDLFloat, 32, 4}, "an unsupported type"},
                                   {{kDLFloat, 8, 1}, "an unsupported type"},
                                   {{kDLOpaqueHandle, 64, 1}, "an unsupported type"},
                                   {{255, 255, 65535}, "an unsupported type"}}) {
    const auto [number, message] = with_all(type);
    EXPECT_EQ(number, 12) << name;
    EXPECT_TRUE(message.starts_with(std::string("q must be float32, float16 or bfloat16, got ") + name + "\n")) << message;
  }
  // Types without a name here are still told apart.
  OpCase c = valid_case();
  CCall call(c.args);
  for (DlView* view : {&call.q, &call.k, &call.v, &call.k_pool, &call.v_pool}) view->tensor.dtype = {kDLFloat, 8, 1};
  EXPECT_EQ(call.run(), 12);
  call.v.tensor.dtype = {kDLFloat, 8, 2};
  EXPECT_EQ(call.run(), 10);
  call.v.tensor.dtype = {kDLFloat, 8, 1};
  call.v_pool.tensor.dtype = {7, 8, 1};
  EXPECT_EQ(call.run(), 11);
}

TEST(CApi, Devices) {
  const auto with_all = [](int type, int index) {
    OpCase c = valid_case();
    CCall call(c.args);
    for (DlView* view :
         {&call.q, &call.k, &call.v, &call.positions, &call.slots, &call.k_pool, &call.v_pool, &call.q_out, &call.k_out}) {
      view->tensor.device = {static_cast<DLDeviceType>(type), index};
    }
    return call.run();
  };
  EXPECT_EQ(with_all(kDLCPU, 0), 0);
  EXPECT_EQ(with_all(kDLCUDAHost, 0), 0);
  EXPECT_EQ(with_all(kDLCUDA, 0), 18);
  EXPECT_EQ(with_all(kDLMetal, 0), 18);
  EXPECT_EQ(with_all(kDLVulkan, 0), 18);
  EXPECT_EQ(with_all(14, 0), 18);  // newer than the header

  OpCase c = valid_case();
  CCall call(c.args);
  call.slots.tensor.device = {kDLCUDA, 1};
  EXPECT_EQ(call.run(), 18);
  EXPECT_NE(std::string(ropepool_last_error_message()).find("slots must be on cpu, got cuda:1"), std::string::npos);
}

TEST(CApi, NullPointers) {
  OpCase c = valid_case();
  CCall call(c.args);
  const DLTensor* const arrays[] = {&call.q.tensor,         &call.k.tensor,     &call.v.tensor,
                                    &call.positions.tensor, &call.slots.tensor, &call.k_pool.tensor,
                                    &call.v_pool.tensor,    &call.q_out.tensor, &call.k_out.tensor};
  const char* const names[] = {"q", "k", "v", "positions", "slots", "k_pool", "v_pool", "q_out", "k_out"};
  const auto before = c.memory.copy();
  for (int missing = 0; missing < 9; ++missing) {
    const auto at = [&](int i) { return i == missing ? nullptr : arrays[i]; };
    const int number = ropepool_rope_pool_fused(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), 8, 4, 2, 1e4);
    EXPECT_EQ(number, missing < 7 ? ROPEPOOL_INVALID_ARGUMENT : 17) << names[missing];
    EXPECT_TRUE(std::string(ropepool_last_error_message()).starts_with(names[missing])) << ropepool_last_error_message();
  }
  for (int i = 0; i < 9; ++i) {
    DLTensor whole = *arrays[i];
    whole.shape = nullptr;
    const auto at = [&](int j) { return i == j ? &whole : arrays[j]; };
    EXPECT_EQ(ropepool_rope_pool_fused(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), 8, 4, 2, 1e4),
              ROPEPOOL_INVALID_ARGUMENT);
    EXPECT_EQ(ropepool_last_error_message(), std::string(names[i]) + "->shape is NULL");
  }
  EXPECT_EQ(ropepool_rope_pool_fused_with(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6],
                                          arrays[7], arrays[8], nullptr),
            ROPEPOOL_INVALID_ARGUMENT);
  EXPECT_TRUE(c.memory.equals(before));
  // Data that is NULL is a refusal, as in C++.
  call.k.tensor.data = nullptr;
  EXPECT_EQ(call.run(), 16);
  call.k.tensor.byte_offset = 64;
  EXPECT_EQ(call.run(), 16);
}

TEST(CApi, ShapesOfAnyRank) {
  OpCase c = valid_case();
  CCall call(c.args);
  std::vector<std::int64_t> many(40, 1);
  for (const int ndim : {0, 1, 2, 8, 9, 40}) {
    call.q.tensor.ndim = ndim;
    call.q.tensor.shape = ndim == 0 ? nullptr : many.data();
    call.q.tensor.strides = nullptr;
    EXPECT_EQ(call.run(), 1) << ndim;
    call.q.tensor.strides = many.data();
    EXPECT_EQ(call.run(), 1) << ndim;
  }
  call.q.tensor.ndim = -1;
  EXPECT_EQ(call.run(), 1);

  // Of more than eight lengths the first eight are told.
  OpCase d = valid_case();
  CCall other(d.args);
  other.q_out.tensor.shape = other.q_out.tensor.strides = many.data();
  for (const auto& [ndim, shown] :
       {std::pair{8, "got (1, 1, 1, 1, 1, 1, 1, 1)\n"}, {9, "got (1, 1, 1, 1, 1, 1, 1, 1, ...)\n"}}) {
    other.q_out.tensor.ndim = ndim;
    EXPECT_EQ(other.run(), 17) << ndim;
    EXPECT_NE(std::string(ropepool_last_error_message()).find(shown), std::string::npos) << ropepool_last_error_message();
  }
}

// Those of the first header end before rope: what lies behind them is somebody else's.
TEST(CApi, OptionsOfTheFirstHeader) {
  OpCase c = valid_case(), d = valid_case();
  ASSERT_TRUE(c.run().ok());
  CCall call(d.args);
  call.options.size = offsetof(ropepool_rope_pool_fused_options, rope);
  EXPECT_EQ(call.options.size, 48u);
  call.options.rope = reinterpret_cast<const ropepool_rope*>(&call.options);
  call.options.rope_sets = &call.slots.tensor;
  EXPECT_EQ(call.run(), ROPEPOOL_OK) << ropepool_last_error_message();
  EXPECT_TRUE(same_memory(c, d));
}

TEST(CApi, OptionsOfAnUnknownSize) {
  OpCase c = valid_case();
  CCall call(c.args);
  const auto before = c.memory.copy();
  const std::size_t first = offsetof(ropepool_rope_pool_fused_options, rope);
  for (const std::size_t size :
       {std::size_t{0}, first - 8, first + 8, sizeof call.options - 1, sizeof call.options + 8, ~std::size_t{0}}) {
    call.options.size = size;
    EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT);
    const std::string message = ropepool_last_error_message();
    EXPECT_NE(message.find(std::to_string(size)), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(sizeof call.options)), std::string::npos) << message;
  }
  EXPECT_TRUE(c.memory.equals(before));
}

TEST(CApi, BadOptions) {
  OpCase c = valid_case();
  CCall call(c.args);
  call.options.angles = 2;
  EXPECT_EQ(call.run(), 15);
  call.options.angles = -1;
  EXPECT_EQ(call.run(), 15);
  call.options.angles = ROPEPOOL_ANGLES_EXACT;
  call.options.num_threads = -1;
  EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT);
}

TEST(CApi, ThreadsOfOneCallDoNotChangeItsBits) {
  OpCase c({DType::bf16, 256, 8, 2, 128, 300});
  const auto before = c.memory.copy();
  ASSERT_TRUE(c.run().ok());
  const auto expected = c.memory.copy();
  ASSERT_EQ(ropepool_set_num_threads(4), 0);
  CCall call(c.args);
  for (const int threads : {0, 1, 2, 3, 4, 5, 1000, 2147483647}) {
    c.memory.restore(before);
    call.options.num_threads = threads;
    ASSERT_EQ(call.run(), ROPEPOOL_OK);
    EXPECT_TRUE(c.memory.equals(expected)) << threads;
  }
}

TEST(CApi, TheLastMessageIsOfTheThread) {
  OpCase c = valid_case();
  CCall call(c.args);
  c.args.rope_base = 0;
  CCall bad(c.args);
  ASSERT_EQ(bad.run(), 15);
  const std::string message = ropepool_last_error_message();
  ASSERT_FALSE(message.empty());
  std::thread([&] {
    EXPECT_STREQ(ropepool_last_error_message(), "");
    EXPECT_EQ(ropepool_set_num_threads(-5), ROPEPOOL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ropepool_last_error_message()).find("-5"), std::string::npos);
  }).join();
  EXPECT_EQ(ropepool_last_error_message(), message);
  // A call that works leaves it.
  EXPECT_EQ(call.run(), 0);
  EXPECT_EQ(ropepool_last_error_message(), message);
}

// ---- What the shared library exports for C++

TEST(SharedLibrary, ServesCpp) {
  EXPECT_STREQ(version(), ropepool_version());
  EXPECT_EQ(catalog().size(), static_cast<std::size_t>(kNumRefusals));
  EXPECT_EQ(find_refusal("RP006"), Refusal::v_shape_mismatch);
  EXPECT_FALSE(simd_targets().empty());
  EXPECT_TRUE(check_environment().ok());
  OpCase c({DType::bf16, 256, 8, 2, 128, 300}), d({DType::bf16, 256, 8, 2, 128, 300});
  ReverseExecutor reverse;
  ThreadsExecutor threads(3);
  ASSERT_TRUE(c.run(&reverse).ok());
  ASSERT_TRUE(d.run(&threads).ok());
  EXPECT_GT(reverse.calls(), 2);
  EXPECT_TRUE(same_memory(c, d));
  expect_right(c);
}

TEST(SharedLibrary, SharesTheTypeOfExecutor) {
  UnevenExecutor uneven;
  ReverseExecutor reverse;
  Executor* const executor = &reverse;
  EXPECT_EQ(dynamic_cast<ReverseExecutor*>(executor), &reverse);
  EXPECT_EQ(dynamic_cast<UnevenExecutor*>(executor), nullptr);
  try {
    throw &uneven;
  } catch (const Executor* caught) {
    EXPECT_EQ(caught->width(), 3);
  }
}

TEST(SharedLibrary, NamesItsTargets) {
  const auto usable = simd_targets(), compiled = compiled_simd_targets();
  for (const std::string& target : usable) {
    EXPECT_NE(std::find(compiled.begin(), compiled.end(), target), compiled.end()) << target;
  }
  ASSERT_TRUE(simd_target().ok());
  EXPECT_NE(std::find(usable.begin(), usable.end(), simd_target().value()), usable.end());
  // Every target that was compiled has its run of the ops' tests.
  const std::string tested = ";" ROPEPOOL_TESTED_TARGETS ";";
  for (const std::string& target : compiled) {
    EXPECT_NE(tested.find(";" + target + ";"), std::string::npos) << target << " is not in tests/cpp/CMakeLists.txt";
  }
}

}  // namespace
}  // namespace ropepool::test
