// Calls from exit handlers, when the main thread's thread_locals are gone and statics may be: they are right as any.
//   ropepool_late_calls          from handlers registered before and after the first call
//   ropepool_late_calls --first  a handler's is the first call of all
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <ropepool/c_api.h>
#include <ropepool/ropepool.h>

#include "op_case.h"

namespace ropepool::test {
namespace {

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

void call() {
  // A table of slots, threads of the executor, the frequencies of the last call and others.
  for (const std::int64_t tokens : {40, 2000}) {
    for (const std::int64_t head_dim : {64, 64, 32}) {
      OpCase c(Geometry{DType::f32, tokens, 8, 8, head_dim, tokens});
      expect(c.run().ok(), "a legal call");
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t slot = index_at(c.args.slots, t), lane = head_dim - 1;
        expect(bits_at(c.args.k_pool, slot, 7, lane) == bits_at(c.args.k_out, t, 7, lane), "k_pool");
        expect(bits_at(c.args.v_pool, slot, 7, lane) == bits_at(c.args.v, t, 7, lane), "v_pool");
      }
      c.args.v.shape[1] = 1;
      const auto refused = c.run();
      expect(!refused.ok() && refused.error().number() == 6 && check(c.args).size() == 1, "a refusal");
    }
  }
  expect(ropepool_set_num_threads(0) != 0, "ropepool_set_num_threads(0)");
  expect(std::strstr(ropepool_last_error_message(), "from 1 to") != nullptr, "ropepool_last_error_message");
  const char* text = ropepool_explain("RP006");
  expect(text != nullptr && std::strstr(text, "v-shape-mismatch") != nullptr, "ropepool_explain");
  expect(ropepool_set_num_threads(2) == 0 && ropepool_get_num_threads() == 2, "ropepool_set_num_threads(2)");
  expect(simd_target().ok() && !simd_target().value().empty(), "simd_target");
  expect(check_environment().ok(), "check_environment");
}

}  // namespace
}  // namespace ropepool::test

int main(int argc, char** argv) {
  using ropepool::test::call;
  std::atexit(call);
  if (argc == 2 && std::strcmp(argv[1], "--first") == 0) return 0;
  call();
  std::atexit(call);
  return 0;
}
