// Ropes of the C interface, each beside the C++ one that it must be: the same bits in a call, the same refusals, the same
// words.
#include <ropepool/c_api.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include <ropepool/ropepool.h>

#include "c_call.h"
#include "op_case.h"

namespace ropepool::test {
namespace {

constexpr const char kLongRope[] = R"({"head_dim": 8, "rope_theta": 10000.0, "max_position_embeddings": 32, "rope_scaling": {
  "rope_type": "longrope", "short_factor": [1, 1, 1.5, 2], "long_factor": [1, 2, 4, 8], "original_max_position_embeddings": 8}})";
constexpr const char kDynamic[] = R"({"head_dim": 64, "rope_theta": 10000.0, "max_position_embeddings": 2048,
  "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})";
constexpr const char kGemma3[] =
    R"({"model_type": "gemma3_text", "head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": 8}})";
constexpr const char kGguf[] =
    R"({"general.architecture": "llama", "llama.attention.key_length": 64, "llama.rope.freq_base": 1e4})";

struct Free {
  void operator()(ropepool_rope* rope) const { ropepool_rope_free(rope); }
};
using CRope = std::unique_ptr<ropepool_rope, Free>;
using Maker = std::function<int(ropepool_rope**)>;

CRope made(const Maker& maker) {
  ropepool_rope* rope = nullptr;
  EXPECT_EQ(maker(&rope), ROPEPOOL_OK) << ropepool_last_error_message();
  return CRope(rope);
}

// The number, and that nothing was made.
int refused(const Maker& maker) {
  int somewhere = 0;
  auto* rope = reinterpret_cast<ropepool_rope*>(&somewhere);
  const int number = maker(&rope);
  EXPECT_EQ(rope, nullptr);
  return number;
}

ropepool_rope_form form_of(std::int64_t rotary_dim, double base = 0) {
  ropepool_rope_form form{};
  form.size = sizeof form;
  form.rotary_dim = rotary_dim;
  form.base = base;
  return form;
}

CRope from_config(const char* json, const char* layer_type = nullptr, std::int64_t length = 0) {
  return made([=](ropepool_rope** rope) { return ropepool_rope_from_config(json, layer_type, length, rope); });
}

void expect_alike(const ropepool_rope* c, const Rope& cpp) {
  EXPECT_EQ(ropepool_rope_rotary_dim(c), cpp.rotary_dim());
  EXPECT_EQ(ropepool_rope_rotary_offset(c), cpp.rotary_offset());
  EXPECT_EQ(ropepool_rope_pairing(c), cpp.pairing() == Pairing::neox ? ROPEPOOL_PAIRING_NEOX : ROPEPOOL_PAIRING_INTERLEAVED);
  EXPECT_EQ(ropepool_rope_num_sets(c), cpp.num_sets());
  EXPECT_EQ(ropepool_rope_num_axes(c), cpp.num_axes());
}

OpCase case_with(const Rope& rope, DType dtype, std::int64_t head_dim) {
  constexpr std::int64_t kTokens = 20;
  OpCase c({dtype, kTokens, 4, 2, head_dim, 30});
  c.args.rope_base = std::nan("");
  c.args.rope = &rope;
  Random random(3);
  c.args.positions = c.memory.make(DType::i64, {rope.num_axes(), kTokens});
  for (std::int64_t axis = 0; axis < rope.num_axes(); ++axis) {
    const Tensor row = select(c.args.positions, 0, axis);
    for (std::int64_t t = 0; t < kTokens; ++t) set_index(row, t, uniform(random, 0, 30));
  }
  if (rope.num_axes() == 1) c.args.positions = select(c.args.positions, 0, 0);
  if (rope.num_sets() > 1) {
    c.args.rope_sets = c.memory.make(DType::i32, {kTokens});
    for (std::int64_t t = 0; t < kTokens; ++t) set_index(c.args.rope_sets, t, t % rope.num_sets());
  }
  return c;
}

// A call in C with `c` and one in C++ with `cpp`.
void expect_same_bits(const ropepool_rope* c, const Rope& cpp, std::int64_t head_dim = 64) {
  ASSERT_NE(c, nullptr);
  expect_alike(c, cpp);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double base : {0.0, std::nan("")}) {  // two ways to say that it is left out
      OpCase x = case_with(cpp, dtype, head_dim), y = case_with(cpp, dtype, head_dim);
      const auto untouched = y.memory.copy();
      ASSERT_TRUE(x.run().ok());
      CCall call(y.args);
      call.options.rope_base = base;
      call.options.rope = c;
      ASSERT_EQ(call.run(), ROPEPOOL_OK) << ropepool_last_error_message();
      EXPECT_TRUE(same_memory(x, y));
      EXPECT_FALSE(y.memory.equals(untouched));
    }
  }
}

// ---- Makers

TEST(CRope, OfAForm) {
  expect_same_bits(made([](auto* rope) {
                     const auto form = form_of(64, 5e5);
                     return ropepool_rope_make(&form, rope);
                   }).get(),
                   Rope::make({5e5, 64}).value());
  expect_same_bits(made([](auto* rope) {
                     auto form = form_of(32, 5e5);
                     form.rotary_offset = 16;
                     form.pairing = ROPEPOOL_PAIRING_INTERLEAVED;
                     form.attention_scale = 1.25;
                     return ropepool_rope_make(&form, rope);
                   }).get(),
                   Rope::make({5e5, 32, 16, Pairing::interleaved, {}, {}, 1.25}).value());
}

TEST(CRope, WithSections) {
  for (const auto order : {Sections::Order::blocks, Sections::Order::interleaved}) {
    const std::vector<std::int64_t> pairs = {12, 10, 10};
    expect_same_bits(made([&](auto* rope) {
                       auto form = form_of(64, 1e6);
                       form.sections = pairs.data();
                       form.num_sections = 3;
                       form.section_order =
                           order == Sections::Order::blocks ? ROPEPOOL_SECTIONS_BLOCKS : ROPEPOOL_SECTIONS_INTERLEAVED;
                       return ropepool_rope_make(&form, rope);
                     }).get(),
                     Rope::make({1e6, 64, 0, Pairing::neox, {}, Sections{pairs, order}}).value());
  }
}

TEST(CRope, OfFrequencies) {
  std::vector<double> frequencies = {1.0, 0.5, 0.0, -0.25};
  RopeForm form;
  form.rotary_dim = 8;
  form.attention_scale = 0.5;
  const Rope right = Rope::from_frequencies(frequencies, form).value();
  const CRope rope = made([&](auto* made) {
    auto c = form_of(8);
    c.attention_scale = 0.5;
    return ropepool_rope_from_frequencies(frequencies.data(), 4, &c, made);
  });
  frequencies.assign(4, 7.0);  // they were copied
  expect_same_bits(rope.get(), right, 8);
}

TEST(CRope, OfATable) {
  std::vector<float> cos_sin(31 * 8);
  for (std::size_t i = 0; i < cos_sin.size(); ++i) cos_sin[i] = std::sin(static_cast<float>(i));
  const Tensor table = Tensor::contiguous(static_cast<const float*>(cos_sin.data()), DType::f32, {31, 8});
  RopeForm form;
  form.rotary_dim = 8;
  for (const bool strides : {true, false}) {
    auto view = std::make_unique<DlView>(table);
    if (!strides) view->tensor.strides = nullptr;
    const CRope rope = made([&](auto* made) {
      const auto c = form_of(8);
      return ropepool_rope_from_table(&view->tensor, &c, made);
    });
    view.reset();  // the data alone must live
    expect_same_bits(rope.get(), Rope::from_table(table, form).value(), 8);
  }
}

TEST(CRope, OfAConfig) {
  expect_same_bits(from_config(kGguf).get(), rope_from_config(kGguf).value());
  expect_same_bits(from_config(kLongRope).get(), rope_from_config(kLongRope).value(), 8);
  expect_same_bits(from_config(kLongRope, nullptr, 9).get(), rope_from_config(kLongRope, {{}, 9}).value(), 8);
  expect_same_bits(from_config(kDynamic, nullptr, 4096).get(), rope_from_config(kDynamic, {{}, 4096}).value());
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    expect_same_bits(from_config(kGemma3, layer_type).get(), rope_from_config(kGemma3, {layer_type, {}}).value());
  }
}

class CRopeFiles : public ::testing::Test {
 protected:
  CRopeFiles() { std::filesystem::create_directories(folder_); }
  ~CRopeFiles() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ropepool-c-rope-" + std::to_string(getpid()));
};

TEST_F(CRopeFiles, OfAFileOrItsFolder) {
  // Longer than one read.
  const std::string path = write("config.json", kGemma3 + std::string(200000, ' '));
  for (const std::string& each : {path, folder_.string(), folder_.string() + "/"}) {
    const CRope rope =
        made([&](auto* made) { return ropepool_rope_from_config_file(each.c_str(), "full_attention", 0, made); });
    expect_same_bits(rope.get(), rope_from_config(kGemma3, {"full_attention", {}}).value());
  }
  const std::string dynamic = write("dynamic.json", kDynamic);
  const CRope rope = made([&](auto* made) { return ropepool_rope_from_config_file(dynamic.c_str(), nullptr, 4096, made); });
  expect_same_bits(rope.get(), rope_from_config(kDynamic, {{}, 4096}).value());
}

TEST_F(CRopeFiles, ThatCantBeRead) {
  for (const std::filesystem::path& path : {folder_ / "missing.json", folder_}) {
    EXPECT_EQ(refused([&](auto* rope) { return ropepool_rope_from_config_file(path.c_str(), nullptr, 0, rope); }),
              ROPEPOOL_RUNTIME_ERROR);
    const std::string message = ropepool_last_error_message();
    EXPECT_NE(message.find(path.string()), std::string::npos) << message;
    EXPECT_NE(message.find("No such file"), std::string::npos) << message;
  }
  const std::string empty = write("empty.json", ""), nul = write("nul.json", std::string("\0{}", 3));
  for (const std::string& path : {empty, nul}) {
    EXPECT_EQ(refused([&](auto* rope) { return ropepool_rope_from_config_file(path.c_str(), nullptr, 0, rope); }), 30);
  }
}

TEST(CRope, Joined) {
  RopeForm form{1e4, 64};
  std::vector<Rope> parts = {Rope::make(form).value()};
  form.base = 5e5;
  form.attention_scale = 2;
  parts.push_back(Rope::make(form).value());
  CRope joined;
  {  // the parts need not live
    const CRope first = made([](auto* rope) {
      const auto c = form_of(64, 1e4);
      return ropepool_rope_make(&c, rope);
    });
    const CRope second = made([](auto* rope) {
      auto c = form_of(64, 5e5);
      c.attention_scale = 2;
      return ropepool_rope_make(&c, rope);
    });
    const ropepool_rope* const ropes[] = {first.get(), second.get()};
    joined = made([&](auto* rope) { return ropepool_rope_join(ropes, 2, rope); });
  }
  EXPECT_EQ(ropepool_rope_num_sets(joined.get()), 2);
  expect_same_bits(joined.get(), Rope::join(parts).value());
}

// ---- Refusals

void expect_refused_as(const Error& right, const Maker& maker) {
  EXPECT_EQ(refused(maker), right.number());
  EXPECT_EQ(ropepool_last_error_message(), right.message());
}

TEST(CRope, FormsAreRefusedInTheWordsOfCpp) {
  const auto make = [](const ropepool_rope_form& form) {
    return [form](ropepool_rope** rope) { return ropepool_rope_make(&form, rope); };
  };
  expect_refused_as(Rope::make({0, 64}).error(), make(form_of(64, 0)));
  expect_refused_as(Rope::make({-1, 64}).error(), make(form_of(64, -1)));
  expect_refused_as(Rope::make({INFINITY, 64}).error(), make(form_of(64, INFINITY)));
  expect_refused_as(Rope::make({1e4, 63}).error(), make(form_of(63, 1e4)));
  expect_refused_as(Rope::make({1e4, 0}).error(), make(form_of(0, 1e4)));
  auto form = form_of(64, 1e4);
  form.rotary_offset = -2;
  expect_refused_as(Rope::make({1e4, 64, -2}).error(), make(form));
  form = form_of(64, 1e4);
  form.attention_scale = NAN;
  expect_refused_as(Rope::make({1e4, 64, 0, Pairing::neox, {}, {}, NAN}).error(), make(form));
  const std::int64_t lanes[] = {16, 24, 24};
  form = form_of(64, 1e4);
  form.sections = lanes;
  form.num_sections = 3;
  expect_refused_as(Rope::make({1e4, 64, 0, Pairing::neox, {}, Sections{{16, 24, 24}}}).error(), make(form));
}

TEST(CRope, FrequenciesAndTablesAreRefusedInTheWordsOfCpp) {
  std::vector<double> frequencies = {1, 2, 3, NAN};
  RopeForm form;
  form.rotary_dim = 8;
  const auto of_frequencies = [&](std::int64_t count, const ropepool_rope_form& c) {
    return [&, count, c](ropepool_rope** rope) { return ropepool_rope_from_frequencies(frequencies.data(), count, &c, rope); };
  };
  expect_refused_as(Rope::from_frequencies(frequencies, form).error(), of_frequencies(4, form_of(8)));
  expect_refused_as(Rope::from_frequencies({1, 2, 3}, form).error(), of_frequencies(3, form_of(8)));
  expect_refused_as(Rope::from_frequencies({}, form).error(), of_frequencies(0, form_of(8)));
  form.base = 1e4;
  expect_refused_as(Rope::from_frequencies({1, 2, 3}, form).error(), of_frequencies(3, form_of(8, 1e4)));

  form = {};
  form.rotary_dim = 8;
  double cos_sin[16] = {};
  const auto of_table = [](const Tensor& table, ropepool_rope_form c) {
    return [table, c](ropepool_rope** rope) {
      const DlView view(table);
      return ropepool_rope_from_table(&view.tensor, &c, rope);
    };
  };
  const Tensor wide = Tensor::contiguous(cos_sin, DType::f64, {2, 8});
  expect_refused_as(Rope::from_table(wide, form).error(), of_table(wide, form_of(8)));
  Tensor table = Tensor::contiguous(cos_sin, DType::f32, {2, 8});
  EXPECT_TRUE(Rope::from_table(table, form).ok());
  table.strides[1] = 2;
  expect_refused_as(Rope::from_table(table, form).error(), of_table(table, form_of(8)));
  table = Tensor::contiguous(cos_sin, DType::f32, {8, 2});
  expect_refused_as(Rope::from_table(table, form).error(), of_table(table, form_of(8)));
  table.device = {DeviceType::cuda, 0};
  table.shape = {2, 8};
  expect_refused_as(Rope::from_table(table, form).error(), of_table(table, form_of(8)));
  table = Tensor::contiguous(cos_sin, DType::f32, {2, 8});
  form.attention_scale = 2;
  auto scaled = form_of(8);
  scaled.attention_scale = 2;
  expect_refused_as(Rope::from_table(table, form).error(), of_table(table, scaled));
}

TEST(CRope, ConfigsAreRefusedInTheWordsOfCpp) {
  struct Case {
    const char* json;
    const char* layer_type;
    std::int64_t length;
    int number;
  };
  for (const auto& [json, layer_type, length, number] : {
           Case{R"({"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"rope_type": "ntk"}})", nullptr, 0, 27},
           Case{R"({"head_dim": 64})", nullptr, 0, 28},
           Case{kDynamic, nullptr, 0, 28},
           Case{kGemma3, nullptr, 0, 28},
           Case{R"({"head_dim": 64, "rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})", nullptr, 0, 29},
           Case{"", nullptr, 0, 30},
           Case{R"({"head_dim": 64, )", nullptr, 0, 30},
           Case{kGemma3, "global", 0, 30},
           Case{kGemma3, "", 0, 30},
           Case{kDynamic, nullptr, -1, 30},
           Case{R"({"head_dim": 64, "rope_theta": -1})", nullptr, 0, 22},
       }) {
    RopeConfigOptions options;
    if (layer_type != nullptr) options.layer_type = layer_type;
    if (length != 0) options.length = length;
    const auto right = rope_from_config(json, options);
    ASSERT_FALSE(right.ok()) << json;
    EXPECT_EQ(right.error().number(), number) << json;
    const auto* const text = json;
    const auto* const layer = layer_type;
    const auto tokens = length;
    expect_refused_as(right.error(),
                      [=](ropepool_rope** rope) { return ropepool_rope_from_config(text, layer, tokens, rope); });
  }
}

TEST(CRope, JoinsAreRefusedInTheWordsOfCpp) {
  const auto form = form_of(64, 1e4), other = form_of(32, 1e4);
  const CRope a = made([&](auto* rope) { return ropepool_rope_make(&form, rope); });
  const CRope b = made([&](auto* rope) { return ropepool_rope_make(&other, rope); });
  const ropepool_rope* const ropes[] = {a.get(), b.get()};
  expect_refused_as(Rope::join({}).error(), [&](auto* rope) { return ropepool_rope_join(ropes, 0, rope); });
  const std::vector<Rope> both = {Rope::make({1e4, 64}).value(), Rope::make({1e4, 32}).value()};
  expect_refused_as(Rope::join(both).error(), [&](auto* rope) { return ropepool_rope_join(ropes, 2, rope); });
}

TEST(CRope, NullAndNonsense) {
  const auto form = form_of(64, 1e4);
  const double frequency = 1;
  const CRope rope = made([&](auto* made) { return ropepool_rope_make(&form, made); });
  OpCase c({DType::f32, 4, 4, 2, 8, 16});
  const CCall call(c.args);
  DLTensor shapeless = call.q.tensor;
  shapeless.shape = nullptr;
  const ropepool_rope* const holes[] = {rope.get(), nullptr};
  struct Case {
    const char* message;
    Maker maker;
  };
  for (const auto& [message, maker] : std::vector<Case>{
           {"form is NULL", [&](auto* r) { return ropepool_rope_make(nullptr, r); }},
           {"frequencies is NULL", [&](auto* r) { return ropepool_rope_from_frequencies(nullptr, 1, &form, r); }},
           {"form is NULL", [&](auto* r) { return ropepool_rope_from_frequencies(&frequency, 1, nullptr, r); }},
           {"num_frequencies is -1", [&](auto* r) { return ropepool_rope_from_frequencies(&frequency, -1, &form, r); }},
           {"cos_sin is NULL", [&](auto* r) { return ropepool_rope_from_table(nullptr, &form, r); }},
           {"cos_sin->shape is NULL", [&](auto* r) { return ropepool_rope_from_table(&shapeless, &form, r); }},
           {"form is NULL", [&](auto* r) { return ropepool_rope_from_table(&call.q.tensor, nullptr, r); }},
           {"json is NULL", [&](auto* r) { return ropepool_rope_from_config(nullptr, nullptr, 0, r); }},
           {"path is NULL", [&](auto* r) { return ropepool_rope_from_config_file(nullptr, nullptr, 0, r); }},
           {"ropes is NULL", [&](auto* r) { return ropepool_rope_join(nullptr, 1, r); }},
           {"num_ropes is -1", [&](auto* r) { return ropepool_rope_join(holes, -1, r); }},
           {"ropes[1] is NULL", [&](auto* r) { return ropepool_rope_join(holes, 2, r); }},
       }) {
    EXPECT_EQ(refused(maker), ROPEPOOL_INVALID_ARGUMENT) << message;
    EXPECT_STREQ(ropepool_last_error_message(), message);
    EXPECT_EQ(maker(nullptr), ROPEPOOL_INVALID_ARGUMENT);
    EXPECT_STREQ(ropepool_last_error_message(), "rope is NULL");
  }
  for (const auto property :
       {ropepool_rope_rotary_dim, ropepool_rope_rotary_offset, ropepool_rope_num_sets, ropepool_rope_num_axes}) {
    EXPECT_EQ(property(nullptr), ROPEPOOL_INVALID_ARGUMENT);
  }
  EXPECT_EQ(ropepool_rope_pairing(nullptr), ROPEPOOL_INVALID_ARGUMENT);
  ropepool_rope_free(nullptr);
}

TEST(CRope, FormsOfC) {
  const std::int64_t pairs[] = {32};
  const auto change = [](auto f) {
    return [f](ropepool_rope** rope) {
      auto form = form_of(64, 1e4);
      f(form);
      return ropepool_rope_make(&form, rope);
    };
  };
  struct Case {
    const char* words;
    Maker maker;
  };
  for (const auto& [words, maker] : std::vector<Case>{
           {"form->size is 0", change([](auto& form) { form.size = 0; })},
           {"form->size is 63", change([](auto& form) { form.size = sizeof form - 1; })},
           {"form->size is 72", change([](auto& form) { form.size = sizeof form + 8; })},
           {"form->pairing is 2", change([](auto& form) { form.pairing = 2; })},
           {"form->pairing is -1", change([](auto& form) { form.pairing = -1; })},
           {"form->section_order is 2", change([](auto& form) { form.section_order = 2; })},
           {"form->num_sections is -1", change([&](auto& form) { form.sections = pairs, form.num_sections = -1; })},
           {"form->num_sections is 3, and form->sections NULL", change([](auto& form) { form.num_sections = 3; })},
           {"form->num_sections is 0, and form->sections given", change([&](auto& form) { form.sections = pairs; })},
       }) {
    EXPECT_EQ(refused(maker), ROPEPOOL_INVALID_ARGUMENT) << words;
    EXPECT_TRUE(std::string(ropepool_last_error_message()).starts_with(words)) << ropepool_last_error_message();
  }
}

// ---- Calls

TEST(CRope, CallsAreRefusedInTheWordsOfCpp) {
  const Rope cpp = rope_from_config(kLongRope).value();
  const CRope rope = from_config(kLongRope);
  struct Case {
    int number;
    std::function<void(RopePoolFusedArgs&)> change;
  };
  for (const auto& [number, change] : std::vector<Case>{
           {15, [](auto& a) { a.rope_base = 1e4; }},
           {15, [](auto& a) { a.rope = nullptr, a.rope_base = 0; }},
           {24, [](auto& a) { a.rope_sets = {}; }},
           {24, [](auto& a) { a.rope = nullptr, a.rope_base = 1e4; }},
           {24, [](auto& a) { a.rope_sets.shape[0] -= 1; }},
           {24, [](auto& a) { a.rope_sets.dtype = DType::f32; }},
           {25, [](auto& a) { set_index(a.rope_sets, 3, 2); }},
       }) {
    OpCase c = case_with(cpp, DType::f32, 8);
    change(c.args);
    const auto before = c.memory.copy();
    const auto right = c.run();
    ASSERT_FALSE(right.ok());
    EXPECT_EQ(right.error().number(), number);
    CCall call(c.args);
    if (c.args.rope != nullptr) call.options.rope = rope.get();
    EXPECT_EQ(call.run(), number);
    EXPECT_EQ(ropepool_last_error_message(), right.error().message());
    EXPECT_TRUE(c.memory.equals(before));
  }
  // A rope for longer heads, and a table that ends.
  OpCase c = case_with(cpp, DType::f32, 6);
  CCall call(c.args);
  call.options.rope = rope.get();
  EXPECT_EQ(call.run(), 23);
  float cos_sin[2 * 6] = {};
  const DlView table(Tensor::contiguous(cos_sin, DType::f32, {2, 6}));
  const CRope of_table = made([&](auto* made) {
    const auto form = form_of(6);
    return ropepool_rope_from_table(&table.tensor, &form, made);
  });
  call.options.rope = of_table.get();
  call.options.rope_sets = nullptr;
  EXPECT_EQ(call.run(), 26);
  DLTensor shapeless = call.rope_sets.tensor;
  shapeless.shape = nullptr;
  call.options.rope_sets = &shapeless;
  EXPECT_EQ(call.run(), ROPEPOOL_INVALID_ARGUMENT);
  EXPECT_STREQ(ropepool_last_error_message(), "options->rope_sets->shape is NULL");
}

TEST(CRope, SeveralThreadsMayUseOne) {
  const Rope cpp = rope_from_config(kLongRope).value();
  const CRope rope = from_config(kLongRope);
  OpCase right = case_with(cpp, DType::f32, 8);
  ASSERT_TRUE(right.run().ok());
  std::vector<OpCase> cases;
  for (int i = 0; i < 4; ++i) cases.push_back(case_with(cpp, DType::f32, 8));
  std::vector<std::thread> threads;
  for (OpCase& each : cases) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        CCall call(each.args);
        call.options.rope = rope.get();
        EXPECT_EQ(call.run(), ROPEPOOL_OK);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const OpCase& each : cases) EXPECT_TRUE(same_memory(each, right));
}

}  // namespace
}  // namespace ropepool::test
