// The library's own executor.
#pragma once

#include <ropepool/executor.h>

namespace ropepool {

// As wide as get_num_threads(). Threads start with the first parallel_for that has more than one index, sleep while there is
// nothing to do, and are started anew in the child of a fork. Several threads may call at once and share the workers.
Executor& own_executor();

}  // namespace ropepool
