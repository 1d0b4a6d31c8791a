// The C interface: DLTensor in, a number out. No exception leaves it.
#include <ropepool/c_api.h>

#include <new>
#include <string>

#include <fmt/format.h>

#include <ropepool/catalog.h>
#include <ropepool/executor.h>
#include <ropepool/rope_pool_fused.h>
#include <ropepool/runtime.h>

#include "core/executor.h"
#include "core/of_this_thread.h"
#include "dlpack.h"

namespace {

using ropepool::Error;
using ropepool::Result;

// Of the calling thread.
struct LastMessage {
  std::string text;
};
struct LastExplanation {
  std::string text;
};

int fail(int number, std::string message) {
  ropepool::of_this_thread<LastMessage>().text = std::move(message);
  return number;
}

int finish(const Result<void>& result) {
  if (result.ok()) return ROPEPOOL_OK;
  return fail(result.error().number(), result.error().message());
}

// At most `width` threads of the library's own.
class NarrowExecutor final : public ropepool::Executor {
 public:
  explicit NarrowExecutor(int width) : width_(width) {}
  int width() const override { return std::min(width_, ropepool::own_executor().width()); }
  void parallel_for(std::int64_t count, ropepool::RangeBody body) override {
    if (width() == 1) {
      body(0, count);
      return;
    }
    // As many indices as threads, so that no more of them find work.
    const std::int64_t parts = std::min<std::int64_t>(width(), count);
    ropepool::own_executor().parallel_for(parts, [&](std::int64_t begin, std::int64_t end) {
      body(count / parts * begin + count % parts * begin / parts, count / parts * end + count % parts * end / parts);
    });
  }

 private:
  int width_;
};

}  // namespace

int ropepool_rope_pool_fused_with(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions,
                                  const DLTensor* slots, const DLTensor* k_pool, const DLTensor* v_pool, const DLTensor* q_out,
                                  const DLTensor* k_out, const ropepool_rope_pool_fused_options* options) try {
  if (options == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "options is NULL");
  if (options->size != sizeof(ropepool_rope_pool_fused_options)) {
    return fail(ROPEPOOL_INVALID_ARGUMENT,
                fmt::format("options->size is {}, but this library knows the size {}: set it to "
                            "sizeof(ropepool_rope_pool_fused_options) of the header that came with the library",
                            options->size, sizeof(ropepool_rope_pool_fused_options)));
  }
  struct Argument {
    const char* name;
    const DLTensor* tensor;
    bool may_be_null = false;  // as outputs, whose absence the contract judges
  };
  for (const auto& [name, tensor, may_be_null] :
       {Argument{"q", q}, Argument{"k", k}, Argument{"v", v}, Argument{"positions", positions}, Argument{"slots", slots},
        Argument{"k_pool", k_pool}, Argument{"v_pool", v_pool}, Argument{"q_out", q_out, true},
        Argument{"k_out", k_out, true}}) {
    if (tensor == nullptr && !may_be_null) return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
    if (tensor != nullptr && tensor->ndim > 0 && tensor->shape == nullptr) {
      return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("{}->shape is NULL", name));
    }
  }
  if (options->num_threads < 0) {
    return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("options->num_threads is {}", options->num_threads));
  }
  ropepool::RopePoolFusedArgs args;
  ropepool::from_dlpack(*q, args.q);
  ropepool::from_dlpack(*k, args.k);
  ropepool::from_dlpack(*v, args.v);
  ropepool::from_dlpack(*positions, args.positions);
  ropepool::from_dlpack(*slots, args.slots);
  ropepool::from_dlpack(*k_pool, args.k_pool);
  ropepool::from_dlpack(*v_pool, args.v_pool);
  if (q_out != nullptr) ropepool::from_dlpack(*q_out, args.q_out);
  if (k_out != nullptr) ropepool::from_dlpack(*k_out, args.k_out);
  args.head_dim = options->head_dim;
  args.num_qo_heads = options->num_qo_heads;
  args.num_kv_heads = options->num_kv_heads;
  args.rope_base = options->rope_base;
  args.angles = static_cast<ropepool::Angles>(options->angles);
  if (options->num_threads == 0) return finish(ropepool::rope_pool_fused(args));
  NarrowExecutor executor(options->num_threads);
  return finish(ropepool::rope_pool_fused(args, &executor));
} catch (const std::bad_alloc&) {
  return fail(ROPEPOOL_OUT_OF_MEMORY, "out of memory");
}

int ropepool_rope_pool_fused(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions,
                             const DLTensor* slots, const DLTensor* k_pool, const DLTensor* v_pool, const DLTensor* q_out,
                             const DLTensor* k_out, int64_t head_dim, int64_t num_qo_heads, int64_t num_kv_heads,
                             double rope_base) {
  const ropepool_rope_pool_fused_options options = {sizeof options,        head_dim, num_qo_heads, num_kv_heads, rope_base,
                                                    ROPEPOOL_ANGLES_EXACT, 0};
  return ropepool_rope_pool_fused_with(q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, &options);
}

const char* ropepool_last_error_message(void) { return ropepool::of_this_thread<LastMessage>().text.c_str(); }

const char* ropepool_explain(const char* what) try {
  std::string& text = ropepool::of_this_thread<LastExplanation>().text;
  if (what == nullptr) return nullptr;
  const auto refusal = ropepool::find_refusal(what);
  if (!refusal) return nullptr;
  text = ropepool::explain(*refusal);
  return text.c_str();
} catch (const std::bad_alloc&) {
  return nullptr;
}

int ropepool_set_num_threads(int num_threads) try {
  const auto done = ropepool::set_num_threads(num_threads);
  return done.ok() ? ROPEPOOL_OK : fail(ROPEPOOL_INVALID_ARGUMENT, done.error().message());
} catch (const std::bad_alloc&) {
  return fail(ROPEPOOL_OUT_OF_MEMORY, "out of memory");
}

int ropepool_get_num_threads(void) try { return ropepool::get_num_threads(); } catch (const std::bad_alloc&) {
  return fail(ROPEPOOL_OUT_OF_MEMORY, "out of memory");
}

const char* ropepool_version(void) { return ropepool::version(); }
