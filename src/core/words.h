// Words in messages and logs.
#pragma once

#include <cctype>

namespace ropepool {

inline bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace ropepool
