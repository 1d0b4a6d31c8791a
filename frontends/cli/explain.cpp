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

// A title and its paragraphs, indented; nothing where there is nothing to say.
class Page {
 public:
  explicit Page(const Terminal& terminal) : terminal_(terminal) {}

  void paragraph(std::string_view title, std::string_view text) {
    if (!text.empty()) text_ += heading(title) + terminal_.wrapped("  ", text);
  }
  void list(std::string_view title, std::string_view items) {
    if (items.empty()) return;
    text_ += heading(title);
    for (const std::string_view item : lines(items)) text_ += terminal_.wrapped("  - ", item);
  }
  void code(std::string_view title, std::string_view code) {
    if (code.empty()) return;
    text_ += heading(title);
    for (const std::string_view line : lines(code)) text_ += line.empty() ? "\n" : fmt::format("    {}\n", line);
  }
  const std::string& text() const { return text_; }

 private:
  std::string heading(std::string_view title) const { return fmt::format("\n{}\n", terminal_.bold(title)); }

  const Terminal& terminal_;
  std::string text_;
};

std::string render(const CatalogEntry& entry, const Terminal& terminal) {
  Page page(terminal);
  page.paragraph("Argument", entry.argument);
  page.paragraph("Meaning", entry.meaning);
  page.paragraph("What leads to it", entry.trigger);
  page.list("Situations", entry.situations);
  page.list("Solutions, the likeliest first", entry.solutions);
  page.code("Both examples begin with", example_setup());
  page.code("Fails", entry.failing);
  page.code("Mended", entry.mended);
  page.code("Does not apply where", entry.guard);
  std::string related;
  for (const std::string_view code : lines(entry.related)) {
    related += related.empty() ? "" : "\n";
    related += code;
    if (const auto refusal = find_refusal(code)) related += fmt::format(" {}", catalog_entry(*refusal).name);
  }
  page.list("See also", related);
  if (!entry.function.empty()) page.paragraph("Decided in", fmt::format("{} ({})", entry.function, entry.file));
  page.paragraph("Page", entry.url);
  return terminal.bold(fmt::format("{} {}", entry.code, entry.name)) + "\n" + terminal.wrapped("", entry.message) + page.text();
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
