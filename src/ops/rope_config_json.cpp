#include "ops/rope_config_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace ropepool::config {
namespace {

constexpr std::size_t kMaxDepth = 64;  // of objects in objects: what is built is taken apart by recursion
constexpr std::size_t kMaxShown = 60;  // characters of a value in a message

using Sax = nlohmann::json_sax<nlohmann::json>;

// Builds a Value from what nlohmann's parser reports.
class Builder final : public Sax {
 public:
  explicit Builder(std::size_t size) : size_(size) {}

  Value root;
  std::string fault;
  bool ends_early = false;

  bool null() override { return put({}); }
  bool boolean(bool value) override { return put({value}); }
  bool number_integer(number_integer_t value) override { return put({static_cast<double>(value)}); }
  bool number_unsigned(number_unsigned_t value) override { return put({static_cast<double>(value)}); }
  bool number_float(number_float_t value, const string_t&) override { return put({value}); }
  bool string(string_t& value) override { return put({std::move(value)}); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open({std::vector<Member>{}}); }
  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open({std::vector<Value>{}}); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    ends_early = position > size_;
    fault = fmt::format("what stands at byte {} is not", position);
    return false;
  }

 private:
  Value* place(Value value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (auto* list = std::get_if<std::vector<Value>>(&open_.back()->of)) return &list->emplace_back(std::move(value));
    auto& members = std::get<std::vector<Member>>(open_.back()->of);
    return &members.emplace_back(Member{std::move(key_), std::move(value)}).value;
  }
  bool put(Value value) {
    place(std::move(value));
    return true;
  }
  bool open(Value value) {
    if (open_.size() == kMaxDepth) {
      fault = fmt::format("it is nested deeper than {} levels", kMaxDepth);
      return false;
    }
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::size_t size_;
  std::vector<Value*> open_;  // the innermost last; nothing is added beside one of them while it is open
  std::string key_;
};

std::string with_texts_for_infinities(std::string_view json) {
  std::string result;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (in_text && json[i] == '\\') {
      result += json.substr(i, 2);
      ++i;
      continue;
    }
    if (json[i] == '"') in_text = !in_text;
    std::size_t length = 0;
    for (std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (!in_text && length == 0 && json.substr(i).starts_with(word)) length = word.size();
    }
    if (length > 0) {
      result += fmt::format("\"{}\"", json.substr(i, length));
      i += length - 1;
    } else {
      result += json[i];
    }
  }
  return result;
}

// At most kMaxShown bytes, never half a character of UTF-8.
std::string cut_short(std::string text) {
  if (text.size() <= kMaxShown) return text;
  std::size_t end = kMaxShown - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

bool is_number(const std::string& text) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size();
}

struct Cause {
  std::string text = {}, mend = {};
};

Cause of_value(std::string_view expected, const Value& actual) {
  if (const auto* text = std::get_if<std::string>(&actual.of)) {
    if (*text == "NaN" || text->ends_with("Infinity")) {
      return {"Python writes what JSON has not: the number was lost before the config was written", "write the number itself"};
    }
    if (*text == "None" || *text == "null") return {"it is a text that spells null", "write null, or leave the key out"};
    if (expected != "an object" && is_number(*text)) return {"a number in quotes is a text", "write " + *text};
    if (expected == "an object") {
      return {"it may be the rope type alone", R"(write an object, {"rope_type": ...}, with the keys of that type)"};
    }
  }
  const auto* number = std::get_if<double>(&actual.of);
  if (number != nullptr && expected == "a whole number") {
    return {"a number with a fraction may come from a division that left a remainder", "take it from the model's own config"};
  }
  if (number != nullptr && expected == "true or false" && (*number == 0 || *number == 1)) {
    return {"0 and 1 are numbers in JSON", *number == 0 ? "write false" : "write true"};
  }
  if (number != nullptr && expected.starts_with("a list")) {
    return {"one number stands for all pairs, and each has its own", "write a list of one number a pair"};
  }
  return {};
}

[[noreturn]] void refuse_value(const Object& object, std::string_view key, const char* expected, const Value& actual) {
  Cause cause = of_value(expected, actual);
  throw Refused{value_unsuitable(object.name(key), expected, actual.shown(), std::move(cause.text), std::move(cause.mend))};
}

// Files that come where a config should.
Cause of_text(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const std::string_view first = text.substr(std::min(begin, text.size()));
  if (text.starts_with("GGUF")) {
    return {"it is a GGUF file, and its metadata are wanted as one object of JSON",
            "in Python: {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}"};
  }
  if (text.starts_with("version https://git-lfs")) {
    return {"it is a pointer of Git LFS, whose file was not fetched", "git lfs pull"};
  }
  if (text.size() > 8 && text[8] == '{' && text[7] == '\0') {
    return {"it is a safetensors file, which holds a model's weights", "pass the config.json that lies beside it"};
  }
  if (first.starts_with('<')) {
    return {"it is a web page: the address may be that of a page about the file, or ask for a log-in",
            "fetch the file itself, such as .../resolve/main/config.json"};
  }
  if (first.starts_with("{'")) {
    return {"it is a dict as Python prints it, with keys in single quotes", "write it by json.dumps"};
  }
  if (text.size() < 4096 && text.find_first_of("{}[]\n") == std::string_view::npos &&
      (text.ends_with(".json") || text.ends_with(".gguf") || text.find('/') != std::string_view::npos)) {
    return {"it looks like a path, and the text of the file is wanted", "read the file first"};
  }
  return {};
}

std::optional<std::int64_t> whole_of(const Value& value) {
  const double* number = std::get_if<double>(&value.of);
  if (number == nullptr || *number != std::floor(*number) || std::abs(*number) > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

}  // namespace

bool operator==(const Value& a, const Value& b) { return a.of == b.of; }
bool operator==(const Member& a, const Member& b) { return a.key == b.key && a.value == b.value; }

std::string shown(double value) { return fmt::format("{}", value); }
std::string shown(std::int64_t value) { return std::to_string(value); }
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(const std::string& value) {
  std::string text = cut_short(value);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return "'" + text + "'";
}

std::string Value::shown() const {
  struct Shown {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool value) const { return config::shown(value); }
    std::string operator()(double value) const { return config::shown(value); }
    std::string operator()(const std::string& value) const { return config::shown(value); }
    std::string operator()(const std::vector<Value>& values) const {
      std::vector<std::string> texts;
      for (const Value& value : values) {
        if (texts.size() < kMaxShown / 3) texts.push_back(value.members() != nullptr ? "{...}" : value.shown());
      }
      return cut_short(fmt::format("[{}]", fmt::join(texts, ", ")));
    }
    std::string operator()(const std::vector<Member>&) const { return "an object"; }
  };
  return std::visit(Shown{}, of);
}

Value parse(std::string_view json) {
  const std::string text = with_texts_for_infinities(json);
  Builder builder(text.size());
  const bool whole = nlohmann::json::sax_parse(text, &builder);
  if (!whole || builder.root.members() == nullptr) {
    std::string actual = json.find_first_not_of(" \t\r\n") == std::string_view::npos ? "an empty text" : "a text that is not";
    if (whole) actual = builder.root.shown();
    Cause cause = of_text(json);
    if (cause.text.empty() && builder.ends_early && actual == "a text that is not") {
      cause = {"it ends before it is complete: the file may be cut short", "fetch the file again"};
    }
    if (cause.text.empty() && !builder.fault.empty()) cause.text = "a config is one object of JSON, and " + builder.fault;
    if (cause.mend.empty()) cause.mend = "pass the text of the model's config.json, or GGUF metadata as one object";
    throw Refused{value_unsuitable("the text", "one object of JSON", actual, std::move(cause.text), std::move(cause.mend))};
  }
  return std::move(builder.root);
}

namespace {

// The place of a key, without its name: "text_config.rope_scaling." of "text_config.rope_scaling.factor".
std::string place_of(const std::string& key) { return key.substr(0, key.rfind('.') + 1); }

}  // namespace

std::string cause_of_disagreement(const std::string& key, const std::string& other) {
  const auto speaks_of = [](const std::string& name, const char* word) {
    return place_of(name).find(word) != std::string::npos;
  };
  if (place_of(key) == place_of(other)) return "they are two names of one thing";
  if (speaks_of(key, "rope_parameters") != speaks_of(other, "rope_parameters")) {
    return "rope_parameters is today's place for it, the other the former one, which may be left over";
  }
  if (speaks_of(key, "text_config") != speaks_of(other, "text_config")) {
    return "the outer one may be left over: a multimodal model's text model is described in text_config";
  }
  return "it stands in two places, and one may be left over";
}

Error type_unknown(const std::string& key, const std::string& type, std::string cause, std::string mend) {
  return Error(Refusal::rope_type_unknown, {fmt::format("Rope config: {} names the unknown rope type {}", key, type), key,
                                            "a rope type that is known", type, std::move(cause), std::move(mend)});
}

Error key_missing(const std::string& key, const std::string& purpose, std::string cause, std::string mend) {
  return Error(Refusal::rope_key_missing, {fmt::format("Rope config: {} is missing, needed for {}", key, purpose), key, "given",
                                           "missing", std::move(cause), std::move(mend)});
}

Error keys_contradict(const std::string& key, const std::string& actual, const std::string& other, std::string cause,
                      std::string mend) {
  return Error(Refusal::rope_keys_contradict, {fmt::format("Rope config: {} {} contradicts {}", key, actual, other), key, other,
                                               actual, std::move(cause), std::move(mend)});
}

Error value_unsuitable(const std::string& key, const std::string& expected, const std::string& actual, std::string cause,
                       std::string mend) {
  return Error(Refusal::rope_value_unsuitable, {fmt::format("Rope config: {} must be {}, got {}", key, expected, actual), key,
                                                expected, actual, std::move(cause), std::move(mend)});
}

const Value* Object::find(std::string_view key) const {
  const Value* found = nullptr;
  for (const Member& member : *members_) {
    if (member.key != key || member.value.is_null()) continue;
    if (found != nullptr && *found != member.value) {
      throw Refused{keys_contradict(name(key), member.value.shown(), fmt::format("{} {} before it", name(key), found->shown()),
                                    "the key stands twice in the file", "keep one of the two")};
    }
    found = &member.value;
  }
  return found;
}

std::optional<double> Object::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const double* number = std::get_if<double>(&value->of)) return *number;
  refuse_value(*this, key, "a number", *value);
}

std::optional<std::int64_t> Object::whole(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (auto number = whole_of(*value)) return number;
  refuse_value(*this, key, "a whole number", *value);
}

std::optional<bool> Object::flag(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const bool* flag = std::get_if<bool>(&value->of)) return *flag;
  refuse_value(*this, key, "true or false", *value);
}

std::optional<std::string> Object::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const std::string* text = std::get_if<std::string>(&value->of)) return *text;
  refuse_value(*this, key, "a text", *value);
}

std::optional<std::vector<double>> Object::numbers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* list = std::get_if<std::vector<Value>>(&value->of);
  std::vector<double> numbers;
  for (const Value& item : list != nullptr ? *list : std::vector<Value>{}) {
    if (const double* number = std::get_if<double>(&item.of)) numbers.push_back(*number);
  }
  if (list == nullptr || numbers.size() != list->size()) refuse_value(*this, key, "a list of numbers", *value);
  return numbers;
}

std::optional<std::vector<std::int64_t>> Object::wholes(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* list = std::get_if<std::vector<Value>>(&value->of);
  std::vector<std::int64_t> numbers;
  for (const Value& item : list != nullptr ? *list : std::vector<Value>{}) {
    if (auto number = whole_of(item)) numbers.push_back(*number);
  }
  if (list == nullptr || numbers.size() != list->size()) refuse_value(*this, key, "a list of whole numbers", *value);
  return numbers;
}

std::optional<Object> Object::object(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* members = value->members()) return Object(*members, name(key) + ".");
  refuse_value(*this, key, "an object", *value);
}

}  // namespace ropepool::config
