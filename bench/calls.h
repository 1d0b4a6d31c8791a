// Calls that have next to nothing to do: what they cost beside the work.
#pragma once

#include <string>
#include <vector>

namespace bench {

struct CallTime {
  std::string name;
  double min, median;  // seconds a call
};
// One head, one token, everything in the caches: by C++ and by C, interleaved.
std::vector<CallTime> time_calls(double seconds);

// For counting instructions: `count` calls of one kind, nothing else.
void run_scenario(const std::string& name, long count);
std::string scenario_names();

}  // namespace bench
