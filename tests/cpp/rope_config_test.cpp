// rope_from_config: each form once, beside its closed form in long double; what is refused, under which key; and texts that are
// no configs. Published models and the page docs/rope.md are in tests/python/test_rope_config.py.
#include <ropepool/rope_config.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/rope_tables.h"
#include "op_case.h"

namespace ropepool::test {
namespace {

using Form = std::function<Real(std::int64_t)>;  // the frequency of a pair

constexpr Real kTurn = 2 * std::numbers::pi_v<Real>;

Real plain(Real base, std::int64_t rotary_dim, std::int64_t pair) {
  return std::pow(base, -2 * static_cast<Real>(pair) / static_cast<Real>(rotary_dim));
}

Rope rope_of(std::string_view json, const RopeConfigOptions& options = {}) {
  auto rope = rope_from_config(json, options);
  if (rope) return rope.value();
  ADD_FAILURE() << json << "\n" << rope.error().message();
  return Rope::make({1.0, 2}).value();
}

RopeConfig config_of(std::string_view json, const RopeConfigOptions& options = {}) {
  auto config = read_rope_config(json, options);
  if (config) return config.value();
  ADD_FAILURE() << json << "\n" << config.error().message();
  return {};
}

void expect_frequencies(const Rope& rope, const Form& form, std::int64_t set = 0) {
  const std::vector<double> frequencies = rope.frequencies(set);
  ASSERT_EQ(static_cast<std::int64_t>(frequencies.size()), rope.rotary_dim() / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const Real right = form(static_cast<std::int64_t>(i));
    EXPECT_LE(std::abs(static_cast<Real>(frequencies[i]) - right), std::abs(right) * 1e-15L) << "pair " << i << ", set " << set;
  }
}

void expect_scale(const Rope& rope, Real right, std::int64_t set = 0) {
  EXPECT_NEAR(rope.attention_scale(set), static_cast<double>(right), static_cast<double>(right) * 1e-7) << "set " << set;
}

// ---- Forms

TEST(RopeConfig, Plain) {
  const auto config = config_of(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "max_position_embeddings": 4096, "rope_scaling": null, "vocab_size": 32000})");
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.rope_type, "default");
  EXPECT_EQ(config.layer_type, "");
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.max_length, 4096);
  EXPECT_TRUE(config.notes.empty());
  const Rope rope = Rope::make(config.form).value();
  EXPECT_EQ(rope.pairing(), Pairing::neox);
  EXPECT_EQ(rope.rotary_dim(), 128);
  expect_frequencies(rope, [](auto i) { return plain(1e4L, 128, i); });
  expect_scale(rope, 1);
}

TEST(RopeConfig, Linear) {
  const Rope rope = rope_of(R"({"head_dim": 64, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}})");
  expect_frequencies(rope, [](auto i) { return plain(5e5L, 64, i) / 4; });
}

TEST(RopeConfig, DynamicNtk) {
  constexpr const char kJson[] = R"({"head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 2048,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})";
  expect_frequencies(rope_of(kJson, {{}, 2048}), [](auto i) { return plain(1e4L, 64, i); });
  // base (factor length / original - (factor - 1))^(d / (d - 2))
  const Real base = 1e4L * std::pow(3.0L, 64.0L / 62);
  expect_frequencies(rope_of(kJson, {{}, 4096}), [&](auto i) { return plain(base, 64, i); });
}

TEST(RopeConfig, DynamicWithAlpha) {
  const Real base = 1e4L * std::pow(1000.0L, 128.0L / 126);
  const Rope rope = rope_of(R"({"model_type": "hunyuan_v1_moe", "head_dim": 128, "rope_theta": 1e4, "rope_scaling":
    {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "type": "dynamic"}})");
  expect_frequencies(rope, [&](auto i) { return plain(base, 128, i); });
}

// The pair that turns so often within the original length.
Real pair_of(Real turns, Real base, Real rotary_dim, Real original) {
  return rotary_dim * std::log(original / (turns * kTurn)) / (2 * std::log(base));
}

TEST(RopeConfig, Yarn) {
  for (const bool truncate : {true, false}) {
    const std::string json = R"({"head_dim": 64, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
      "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": )" +
                             std::string(truncate ? "true}}" : "false}}");
    Real low = pair_of(32, 150000, 64, 4096), high = pair_of(1, 150000, 64, 4096);
    if (truncate) low = std::floor(low), high = std::ceil(high);
    const Rope rope = rope_of(json);
    expect_frequencies(rope, [&](auto i) {
      const Real ramp = std::clamp((static_cast<Real>(i) - low) / (high - low), 0.0L, 1.0L);
      return plain(150000, 64, i) * (1 - ramp) + plain(150000, 64, i) / 32 * ramp;
    });
    expect_scale(rope, 0.1L * std::log(32.0L) + 1);
  }
}

TEST(RopeConfig, YarnOfDeepSeek) {
  const auto config = config_of(R"({"model_type": "deepseek_v2", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
    "mscale": 1.0, "mscale_all_dim": 0.707}})");
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_FALSE(config.notes.empty());
  const Rope rope = Rope::make(config.form).value();
  EXPECT_EQ(rope.rotary_offset(), 128);
  EXPECT_EQ(rope.pairing(), Pairing::interleaved);
  expect_scale(rope, (0.1L * std::log(40.0L) + 1) / (0.1L * 0.707L * std::log(40.0L) + 1));
}

TEST(RopeConfig, Llama3) {
  const Rope rope = rope_of(R"({"model_type": "llama", "head_dim": 128, "rope_parameters": {"rope_type": "llama3",
    "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}})");
  expect_frequencies(rope, [](auto i) {
    const Real frequency = plain(5e5L, 128, i), wavelength = kTurn / frequency;
    if (wavelength < 8192.0L / 4) return frequency;
    if (wavelength > 8192) return frequency / 8;
    const Real smooth = (8192 / wavelength - 1) / 3;
    return (1 - smooth) * frequency / 8 + smooth * frequency;
  });
}

TEST(RopeConfig, LongRope) {
  constexpr const char kJson[] = R"({"model_type": "phi3", "head_dim": 8, "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096, "rope_theta": 1e4, "rope_scaling": {"type": "longrope",
    "short_factor": [1, 1.5, 2, 2.5], "long_factor": [1, 4, 16, 64]}})";
  const auto is_of = [](std::vector<Real> factors) -> Form {
    return [factors](auto i) { return plain(1e4L, 8, i) / factors[static_cast<std::size_t>(i)]; };
  };
  const Form is_short = is_of({1, 1.5, 2, 2.5}), is_long = is_of({1, 4, 16, 64});
  const Real scale = std::sqrt(1 + std::log(32.0L) / std::log(4096.0L));
  const Rope both = rope_of(kJson);
  ASSERT_EQ(both.num_sets(), 2);
  expect_frequencies(both, is_short, 0);
  expect_frequencies(both, is_long, 1);
  for (const std::int64_t set : {0, 1}) expect_scale(both, scale, set);
  for (const auto& [length, form] : {std::pair{4096, &is_short}, {4097, &is_long}}) {
    const Rope one = rope_of(kJson, {{}, length});
    ASSERT_EQ(one.num_sets(), 1);
    expect_frequencies(one, *form);
  }
}

TEST(RopeConfig, ProportionalByLayerType) {
  constexpr const char kJson[] = R"({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "head_dim": 16,
    "global_head_dim": 32, "rope_parameters": {
      "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}})";
  EXPECT_EQ(rope_layer_types(kJson).value(), (std::vector<std::string>{"full_attention", "sliding_attention"}));
  const auto full = config_of(kJson, {"full_attention", {}});
  EXPECT_EQ(full.layer_type, "full_attention");
  EXPECT_EQ(full.head_dim, 32);
  expect_frequencies(Rope::make(full.form).value(), [](auto i) { return i < 4 ? plain(1e6L, 32, i) : 0; });
  expect_frequencies(rope_of(kJson, {"sliding_attention", {}}), [](auto i) { return plain(1e4L, 16, i); });
}

TEST(RopeConfig, TwoRopesOfGemma3) {
  constexpr const char kJson[] = R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "head_dim": 256,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})";
  EXPECT_EQ(rope_layer_types(kJson).value().size(), 2u);
  expect_frequencies(rope_of(kJson, {"full_attention", {}}), [](auto i) { return plain(1e6L, 256, i) / 8; });
  expect_frequencies(rope_of(kJson, {"sliding_attention", {}}), [](auto i) { return plain(1e4L, 256, i); });
}

TEST(RopeConfig, Sections) {
  const Rope blocks = rope_of(R"({"model_type": "qwen2_vl", "head_dim": 16, "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}})");
  EXPECT_EQ(blocks.num_axes(), 3);
  EXPECT_EQ(blocks.tables().axis_of_pair, (std::vector<std::uint8_t>{0, 0, 1, 1, 1, 2, 2, 2}));
  const Rope interleaved = rope_of(R"({"model_type": "qwen3_vl_text", "head_dim": 16, "rope_parameters":
    {"rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": true}})");
  EXPECT_EQ(interleaved.tables().axis_of_pair, (std::vector<std::uint8_t>{0, 1, 2, 0, 1, 2, 0, 0}));
}

TEST(RopeConfig, PartsOfAHead) {
  for (const char* part : {R"("partial_rotary_factor": 0.25)", R"("rotary_pct": 0.25)", R"("rotary_dim": 16)"}) {
    const auto config = config_of(R"({"head_dim": 64, "rope_theta": 1e4, )" + std::string(part) + "}");
    EXPECT_EQ(config.head_dim, 64);
    EXPECT_EQ(config.form.rotary_dim, 16);
    expect_frequencies(Rope::make(config.form).value(), [](auto i) { return plain(1e4L, 16, i); });
  }
  const Rope gptj = rope_of(R"({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64})");
  EXPECT_EQ(gptj.pairing(), Pairing::interleaved);
  EXPECT_EQ(gptj.rotary_dim(), 64);
}

// ---- GGUF

TEST(RopeConfigOfGguf, PairsByArchitecture) {
  const auto json = [](const std::string& name) {
    return R"({"general.architecture": ")" + name + R"(", ")" + name + R"(.attention.key_length": 128, ")" + name +
           R"(.rope.freq_base": 1e4})";
  };
  EXPECT_EQ(rope_of(json("llama")).pairing(), Pairing::interleaved);
  const Rope qwen = rope_of(json("qwen2"));
  EXPECT_EQ(qwen.pairing(), Pairing::neox);
  expect_frequencies(qwen, [](auto i) { return plain(1e4L, 128, i); });
}

TEST(RopeConfigOfGguf, Yarn) {
  const Rope rope = rope_of(R"({"general.architecture": "qwen2", "qwen2.attention.key_length": 128, "qwen2.rope.freq_base": 1e6,
    "qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0, "qwen2.rope.scaling.original_context_length": 32768})");
  const Real low = std::floor(pair_of(32, 1e6L, 128, 32768)), high = std::ceil(pair_of(1, 1e6L, 128, 32768));
  expect_frequencies(rope, [&](auto i) {
    const Real ramp = std::clamp((static_cast<Real>(i) - low) / (high - low), 0.0L, 1.0L);
    return plain(1e6L, 128, i) * (1 - ramp) + plain(1e6L, 128, i) / 4 * ramp;
  });
  expect_scale(rope, 0.1L * std::log(4.0L) + 1);
}

TEST(RopeConfigOfGguf, LinearOfLayerTypes) {
  constexpr const char kJson[] = R"({"general.architecture": "gemma3", "gemma3.attention.key_length": 256,
    "gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.factor": 8.0})";
  EXPECT_EQ(rope_layer_types(kJson).value().size(), 2u);
  expect_frequencies(rope_of(kJson, {"full_attention", {}}), [](auto i) { return plain(1e6L, 256, i) / 8; });
  expect_frequencies(rope_of(kJson, {"sliding_attention", {}}), [](auto i) { return plain(1e4L, 256, i); });
}

TEST(RopeConfigOfGguf, FactorsOfATensor) {
  const Rope rope = rope_of(R"({"general.architecture": "llama", "llama.context_length": 131072,
    "llama.attention.key_length": 8, "llama.rope.freq_base": 5e5, "rope_freqs.weight": [1, 1, 4, 8]})");
  const Real divisors[] = {1, 1, 4, 8};
  expect_frequencies(rope, [&](auto i) { return plain(5e5L, 8, i) / divisors[i]; });
  EXPECT_EQ(rope.num_sets(), 1);
}

TEST(RopeConfigOfGguf, LatentAttention) {
  const auto config = config_of(R"({"general.architecture": "deepseek2", "deepseek2.attention.key_length_mla": 192,
    "deepseek2.attention.key_length": 576, "deepseek2.rope.dimension_count": 64, "deepseek2.rope.freq_base": 1e4})");
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_EQ(config.form.rotary_offset, 128);
  EXPECT_EQ(config.form.rotary_dim, 64);
}

// ---- Refusals

struct Refused {
  const char* json;
  RopeConfigOptions options;
  int number;
  const char* argument;
  const char* words;  // in the message
};

const Refused kRefused[] = {
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"rope_type": "ntk", "factor": 2}})",
     {},
     27,
     "rope_scaling.rope_type",
     "unknown rope type 'ntk'"},
    {R"({"general.architecture": "qwen2", "qwen2.attention.key_length": 64, "qwen2.rope.freq_base": 1e4,
       "qwen2.rope.scaling.type": "dynamic"})",
     {},
     27,
     "qwen2.rope.scaling.type",
     "unknown rope type 'dynamic'"},
    {R"({"head_dim": 64})", {}, 28, "rope_theta", "needed for the frequencies"},
    {R"({"rope_theta": 1e4, "hidden_size": 64})", {}, 28, "head_dim", "num_attention_heads is missing too"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"factor": 2}})",
     {},
     28,
     "rope_scaling.rope_type",
     "needed for rope_scaling.factor"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 2}})",
     {},
     28,
     "rope_scaling.original_max_position_embeddings",
     "rope type 'yarn'"},
    {R"({"model_type": "gemma3_text", "head_dim": 64})", {}, 28, "layer_type", "'sliding_attention', 'full_attention'"},
    {R"({"general.architecture": "qwen2", "qwen2.attention.key_length": 64})", {}, 28, "qwen2.rope.freq_base", "frequencies"},
    {R"({"general.architecture": "llama", "llama.attention.key_length": 64, "llama.rope.freq_base": 5e5,
       "llama.context_length": 131072})",
     {},
     28,
     "rope_freqs.weight",
     "Llama 3.1"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})",
     {},
     29,
     "rope_theta",
     "10000 contradicts rope_parameters.rope_theta 500000"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 32}})",
     {},
     29,
     "rope_scaling.beta_fast",
     "rope type 'linear' has factor"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_theta": 5e5})", {}, 29, "rope_theta", "stands twice"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rotary_dim": 128})", {}, 29, "rotary_dim", "head_dim 64"},
    {R"({"general.architecture": "qwen2", "qwen2.attention.key_length": 64, "qwen2.rope.freq_base": 1e4,
       "qwen2.rope.swirl": 1})",
     {},
     29,
     "qwen2.rope.swirl",
     "not known"},
    {R"({"head_dim": 64, "rope_theta": "10000"})", {}, 30, "rope_theta", "must be a number, got '10000'"},
    {R"({"head_dim": 64, "rope_theta": NaN})", {}, 30, "rope_theta", "must be a number, got 'NaN'"},
    {R"({"head_dim": 64.5, "rope_theta": 1e4})", {}, 30, "head_dim", "must be a whole number, got 64.5"},
    {R"({"head_dim": 1e300, "rope_theta": 1e4})", {}, 30, "head_dim", "must be a whole number, got 1e+300"},
    {R"({"head_dim": 65538, "rope_theta": 1e4})", {}, 30, "head_dim", "at most 65536"},
    {R"({"head_dim": 64, "rope_theta": 1e4, "rope_scaling": []})", {}, 30, "rope_scaling", "must be an object, got []"},
    {R"({"head_dim": 64, "rope_theta": 1e4})", {"full_attention", {}}, 30, "layer_type", "one rope for all layers"},
    {R"({"head_dim": 64, "rope_theta": 1e4})", {{}, 0}, 30, "length", "at least 1, got 0"},
    {R"({"general.architecture": "unheard_of"})", {}, 30, "general.architecture", "'unheard_of'"},
    // What the Rope itself refuses.
    {R"({"head_dim": 64, "rope_theta": 0})", {}, 22, "base", "above 0, got 0"},
    {R"({"head_dim": 63, "rope_theta": 1e4})", {}, 22, "rotary_dim", "even"},
};

TEST(RopeConfig, RefusalsNameTheirKey) {
  std::vector<int> seen;
  for (const auto& [json, options, number, argument, words] : kRefused) {
    SCOPED_TRACE(json);
    const auto rope = rope_from_config(json, options);
    ASSERT_FALSE(rope.ok());
    EXPECT_EQ(rope.error().number(), number) << rope.error().message();
    EXPECT_EQ(rope.error().argument(), argument);
    EXPECT_NE(rope.error().message().find(words), std::string::npos) << rope.error().message();
    for (const auto& other : {read_rope_config(json, options).error(), rope_form_from_config(json, options).error()}) {
      EXPECT_EQ(other.message(), rope.error().message());
    }
    seen.push_back(number);
  }
  for (const int number : {27, 28, 29, 30}) EXPECT_GE(std::count(seen.begin(), seen.end(), number), 2);
}

// ---- Texts that are no configs

void expect_no_config(std::string_view text) {
  for (const auto& error : {rope_from_config(text).error(), rope_layer_types(text).error()}) {
    EXPECT_EQ(error.number(), 30) << text.substr(0, 100);
    EXPECT_EQ(error.argument(), "the text") << text.substr(0, 100);
    EXPECT_LT(error.message().size(), 1000u);
  }
}

TEST(RopeConfig, NothingIsNoConfig) {
  for (const std::string_view text :
       {std::string_view(), std::string_view(""), std::string_view(" \r\n\t"), std::string_view("null"), std::string_view("[]"),
        std::string_view("3"), std::string_view("\"rope_theta\""), std::string_view("true"), std::string_view("{} {}"),
        std::string_view("\0{}", 3), std::string_view("\xEF\xBB"), std::string_view("{\"a\": \"\xFF\"}")}) {
    expect_no_config(text);
  }
}

TEST(RopeConfig, APathIsNoConfig) {
  for (const char* path : {"config.json", "models/llama-3.1-8b", "/models/llama.gguf", "C:/models/config.json"}) {
    expect_no_config(path);
    EXPECT_NE(rope_from_config(path).error().cause().find("looks like a path"), std::string::npos) << path;
  }
}

// No arithmetic of a refusal overflows, whatever it is about.
TEST(Rope, NumbersOfAnySizeAreRefused) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();
  void* const nowhere = nullptr;
  for (const std::int64_t extreme : {kLeast, kMost, kLeast + 1, kMost - 1, kMost / 2, std::int64_t{0}}) {
    const Tensor tables[] = {Tensor::contiguous(nowhere, DType::f32, {extreme, 64}),
                             Tensor::contiguous(nowhere, DType::complex64, {1, extreme}),
                             Tensor::contiguous(nowhere, DType::f32, {2, extreme, 2})};
    for (const std::int64_t rotary_dim : {extreme, std::int64_t{64}}) {
      RopeForm form;
      form.rotary_dim = rotary_dim;
      EXPECT_FALSE(Rope::from_frequencies({1.0}, form).ok());
      for (const Tensor& table : tables) {
        if (table.shape[1] == rotary_dim) continue;
        EXPECT_FALSE(Rope::from_table(table, form).ok());
      }
      form.base = 1e4;
      form.scaling = LongRopeScaling{{1.0}, {1.0}, extreme, 1.0};
      EXPECT_FALSE(Rope::make(form).ok());
      form.scaling = Llama3Scaling{8, 1, 0, extreme};
      EXPECT_FALSE(Rope::make(form).ok());
      form.scaling = {};
      for (const auto& pairs : {std::vector<std::int64_t>{extreme, extreme, extreme}, {extreme, 1, 1, kMost}, {extreme}}) {
        form.sections = Sections{pairs};
        EXPECT_FALSE(Rope::make(form).ok());
      }
      form.sections = {};
      form.rotary_offset = kLeast;
      EXPECT_FALSE(Rope::make(form).ok());
      form.rotary_offset = 0;
      EXPECT_EQ(Rope::make(form).ok(), rotary_dim == 64) << rotary_dim;
    }
  }
}

TEST(RopeConfig, NoPartOfATextIsAConfig) {
  for (const auto& [json, options, number, argument, words] : kRefused) {
    const std::string_view whole = json;
    for (std::size_t length = 0; length < whole.size(); ++length) expect_no_config(whole.substr(0, length));
  }
}

TEST(RopeConfig, HugeTexts) {
  constexpr std::size_t kMany = 1000000;
  const std::string open(kMany, '['), close(kMany, ']');
  expect_no_config(open + close);
  expect_no_config("{\"a\": " + open + close + "}");
  expect_no_config("{\"head_dim\": 1e" + std::string(kMany, '9') + "}");
  std::string objects;
  for (std::size_t i = 0; i < kMany / 10; ++i) objects += "{\"text_config\": ";
  expect_no_config(objects + "{}" + std::string(kMany / 10, '}'));

  const auto refused = [](const std::string& json) {
    const auto rope = rope_from_config(json);
    EXPECT_FALSE(rope.ok());
    EXPECT_LT(rope.error().message().size(), 1000u);
    return rope.error();
  };
  const std::string text(kMany, 'x');
  EXPECT_EQ(refused("{\"head_dim\": 64, \"rope_theta\": \"" + text + "\"}").number(), 30);
  EXPECT_EQ(refused("{\"rope_theta\": 1e4, \"head_dim\": 64, \"rope_scaling\": {\"type\": \"" + text + "\"}}").number(), 27);
  std::string ones = "[1";
  for (std::size_t i = 1; i < kMany; ++i) ones += ",1";
  const Error list = refused(R"({"rope_theta": 1e4, "head_dim": 64, "max_position_embeddings": 8, "rope_scaling": {"type":
    "longrope", "original_max_position_embeddings": 8, "long_factor": [1], "short_factor": )" +
                             ones + "]}}");
  EXPECT_EQ(list.number(), 22);
  EXPECT_EQ(list.argument(), "short_factor");
  // What is huge and says nothing of the rope does no harm.
  EXPECT_TRUE(rope_from_config("{\"head_dim\": 64, \"rope_theta\": 1e4, \"other\": \"" + text + "\"}").ok());
}

}  // namespace
}  // namespace ropepool::test
