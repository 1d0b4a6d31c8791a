// ropepool explain: one refusal in full, found by its code, its name, or a text that holds its message.
#include "commands.h"

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "entries.h"
#include "files.h"
#include "safetensors.h"
#include "terminal.h"

namespace ropepool::cli {
namespace {

// For a reader at a terminal: bold headings, prose broken at its width, code as it is.
std::string render(const CatalogEntry& entry, const Terminal& terminal) {
  const std::string page = ropepool::explain(entry.refusal);
  std::string text;
  for (const std::string_view line : lines(page)) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    if (line.empty() || indent >= 4) {
      text += fmt::format("{}\n", line);
    } else if (indent == 0) {
      text += line == entry.message ? terminal.wrapped("", line) : terminal.bold(line) + "\n";
    } else {
      const std::size_t first = line.starts_with("  - ") ? 4 : indent;
      text += terminal.wrapped(line.substr(0, first), line.substr(first));
    }
  }
  return text;
}

}  // namespace

Exit explain(const ExplainOptions& options) {
  std::string text = options.what;
  if (options.what == "-") {
    const InputFile input("-");
    text.assign(reinterpret_cast<const char*>(input.bytes().data()), input.bytes().size());
  }
  const auto refusal = find_refusal(text);
  if (!refusal) {
    complain(
        fmt::format("no refusal fits {}\n"
                    "Pass a code (RP006, rp6, 6), a name (v-shape-mismatch), a message, or pipe in a traceback or log that\n"
                    "holds one: ropepool explain - < log. `ropepool errors` lists all there are. A TypeError, MemoryError or\n"
                    "RuntimeError is none of them: its own message says what is wrong.",
                    text.find_first_not_of(" \t\r\n") == text.npos ? "an empty text" : safetensors::in_quotes(text)));
    return Exit::nothing_fits;
  }
  const CatalogEntry& entry = catalog_entry(*refusal);
  if (options.json) {
    print_json(entry_json(entry));
  } else {
    print(render(entry, Terminal::standard_output()));
  }
  return Exit::ok;
}

}  // namespace ropepool::cli
