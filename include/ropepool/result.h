// Error and Result: how an op says no. Ops never throw.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ropepool/export.h>
#include <ropepool/refusal.h>

namespace ropepool {

// Why an op did nothing. Most often a refusal of the contract; otherwise a failure of the machine or its settings.
class ROPEPOOL_API Error {
 public:
  enum class Kind { refusal, out_of_memory, runtime };

  // What a refusal found. Every text may be empty but `summary`.
  struct Finding {
    std::string summary;   // first line of the message, for RP001 to RP011 the contract's exact words
    std::string argument;  // which argument: "v"
    std::string expected;  // what it should be: "(4, 2, 64)"
    std::string actual;    // what it is: "(4, 10, 64)"
    std::string cause;     // the mistake that fits what was passed
    std::string hint;      // how to mend it
  };

  Error(Refusal refusal, Finding finding);
  static Error out_of_memory();
  static Error runtime(std::string message);

  Kind kind() const { return kind_; }
  std::optional<Refusal> refusal() const;  // nullopt unless kind() is refusal
  int number() const;                      // 6 for RP006; below 0 for what is no refusal, as in c_api.h
  std::string_view code() const;           // "RP006"; "" for what is no refusal, as are name and url
  std::string_view name() const;           // "v-shape-mismatch"
  std::string_view url() const;            // "errors/RP006.html"
  const std::string& summary() const { return finding_.summary; }
  const std::string& argument() const { return finding_.argument; }
  const std::string& expected() const { return finding_.expected; }
  const std::string& actual() const { return finding_.actual; }
  const std::string& cause() const { return finding_.cause; }
  const std::string& hint() const { return finding_.hint; }

  // The whole text: summary, cause, mend, and where to read more.
  std::string message() const;
  // What the error reference says of this refusal, as ropepool::explain does; for what is no refusal the message.
  std::string explain() const;

 private:
  Error(Kind kind, std::string message);

  Kind kind_;
  Refusal refusal_{};
  Finding finding_;
};

// A value or an Error. `if (auto r = ...; !r) log(r.error().message());`
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  T& value() { return *value_; }  // only where ok()
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const Error& error() const { return *error_; }  // only where not ok()

 private:
  std::optional<T> value_;
  std::optional<Error> error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }  // only where not ok()

 private:
  std::optional<Error> error_;
};

}  // namespace ropepool
