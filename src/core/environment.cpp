#include "core/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <fmt/format.h>

#include <ropepool/runtime.h>

#include "core/devices.h"

namespace ropepool {
namespace {

Environment read_environment() {
  Environment result;
  if (const char* target = std::getenv("ROPEPOOL_TARGET"); target != nullptr && *target != '\0') result.target = target;
  // Two hardware threads of a core share its load and store units, which is what the ops are bound by: one thread a core.
  result.num_threads = std::min(physical_cores(), kMaxThreads);
  if (const char* text = std::getenv("ROPEPOOL_NUM_THREADS"); text != nullptr && *text != '\0') {
    const std::string_view value = text;
    int number = 0;
    const auto [end, failure] = std::from_chars(value.begin(), value.end(), number);
    if (failure == std::errc() && end == value.end() && number >= 1 && number <= kMaxThreads) {
      result.num_threads = number;
    } else {
      result.error =
          Error::runtime(fmt::format("ROPEPOOL_NUM_THREADS must be a number from 1 to {}, got '{}'", kMaxThreads, value));
    }
  }
  return result;
}

}  // namespace

const Environment& environment() {
  static const Environment& instance = *new Environment(read_environment());  // never destroyed, for calls as late as any
  return instance;
}

int physical_cores() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    std::set<std::pair<int, int>> cores;  // (package, core)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
      int package = -1, core = -1;
      std::ifstream(folder + "physical_package_id") >> package;
      std::ifstream(folder + "core_id") >> core;
      if (core < 0) core = cpu;  // no topology to be read: each CPU counts
      cores.emplace(package, core);
    }
    if (!cores.empty()) return static_cast<int>(cores.size());
  }
#elif defined(__APPLE__)
  int count = 0;
  std::size_t size = sizeof count;
  if (sysctlbyname("hw.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) return count;
#endif
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

const char* version() { return ROPEPOOL_VERSION; }

const Error* environment_error() {
  static const Error* const error = [] {
    if (environment().error) return &*environment().error;
    return cpu_kernels() ? nullptr : &cpu_kernels().error();
  }();
  return error;
}

Result<void> check_environment() {
  if (const Error* error = environment_error()) return *error;
  return {};
}

}  // namespace ropepool
