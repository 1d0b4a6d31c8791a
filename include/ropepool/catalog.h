// The error reference as data: one entry for every refusal.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ropepool/export.h>
#include <ropepool/refusal.h>

namespace ropepool {

// Lists hold one text a line.
struct CatalogEntry {
  Refusal refusal;
  std::string_view code, name, message, argument, meaning, trigger;
  std::string_view situations, solutions;  // lists; of solutions the likeliest first
  std::string_view failing, mended;        // Python that raises this code behind example_setup(), and the same mended
  std::string_view guard;                  // a Python expression over the arguments, true where this refusal does not apply
  std::string_view related;                // a list of codes
  std::string_view elsewhere;              // a list: what NumPy, torch and others say of the same mistake, a step earlier
  std::string_view url, file, function;    // the page, relative to the site; where the refusal is decided
};

// All entries, in the order of their codes.
ROPEPOOL_API std::span<const CatalogEntry> catalog();
// What all examples begin with: Python that imports the package and makes the arguments of a call that goes through. It, an
// empty line and a `failing` or `mended` are a whole script.
ROPEPOOL_API std::string_view example_setup();
ROPEPOOL_API const CatalogEntry& catalog_entry(Refusal refusal);
// The entry that `text` speaks of: a code ("RP006", "rp6", "6"), a name, or any text that holds a whole code or a message, with
// whatever shapes in it; also the message of another library that stumbled over the same mistake. nullopt where none fits.
ROPEPOOL_API std::optional<Refusal> find_refusal(std::string_view text);

// The whole entry as plain text to read: headings at the margin, prose and lists two columns in, code four.
// Throws std::bad_alloc.
ROPEPOOL_API std::string explain(Refusal refusal);

}  // namespace ropepool
