// The floor for ctypes.
#include <ropepool/executor.h>

#include "floor.h"

extern "C" {

// `stores` is a bench::Stores, or -1 for memcpy of whole arrays.
__attribute__((visibility("default"))) void floor_copy(const bench::Traffic* traffic, int stores) {
  if (stores < 0) {
    bench::copy_whole(*traffic);
  } else {
    bench::copy(*traffic, static_cast<bench::Stores>(stores));
  }
}

__attribute__((visibility("default"))) int floor_set_num_threads(int num_threads) {
  return ropepool::set_num_threads(num_threads).ok() ? 0 : 1;
}

}  // extern "C"
