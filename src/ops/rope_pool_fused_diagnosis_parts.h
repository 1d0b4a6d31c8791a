// What the parts of the diagnosis share. Each part has a function for each refusal of its subject, which looks for the mistakes
// that users make there, the likeliest first. Where two mistakes look alike from here the cause names both; where nothing fits
// it stays empty. A mend never has a written array copied: the copy would take the writes. tests/python/mistakes.py has the
// mistakes, and tests/python/test_diagnosis.py follows the mends.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ops/rope_pool_fused_diagnosis.h"

namespace ropepool::diagnosis {

using Args = RopePoolFusedArgs;
using Finding = Error::Finding;
using fmt::format;

// ---- Arguments by name

inline std::array<std::pair<const char*, const Tensor*>, 10> all_arrays(const Args& a) {
  return {{{"q", &a.q},
           {"k", &a.k},
           {"v", &a.v},
           {"positions", &a.positions},
           {"slots", &a.slots},
           {"k_pool", &a.k_pool},
           {"v_pool", &a.v_pool},
           {"q_out", &a.q_out},
           {"k_out", &a.k_out},
           {"rope_sets", &a.rope_sets}}};
}

// nullptr where no array has the name.
inline const Tensor* array_named(const Args& a, std::string_view name) {
  for (const auto& [each, tensor] : all_arrays(a)) {
    if (name == each) return tensor;
  }
  return nullptr;
}

struct Heads {  // what q, k or v should be
  const char* name;
  const Tensor& tensor;
  const char* count_name;
  std::int64_t count;
};

inline Heads q_heads(const Args& a) { return {"q", a.q, "num_qo_heads", a.num_qo_heads}; }
inline Heads k_heads(const Args& a) { return {"k", a.k, "num_kv_heads", a.num_kv_heads}; }
inline Heads v_heads(const Args& a) { return {"v", a.v, "num_kv_heads", a.num_kv_heads}; }
inline Heads heads_named(const Args& a, std::string_view name) {
  return name == "q" ? q_heads(a) : name == "k" ? k_heads(a) : v_heads(a);
}

// ---- Questions that several rules ask

inline bool is_1d(const Tensor& tensor) { return tensor.rank() == 1; }
inline bool is_3d(const Tensor& tensor) { return tensor.rank() == 3; }
inline bool same_data(const Tensor& x, const Tensor& y) { return x.data != nullptr && x.data == y.data; }

// n where `whole` is n times `part`, 0 where it is not.
inline std::int64_t times(std::int64_t whole, std::int64_t part) { return part > 0 && whole % part == 0 ? whole / part : 0; }

inline std::int64_t packed_heads(const Args& a) { return a.num_qo_heads + 2 * a.num_kv_heads; }

// -1 where the product doesn't fit.
inline std::int64_t elements(const Shape& shape) {
  std::int64_t product = 1;
  for (std::int64_t length : shape) {
    if (__builtin_mul_overflow(product, length, &product)) return -1;
  }
  return product;
}

// ---- Where several mistakes leave the same arguments behind

class Candidates {
 public:
  // `agrees`: the call's other arguments speak for it. Where they do for any, the others are not named.
  void add(std::string cause, std::string hint, bool agrees = true) {
    (agrees ? agreeing_ : other_).push_back({std::move(cause), std::move(hint)});
  }
  bool empty() const { return agreeing_.empty() && other_.empty(); }

  // "what: cause", or "what: either cause, or cause".
  Diagnosis named(const std::string& what) const {
    const std::vector<Diagnosis>& all = agreeing_.empty() ? other_ : agreeing_;
    if (all.empty()) return {};
    Diagnosis result{what + (all.size() == 1 ? ": " : ": either "), ""};
    for (const Diagnosis& each : all) {
      if (&each != &all.front()) result.cause += ", or ";
      result.cause += each.cause;
      if (each.hint.empty() || result.hint.find(each.hint) != std::string::npos) continue;
      if (!result.hint.empty()) result.hint += ", or ";
      result.hint += each.hint;
    }
    return result;
  }

 private:
  std::vector<Diagnosis> agreeing_, other_;
};

// ---- A function for each refusal

// Shapes
Diagnosis qkv_rank(const Args&, const Finding&);
Diagnosis positions_slots_rank(const Args&, const Finding&);
Diagnosis pools_rank(const Args&, const Finding&);
Diagnosis q_shape(const Args&, const Finding&);
Diagnosis k_shape(const Args&, const Finding&);
Diagnosis v_shape(const Args&, const Finding&);
Diagnosis token_count(const Args&, const Finding&);
Diagnosis k_pool_shape(const Args&, const Finding&);
Diagnosis v_pool_shape(const Args&, const Finding&);

// Dtypes
Diagnosis qkv_dtypes(const Args&, const Finding&);
Diagnosis pool_dtypes(const Args&, const Finding&);
Diagnosis float_dtypes(const Args&, const Finding&);
Diagnosis index_dtypes(const Args&, const Finding&);

// Memory
Diagnosis layout(const Args&, const Finding&);
Diagnosis outputs(const Args&, const Finding&);
Diagnosis devices(const Args&, const Finding&);
Diagnosis overlap(const Args&, const Finding&);

// Values
Diagnosis geometry(const Args&, const Finding&);
Diagnosis rope(const Args&, const Finding&);
Diagnosis slot_values(const Args&, const Finding&);
Diagnosis position_values(const Args&, const Finding&);
Diagnosis rope_fits(const Args&, const Finding&);
Diagnosis rope_sets(const Args&, const Finding&);
Diagnosis rope_set_values(const Args&, const Finding&);
Diagnosis table_positions(const Args&, const Finding&);

// HeadOps
Diagnosis head_ops(const Args&, const Finding&);

}  // namespace ropepool::diagnosis
