#include "terminal.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "failure.h"

namespace ropepool::cli {
namespace {

// Characters, not bytes: all of UTF-8 that are not the later bytes of one.
int columns(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Terminal::Terminal(int descriptor) {
  if (isatty(descriptor) == 0) return;
  winsize size{};
  width_ = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  colours_ = (no_color == nullptr || *no_color == '\0') && term != nullptr && std::string_view(term) != "dumb";
}

Terminal Terminal::standard_output() { return Terminal(STDOUT_FILENO); }
Terminal Terminal::standard_error() { return Terminal(STDERR_FILENO); }

std::string Terminal::styled(const char* code, std::string_view text) const {
  return colours_ ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

std::string Terminal::wrapped(std::string_view first, std::string_view text) const {
  const int indent = columns(first);
  // Lines longer than 100 columns are hard to read, and some must be left for the text.
  const int width = std::max(std::min(width_, 100), indent + 20);
  std::string result(first);
  int column = indent;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    if (column > indent && width_ > 0 && column + 1 + columns(word) > width) {
      result += '\n';
      result.append(static_cast<std::size_t>(indent), ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += columns(word);
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return result + "\n";
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) return;
  throw Failure(Exit::file, fmt::format("cannot write to standard output: {}", std::generic_category().message(errno)));
}

void print_json(const Json& json) {
  // File names need not be UTF-8.
  print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void complain(std::string_view text) {
  const std::string line = fmt::format("{} {}\n", Terminal::standard_error().red("ropepool:"), text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Json error_json(const Error& error) {
  return {{"code", error.code()},       {"name", error.name()},         {"argument", error.argument()},
          {"summary", error.summary()}, {"expected", error.expected()}, {"actual", error.actual()},
          {"cause", error.cause()},     {"hint", error.hint()},         {"url", error.url()},
          {"message", error.message()}};
}

Json number_json(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

}  // namespace ropepool::cli
