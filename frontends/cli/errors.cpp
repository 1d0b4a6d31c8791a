// ropepool errors: every refusal there is.
#include "commands.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "entries.h"
#include "terminal.h"

namespace ropepool::cli {

std::vector<std::string_view> lines(std::string_view list) {
  std::vector<std::string_view> result;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find('\n'), list.size());
    result.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return result;
}

Json entry_json(const CatalogEntry& entry) {
  const std::string setup = std::string(example_setup()) + "\n";  // so that each example is a whole script
  return {{"code", entry.code},
          {"name", entry.name},
          {"message", entry.message},
          {"argument", entry.argument},
          {"meaning", entry.meaning},
          {"trigger", entry.trigger},
          {"situations", lines(entry.situations)},
          {"solutions", lines(entry.solutions)},
          {"example", {{"failing", setup + std::string(entry.failing)}, {"mended", setup + std::string(entry.mended)}}},
          {"guard", entry.guard},
          {"related", lines(entry.related)},
          {"url", entry.url},
          {"where", {{"file", entry.file}, {"function", entry.function}}}};
}

Exit errors(const ErrorsOptions& options) {
  if (options.json) {
    Json list = Json::array();
    for (const CatalogEntry& entry : catalog()) list.push_back(entry_json(entry));
    print_json(list);
    return Exit::ok;
  }
  const Terminal terminal = Terminal::standard_output();
  std::size_t width = 0;
  for (const CatalogEntry& entry : catalog()) width = std::max(width, entry.name.size());
  std::string text;
  for (const CatalogEntry& entry : catalog()) {
    text += terminal.wrapped(fmt::format("{}  {:<{}}  ", entry.code, entry.name, width), entry.message);
  }
  print(text);
  return Exit::ok;
}

}  // namespace ropepool::cli
