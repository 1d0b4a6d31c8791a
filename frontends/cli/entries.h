// The error reference as the tool shows it.
#pragma once

#include <string_view>
#include <vector>

#include <ropepool/catalog.h>

#include "terminal.h"

namespace ropepool::cli {

// The lists of a CatalogEntry: one text a line.
std::vector<std::string_view> lines(std::string_view list);
Json entry_json(const CatalogEntry& entry);

}  // namespace ropepool::cli
