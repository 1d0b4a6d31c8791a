// The error reference, and how a text leads to its entry.
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include <ropepool/ropepool.h>

#include "message_template.h"
#include "op_case.h"

namespace ropepool::test {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string code_of(int number) {
  char code[8];
  std::snprintf(code, sizeof code, "RP%03d", number);
  return code;
}

TEST(Catalog, HasOneEntryForEachRefusalInOrder) {
  ASSERT_EQ(catalog().size(), static_cast<std::size_t>(kNumRefusals));
  std::set<std::string_view> names;
  for (int n = 1; n <= kNumRefusals; ++n) {
    const CatalogEntry& entry = catalog()[static_cast<std::size_t>(n - 1)];
    EXPECT_EQ(static_cast<int>(entry.refusal), n);
    EXPECT_EQ(entry.code, code_of(n));
    EXPECT_EQ(entry.url, "errors/" + code_of(n) + ".html");
    EXPECT_EQ(&catalog_entry(entry.refusal), &entry);
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_EQ(entry.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string_view::npos) << entry.name;
    for (const std::string_view text :
         {entry.message, entry.argument, entry.meaning, entry.trigger, entry.solutions, entry.guard}) {
      EXPECT_FALSE(text.empty()) << entry.code;
    }
  }
}

TEST(Catalog, RelatedCodesAreOthersThatExist) {
  for (const CatalogEntry& entry : catalog()) {
    std::set<std::string> seen;
    for (const std::string& code : lines_of(entry.related)) {
      EXPECT_NE(code, entry.code);
      EXPECT_TRUE(seen.insert(code).second) << entry.code << " names " << code << " twice";
      EXPECT_TRUE(std::any_of(catalog().begin(), catalog().end(), [&](const CatalogEntry& other) {
        return other.code == code;
      })) << code;
    }
  }
}

TEST(Catalog, SaysWhereARefusalIsDecided) {
  for (const CatalogEntry& entry : catalog()) {
    std::ifstream file(std::string(ROPEPOOL_SOURCE_DIR) + "/" + std::string(entry.file));
    ASSERT_TRUE(file.is_open()) << entry.file;
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_NE(text.str().find(std::string(entry.function) + "(const"), std::string::npos)
        << entry.code << ": " << entry.function;
  }
}

// The contract's words, which people search for.
TEST(Catalog, TheOriginalsMessagesAreExact) {
  const char* const messages[] = {
      "rope_pool_fused expects q/k/v to be 3-D",
      "rope_pool_fused expects positions/slots to be 1-D",
      "rope_pool_fused expects pool tensors to be 3-D",
      "q shape must be [num_tokens, num_qo_heads, head_dim], got {q.shape}",
      "k shape must be [num_tokens, num_kv_heads, head_dim], got {k.shape}",
      "v shape must match k shape, got {v.shape} vs {k.shape}",
      "positions/slots must have one entry per token",
      "k_pool has incompatible shape {k_pool.shape}",
      "v_pool shape must match k_pool shape, got {v_pool.shape} vs {k_pool.shape}",
      "q/k/v dtypes must match",
      "pool dtypes must match q/k/v dtype",
  };
  for (std::size_t i = 0; i < std::size(messages); ++i) EXPECT_EQ(catalog()[i].message, messages[i]);
}

// ---- find_refusal

std::optional<int> found(std::string_view text) {
  const auto refusal = find_refusal(text);
  return refusal ? std::optional<int>(static_cast<int>(*refusal)) : std::nullopt;
}

TEST(FindRefusal, ByAnySpellingOfACode) {
  for (const CatalogEntry& entry : catalog()) {
    const int n = static_cast<int>(entry.refusal);
    const std::string code(entry.code), number = std::to_string(n);
    for (const std::string& text : {code,
                                    "rp" + code.substr(2),
                                    "Rp" + code.substr(2),
                                    "RP" + number,
                                    "rp" + number,
                                    "RP-" + code.substr(2),
                                    "rp-" + number,
                                    number,
                                    code.substr(2),
                                    "  " + code + "\n",
                                    " " + number + " ",
                                    "[" + code + "]",
                                    "(" + code + ")",
                                    code + ".",
                                    code + ":",
                                    "errors/" + code + ".html",
                                    "https://example.org/ropepool/errors/" + code + ".html",
                                    "what is " + code + "?",
                                    std::string(entry.name),
                                    "  " + std::string(entry.name) + "\n"}) {
      EXPECT_EQ(found(text), n) << text;
    }
  }
  EXPECT_EQ(found("V-Shape-Mismatch"), 6);
  EXPECT_EQ(found("rp 6"), 6);
}

TEST(FindRefusal, InOtherTextOnlyByACodeWithAllItsDigits) {
  EXPECT_EQ(found("see RP-006 and RP007"), 6);
  EXPECT_EQ(found("RP999, then rp007"), 7);
  EXPECT_EQ(found("pinctrl-rp001: ok, rp 3, rp002"), 2);
  EXPECT_EQ(found("pinctrl-rp1 1f000d0000.gpio: ok\nValueError: v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)"), 6);
}

// What {expected} says in a real refusal.
std::string expectation_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::geometry_unsupported:
      return "even";
    case Refusal::rope_unsupported:
      return "finite and above 0";
    case Refusal::layout_unsupported:
      return "an innermost stride of 1";
    case Refusal::output_unsuitable:
      return "writable";
    case Refusal::rope_sets_unsuitable:
      return "int32 or int64";
    case Refusal::qkv_order_unsuitable:
      return "'blocks' or 'groups'";
    case Refusal::head_ops_unsuitable:
      return "finite";
    case Refusal::rope_value_unsuitable:
      return "a whole number";
    default:
      return "cpu";
  }
}

// Every message with something in its placeholders, as it stands in terminals.
TEST(FindRefusal, ByAMessageInsideOtherText) {
  for (const CatalogEntry& entry : catalog()) {
    std::string message(entry.message);
    const std::string first_argument(entry.argument.substr(0, entry.argument.find(',')));
    for (const auto& [placeholder, value] :
         std::initializer_list<std::pair<const char*, std::string>>{{"{argument}", first_argument},
                                                                    {"{expected}", expectation_of(entry.refusal)},
                                                                    {"{actual}", "7"},
                                                                    {"{other}", "k"},
                                                                    {"{token}", "17"},
                                                                    {"{slot}", "18"},
                                                                    {"{num_slots}", "16"},
                                                                    {"{position}", "-2147483648"},
                                                                    {"{dtype}", "float64"},
                                                                    {"{requirement}", "even and at least 2"},
                                                                    {"{first}", "32"},
                                                                    {"{last}", "95"},
                                                                    {"{head_dim}", "64"},
                                                                    {"{set}", "-1"},
                                                                    {"{num_sets}", "2"},
                                                                    {"{rows}", "4096"},
                                                                    {"{lanes}", "768"},
                                                                    {"{be}", "be"},
                                                                    {"{key}", "rope_scaling.factor"},
                                                                    {"{type}", "'yam'"},
                                                                    {"{purpose}", "yarn"},
                                                                    {"{value}", "4.0"},
                                                                    {"{q.shape}", "(4, 8, 64)"},
                                                                    {"{k.shape}", "(4, 2, 64)"},
                                                                    {"{v.shape}", "(4, 10, 64)"},
                                                                    {"{k_pool.shape}", "(16, 2, 64)"},
                                                                    {"{v_pool.shape}", "(16,)"}}) {
      message = replace_all(message, placeholder, value);
    }
    ASSERT_EQ(message.find('{'), std::string::npos) << message;
    const int n = static_cast<int>(entry.refusal);
    for (const std::string& text :
         {message, message + "\n", "ValueError: " + message, "ropepool.ContractError: " + message + "\nmend:  do it right",
          "Traceback (most recent call last):\n  File \"engine.py\", line 3, in <module>\n    rope_pool_fused(q, k, "
          "v)\nValueError: " +
              message + "\n",
          "2031-02-03 04:05:06 [worker 3] ERROR " + message, "    | " + message + "\n    | more", "what(): \"" + message + "\"",
          "\x1b[31m" + message + "\x1b[0m"}) {
      EXPECT_EQ(found(text), n) << text;
    }
  }
}

TEST(FindRefusal, ByTheOriginalsMessageWithOtherShapes) {
  EXPECT_EQ(found("ValueError: v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)"), 6);
  EXPECT_EQ(found("v shape must match k shape, got torch.Size([4, 10, 64]) vs torch.Size([4, 2, 64])"), 6);
  EXPECT_EQ(found("q shape must be [num_tokens, num_qo_heads, head_dim], got ()"), 4);
  EXPECT_EQ(found("v_pool shape must match k_pool shape, got (1,) vs (2,)"), 9);
  EXPECT_EQ(found("k_pool has incompatible shape (16, 1, 8)"), 8);
  EXPECT_EQ(found("V SHAPE MUST MATCH K SHAPE, GOT (1) VS (2)"), 6);
}

TEST(FindRefusal, FindsNothingInUnrelatedText) {
  for (const char* text : {
           "",
           " ",
           "\n",
           "0",
           "00",
           "99",
           "99",
           "-6",
           "6.5",
           "123456789012345678901234567890",
           "RP",
           "rp",
           "RP000",
           "RP099",
           "RP999",
           "RP0066",
           "RP006x",
           "xRP006",
           "GRP006",
           "RP_006",
           "RP2040",
           "bla rp 3 bla",
           "bla rp3",
           "see rp-03",
           "[RP6]",
           "-RP006",
           "pinctrl-rp001 1f000d0000.gpio: ok",
           "RP 006 of 7",
           "RP-0066 a",
           "RPM 6000",
           "CUDA out of memory. Tried to allocate 2.00 GiB",
           "RuntimeError: The size of tensor a (10) must match the size of tensor b (2) at non-singleton dimension 1",
           "IndexError: index 16 is out of bounds for axis 0 with size 16",
           "q shape must be [batch, seq, heads, dim], got (1, 2, 3)",
           "the q shape must be the shape of k",
           "v shape must match k shape",
           "v shape must match q shape, got (1, 2) vs (3, 4)",
           "kv shape must match k shape, got (1, 2) vs (3, 4)",
           "mask dtypes must match",
           "dtypes must match",
           "q dtypes must match k dtype",
           "mask must be float32, float16 or bfloat16, got int64",
           "x must be on cpu, got cuda:0",
           "seq_slots must be int32 or int64, got float32",
           "my_q must have an innermost stride of 1, got 2",
           "v must share no weights with k",
           "slots[3] is 5",
           "positions[0] is 1, which is odd",
           "shape mismatch",
           "v shape",
           "overlapping intervals",
       }) {
    EXPECT_EQ(found(text), std::nullopt) << text;
  }
}

TEST(FindRefusal, FindsNothingInPhrasesLikeOurs) {
  EXPECT_EQ(found("k must have shape (batch, heads, seq, dim), got (1, 2)"), std::nullopt);
  EXPECT_EQ(found("q must have 4 dimensions, got 3"), std::nullopt);
  EXPECT_EQ(found("angles must be in radians, got degrees"), std::nullopt);
  EXPECT_EQ(found("k_pool must be contiguous, got strides"), std::nullopt);
  EXPECT_EQ(found("q must be on the same device as k, got cpu"), std::nullopt);
  EXPECT_EQ(found("q_out must be an array, got (4, 8)"), std::nullopt);
}

// An output that is no match for q is told q's shape or dtype, whichever these are.
TEST(FindRefusal, KnowsWhateverIsExpectedOfAnOutput) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t tokens : {0, 4}) {
      OpCase c({dtype, tokens, 4, 2, 8, 16}, 1, 8);
      RopePoolFusedArgs args = c.args;
      args.q_out.dtype = DType::f64;
      EXPECT_EQ(found(rope_pool_fused(args).error().summary()), 17) << rope_pool_fused(args).error().summary();
      args = c.args;
      args.k_out.shape = {};
      EXPECT_EQ(found(rope_pool_fused(args).error().summary()), 17) << rope_pool_fused(args).error().summary();
    }
  }
}

TEST(FindRefusal, InTheWordsOfOtherOps) {
  EXPECT_EQ(found("rope expects q/k to be 3-D"), 1);
  EXPECT_EQ(found("write_kv expects slots to be 1-D"), 2);
  EXPECT_EQ(found("rerotate expects pool tensors to be 3-D"), 3);
  EXPECT_EQ(found("old_positions/new_positions/slots must have one entry per token"), 7);
  EXPECT_EQ(found("k/v dtypes must match"), 10);
  EXPECT_EQ(found("pool dtypes must match qkv dtype"), 11);
  EXPECT_EQ(found("qkv must be float32, float16 or bfloat16, got float64"), 12);
  EXPECT_EQ(found("new_positions must be int32 or int64, got float32"), 13);
  EXPECT_EQ(found("old_positions[3] is 2147483648, beyond +-2147483647"), 21);
  EXPECT_EQ(found("new_sets[3] is 2, but the rope has 2 sets"), 25);
}

// Found by the most exact of the messages that fit.
TEST(FindRefusal, PoolsAreNotTheirTensors) {
  EXPECT_EQ(found("v_pool shape must match k_pool shape, got (15, 2, 8) vs (16, 2, 8)"), 9);
  EXPECT_EQ(found("pool dtypes must match q/k/v dtype"), 11);
  EXPECT_EQ(found("q/k/v dtypes must match"), 10);
}

}  // namespace
}  // namespace ropepool::test
