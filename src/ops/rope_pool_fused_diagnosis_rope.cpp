// Causes of refusals that a Rope brings: lanes it has no room for, sets of frequencies, and tables that end.
#include <fmt/format.h>

#include "core/index_array.h"
#include "core/rope_tables.h"
#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool::diagnosis {

using fmt::format;

Diagnosis rope_fits(const Args& a, const Finding&) {
  const RopeTables& rope = a.rope->tables();
  if (rope.rotary_offset >= a.head_dim) {
    return {format("the rope leaves out the first {} lanes, and heads of {} have no others: q and k may hold the rotated lanes "
                   "alone",
                   rope.rotary_offset, a.head_dim),
            "pass whole heads, or a rope with rotary_offset 0 where the other lanes are kept elsewhere"};
  }
  if (rope.rotary_offset > 0 && rope.rotary_dim == a.head_dim) {
    return {"rotary_dim counts the whole head, and rotary_offset leaves lanes out before that",
            format("with an offset of {} let rotary_dim be {}", rope.rotary_offset, a.head_dim - rope.rotary_offset)};
  }
  if (rope.rotary_offset == 0 && a.head_dim > 0) {
    return {format("the rope may be that of another model, or of layers whose heads have {} lanes", rope.rotary_dim),
            format("make the rope for heads of {}", a.head_dim)};
  }
  return {"", format("make the rope for heads of {}", a.head_dim)};
}

Diagnosis rope_sets(const Args& a, const Finding&) {
  if (!a.rope_sets.given()) {
    return {
        format("the rope has {} sets of frequencies, and which of them a token takes depends on its sequence",
               a.rope->num_sets()),
        "say for each token which set its sequence began with: rope_sets = numpy.repeat(set_of_request, tokens_of_request)"};
  }
  if (a.rope == nullptr) return {"the rope is not passed, or rope_base in its place", "rope = the rope whose sets they are"};
  if (a.rope_sets.dtype == DType::boolean) {
    return {"rope_sets is a mask, which may say what is long", "rope_sets = rope_sets.astype(numpy.int32)"};
  }
  if (a.rope_sets.dtype == DType::f32 || a.rope_sets.dtype == DType::f64) {
    return {format("rope_sets is {}, as numpy.zeros makes it or a division", to_string(a.rope_sets.dtype)),
            "rope_sets = rope_sets.astype(numpy.int32)"};
  }
  if (a.rope_sets.rank() == 0) {
    return {"rope_sets is a single number, and each token has its own", "repeat it: numpy.full(num_tokens, rope_sets)"};
  }
  if (a.rope_sets.rank() == 2) return {"rope_sets has a batch axis, or is a column", "rope_sets = rope_sets.reshape(-1)"};
  if (a.rope_sets.rank() == 1 && a.q.rank() == 3 && a.rope_sets.shape[0] > a.q.shape[0]) {
    return {format("rope_sets has {} entries for {} tokens: it may be that of the padded batch, or of the whole prompt",
                   a.rope_sets.shape[0], a.q.shape[0]),
            "cut rope_sets as q, k and v were cut"};
  }
  if (a.rope_sets.rank() == 1 && a.q.rank() == 3 && a.rope_sets.shape[0] < a.q.shape[0]) {
    return {format("rope_sets has {} entries for {} tokens: it may be one a request", a.rope_sets.shape[0], a.q.shape[0]),
            "repeat each request's set for its tokens: numpy.repeat(rope_sets, tokens_of_request)"};
  }
  return {};
}

Diagnosis rope_set_values(const Args& a, const Finding& finding) {
  const std::int64_t last = a.rope->num_sets() - 1;
  if (finding.actual.front() == '-') {
    return {"negative as the slot of a padding token is, but padding tokens are turned too", "give padding tokens set 0"};
  }
  if (finding.actual == std::to_string(last + 1)) return {"sets may be counted from 1", "count sets from 0"};
  return {format("{} may be a length or a request's number in the place of a set", finding.actual),
          "look the set up by the length the request may reach: 0 up to the trained length, 1 above it"};
}

Diagnosis table_positions(const Args& a, const Finding& finding) {
  const std::int64_t rows = a.rope->tables().table.shape[0];
  if (finding.actual.front() == '-') {
    return {"a table has no row for negative positions", "give padding tokens position 0 and slot -1"};
  }
  if (finding.actual == std::to_string(rows)) {
    return {"one past the end: positions are counted from 1, or the table is one row short", ""};
  }
  return {"the sequence is longer than the table, which may have been made for the length before scaling",
          "make the table as long as the longest sequence that is admitted, or pass frequencies, which have no end"};
}

}  // namespace ropepool::diagnosis
