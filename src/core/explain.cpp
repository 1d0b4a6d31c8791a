#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ropepool/catalog.h>

namespace ropepool {
namespace {

// A title and what stands below it, indented; nothing where there is nothing to say.
class Page {
 public:
  explicit Page(std::string head) : text_(std::move(head)) {}

  void paragraph(std::string_view title, std::string_view text) { block(title, "  ", text); }
  void list(std::string_view title, std::string_view items) { block(title, "  - ", items); }
  void code(std::string_view title, std::string_view code) { block(title, "    ", code); }
  std::string text() && { return std::move(text_); }

 private:
  void block(std::string_view title, std::string_view indent, std::string_view lines) {
    if (lines.empty()) return;
    text_ += fmt::format("\n{}\n", title);
    while (!lines.empty()) {
      const std::string_view line = lines.substr(0, lines.find('\n'));
      text_ += line.empty() ? "\n" : fmt::format("{}{}\n", indent, line);
      lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    }
  }

  std::string text_;
};

std::string with_names(std::string_view codes) {
  std::string result;
  for (const CatalogEntry& entry : catalog()) {
    if (codes.find(entry.code) != std::string_view::npos) result += fmt::format("{} {}\n", entry.code, entry.name);
  }
  return result;
}

}  // namespace

std::string explain(Refusal refusal) {
  const CatalogEntry& entry = catalog_entry(refusal);
  Page page(fmt::format("{} {}\n{}\n", entry.code, entry.name, entry.message));
  page.paragraph("Argument", entry.argument);
  page.paragraph("Meaning", entry.meaning);
  page.paragraph("What leads to it", entry.trigger);
  page.list("Situations", entry.situations);
  page.list("Solutions, the likeliest first", entry.solutions);
  page.code("Both examples begin with", example_setup());
  page.code("Fails", entry.failing);
  page.code("Mended", entry.mended);
  page.code("Does not apply where", entry.guard);
  page.list("Elsewhere the same mistake may say", entry.elsewhere);
  page.list("See also", with_names(entry.related));
  page.paragraph("Decided in", fmt::format("{} ({})", entry.function, entry.file));
  page.paragraph("Page", entry.url);
  return std::move(page).text();
}

}  // namespace ropepool
