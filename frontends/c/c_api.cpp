// The C interface: DLTensor in, a number out. No exception leaves it.
#include <ropepool/c_api.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <ropepool/catalog.h>
#include <ropepool/executor.h>
#include <ropepool/rerotate.h>
#include <ropepool/rope_alone.h>
#include <ropepool/rope_config.h>
#include <ropepool/rope_pool_fused.h>
#include <ropepool/rope_pool_fused_qkv.h>
#include <ropepool/runtime.h>
#include <ropepool/write_kv.h>

#include "core/executor.h"
#include "core/of_this_thread.h"
#include "dlpack.h"

struct ropepool_rope {
  ropepool::Rope rope;
};

namespace {

using ropepool::Error;
using ropepool::HeadNorm;
using ropepool::Result;
using ropepool::Rope;
using ropepool::Tensor;
using Options = ropepool_rope_pool_fused_options;

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

int out_of_memory() { return fail(ROPEPOOL_OUT_OF_MEMORY, "out of memory"); }

int unknown_size(const char* what, const char* type, std::size_t size, std::size_t known) {
  return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("{}->size is {}, but this library knows the size {}: set it to sizeof({}) "
                                                     "of the header that came with the library",
                                                     what, size, known, type));
}

template <class Args>
int run(Result<void> (*op)(const Args&, ropepool::Executor*), const Args& args, int num_threads) {
  if (num_threads == 0) return finish(op(args, nullptr));
  NarrowExecutor executor(num_threads);
  return finish(op(args, &executor));
}

// ---- What calls have in common

// An array of a call, and where it goes.
struct Array {
  const char* name;
  const DLTensor* source;
  Tensor& tensor;
  bool may_be_null = false;
};

int check_array(const char* name, const DLTensor* source, bool may_be_null) {
  if (source == nullptr) {
    return may_be_null ? ROPEPOOL_OK : fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
  }
  if (source->ndim > 0 && source->shape == nullptr) {
    return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("{}->shape is NULL", name));
  }
  return ROPEPOOL_OK;
}

int read(std::initializer_list<Array> arrays) {
  for (const auto& [name, source, tensor, may_be_null] : arrays) {
    if (const int number = check_array(name, source, may_be_null)) return number;
    if (source != nullptr) ropepool::from_dlpack(*source, tensor);
  }
  return ROPEPOOL_OK;
}

int check_num_threads(int num_threads) {
  if (num_threads >= 0) return ROPEPOOL_OK;
  return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("options->num_threads is {}", num_threads));
}

// Of ops whose options have had one size so far.
template <class OpOptions>
int check(const OpOptions* options, const char* type) {
  if (options == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "options is NULL");
  if (options->size != sizeof *options) return unknown_size("options", type, options->size, sizeof *options);
  return check_num_threads(options->num_threads);
}

template <class OpOptions, class Args>
void read_rope(const OpOptions& options, Args& args) {
  args.angles = static_cast<ropepool::Angles>(options.angles);
  if (options.rope != nullptr) args.rope = &options.rope->rope;
  if (options.rope == nullptr || options.rope_base != 0) args.rope_base = options.rope_base;
}

int read_norm(const std::string& name, const ropepool_head_norm* given, std::optional<HeadNorm>& norm) {
  if (given == nullptr) return ROPEPOOL_OK;
  if (given->size != sizeof *given) return unknown_size(name.c_str(), "ropepool_head_norm", given->size, sizeof *given);
  if (given->kind != ROPEPOOL_NORM_RMS && given->kind != ROPEPOOL_NORM_LAYER) {
    return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("{}->kind is {}", name, given->kind));
  }
  norm.emplace();
  norm->kind = given->kind == ROPEPOOL_NORM_RMS ? HeadNorm::Kind::rms : HeadNorm::Kind::layer;
  if (given->eps != 0) norm->eps = given->eps;
  norm->unit_offset = given->unit_offset != 0;
  return read({{(name + "->weight").c_str(), given->weight, norm->weight, true}});
}

int read_head_ops(const ropepool_head_ops& given, ropepool::HeadOps& ops) {
  if (given.size != sizeof given) return unknown_size("options->head_ops", "ropepool_head_ops", given.size, sizeof given);
  if (const int number = read({{"options->head_ops->q_bias", given.q_bias, ops.q_bias, true},
                               {"options->head_ops->k_bias", given.k_bias, ops.k_bias, true},
                               {"options->head_ops->v_bias", given.v_bias, ops.v_bias, true}})) {
    return number;
  }
  if (const int number = read_norm("options->head_ops->q_norm", given.q_norm, ops.q_norm)) return number;
  if (const int number = read_norm("options->head_ops->k_norm", given.k_norm, ops.k_norm)) return number;
  if (given.q_scale != 0) ops.q_scale = given.q_scale;
  return ROPEPOOL_OK;
}

// ---- rope_pool_fused

// What few calls have, apart from call(): there it costs all the others 13 ns of some 520.
[[gnu::noinline]] int call_with_more(ropepool::RopePoolFusedArgs& args, const Options& options) {
  if (options.v_head_dim != 0) args.v_head_dim = options.v_head_dim;
  if (options.head_ops == nullptr) return run(ropepool::rope_pool_fused, args, options.num_threads);
  ropepool::HeadOps ops;
  if (const int number = read_head_ops(*options.head_ops, ops)) return number;
  args.head_ops = &ops;
  return run(ropepool::rope_pool_fused, args, options.num_threads);
}

int call(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions, const DLTensor* slots,
         const DLTensor* k_pool, const DLTensor* v_pool, const DLTensor* q_out, const DLTensor* k_out, const Options& options) {
  ropepool::RopePoolFusedArgs args;
  if (const int number = read({{"q", q, args.q},
                               {"k", k, args.k},
                               {"v", v, args.v},
                               {"positions", positions, args.positions},
                               {"slots", slots, args.slots},
                               {"k_pool", k_pool, args.k_pool},
                               {"v_pool", v_pool, args.v_pool},
                               {"q_out", q_out, args.q_out, true},  // whose absence the contract judges
                               {"k_out", k_out, args.k_out, true}})) {
    return number;
  }
  if (const int number = check_num_threads(options.num_threads)) return number;
  args.head_dim = options.head_dim;
  args.num_qo_heads = options.num_qo_heads;
  args.num_kv_heads = options.num_kv_heads;
  read_rope(options, args);
  if (options.rope_sets != nullptr) {
    if (const int number = read({{"options->rope_sets", options.rope_sets, args.rope_sets}})) return number;
  }
  if (options.v_head_dim != 0 || options.head_ops != nullptr) return call_with_more(args, options);
  return run(ropepool::rope_pool_fused, args, options.num_threads);
}

// ---- Ropes

// 0, and *rope NULL until there is one.
int begin(ropepool_rope** rope) {
  if (rope == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "rope is NULL");
  *rope = nullptr;
  return ROPEPOOL_OK;
}

int finish(Result<Rope> made, ropepool_rope** rope) {
  if (!made) return fail(made.error().number(), made.error().message());
  *rope = new ropepool_rope{std::move(made.value())};
  return ROPEPOOL_OK;
}

int read_form(const ropepool_rope_form* given, ropepool::RopeForm& form) {
  if (given == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "form is NULL");
  if (given->size != sizeof *given) return unknown_size("form", "ropepool_rope_form", given->size, sizeof *given);
  if (given->pairing != ROPEPOOL_PAIRING_NEOX && given->pairing != ROPEPOOL_PAIRING_INTERLEAVED) {
    return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("form->pairing is {}", given->pairing));
  }
  if (given->section_order != ROPEPOOL_SECTIONS_BLOCKS && given->section_order != ROPEPOOL_SECTIONS_INTERLEAVED) {
    return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("form->section_order is {}", given->section_order));
  }
  if (given->num_sections < 0 || (given->num_sections > 0) != (given->sections != nullptr)) {
    return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("form->num_sections is {}, and form->sections {}", given->num_sections,
                                                       given->sections == nullptr ? "NULL" : "given"));
  }
  form.base = given->base;
  form.rotary_dim = given->rotary_dim;
  form.rotary_offset = given->rotary_offset;
  form.pairing = static_cast<ropepool::Pairing>(given->pairing);
  if (given->num_sections > 0) {
    form.sections = {{given->sections, given->sections + given->num_sections},
                     static_cast<ropepool::Sections::Order>(given->section_order)};
  }
  if (given->attention_scale != 0) form.attention_scale = given->attention_scale;
  return ROPEPOOL_OK;
}

// Where frequencies or a table stand in the place of a base.
int read_form_without_base(const ropepool_rope_form* given, ropepool::RopeForm& form) {
  const int number = read_form(given, form);
  if (form.base == 0) form.base = ropepool::RopeForm{}.base;
  return number;
}

ropepool::RopeConfigOptions config_options(const char* layer_type, std::int64_t length) {
  ropepool::RopeConfigOptions options;
  if (layer_type != nullptr) options.layer_type = layer_type;
  if (length != 0) options.length = length;
  return options;
}

Result<std::string> text_of_config(std::string path) {
  std::error_code no_folder;
  if (std::filesystem::is_directory(path, no_folder)) path += "/config.json";
  const auto cannot_read = [&] {
    return Error::runtime(fmt::format("cannot read {}: {}", path, std::generic_category().message(errno)));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return cannot_read();
  std::string text;
  char part[65536];
  while (const std::size_t count = std::fread(part, 1, sizeof part, file.get())) text.append(part, count);
  if (std::ferror(file.get()) != 0) return cannot_read();
  return text;
}

template <class Property>
auto of_rope(const ropepool_rope* rope, Property property) -> decltype(property(rope->rope)) {
  if (rope == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "rope is NULL");
  return property(rope->rope);
}

}  // namespace

int ropepool_rope_pool_fused_with(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions,
                                  const DLTensor* slots, const DLTensor* k_pool, const DLTensor* v_pool, const DLTensor* q_out,
                                  const DLTensor* k_out, const ropepool_rope_pool_fused_options* options) try {
  if (options == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "options is NULL");
  // The sizes that a header has had; the first one ended before rope, the second before v_head_dim.
  constexpr std::size_t kSizes[] = {offsetof(Options, rope), offsetof(Options, v_head_dim), sizeof(Options)};
  if (std::find(std::begin(kSizes), std::end(kSizes), options->size) == std::end(kSizes)) {
    return unknown_size("options", "ropepool_rope_pool_fused_options", options->size, sizeof(Options));
  }
  if (options->size == sizeof(Options)) return call(q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, *options);
  Options whole{};
  std::memcpy(&whole, options, options->size);
  return call(q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, whole);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int ropepool_rope_pool_fused(const DLTensor* q, const DLTensor* k, const DLTensor* v, const DLTensor* positions,
                             const DLTensor* slots, const DLTensor* k_pool, const DLTensor* v_pool, const DLTensor* q_out,
                             const DLTensor* k_out, int64_t head_dim, int64_t num_qo_heads, int64_t num_kv_heads,
                             double rope_base) try {
  const Options options = {sizeof options, head_dim, num_qo_heads, num_kv_heads, rope_base, ROPEPOOL_ANGLES_EXACT, 0, nullptr,
                           nullptr,        0,        nullptr};
  return call(q, k, v, positions, slots, k_pool, v_pool, q_out, k_out, options);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int ropepool_rope_pool_fused_qkv(const DLTensor* qkv, const DLTensor* positions, const DLTensor* slots, const DLTensor* k_pool,
                                 const DLTensor* v_pool, const DLTensor* q_out, const DLTensor* k_out,
                                 const ropepool_rope_pool_fused_qkv_options* options) try {
  if (const int number = check(options, "ropepool_rope_pool_fused_qkv_options")) return number;
  ropepool::RopePoolFusedQkvArgs args;
  if (const int number = read({{"qkv", qkv, args.qkv},
                               {"positions", positions, args.positions},
                               {"slots", slots, args.slots},
                               {"k_pool", k_pool, args.k_pool},
                               {"v_pool", v_pool, args.v_pool},
                               {"q_out", q_out, args.q_out, true},
                               {"k_out", k_out, args.k_out, true},
                               {"options->rope_sets", options->rope_sets, args.rope_sets, true},
                               {"options->bias", options->bias, args.bias, true}})) {
    return number;
  }
  if (const int number = read_norm("options->q_norm", options->q_norm, args.q_norm)) return number;
  if (const int number = read_norm("options->k_norm", options->k_norm, args.k_norm)) return number;
  args.head_dim = options->head_dim;
  args.num_qo_heads = options->num_qo_heads;
  args.num_kv_heads = options->num_kv_heads;
  read_rope(*options, args);
  args.order = static_cast<ropepool::QkvOrder>(options->order);
  args.in_place = options->in_place != 0;
  if (options->q_scale != 0) args.q_scale = options->q_scale;
  return run(ropepool::rope_pool_fused_qkv, args, options->num_threads);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int ropepool_apply_rope(const DLTensor* q, const DLTensor* k, const DLTensor* positions, const DLTensor* q_out,
                        const DLTensor* k_out, const ropepool_apply_rope_options* options) try {
  if (const int number = check(options, "ropepool_apply_rope_options")) return number;
  ropepool::RopeArgs args;
  if (const int number = read({{"q", q, args.q},
                               {"k", k, args.k},
                               {"positions", positions, args.positions},
                               {"q_out", q_out, args.q_out, true},
                               {"k_out", k_out, args.k_out, true},
                               {"options->rope_sets", options->rope_sets, args.rope_sets, true}})) {
    return number;
  }
  args.head_dim = options->head_dim;
  args.num_qo_heads = options->num_qo_heads;
  args.num_kv_heads = options->num_kv_heads;
  read_rope(*options, args);
  return run(ropepool::rope, args, options->num_threads);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int ropepool_write_kv(const DLTensor* k, const DLTensor* v, const DLTensor* slots, const DLTensor* k_pool,
                      const DLTensor* v_pool, const ropepool_write_kv_options* options) try {
  if (const int number = check(options, "ropepool_write_kv_options")) return number;
  ropepool::WriteKvArgs args;
  if (const int number = read({{"k", k, args.k},
                               {"v", v, args.v},
                               {"slots", slots, args.slots},
                               {"k_pool", k_pool, args.k_pool},
                               {"v_pool", v_pool, args.v_pool}})) {
    return number;
  }
  args.head_dim = options->head_dim;
  args.num_kv_heads = options->num_kv_heads;
  if (options->v_head_dim != 0) args.v_head_dim = options->v_head_dim;
  return run(ropepool::write_kv, args, options->num_threads);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int ropepool_rerotate(const DLTensor* k_pool, const DLTensor* slots, const DLTensor* old_positions,
                      const DLTensor* new_positions, const ropepool_rerotate_options* options) try {
  if (const int number = check(options, "ropepool_rerotate_options")) return number;
  ropepool::RerotateArgs args;
  if (const int number = read({{"k_pool", k_pool, args.k_pool},
                               {"slots", slots, args.slots},
                               {"old_positions", old_positions, args.old_positions},
                               {"new_positions", new_positions, args.new_positions},
                               {"options->old_sets", options->old_sets, args.old_sets, true},
                               {"options->new_sets", options->new_sets, args.new_sets, true}})) {
    return number;
  }
  args.head_dim = options->head_dim;
  args.num_kv_heads = options->num_kv_heads;
  read_rope(*options, args);
  return run(ropepool::rerotate, args, options->num_threads);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// A list that is longer than memory is a std::length_error.
int ropepool_rope_make(const ropepool_rope_form* form, ropepool_rope** rope) try {
  ropepool::RopeForm read;
  if (const int number = begin(rope)) return number;
  if (const int number = read_form(form, read)) return number;
  return finish(Rope::make(read), rope);
} catch (const std::exception&) {
  return out_of_memory();
}

int ropepool_rope_from_frequencies(const double* frequencies, int64_t num_frequencies, const ropepool_rope_form* form,
                                   ropepool_rope** rope) try {
  ropepool::RopeForm read;
  if (const int number = begin(rope)) return number;
  if (frequencies == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "frequencies is NULL");
  if (num_frequencies < 0) return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("num_frequencies is {}", num_frequencies));
  if (const int number = read_form_without_base(form, read)) return number;
  return finish(Rope::from_frequencies({frequencies, frequencies + num_frequencies}, read), rope);
} catch (const std::exception&) {
  return out_of_memory();
}

int ropepool_rope_from_table(const DLTensor* cos_sin, const ropepool_rope_form* form, ropepool_rope** rope) try {
  ropepool::RopeForm read;
  if (const int number = begin(rope)) return number;
  if (cos_sin == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "cos_sin is NULL");
  if (cos_sin->ndim > 0 && cos_sin->shape == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "cos_sin->shape is NULL");
  if (const int number = read_form_without_base(form, read)) return number;
  ropepool::Tensor table;
  ropepool::from_dlpack(*cos_sin, table);
  return finish(Rope::from_table(table, read), rope);
} catch (const std::exception&) {
  return out_of_memory();
}

int ropepool_rope_from_config(const char* json, const char* layer_type, int64_t length, ropepool_rope** rope) try {
  if (const int number = begin(rope)) return number;
  if (json == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "json is NULL");
  return finish(ropepool::rope_from_config(json, config_options(layer_type, length)), rope);
} catch (const std::exception&) {
  return out_of_memory();
}

int ropepool_rope_from_config_file(const char* path, const char* layer_type, int64_t length, ropepool_rope** rope) try {
  if (const int number = begin(rope)) return number;
  if (path == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "path is NULL");
  const auto text = text_of_config(path);
  if (!text) return fail(text.error().number(), text.error().message());
  return finish(ropepool::rope_from_config(text.value(), config_options(layer_type, length)), rope);
} catch (const std::exception&) {
  return out_of_memory();
}

int ropepool_rope_join(const ropepool_rope* const* ropes, int64_t num_ropes, ropepool_rope** rope) try {
  if (const int number = begin(rope)) return number;
  if (ropes == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, "ropes is NULL");
  if (num_ropes < 0) return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("num_ropes is {}", num_ropes));
  std::vector<Rope> parts;
  for (int64_t i = 0; i < num_ropes; ++i) {
    if (ropes[i] == nullptr) return fail(ROPEPOOL_INVALID_ARGUMENT, fmt::format("ropes[{}] is NULL", i));
    parts.push_back(ropes[i]->rope);
  }
  return finish(Rope::join(parts), rope);
} catch (const std::exception&) {
  return out_of_memory();
}

void ropepool_rope_free(ropepool_rope* rope) { delete rope; }

int64_t ropepool_rope_rotary_dim(const ropepool_rope* rope) {
  return of_rope(rope, [](const Rope& r) { return r.rotary_dim(); });
}
int64_t ropepool_rope_rotary_offset(const ropepool_rope* rope) {
  return of_rope(rope, [](const Rope& r) { return r.rotary_offset(); });
}
int ropepool_rope_pairing(const ropepool_rope* rope) {
  return of_rope(rope, [](const Rope& r) { return static_cast<int>(r.pairing()); });
}
int64_t ropepool_rope_num_sets(const ropepool_rope* rope) {
  return of_rope(rope, [](const Rope& r) { return r.num_sets(); });
}
int64_t ropepool_rope_num_axes(const ropepool_rope* rope) {
  return of_rope(rope, [](const Rope& r) { return r.num_axes(); });
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
  return out_of_memory();
}

int ropepool_get_num_threads(void) try { return ropepool::get_num_threads(); } catch (const std::bad_alloc&) {
  return out_of_memory();
}

const char* ropepool_version(void) { return ropepool::version(); }
