// Settings that are read from the environment once, at the first use.
#pragma once

#include <optional>
#include <string>

#include <ropepool/result.h>

namespace ropepool {

struct Environment {
  std::optional<std::string> target;  // ROPEPOOL_TARGET
  int num_threads = 1;                // ROPEPOOL_NUM_THREADS, or the physical cores this process may run on
  std::optional<Error> error;         // where ROPEPOOL_NUM_THREADS is no number from 1 to kMaxThreads
};

inline constexpr int kMaxThreads = 1024;

const Environment& environment();

// What check_environment() says is wrong, found once; null where nothing is.
const Error* environment_error();

// Of those that this process may run on; where the system does not tell, its CPUs. At least 1.
int physical_cores();

}  // namespace ropepool
