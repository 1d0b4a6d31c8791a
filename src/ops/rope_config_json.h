// A config as an object of JSON whose keys are read by type, and the refusals of what is wrong with one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ropepool/result.h>

namespace ropepool::config {

struct Member;
struct Value {
  std::variant<std::monostate, bool, double, std::string, std::vector<Value>, std::vector<Member>> of;

  bool is_null() const { return of.index() == 0; }
  const std::vector<Member>* members() const { return std::get_if<std::vector<Member>>(&of); }
  std::string shown() const;  // for messages, cut short
};
struct Member {
  std::string key;
  Value value;
};
bool operator==(const Value& a, const Value& b);
bool operator==(const Member& a, const Member& b);

// A reader stops at the first thing that is wrong. This never leaves read_rope_config and rope_layer_types.
struct Refused {
  Error error;
};

// NaN and Infinity, which JSON has not and Python writes, become texts, which no number may be.
Value parse(std::string_view json);

// Where a config has several names or places for a thing, `key` is the whole path: "rope_scaling.factor".
Error type_unknown(const std::string& key, const std::string& type, std::string cause, std::string mend);
Error key_missing(const std::string& key, const std::string& purpose, std::string cause, std::string mend);
Error keys_contradict(const std::string& key, const std::string& actual, const std::string& other, std::string cause,
                      std::string mend);
Error value_unsuitable(const std::string& key, const std::string& expected, const std::string& actual, std::string cause,
                       std::string mend);

// Why two keys that say one thing may differ.
std::string cause_of_disagreement(const std::string& key, const std::string& other);

// One object of a config. A key whose value is null counts as left out, one that is there twice with two values is refused.
class Object {
 public:
  Object(const std::vector<Member>& members, std::string path) : members_(&members), path_(std::move(path)) {}

  const std::vector<Member>& members() const { return *members_; }
  std::string name(std::string_view key) const { return path_ + std::string(key); }

  const Value* find(std::string_view key) const;  // nullptr where it is left out
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Of one type; refused where it is of another.
  std::optional<double> number(std::string_view key) const;
  std::optional<std::int64_t> whole(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> wholes(std::string_view key) const;
  std::optional<Object> object(std::string_view key) const;

 private:
  const std::vector<Member>* members_;
  std::string path_;
};

std::string shown(double value);
std::string shown(std::int64_t value);
std::string shown(bool value);
std::string shown(const std::string& value);
template <class T>
std::string shown(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + shown(value);
  return "[" + text + "]";
}

// A thing that several keys may say, which then have to agree.
template <class T>
class Agreed {
 public:
  void add(const std::string& key, const std::optional<T>& value) {
    if (!value) return;
    if (key_.empty()) {
      value_ = *value;
      key_ = key;
    } else if (value_ != *value) {
      throw Refused{keys_contradict(key, shown(*value), key_ + " " + shown(value_), cause_of_disagreement(key, key_), "")};
    }
  }
  std::optional<T> value() const { return key_.empty() ? std::nullopt : std::optional<T>(value_); }
  const std::string& key() const { return key_; }  // that said it; "" where none did

 private:
  T value_{};
  std::string key_;
};

}  // namespace ropepool::config
