// RP001 to RP009: what shapes say about a mistake.
#include <algorithm>
#include <cstdlib>

#include "core/dtype.h"
#include "ops/rope_pool_fused.h"
#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool::diagnosis {
namespace {

// The token count as positions and slots have it, -1 where they don't agree.
std::int64_t index_tokens(const Args& a) {
  return is_1d(a.positions) && is_1d(a.slots) && a.positions.shape[0] == a.slots.shape[0] ? a.positions.shape[0] : -1;
}

std::int64_t head_count(const Tensor& x) { return is_3d(x) ? x.shape[1] : -1; }

std::string reshape(const char* name, std::int64_t heads, std::int64_t head_dim) {
  return format("{0} = {0}.reshape(-1, {1}, {2})", name, heads, head_dim);
}
std::string reshape(const Heads& x, std::int64_t head_dim) { return reshape(x.name, x.count, head_dim); }

// Q, K and V of a packed projection, [..., (num_qo_heads + 2 * num_kv_heads) * head_dim].
std::string split_packed(const Args& a) {
  const auto part = [&](const char* name, const char* lanes, std::int64_t heads) {
    return format("{} = qkv[..., {}].reshape(-1, {}, {})", name, lanes, heads, a.head_dim);
  };
  return format("{}; {}; {}", part("q", ":q_size", a.num_qo_heads), part("k", "q_size : q_size + kv_size", a.num_kv_heads),
                part("v", "q_size + kv_size :", a.num_kv_heads));
}

// The same where it was split into heads already, and is passed as `name`.
std::string split_packed_heads(const Args& a, const char* name) {
  const std::int64_t k = a.num_qo_heads, v = k + a.num_kv_heads;
  return format("qkv = {0}; q = qkv[:, :{1}]; k = qkv[:, {1}:{2}]; v = qkv[:, {2}:]", name, k, v);
}

// Whether one axis can stand for this one and the next without a copy.
bool merges(const Tensor& x, int axis) {
  std::int64_t step = 0;
  return x.shape[axis] <= 1 || x.shape[axis + 1] <= 1 ||
         (!__builtin_mul_overflow(x.strides[axis + 1], x.shape[axis + 1], &step) && step == x.strides[axis]);
}

using Names = std::vector<const char*>;

// "k_pool = k_pool{call}; v_pool = v_pool{call}".
std::string each(const Names& names, const std::string& call) {
  std::string text;
  for (const char* name : names) text += format("{0}{1} = {1}{2}", text.empty() ? "" : "; ", name, call);
  return text;
}

// Pools in other axes; as a view, since a copy would take the writes.
std::string pool_view(const Args& a, const Names& pools, const char* layer, bool is_view) {
  if (is_view) return each(pools, format("{}.reshape(-1, {}, {})", layer, a.num_kv_heads, a.head_dim));
  return format(
      "allocate {} as [num_slots, {}, {}]: these strides have no such view, and a reshape would be a copy that takes "
      "the writes",
      fmt::join(pools, " and "), a.num_kv_heads, a.head_dim);
}

// Whether the two pools are, or lie in, one array.
bool one_pool(const Args& a) {
  const auto begins_within = [](const Tensor& inner, const Tensor& outer) {
    const std::int64_t count = elements(outer.shape), item = item_size(outer.dtype);
    const auto begin = reinterpret_cast<std::uintptr_t>(outer.data), at = reinterpret_cast<std::uintptr_t>(inner.data);
    return count > 0 && item > 0 && at >= begin &&
           (at - begin) / static_cast<std::uintptr_t>(item) < static_cast<std::uintptr_t>(count);
  };
  if (a.k_pool.data == nullptr || a.v_pool.data == nullptr) return false;
  return same_data(a.k_pool, a.v_pool) || begins_within(a.v_pool, a.k_pool) || begins_within(a.k_pool, a.v_pool);
}

// ---- RP001: axes of q, k and v

Diagnosis one_axis(const Args& a, const Heads& x) {
  const std::int64_t n = x.tensor.shape[0], mine = x.count * a.head_dim, packed = packed_heads(a) * a.head_dim;
  const std::int64_t tokens = index_tokens(a);
  if (mine < 1 || packed < 1 || n < 1) return {};
  if (n == mine) return {format("{} is one token without its token axis and without heads", x.name), reshape(x, a.head_dim)};
  Candidates c;
  if (times(n, mine) > 0)
    c.add(format("its {} elements are those of {} tokens", n, n / mine), reshape(x, a.head_dim), n / mine == tokens);
  if (times(n, packed) > 0) {
    c.add(format("its {} elements are the whole packed QKV of {} tokens", n, n / packed),
          format("qkv = {}.reshape(-1, {}), then {}", x.name, packed, split_packed(a)), n / packed == tokens);
  }
  return c.named(format("{} was flattened to one axis", x.name));
}

Diagnosis two_axes(const Args& a, const Heads& x) {
  const Shape& s = x.tensor.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads, tokens = index_tokens(a);
  if (d < 1 || hq < 1 || hk < 1) return {};
  const bool is_q = &x.tensor == &a.q;
  const auto fix = reshape(x, d);
  if (s[1] == x.count * d) {
    return {format("{} was not split into heads: its last axis still holds {} * head_dim = {} * {} lanes", x.name, x.count_name,
                   x.count, d),
            fix};
  }
  if (s[1] == packed_heads(a) * d) {
    return {format("{} is the whole packed QKV: its last axis holds ({} + 2 * {}) * {} = {} lanes", x.name, hq, hk, d, s[1]),
            "qkv = " + std::string(x.name) + "; " + split_packed(a)};
  }
  Candidates lanes;
  if (!is_q && s[1] == 2 * hk * d) {
    lanes.add(format("{} holds K and V unsplit: its last axis has 2 * num_kv_heads * head_dim = {} lanes", x.name, s[1]),
              format("k, v = (x.reshape(-1, {}, {}) for x in numpy.split({}, 2, axis=-1))", hk, d, x.name));
  }
  if (!is_q && s[1] == hq * d) {
    lanes.add(format("{} is Q's slice of the packed QKV, or repeated for grouped-query attention: its last axis has "
                     "num_qo_heads * head_dim = {} lanes",
                     x.name, s[1]),
              "pass k and v as the projection gives them, split into num_kv_heads heads");
  }
  if (is_q && s[1] == hk * d) {
    lanes.add(format("q is K's or V's slice of the packed QKV: its last axis has num_kv_heads * head_dim = {} lanes", s[1]),
              format("q = qkv[..., :q_size].reshape(-1, {}, {})", hq, d));
  }
  if (!lanes.empty()) return lanes.named(format("{} was not split into heads", x.name));
  const std::int64_t n = times(s[0], x.count);
  if (s[1] != d) return {};
  Candidates c;
  if (n == 1) {
    c.add(format("one token without its token axis, [{}, head_dim]", x.count_name), format("{0} = {0}[None]", x.name));
  } else if (n > 1) {
    c.add(format("tokens and heads folded into one axis of {} = {} * {}", s[0], n, x.count), fix, tokens < 0 || tokens == n);
  }
  if (tokens < 0 || tokens == s[0]) {
    c.add(format("one head of {} tokens, without the axis of heads", s[0]),
          "keep all heads: x[:, i : i + 1] instead of x[:, i]", tokens == s[0] && tokens != 1);
  }
  return c.named(format("{} has two axes", x.name));
}

Diagnosis four_axes(const Args& a, const Heads& x) {
  const Shape& s = x.tensor.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads, tokens = index_tokens(a);
  if (s[3] != d) return {};
  Candidates c;
  if (s[1] == 3 && s[2] == x.count && hq == hk) {
    c.add("it is the packed QKV as [tokens, 3, heads, head_dim]",
          format("qkv = {}; q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]", x.name), tokens == s[0]);
  }
  if (s[1] == hk && s[2] == times(hq, hk) && x.count == hq && hk > 1) {
    c.add("it has its heads in groups, [tokens, num_kv_heads, group, head_dim]", reshape(x, d), tokens == s[0]);
  }
  if (s[2] == x.count) {
    c.add(format("it has a batch axis, [batch, tokens, heads, head_dim] with {} * {} tokens", s[0], s[1]), reshape(x, d),
          tokens == s[0] * s[1]);
  }
  if (s[1] == x.count) {
    c.add(format("it is laid out [batch, heads, tokens, head_dim], as attention takes it, with {} * {} tokens", s[0], s[2]),
          format("{0} = {0}.swapaxes(1, 2).reshape(-1, {1}, {2})", x.name, x.count, d), tokens == s[0] * s[2]);
    if (s[2] == times(hq, hk) && x.count == hk) {
      c.add(format("it has each head {} times, for grouped-query attention: [tokens, num_kv_heads, {}, head_dim]", s[2], s[2]),
            format("{0} = {0}[:, :, 0]", x.name), tokens == s[0]);
    }
  }
  return c.named(format("{} has four axes", x.name));
}

}  // namespace

Diagnosis qkv_rank(const Args& a, const Finding& finding) {
  const Heads x = heads_named(a, finding.argument);
  switch (x.tensor.rank()) {
    case 1:
      return one_axis(a, x);
    case 2:
      return two_axes(a, x);
    case 4:
      return four_axes(a, x);
    default:
      return {};
  }
}

// ---- RP002

namespace {

// Positions of M-RoPE with a batch axis, [axes, sequences, length], as Hugging Face models have them; some put a row in front.
Diagnosis batched_axes(const Args& a, const Shape& s, std::int64_t tokens) {
  const std::int64_t axes = contract::num_axes(a);
  const bool sections = axes > 1;
  if (s.rank() != 3 || tokens < 0 || !(sections ? s[0] == axes || s[0] == axes + 1 : s[0] == 3 || s[0] == 4)) return {};
  const auto rows = format("positions holds {} rows with a batch axis: those of M-RoPE", s[0]);
  if (s[1] * s[2] != tokens) {
    return {format("{}, {} * {} entries each for {} tokens, as a padded batch has them", rows, s[1], s[2], tokens),
            "positions[:, mask], with the mask by which q was stripped of padding"};
  }
  const auto in_rows = format("positions.reshape({}, -1)", s[0]);
  if (!sections) {
    return {rows, format("rope=Rope(..., sections=...) takes these rows, as {}{}", in_rows,
                         s[0] == 4 ? ", or positions[1:].reshape(3, -1) where the first is the position within the text" : "")};
  }
  if (s[0] == axes) return {rows, "positions = " + in_rows};
  return {rows + ", the first of which may be the position within the text",
          format("positions = positions[1:].reshape({}, -1)", axes)};
}

}  // namespace

Diagnosis positions_slots_rank(const Args& a, const Finding& finding) {
  const std::string& name = finding.argument;
  const bool positions = name == "positions";
  const Shape& s = array_named(a, name)->shape;
  const std::int64_t tokens = is_3d(a.q) ? a.q.shape[0] : -1;
  const auto flatten = format("{0} = {0}.reshape(-1)", name);
  if (s.rank() == 0 && (tokens == 1 || tokens < 0)) {
    return {format("{} is a single number; one token needs an array of one entry", name), flatten};
  }
  if (s.rank() == 0) {
    const auto cause = format("{} is a single number; each of the {} tokens needs an entry of its own", name, tokens);
    if (!positions || tokens == 0) return {cause, format("give {} one entry for each token", name)};
    return {cause,
            format("tokens of sequences that all stand at this position take numpy.full({0}, positions), tokens that follow "
                   "each other from there positions + numpy.arange({0})",
                   tokens)};
  }
  if (s.rank() != 2) {
    if (elements(s) == tokens) return {format("{} has {} axes for its {} tokens", name, s.rank(), tokens), flatten};
    return positions ? batched_axes(a, s, tokens) : Diagnosis{};
  }
  if (positions && (s[0] == 3 || s[0] == 4) && s[1] == tokens) {
    return {
        format("positions holds {0} rows for {1} tokens: those of M-RoPE (time, height, width), of which a plain rope takes "
               "one, or a batch of {0} sequences of which q holds one",
               s[0], tokens),
        format("rope=Rope(..., sections=...) takes all rows{}; positions = positions[0] is enough where they are equal, as for "
               "text",
               s[0] == 4 ? ", or positions[1:] where the first is the position within the text" : "")};
  }
  if (elements(s) == tokens) {
    return {format("{} has a batch axis: {} * {} entries for the {} tokens", name, s[0], s[1], tokens), flatten};
  }
  if (tokens < 0) return {};
  if (positions) {
    return {
        format("positions has {} rows of {} entries for {} tokens: it may be of the padded batch, from which q was stripped "
               "of padding, or of another step",
               s[0], s[1], tokens),
        "give each token its position: positions[mask], with the mask by which q was stripped"};
  }
  return {format("slots may be a block table, {} rows of {} entries, or of a padded batch: it has not one slot for each of the "
                 "{} tokens",
                 s[0], s[1], tokens),
          "slots = table[sequence, position // page_size] * page_size + position % page_size, for each token"};
}

// ---- RP003: axes of the pools

namespace {

// Of pools that are two arrays, to take both halves of one would leave the other as it is.
std::string both_halves(bool one, const char* first, const char* second) {
  if (!one) return format("of a pool that holds both pass pool{} and pool{}", first, second);
  return format("k_pool, v_pool = pool{}, pool{}", first, second);
}

// The pool, and the other where that has the same fault.
Names pools_alike(const Args& a, const char* name) {
  const auto same = [](const Dims& x, const Dims& y) { return std::ranges::equal(x, y); };
  if (!same(a.k_pool.shape, a.v_pool.shape) || !same(a.k_pool.strides, a.v_pool.strides)) return {name};
  return {"k_pool", "v_pool"};
}

// Both as the subject of a sentence about one of them.
std::string subject(const Args& a, const char* name) {
  if (pools_alike(a, name).size() == 1 || same_data(a.k_pool, a.v_pool)) return name;
  return "k_pool, like v_pool,";
}

Diagnosis pool_of_two_axes(const Args& a, const char* name, const Tensor& pool) {
  const std::int64_t h = a.num_kv_heads, d = a.head_dim, width = pool.shape[1];
  if (h < 1 || d < 1) return {};
  if (width == h * d) {
    return {format("{} has heads and lanes in one axis of num_kv_heads * head_dim = {}", subject(a, name), width),
            pool_view(a, pools_alike(a, name), "", true)};
  }
  if (width != 2 * h * d) return {};
  const auto both = format("K and V of a slot in one row of 2 * num_kv_heads * head_dim = {} lanes", width);
  const auto split = format("pool = {}.reshape(-1, 2, {}, {}); k_pool, v_pool = pool[:, 0], pool[:, 1]", name, h, d);
  if (one_pool(a)) return {format("{} holds {}", name, both), split};
  return {format("{} may hold {}, or have twice the call's heads or lanes, as under tensor parallelism over 2",
                 subject(a, name), both),
          format("of a pool that holds both pass pool.reshape(-1, 2, {}, {})[:, 0] and [:, 1]; else make the pool with this "
                 "call's heads",
                 h, d)};
}

Diagnosis pool_of_four_axes(const Args& a, const char* name, const Tensor& pool) {
  const Shape& s = pool.shape;
  const std::int64_t h = a.num_kv_heads;
  const bool one = one_pool(a);
  const Names pools = pools_alike(a, name);
  const auto flat = pool_view(a, pools, "", merges(pool, 0));
  const auto pages = format("{} pages of {} slots, [pages, page_size, heads, head_dim]", s[0], s[1]);
  Candidates c;
  if (s[2] == h) {
    if (s[0] == 2) c.add("it holds K and V together, [2, slots, heads, head_dim]", both_halves(one, "[0]", "[1]"), one);
    if (s[1] == 2) c.add("it holds K and V together, [slots, 2, heads, head_dim]", both_halves(one, "[:, 0]", "[:, 1]"), one);
    c.add("it comes in " + pages, merges(pool, 0) ? flat + ", with slot = page * page_size + offset" : flat, false);
    // No model has so many layers, and no page so many slots.
    if (s[0] <= 256) {
      c.add(format("it holds all {} layers, [layers, slots, heads, head_dim]", s[0]), "for layers " + each(pools, "[layer]"),
            false);
    }
  }
  if (s[1] == h) {
    c.add(format("it is laid out heads first, [{}, heads, slots, head_dim]", s[2] <= 256 ? "pages or sequences" : "sequences"),
          s[0] == 1 ? each(pools, "[0].swapaxes(0, 1)") + format(", {}", pools.size() > 1 ? "views" : "a view")
                    : std::string("lay the pool out as [num_slots, num_kv_heads, head_dim]: with heads first a slot's rows "
                                  "have no single stride"),
          false);
  }
  return c.named(subject(a, name) + " has four axes");
}

}  // namespace

Diagnosis pools_rank(const Args& a, const Finding& finding) {
  const char* name = finding.argument == "k_pool" ? "k_pool" : "v_pool";
  const Tensor& pool = *array_named(a, name);
  const Shape& s = pool.shape;
  if (s.rank() == 2) return pool_of_two_axes(a, name, pool);
  if (s.rank() == 4 && s[3] == a.head_dim) return pool_of_four_axes(a, name, pool);
  if (s.rank() == 5 && s[3] == a.num_kv_heads && s[4] == a.head_dim) {
    Candidates c;
    if (s[0] == 2 || s[1] == 2) {
      c.add("it holds K and V together",
            "take the K part as k_pool and the V part as v_pool, each reshaped to [num_slots, num_kv_heads, head_dim] where "
            "that is a view",
            one_pool(a));
    }
    c.add(format("it may hold all {} layers, each in {} pages of {} slots", s[0], s[1], s[2]),
          pool_view(a, pools_alike(a, name), "[layer]", merges(pool, 1)), false);
    return c.named(format("{} has the shape {}", subject(a, name), to_string(s)));
  }
  return {};
}

// ---- RP004 to RP006: q, k and v

namespace {

// The axes of x in another order, where `tokens` is how many there should be, -1 where that is not known.
Diagnosis axes_in_other_order(const Heads& x, std::int64_t tokens, std::int64_t d) {
  const Shape& s = x.tensor.shape;
  if (!is_3d(x.tensor)) return {};
  if (s[0] == x.count && s[2] == d && s[1] != x.count && (tokens < 0 || s[1] == tokens)) {
    return {format("{} {} laid out heads first: [heads, tokens, head_dim] = {}{}", x.name, tokens < 0 ? "may be" : "is",
                   to_string(s), tokens < 0 ? format(", or has {} heads", s[1]) : ""),
            format("{0} = {0}.swapaxes(0, 1), a view", x.name)};
  }
  if (s[1] == d && s[2] == x.count && d != x.count && (tokens < 0 || s[0] == tokens)) {
    return {format("{} has lanes before heads: [tokens, head_dim, heads] = {}", x.name, to_string(s)),
            format("{0} = numpy.ascontiguousarray({0}.swapaxes(1, 2))", x.name)};
  }
  return {};
}

// The head count or head_dim of x differs from the call's for a reason that is the same for q, k and v.
Diagnosis other_head_dim(const Args& a, const Heads& x) {
  const Shape& s = x.tensor.shape;
  const std::int64_t d = a.head_dim;
  if (!is_3d(x.tensor) || s[2] == d) return {};
  const auto last = [](const Tensor& t) { return is_3d(t) ? t.shape[2] : -1; };
  if (last(a.q) == s[2] && last(a.k) == s[2] && last(a.k_pool) == s[2] && s[1] == x.count) {
    return {format("head_dim = {} of the call is wrong: q, k and the pools all have heads of {} lanes, as in a model whose "
                   "head_dim is not hidden_size // num_attention_heads",
                   d, s[2]),
            format("head_dim={}", s[2])};
  }
  if (d < 1) return {};
  if (s[1] * s[2] == x.count * d) {
    return {format("{} was split into {} heads of {} lanes instead of {} of {}: the same {} lanes a token", x.name, s[1], s[2],
                   x.count, d, x.count * d),
            reshape(x, d) + ", or the head_dim and head counts of the call"};
  }
  if (s[1] == x.count) {
    return {
        format("{} has heads of {} lanes where the call says head_dim = {}: it may come from another kind of layer or another "
               "model's config",
               x.name, s[2], d),
        "take head_dim and the pools of the layer that q, k and v come from"};
  }
  return {};
}

// Whether `other` has n times the heads of `count`, or could under tensor parallelism, where each rank has one at least.
bool scaled(std::int64_t other, std::int64_t count, std::int64_t n) {
  return other == n * count || (count == 1 && other > 0 && other < n);
}

// x has another token count than `other`.
Diagnosis token_counts_differ(const Args& a, const char* name, std::int64_t count, const char* other,
                              std::int64_t other_count) {
  const std::int64_t tokens = index_tokens(a);
  const auto counts = format("{} has {} tokens and {} has {}", name, count, other, other_count);
  const auto hint = format("slice {} and {} by the same tokens", other, name);
  const auto odd_one = [](const char* one, bool more) {
    return format("{} was {} for this chunk of the prefill, or {} padding", one, more ? "not sliced" : "sliced once more",
                  more ? "holds" : "was stripped of");
  };
  if (tokens == other_count) {
    return {format("{}, as have positions and slots: {}", counts, odd_one(name, count > other_count)), hint};
  }
  if (tokens == count) {
    return {format("{}; positions and slots have {} too: {}", counts, tokens, odd_one(other, other_count > count)), hint};
  }
  return {counts + ": one was sliced for a chunk of the prefill, or padded, and the other was not", hint};
}

}  // namespace

Diagnosis q_shape(const Args& a, const Finding&) {
  const Shape& s = a.q.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (!is_3d(a.q)) return {};
  const std::int64_t k_count = head_count(a.k), pool_count = head_count(a.k_pool);
  if (hq != hk && s[1] == hk && k_count == hq && s[2] == d) {
    const auto counts = format("q has {} heads and k has {}", s[1], k_count);
    if (pool_count == hq) {
      return {counts + ", as has k_pool: num_qo_heads and num_kv_heads are swapped",
              format("num_qo_heads={}, num_kv_heads={}", hk, hq)};
    }
    if (pool_count == hk) return {counts + ": q and k are swapped in the argument list", "q, k = k, q"};
    return {counts + ": either q and k are swapped in the argument list, or num_qo_heads and num_kv_heads are", ""};
  }
  if (auto order = axes_in_other_order(q_heads(a), index_tokens(a), d); !order.cause.empty()) return order;
  if (s[2] != d || hq < 1 || hk < 1) return other_head_dim(a, q_heads(a));

  const auto counts = format("q has {} heads, num_qo_heads is {}", s[1], hq);
  Candidates c;
  if (s[1] == packed_heads(a)) {
    c.add(format("it is the whole packed QKV ({} + 2 * {})", hq, hk), split_packed_heads(a, "q"));
  }
  if (s[1] == hq + hk) {
    c.add(format("its slice of the packed QKV runs on through K (num_qo_heads + num_kv_heads = {} + {})", hq, hk),
          format("q = q[:, :{}]", hq), k_count < 0 || k_count == hk);
  }
  if (s[1] == 2 * hq) {
    c.add("it holds a gate beside the query heads", "split the gate off before the call", k_count < 0 || k_count == hk);
    c.add("num_qo_heads is of another model or rank", format("num_qo_heads={}", s[1]), k_count < 0 || k_count == hk);
  }
  if (const std::int64_t n = times(s[1], hq); n > 1 && (k_count < 0 || scaled(k_count, hk, n))) {
    c.add(format("the counts of the call are one rank's under tensor parallelism over {}, while q is whole, or they are "
                 "another model's",
                 n),
          format("num_qo_heads={}, num_kv_heads={}", s[1], k_count > 0 ? k_count : hk * n));
  }
  const std::int64_t n = times(hq, s[1]);
  const bool a_rank = n > 1 && (k_count < 0 || scaled(hk, k_count, n));
  if (a_rank) {
    c.add(format("the head counts of the call are the whole model's, and q is this rank's part, 1/{} of them under tensor "
                 "parallelism, or they are another model's",
                 n),
          format("num_qo_heads={}, num_kv_heads={}", s[1], k_count > 0 ? k_count : std::max<std::int64_t>(1, hk / n)));
  }
  if (s[1] == hk && hk != hq) {
    c.add("it is K's or V's slice of the projection, or was reshaped with num_kv_heads",
          "q = qkv[..., :q_size].reshape(-1, " + format("{}, {})", hq, d), !a_rank || k_count == hk);
  }
  if (c.empty() && n > 1) {
    return {format("{}, and k has {}: q may have been cut short, or num_qo_heads be of another model", counts, k_count), ""};
  }
  return c.named(counts);
}

Diagnosis k_shape(const Args& a, const Finding&) {
  const Shape& s = a.k.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (!is_3d(a.k) || a.q.rank() == 0) return {};
  const std::int64_t tokens = a.q.shape[0];
  if (s[1] == hk && s[2] == d) return token_counts_differ(a, "k", s[0], "q", tokens);
  if (auto order = axes_in_other_order(k_heads(a), tokens, d); !order.cause.empty()) return order;
  if (s[2] != d || hq < 1 || hk < 1) return other_head_dim(a, k_heads(a));

  const std::int64_t q_count = head_count(a.q), v_count = head_count(a.v), pool_count = head_count(a.k_pool);
  const auto counts = format("k has {} heads, num_kv_heads is {}", s[1], hk);
  if (pool_count == s[1] && s[1] != packed_heads(a)) {
    return {
        format("{} and k_pool has {} too: num_kv_heads of the call is the whole model's, another rank's or another model's, "
               "as under tensor parallelism, or K and the pool hold heads repeated for grouped-query attention",
               counts, pool_count),
        format("num_kv_heads={}", s[1])};
  }
  Candidates c;
  if (s[1] == packed_heads(a)) {
    c.add(format("it is the whole packed QKV ({} + 2 * {})", hq, hk), split_packed_heads(a, "k"));
  }
  if (s[1] == hq) {
    c.add(v_count == hq ? "K and V were repeated for grouped-query attention before the call"
                        : "K was repeated for grouped-query attention before the call",
          "pass k as the projection gives it, with num_kv_heads heads: the pool stores each head once");
    c.add("it is Q's slice of the packed QKV", format("k = qkv[..., q_size : q_size + kv_size].reshape(-1, {}, {})", hk, d));
  }
  if (s[1] == 2 * hk) {
    c.add("it holds K and V unsplit, or runs on through V in the packed QKV",
          format("kv = k; k = kv[:, :{0}]; v = kv[:, {0}:]", hk));
  }
  if (s[1] == hq + hk) {
    c.add("it was sliced across a boundary of the packed QKV, num_qo_heads + num_kv_heads heads long",
          format("k = qkv[..., q_size : q_size + kv_size].reshape(-1, {}, {})", hk, d));
  }
  if (const std::int64_t n = times(s[1], hk); n > 1 && (s[1] < hq || scaled(q_count, hq, n))) {
    if (s[1] < hq) c.add("K was repeated for grouped-query attention", "pass each head of K once");
    c.add("num_kv_heads is one rank's under tensor parallelism", format("num_kv_heads={}", s[1]));
  }
  if (const std::int64_t n = times(hk, s[1]); n > 1) {
    c.add(format("num_kv_heads is the whole model's and k is this rank's part, 1/{} of it under tensor parallelism", n),
          format("num_kv_heads={}", s[1]));
    c.add("num_kv_heads is of another model", "");
  }
  return c.named(counts);
}

// Of v or v_pool where the call says that values have a head_dim of their own.
Diagnosis own_head_dim(const Args& a, const char* name, const Shape& values, const Shape& keys) {
  if (values[0] != keys[0] || values[1] != keys[1]) return {};
  if (values[2] == a.head_dim) {
    return {format("{} has the head_dim of k, {}, and v_head_dim says {}", name, a.head_dim, *a.v_head_dim),
            "leave v_head_dim out"};
  }
  return {format("{} has heads of {} lanes, and v_head_dim says {}", name, values[2], *a.v_head_dim),
          format("v_head_dim={}", values[2])};
}

Diagnosis v_shape(const Args& a, const Finding&) {
  const Shape &k = a.k.shape, &v = a.v.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (!is_3d(a.k) || !is_3d(a.v)) return {};
  if (a.v_head_dim) return own_head_dim(a, "v", v, k);
  if (v[1] == k[1] && v[2] == k[2]) return token_counts_differ(a, "v", v[0], "k", k[0]);
  if (v[1] == hk && v[2] == d) return {"v is as the call says, and k is not", "mend k"};
  if (auto order = axes_in_other_order(v_heads(a), k[0], d); !order.cause.empty()) return order;
  if (elements(v) == elements(k)) {
    return {format("v has the {} elements of k in another arrangement, {}", elements(v), to_string(v)),
            v[0] == k[0] ? reshape(v_heads(a), d)
                         : "bring the axes of v into the order [tokens, heads, head_dim]; a bare reshape would mix them"};
  }
  if (v[0] == k[0] && v[2] == k[2] && k[1] == hk && hq > 0 && hk > 0) {
    // Where v begins in lanes from k, if both are views of one buffer.
    const auto lanes_from_k = [&] {
      const std::int64_t item = item_size(a.v.dtype);
      const auto bytes =
          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(a.v.data) - reinterpret_cast<std::uintptr_t>(a.k.data));
      return item > 0 && a.v.strides[0] == a.k.strides[0] ? bytes / item : 0;
    };
    const auto right = "v = qkv[..., q_size + kv_size :]";
    if (v[1] == hq + hk && hq != hk) {
      if (lanes_from_k() == -hq * d) {
        return {format("v has {} heads = num_qo_heads + num_kv_heads ({} + {}): it was sliced from 0 of the packed QKV to "
                       "q_size + kv_size, so it holds Q and K",
                       v[1], hq, hk),
                right};
      }
      if (lanes_from_k() == (hk - hq) * d) {
        return {format("v has {} heads = num_qo_heads + num_kv_heads ({} + {}): it was sliced from kv_size of the packed QKV "
                       "instead of q_size + kv_size",
                       v[1], hq, hk),
                right};
      }
      return {format("v has {} heads = num_qo_heads + num_kv_heads ({} + {}): it was sliced from kv_size of the packed QKV "
                     "instead of q_size + kv_size, and k from 0, so k holds Q's data",
                     v[1], hq, hk),
              "k = qkv[..., q_size : q_size + kv_size]; v = qkv[..., q_size + kv_size :]"};
    }
    const auto counts = format("v has {} heads, k has {}", v[1], hk);
    Candidates c;
    if (v[1] == hq) {
      c.add(format("it is Q's slice of the packed QKV, num_qo_heads = {} heads", hq), right);
      c.add("V was repeated for grouped-query attention before the call",
            "pass v as the projection gives it, with num_kv_heads heads");
    }
    if (v[1] == 2 * hk) {
      c.add("it holds K and V: sliced from q_size of the packed QKV to its end, or a projection of both unsplit",
            format("v = v[:, {}:]", hk));
      if (hq == hk) c.add("it holds Q and K, sliced from 0 of the packed QKV", right);
    }
    if (v[1] == packed_heads(a)) c.add(format("it is the whole packed QKV ({} + 2 * {})", hq, hk), split_packed_heads(a, "v"));
    if (const std::int64_t n = times(v[1], hk); c.empty() && n > 1) {
      c.add(format("V was repeated {} times for grouped-query attention", n), "pass each head of V once");
      c.add("it was sliced at a wrong boundary of the packed QKV", right);
    }
    if (!c.empty()) return c.named(counts);
    const std::int64_t begin = (packed_heads(a) - v[1]) * d;
    if (begin >= 0) {
      return {format("{}: if v runs to the end of the packed QKV, it was sliced from lane {} instead of q_size + kv_size = {}",
                     counts, begin, (hq + hk) * d),
              format("v = qkv[..., {}:]", (hq + hk) * d)};
    }
  }
  if (v[0] == k[0] && v[1] == k[1]) {
    return {format("v has heads of {} lanes and k of {}: v may come from another kind of layer, have a head_dim of its own as "
                   "in MLA, or have been sliced at a wrong boundary",
                   v[2], k[2]),
            format("where values have heads of their own, v_head_dim={}", v[2])};
  }
  return {};
}

// ---- RP007

namespace {

// Positions of an M-RoPE with `axes` rows.
Diagnosis rows_of_positions(const Shape& s, std::int64_t axes, std::int64_t tokens) {
  constexpr const char* kText = "may be the position within the text, which transformers puts before those of Qwen's models";
  if (s.rank() == 1) {
    if (s[0] == axes * tokens) {
      return {format("positions has {} * {} entries: the {} rows of M-RoPE one after the other", axes, tokens, axes),
              format("positions = positions.reshape({}, -1)", axes)};
    }
    if (s[0] != (axes + 1) * tokens) return {};
    return {format("positions has {} * {} entries: rows of M-RoPE one after the other, of which the first {}", axes + 1, tokens,
                   kText),
            format("positions = positions.reshape({}, -1)[1:]", axes + 1)};
  }
  if (s.rank() != 2) return {};
  if (elements(s) == tokens) {
    return {format("positions has a batch axis: {} * {} entries for the {} tokens", s[0], s[1], tokens),
            "positions = positions.reshape(-1)"};
  }
  if (s[0] == tokens && s[1] == axes) {
    return {"positions is transposed: it has a row for each token, not for each axis", "positions = positions.T"};
  }
  if (s[0] == axes) {
    const auto counts = format("positions has {} entries an axis, q has {} tokens", s[1], tokens);
    if (s[1] < tokens) return {counts, "give each token a position on every axis"};
    return {counts + ": it covers the whole prompt while q holds one chunk of the prefill, or is padded",
            "slice positions as q was sliced: positions[:, start:end]"};
  }
  if (s[1] != tokens) return {};
  const auto rows = format("positions has {} rows, the rope's sections turn by {} axes", s[0], axes);
  if (s[0] == axes + 1) return {rows + ": the first " + kText, "positions = positions[1:]"};
  return {rows,
          format("give positions {} rows, such as time, height and width, or one axis where all of them are equal", axes)};
}

}  // namespace

Diagnosis token_count(const Args& a, const Finding& finding) {
  if (!is_3d(a.q)) return {};
  const std::int64_t tokens = a.q.shape[0], axes = contract::num_axes(a);
  if (axes > 1 && finding.argument == "positions") {
    if (auto found = rows_of_positions(a.positions.shape, axes, tokens); !found.cause.empty()) return found;
  }
  const bool in_rows = axes > 1 && a.positions.rank() == 2;
  if (!(is_1d(a.positions) || in_rows) || !is_1d(a.slots)) return {};
  const std::int64_t p = a.positions.shape[in_rows ? 1 : 0], s = a.slots.shape[0];
  if (p == s) {
    const auto counts = format("positions and slots have {} entries, q has {} tokens: ", p, tokens);
    if (p > tokens) {
      return {counts + "q, k and v were sliced to a chunk, or stripped of padding, and positions and slots were not",
              "slice positions and slots as q was sliced"};
    }
    if (const std::int64_t n = times(tokens, p); n > 1) {
      return {counts + format("they may hold one entry for each sequence of {} tokens, not for each token", n),
              "give each token its own position and slot"};
    }
    return {counts + "q, k and v may be padded, or hold tokens of another chunk",
            "give padding tokens a position of 0 and the slot -1"};
  }
  const std::string& name = finding.argument;
  const bool positions = name == "positions";
  const std::int64_t n = positions ? p : s;
  const auto counts = format("{} has {} entries, q has {} tokens", name, n, tokens);
  if (n == tokens + 1)
    return {counts + format(": {} may be cumulative sequence lengths, or reach one token too far", name), ""};
  if (n > tokens) {
    return {counts + ": it covers the whole prompt while q holds one chunk of the prefill, or is padded",
            format("slice {} as q was sliced", name)};
  }
  if (n > 0 && times(tokens, n) > 1) {
    if (positions) return {counts + format(": it may hold one entry for each of {} sequences, not for each token", n), ""};
    return {
        counts + format(": it may hold one entry for each page of {} tokens, or for each of {} sequences, not for each token",
                        tokens / n, n),
        "slots = pages[t // page_size] * page_size + t % page_size, for each token t"};
  }
  if (n > 0 && !positions) {
    return {counts + ": it may hold pages instead of slots, or be of another chunk",
            "slots holds one row of the pool for each token, -1 for none"};
  }
  if (n > 0) return {counts + ": it may be of another chunk than q", format("slice {} as q was sliced", name)};
  return {};
}

// ---- RP008, RP009: the pools

namespace {

Diagnosis pool_shape(const Args& a, const char* name, const Tensor& pool) {
  const Shape& s = pool.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (s.rank() != 3 || d < 1 || hk < 1) return {};
  if (s[0] == hk && s[2] == d && s[1] != hk) {
    const bool heads_alike = s[1] == hq || s[1] == 2 * hk;
    return {format("{} is laid out heads first: [heads, slots, head_dim] = {}{}", name, to_string(s),
                   heads_alike ? format(", or has {} slots of {} heads", s[0], s[1]) : ""),
            format("{0} = {0}.swapaxes(0, 1), a view", name)};
  }
  if (s[1] == d && s[2] == hk && d != hk) {
    return {format("{} has lanes before heads: [slots, head_dim, heads] = {}", name, to_string(s)),
            "lay the pool out as [num_slots, num_kv_heads, head_dim]"};
  }
  const auto make = format("make the pool with [num_slots, {}, {}]", hk, d);
  if (s[2] == hk * d && hk > 1) {
    Candidates c;
    c.add(format("it comes in pages of {} slots with heads and lanes in one axis: [pages, page_size, num_kv_heads * head_dim]",
                 s[1]),
          pool_view(a, {name}, "", merges(pool, 0)), s[1] != 2);
    if (s[1] == 2) {
      c.add("it holds K and V of each slot, [slots, 2, num_kv_heads * head_dim]",
            format("pool = {}; k_pool, v_pool = pool[:, 0].reshape(-1, {}, {}), pool[:, 1].reshape(-1, {}, {})", name, hk, d,
                   hk, d),
            one_pool(a));
    }
    if (s[1] == hk && hk == 2)
      c.add("it has K and V side by side in rows of 2 * head_dim lanes", "pool[..., :head_dim] and pool[..., head_dim:]",
            one_pool(a));
    return c.named(name + std::string(" has other axes"));
  }
  if (s[1] == hk && s[2] == 2 * d) {
    return {format("{} has rows of 2 * head_dim = {} lanes: K and V side by side, or another head_dim", name, s[2]),
            one_pool(a) ? format("pool = {}; k_pool, v_pool = pool[..., :head_dim], pool[..., head_dim:], views", name)
                        : std::string("of a pool that holds both pass pool[..., :head_dim] and pool[..., head_dim:], views")};
  }
  if (s[2] == d) {
    const auto counts = format("{} has {} heads, num_kv_heads is {}", name, s[1], hk);
    const std::int64_t n = times(s[1], hk);
    Candidates c;
    if (s[1] == hq && hq != hk) c.add(format("it was made for query heads, num_qo_heads = {} heads", hq), make);
    if (s[1] == 2 * hk) {
      c.add("it holds K and V together",
            one_pool(a) ? format("pool = {0}; k_pool, v_pool = pool[:, :{1}], pool[:, {1}:], views", name, hk)
                        : format("of a pool that holds both pass pool[:, :{0}] and pool[:, {0}:], views", hk));
    }
    if (n > 1) {
      c.add(format("it was made for the whole model, and k is this rank's part under tensor parallelism over {}", n), make);
      c.add("it was made for another model", make);
    }
    if (const std::int64_t m = times(hk, s[1]); m > 1) {
      c.add(format("it was made for one rank under tensor parallelism over {}", m), make);
      c.add("it was made for another model", make);
    }
    return c.named(counts);
  }
  if (s[1] * s[2] == hk * d) {
    return {format("{} was split into {} heads of {} lanes instead of {} of {}", name, s[1], s[2], hk, d),
            pool_view(a, {name}, "", merges(pool, 1))};
  }
  if (s[1] == hk) {
    return {format("{} has heads of {} lanes where the call says head_dim = {}: it may be the pool of another kind of layer or "
                   "another model",
                   name, s[2], d),
            "pass the pool of the layer that k and v come from"};
  }
  return {};
}

}  // namespace

Diagnosis k_pool_shape(const Args& a, const Finding&) { return pool_shape(a, "k_pool", a.k_pool); }

Diagnosis v_pool_shape(const Args& a, const Finding&) {
  const Shape &k = a.k_pool.shape, &v = a.v_pool.shape;
  if (!is_3d(a.k_pool) || !is_3d(a.v_pool)) return {};
  if (a.v_head_dim && v[2] != *a.v_head_dim) return own_head_dim(a, "v_pool", v, k);
  if (v[1] == k[1] && v[2] == a.v_head_dim.value_or(k[2])) {
    return {
        format("v_pool has {} slots and k_pool has {}: {}", v[0], k[0],
               std::abs(v[0] - k[0]) == 1 ? "one of them has a row for padding that the other lacks, or they are of two pools"
                                          : "they are of two pools, or one of them was sliced"),
        "make both pools with one number of slots"};
  }
  if (a.v_head_dim) return {};
  if (v[1] == a.num_kv_heads && v[2] == a.head_dim) return {"v_pool is as the call says, and k_pool is not", "mend k_pool"};
  return pool_shape(a, "v_pool", a.v_pool);
}

}  // namespace ropepool::diagnosis
