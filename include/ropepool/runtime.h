// What this build is and what it chose on this machine. All but version() throw std::bad_alloc.
#pragma once

#include <string>
#include <vector>

#include <ropepool/export.h>
#include <ropepool/result.h>

namespace ropepool {

ROPEPOOL_API const char* version();  // "0.1.0"

// SIMD targets this build was made for and this CPU can run, best first, by Highway's names: "AVX3", "AVX2" ...
ROPEPOOL_API std::vector<std::string> simd_targets();
// All that this build was made for.
ROPEPOOL_API std::vector<std::string> compiled_simd_targets();
// The one in use: the best, or what ROPEPOOL_TARGET names; an error where that is unknown or can't run here.
ROPEPOOL_API Result<std::string> simd_target();

// An error where ROPEPOOL_TARGET or ROPEPOOL_NUM_THREADS makes no sense. Ops give the same error at their first call.
ROPEPOOL_API Result<void> check_environment();

}  // namespace ropepool
