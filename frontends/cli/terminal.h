// What the tool prints, and how: colours and wrapped lines are for people at a terminal only.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <ropepool/result.h>

namespace ropepool::cli {

using Json = nlohmann::ordered_json;

class Terminal {
 public:
  // A plain one: no colours, no width.
  Terminal() = default;
  static Terminal standard_output();
  static Terminal standard_error();

  std::string bold(std::string_view text) const { return styled("1", text); }
  std::string red(std::string_view text) const { return styled("1;31", text); }
  std::string green(std::string_view text) const { return styled("32", text); }
  // `text` behind `first`, further lines below its beginning; broken at the terminal's width, or not at all.
  std::string wrapped(std::string_view first, std::string_view text) const;

 private:
  explicit Terminal(int descriptor);
  std::string styled(const char* code, std::string_view text) const;

  bool colours_ = false;
  int width_ = 0;  // 0: no terminal
};

// All that a command prints goes out in one piece. A reader that has gone away is no error.
void print(std::string_view text);
void print_json(const Json& json);
// A message on standard error, behind the tool's name.
void complain(std::string_view text);

// An error with its fields; those that are empty too.
Json error_json(const Error& error);
// JSON has no NaN and no infinity: those become the strings "nan", "inf", "-inf".
Json number_json(double value);

}  // namespace ropepool::cli
