// Which entry of Highway's dispatch tables a target has.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hwy/targets.h>

namespace ropepool::cpu {

inline std::size_t dispatch_index(std::int64_t target) {
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  // With one target, as by -march=skylake-avx512 or by clang for ARM, Highway's table has one entry, whatever the index.
  constexpr bool kOneTarget = (HWY_TARGETS & (HWY_TARGETS - 1)) == 0;
  return kOneTarget ? 0 : chosen.GetIndex();
}

}  // namespace ropepool::cpu
