// Messages with {placeholders}, as the catalog has them.
#pragma once

#include <string>
#include <string_view>

namespace ropepool::test {

inline std::string replace_all(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

// Whether `text` is `message` with something, on one line, in the place of each {placeholder}.
inline bool is_made_from(std::string_view text, std::string_view message) {
  const std::size_t open = message.find('{');
  if (open == std::string_view::npos) return text == message;
  if (text.substr(0, open) != message.substr(0, open)) return false;
  text.remove_prefix(open);
  message.remove_prefix(message.find('}') + 1);
  for (std::size_t length = 1; length <= text.size() && text[length - 1] != '\n'; ++length) {
    if (is_made_from(text.substr(length), message)) return true;
  }
  return false;
}

}  // namespace ropepool::test
