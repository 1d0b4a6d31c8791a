#include "core/devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwy/targets.h>

#include <ropepool/runtime.h>

#include "core/environment.h"
#include "cpu/kernels.h"

namespace ropepool {
namespace {

// The targets in `mask`, best first: Highway gives better ones lower bits.
std::vector<std::int64_t> targets_in(std::int64_t mask) {
  std::vector<std::int64_t> result;
  for (; mask != 0; mask &= mask - 1) result.push_back(mask & -mask);
  return result;
}

std::vector<std::string> names_of(const std::vector<std::int64_t>& targets) {
  std::vector<std::string> result;
  for (std::int64_t target : targets) result.emplace_back(hwy::TargetName(target));
  return result;
}

std::vector<std::int64_t> compiled_targets() { return targets_in(HWY_TARGETS); }
std::vector<std::int64_t> usable_targets() { return targets_in(HWY_TARGETS & hwy::SupportedTargets()); }

Kernels kernels_of(std::int64_t target) {
  return {hwy::TargetName(target), cpu::rope_pool_fused_kernel(target), cpu::rope_pool_fused_prologue_kernel(target),
          cpu::write_kv_kernel(target), cpu::rerotate_kernel(target)};
}

Result<Kernels> choose_kernels() {
  const auto usable = usable_targets();
  const auto& wanted = environment().target;
  if (!wanted) return kernels_of(usable.front());
  for (std::int64_t target : usable) {
    if (*wanted == hwy::TargetName(target)) return kernels_of(target);
  }
  for (const std::string& name : compiled_simd_targets()) {
    if (*wanted == name) {
      return Error::runtime(
          fmt::format("ROPEPOOL_TARGET is {}, which this CPU can't run; it can run {}", name, fmt::join(simd_targets(), ", ")));
    }
  }
  return Error::runtime(fmt::format("ROPEPOOL_TARGET is '{}', which this build does not have; it has {}", *wanted,
                                    fmt::join(compiled_simd_targets(), ", ")));
}

}  // namespace

std::vector<std::string> compiled_simd_targets() { return names_of(compiled_targets()); }
std::vector<std::string> simd_targets() { return names_of(usable_targets()); }

const Result<Kernels>& cpu_kernels() {
  static const auto& chosen = *new Result<Kernels>(choose_kernels());  // never destroyed, for calls as late as any
  return chosen;
}

Result<std::string> simd_target() {
  if (!cpu_kernels()) return cpu_kernels().error();
  return cpu_kernels().value().target;
}

}  // namespace ropepool
