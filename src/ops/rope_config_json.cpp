#include "ops/rope_config_json.h"

#include <algorithm>
#include <cmath>

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
  Value root;
  std::string fault;

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

[[noreturn]] void refuse_value(const Object& object, std::string_view key, const char* expected, const Value& actual) {
  throw Refused{value_unsuitable(object.name(key), expected, actual.shown(), "", "")};
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
  Builder builder;
  const bool whole = nlohmann::json::sax_parse(with_texts_for_infinities(json), &builder);
  if (!whole || builder.root.members() == nullptr) {
    std::string actual = json.find_first_not_of(" \t\r\n") == std::string_view::npos ? "an empty text" : "a text that is not";
    if (whole) actual = builder.root.shown();
    const std::string cause = builder.fault.empty() ? "" : "a config is one object of JSON, and " + builder.fault;
    throw Refused{value_unsuitable("the text", "one object of JSON", actual, cause,
                                   "pass the text of the model's config.json, or GGUF metadata as one object")};
  }
  return std::move(builder.root);
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
