#include <ropepool/catalog.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "core/words.h"

namespace ropepool {
namespace {

#include "core/catalog_data.inc"  // kExampleSetup, kCatalog, kForms
static_assert(std::size(kCatalog) == kNumRefusals && std::size(kForms) == kNumRefusals);

// In lower case, and without the escape sequences that colour a log.
std::string lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "\033[") {
      const std::size_t end = text.find_first_not_of("0123456789;", i + 2);
      if (end == std::string_view::npos) break;
      i = end;
      continue;
    }
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
  }
  return result;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 4 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::optional<Refusal> refusal_of(std::string_view number) {
  const int n = std::stoi(std::string(number));
  if (n < 1 || n > kNumRefusals) return std::nullopt;
  return static_cast<Refusal>(n);
}

// The first code in `text`, with all three digits as in RP006 or RP-006: logs have many an rp1 that is none of ours.
std::optional<Refusal> first_code(std::string_view text) {
  for (std::size_t at = text.find("rp"); at != std::string_view::npos; at = text.find("rp", at + 1)) {
    if (at > 0 && (is_word(text[at - 1]) || text[at - 1] == '-')) continue;
    std::string_view rest = text.substr(at + 2);
    if (rest.starts_with('-')) rest.remove_prefix(1);
    const std::string_view digits = rest.substr(0, 3);
    if (digits.size() < 3 || !is_number(digits) || (rest.size() > 3 && is_word(rest[3]))) continue;
    if (const auto refusal = refusal_of(digits)) return refusal;
  }
  return std::nullopt;
}

// No message goes on for longer; in a log of one long line the search for its end would take a time that grows with its square.
constexpr std::size_t kMaxRest = 1000;

// Whether `text` holds `message`, which does not begin with a placeholder, with anything in the place of its {placeholders}:
// as words of their own, all on one line.
bool holds_message(std::string_view text, std::string_view message) {
  const std::size_t brace = std::min(message.find('{'), message.size());
  const std::string_view head = message.substr(0, brace);
  for (std::size_t at = text.find(head); at != std::string_view::npos; at = text.find(head, at + 1)) {
    if (at > 0 && is_word(text[at - 1])) continue;
    std::string_view line = text.substr(at + head.size(), kMaxRest);
    line = line.substr(0, line.find('\n'));
    std::string_view rest = message.substr(brace);
    bool all = true;
    while (all && !rest.empty()) {
      rest.remove_prefix(rest.find('}') + 1);
      const std::string_view piece = rest.substr(0, rest.find('{'));
      rest.remove_prefix(piece.size());
      const std::size_t found = line.find(piece);
      all = found != std::string_view::npos;
      if (all) line.remove_prefix(found + piece.size());
    }
    if (all) return true;
  }
  return false;
}

bool holds_one_of(std::string_view text, std::string_view messages) {
  while (!messages.empty()) {
    const std::string_view message = messages.substr(0, messages.find('\n'));
    if (holds_message(text, lower(message))) return true;
    messages.remove_prefix(std::min(message.size() + 1, messages.size()));
  }
  return false;
}

// How much of a message is fixed text: among those that fit, the most exact one is meant.
std::size_t fixed_length(std::string_view message) {
  std::size_t length = 0;
  bool inside = false;
  for (char c : message) {
    if (c == '{') inside = true;
    if (!inside) ++length;
    if (c == '}') inside = false;
  }
  return length;
}

}  // namespace

std::span<const CatalogEntry> catalog() { return kCatalog; }

std::string_view example_setup() { return kExampleSetup; }

const CatalogEntry& catalog_entry(Refusal refusal) { return kCatalog[static_cast<int>(refusal) - 1]; }

std::optional<Refusal> find_refusal(std::string_view text) {
  const std::string words = lower(text);
  std::string_view trimmed = words;
  while (!trimmed.empty() && std::isspace(static_cast<unsigned char>(trimmed.front()))) trimmed.remove_prefix(1);
  while (!trimmed.empty() && std::isspace(static_cast<unsigned char>(trimmed.back()))) trimmed.remove_suffix(1);
  std::string_view bare = trimmed;
  if (bare.starts_with("rp")) {
    bare.remove_prefix(2);
    if (bare.starts_with('-') || bare.starts_with(' ')) bare.remove_prefix(1);
  }
  if (is_number(bare)) return refusal_of(bare);
  if (const auto refusal = first_code(words)) return refusal;

  const CatalogEntry* best = nullptr;
  for (const CatalogEntry& entry : kCatalog) {
    if (trimmed == entry.name) return entry.refusal;
    if (holds_one_of(words, kForms[&entry - kCatalog]) &&
        (best == nullptr || fixed_length(entry.message) > fixed_length(best->message))) {
      best = &entry;
    }
  }
  if (best != nullptr) return best->refusal;
  for (const CatalogEntry& entry : kCatalog) {
    if (holds_one_of(words, entry.elsewhere)) return entry.refusal;
  }
  return std::nullopt;
}

}  // namespace ropepool
