// A function for each refusal, which looks for the mistakes that users make there, the likeliest first. Where two mistakes look
// alike from here the cause names both; where nothing fits it stays empty. tests/python/mistakes.py has the mistakes.
#include "ops/rope_pool_fused_diagnosis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>

#include "core/dtype.h"
#include "core/index_array.h"

namespace ropepool {
namespace {

using Args = RopePoolFusedArgs;
using fmt::format;

// ---- Questions that several rules ask

struct Heads {  // what q, k or v should be
  const char* name;
  const Tensor& tensor;
  const char* count_name;
  std::int64_t count;
};

Heads q_heads(const Args& a) { return {"q", a.q, "num_qo_heads", a.num_qo_heads}; }
Heads k_heads(const Args& a) { return {"k", a.k, "num_kv_heads", a.num_kv_heads}; }
Heads v_heads(const Args& a) { return {"v", a.v, "num_kv_heads", a.num_kv_heads}; }

bool is_1d(const Tensor& tensor) { return tensor.rank() == 1; }
bool is_3d(const Tensor& tensor) { return tensor.rank() == 3; }

// The token count as positions and slots have it, -1 where they don't agree.
std::int64_t index_tokens(const Args& a) {
  return is_1d(a.positions) && is_1d(a.slots) && a.positions.shape[0] == a.slots.shape[0] ? a.positions.shape[0] : -1;
}

std::int64_t packed_heads(const Args& a) { return a.num_qo_heads + 2 * a.num_kv_heads; }

std::int64_t elements(const Shape& shape) {
  std::int64_t product = 1;
  for (std::int64_t length : shape) {
    if (__builtin_mul_overflow(product, length, &product)) return -1;
  }
  return product;
}

// n where `whole` is n times `part`, 0 where it is not.
std::int64_t times(std::int64_t whole, std::int64_t part) { return part > 0 && whole % part == 0 ? whole / part : 0; }

std::string split_packed() {
  return "q = qkv[..., :q_size]; k = qkv[..., q_size : q_size + kv_size]; v = qkv[..., q_size + kv_size :], then split each "
         "into heads";
}

std::string reshape(const Heads& x, std::int64_t head_dim) {
  return format("{0} = {0}.reshape(-1, {1}, {2})", x.name, x.count, head_dim);
}

// ---- RP001 to RP003: numbers of axes

Diagnosis qkv_rank(const Args& a) {
  const std::array<Heads, 3> all{q_heads(a), k_heads(a), v_heads(a)};
  const Heads& x = *std::ranges::find_if(all, [](const Heads& h) { return !is_3d(h.tensor); });
  const Shape& s = x.tensor.shape;
  const std::int64_t d = a.head_dim;
  const auto fix = reshape(x, d);
  switch (s.rank()) {
    case 1:
      if (s[0] == x.count * d) return {format("{} is one token without its token axis and without heads", x.name), fix};
      if (times(s[0], x.count * d) > 0) return {format("{} was flattened to one axis of {} elements", x.name, s[0]), fix};
      return {};
    case 2:
      if (s[1] == x.count * d) {
        return {format("{} was not split into heads: its last axis still holds {} * head_dim = {} * {} lanes", x.name,
                       x.count_name, x.count, d),
                fix};
      }
      if (s[1] == packed_heads(a) * d) {
        return {format("{} is the whole packed QKV: its last axis holds ({} + 2 * {}) * {} = {} lanes", x.name, a.num_qo_heads,
                       a.num_kv_heads, d, s[1]),
                split_packed()};
      }
      if (s[1] == 2 * a.num_kv_heads * d && x.count == a.num_kv_heads) {
        return {format("{} holds K and V unsplit: its last axis has 2 * num_kv_heads * head_dim = {} lanes", x.name, s[1]),
                "k, v = numpy.split(kv, 2, axis=-1), then split each into heads"};
      }
      if (s[0] == x.count && s[1] == d) {
        return {format("{} is one token without its token axis: [{}, head_dim]", x.name, x.count_name),
                format("{0} = {0}[None]", x.name)};
      }
      if (s[1] == d && times(s[0], x.count) > 0) {
        return {
            format("tokens and heads of {} were folded into one axis of {} = {} * {}", x.name, s[0], s[0] / x.count, x.count),
            fix};
      }
      return {};
    case 4: {
      if (s[1] == 3 && s[2] == x.count && s[3] == d) {
        return {format("{} is the packed QKV as [tokens, 3, heads, head_dim]", x.name),
                "q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]"};
      }
      const bool tokens_first = s[2] == x.count && s[3] == d, heads_first = s[1] == x.count && s[3] == d;
      const auto transpose = format("{0} = {0}.swapaxes(1, 2).reshape(-1, {1}, {2})", x.name, x.count, d);
      if (tokens_first && heads_first) {
        return {
            format(
                "{} has a batch axis, and is either [batch, tokens, heads, head_dim] or, as attention takes it, [batch, heads, "
                "tokens, head_dim]: {} tokens and heads look alike",
                x.name, x.count),
            fix + ", or for the second " + transpose};
      }
      if (tokens_first) {
        return {format("{} has a batch axis: [batch, tokens, heads, head_dim] with {} * {} tokens", x.name, s[0], s[1]), fix};
      }
      if (heads_first) {
        return {format("{} is laid out [batch, heads, tokens, head_dim], as attention takes it, with {} * {} tokens", x.name,
                       s[0], s[2]),
                transpose};
      }
      return {};
    }
    default:
      return {};
  }
}

Diagnosis positions_slots_rank(const Args& a) {
  const bool positions = !is_1d(a.positions);
  const char* name = positions ? "positions" : "slots";
  const Shape& s = positions ? a.positions.shape : a.slots.shape;
  const std::int64_t tokens = is_3d(a.q) ? a.q.shape[0] : -1;
  const auto flatten = format("{0} = {0}.reshape(-1)", name);
  if (s.rank() == 0) return {format("{} is a single number; one token needs an array of one entry", name), flatten};
  if (s.rank() != 2) {
    if (elements(s) == tokens) return {format("{} has {} axes for its {} tokens", name, s.rank(), tokens), flatten};
    return {};
  }
  if (positions && (s[0] == 3 || s[0] == 4) && s[1] == tokens) {
    return {
        format("positions holds {} rows for {} tokens, as M-RoPE has them (time, height, width); this call turns each token by "
               "one position",
               s[0], tokens),
        "for text alone all rows are equal: positions = positions[0]"};
  }
  if (elements(s) == tokens) {
    return {format("{} has a batch axis: {} * {} entries for the {} tokens", name, s[0], s[1], tokens), flatten};
  }
  if (!positions) {
    return {format("slots looks like a block table, {} rows of {} entries, not like one slot for each of the {} tokens", s[0],
                   s[1], tokens),
            "slots = table[sequence, position // page_size] * page_size + position % page_size, for each token"};
  }
  return {};
}

Diagnosis pools_rank(const Args& a) {
  const bool k = !is_3d(a.k_pool);
  const char* name = k ? "k_pool" : "v_pool";
  const Shape& s = k ? a.k_pool.shape : a.v_pool.shape;
  const std::int64_t h = a.num_kv_heads, d = a.head_dim;
  const auto flat = format("{0} = {0}.reshape(-1, {1}, {2})", name, h, d);
  if (s.rank() == 2 && s[1] == h * d) {
    return {format("{} has heads and lanes in one axis of num_kv_heads * head_dim = {}", name, s[1]), flat};
  }
  if (s.rank() == 2 && s[1] == 2 * h * d) {
    return {format("{} holds K and V of a slot in one row of 2 * num_kv_heads * head_dim = {} lanes", name, s[1]),
            format("pool = pool.reshape(-1, 2, {}, {}); k_pool, v_pool = pool[:, 0], pool[:, 1]", h, d)};
  }
  if (s.rank() == 5 && s[3] == h && s[4] == d) {
    if (s[0] == 2 || s[1] == 2) {
      return {format("{} holds K and V together, of shape {}", name, to_string(s)),
              "take the K part as k_pool and the V part as v_pool, each reshaped to [num_slots, num_kv_heads, head_dim]"};
    }
    return {format("{} holds all {} layers, each in pages of {} slots", name, s[0], s[2]),
            format("{0} = {0}[layer].reshape(-1, {1}, {2})", name, h, d)};
  }
  if (s.rank() != 4 || s[3] != d) return {};
  if (s[0] == 2 && s[2] == h)
    return {format("{} holds K and V together: [2, slots, heads, head_dim]", name), "k_pool, v_pool = pool[0], pool[1]"};
  if (s[1] == 2 && s[2] == h) {
    return {format("{} holds K and V together: [slots, 2, heads, head_dim]", name), "k_pool, v_pool = pool[:, 0], pool[:, 1]"};
  }
  const bool heads_third = s[2] == h, heads_second = s[1] == h;
  const auto transposed = format("{0} = {0}.swapaxes(1, 2).reshape(-1, {1}, {2})", name, h, d);
  if (heads_third && heads_second) {
    return {format("{} comes in pages, either [pages, page_size, heads, head_dim] or, heads first, [pages, heads, page_size, "
                   "head_dim]: page size and heads are both {}",
                   name, h),
            flat + "; pages with heads first have no such view and must be laid out anew"};
  }
  if (heads_second) {
    return {format("{} comes in pages of {} slots with heads first: [pages, heads, page_size, head_dim]", name, s[2]),
            "lay the pool out as [num_slots, num_kv_heads, head_dim]: in pages with heads first a slot's rows have no single "
            "stride"};
  }
  if (!heads_third) return {};
  if (s[1] <= 256 && s[0] > s[1]) {
    return {format("{} comes in {} pages of {} slots: [pages, page_size, heads, head_dim]", name, s[0], s[1]),
            flat + ", and slot = page * page_size + offset"};
  }
  return {format("{0} is either one pool for {1} layers, [layers, slots, heads, head_dim], or {1} pages of {2} slots", name,
                 s[0], s[1]),
          format("for layers pass {0}[layer]; for pages {1}", name, flat)};
}

// ---- RP004 to RP006: q, k and v

// The axes of x in another order, where `tokens` is how many there should be.
Diagnosis axes_in_other_order(const Heads& x, std::int64_t tokens, std::int64_t d) {
  const Shape& s = x.tensor.shape;
  if (!is_3d(x.tensor)) return {};
  if (s[0] == x.count && s[2] == d && s[1] != x.count && (tokens < 0 || s[1] == tokens)) {
    return {format("{} is laid out heads first: [heads, tokens, head_dim] = {}", x.name, to_string(s)),
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
                   "head_dim is "
                   "not hidden_size // num_attention_heads",
                   d, s[2]),
            format("head_dim={}", s[2])};
  }
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

Diagnosis q_shape(const Args& a) {
  const Shape& s = a.q.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (!is_3d(a.q)) return {};
  const std::int64_t k_count = is_3d(a.k) ? a.k.shape[1] : -1, pool_count = is_3d(a.k_pool) ? a.k_pool.shape[1] : -1;
  if (hq != hk && s[1] == hk && k_count == hq && s[2] == d) {
    const auto counts = format("q has {} heads and k has {}", s[1], k_count);
    if (pool_count == hq) {
      return {counts + ", as has k_pool: num_qo_heads and num_kv_heads are swapped",
              format("num_qo_heads={}, num_kv_heads={}", hk, hq)};
    }
    if (pool_count == hk) return {counts + ": q and k are swapped in the argument list", "pass q first, then k"};
    return {counts + ": either q and k are swapped in the argument list, or num_qo_heads and num_kv_heads are", ""};
  }
  if (auto order = axes_in_other_order(q_heads(a), index_tokens(a), d); !order.cause.empty()) return order;
  if (s[2] == d && s[1] == packed_heads(a)) {
    return {format("q is the whole packed QKV: {} heads = {} + 2 * {}", s[1], hq, hk), split_packed()};
  }
  if (s[2] == d && s[1] == hq + hk) {
    return {format("q has {} heads = num_qo_heads + num_kv_heads ({} + {}): its slice of the packed QKV runs on through K",
                   s[1], hq, hk),
            split_packed()};
  }
  const bool part_of_both = times(hq, s[1]) > 1 && times(hq, s[1]) == times(hk, k_count);  // k fits tensor parallelism too
  if (s[2] == d && s[1] == hk && hk != hq && !part_of_both) {
    return {format("q has num_kv_heads = {} heads: it is K's or V's slice of the projection, or was reshaped with num_kv_heads",
                   hk),
            ""};
  }
  if (s[2] == d) {
    if (const std::int64_t n = times(hq, s[1]); n > 1) {
      return {format("q has {} heads, 1/{} of num_qo_heads = {}: the head counts of the call are the whole model's, and q is "
                     "this rank's "
                     "part of them under tensor parallelism",
                     s[1], n, hq),
              format("pass the counts of this rank: num_qo_heads={}, num_kv_heads={}", s[1],
                     k_count > 0 ? k_count : std::max<std::int64_t>(1, hk / n))};
    }
    if (const std::int64_t n = times(s[1], hq); n > 1) {
      return {format("q has {} heads, {} times num_qo_heads = {}: the call's counts may be one rank's under tensor parallelism "
                     "while q is "
                     "whole, or q holds a gate beside it",
                     s[1], n, hq),
              ""};
    }
  }
  return other_head_dim(a, q_heads(a));
}

// x has another token count than `other`.
Diagnosis token_counts_differ(const Args& a, const char* name, std::int64_t count, const char* other,
                              std::int64_t other_count) {
  const std::int64_t tokens = index_tokens(a);
  const auto counts = format("{} has {} tokens and {} has {}", name, count, other, other_count);
  const auto hint = format("slice {} and {} by the same tokens", other, name);
  if (tokens == other_count) {
    return {format("{}, as have positions and slots: {} was {} for this chunk of the prefill", counts, name,
                   count > other_count ? "not sliced" : "sliced once more"),
            hint};
  }
  if (tokens == count) {
    return {format("{}; positions and slots have {} too: {} was {} for this chunk of the prefill", counts, tokens, other,
                   other_count > count ? "not sliced" : "sliced once more"),
            hint};
  }
  return {counts + ": one was sliced for a chunk of the prefill and the other was not", hint};
}

Diagnosis k_shape(const Args& a) {
  const Shape& s = a.k.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (!is_3d(a.k) || a.q.rank() == 0) return {};
  const std::int64_t tokens = a.q.shape[0];
  if (s[1] == hk && s[2] == d) return token_counts_differ(a, "k", s[0], "q", tokens);
  if (auto order = axes_in_other_order(k_heads(a), tokens, d); !order.cause.empty()) return order;
  if (s[2] == d && s[1] == packed_heads(a)) {
    return {format("k is the whole packed QKV: {} heads = {} + 2 * {}", s[1], hq, hk), split_packed()};
  }
  const bool unsplit = s[2] == d && s[1] == 2 * hk;
  if (s[2] == d && s[1] == hq && times(hk, s[1]) <= 1) {
    if (is_3d(a.k_pool) && a.k_pool.shape[1] == hq) {
      return {
          format("k and k_pool have {} heads: num_kv_heads = {} of the call is wrong, or both were made for heads repeated to "
                 "num_qo_heads",
                 hq, hk),
          format("num_kv_heads={}", hq)};
    }
    return {
        format("k has num_qo_heads = {} heads: {} repeated for grouped-query attention before the call, or k is Q's slice of "
               "the packed "
               "QKV{}",
               hq, is_3d(a.v) && a.v.shape[1] == hq ? "K and V were" : "K was", unsplit ? ", or it holds K and V unsplit" : ""),
        "pass k as the projection gives it, with num_kv_heads heads: the pool stores each head once"};
  }
  if (unsplit) {
    return {format("k has 2 * num_kv_heads = {} heads: it holds K and V unsplit, or runs on through V in the packed QKV", s[1]),
            "k = kv[:, :num_kv_heads]; v = kv[:, num_kv_heads:]"};
  }
  if (s[2] == d && s[1] == hq + hk) {
    return {format("k has {} heads = num_qo_heads + num_kv_heads ({} + {}): it was sliced across a boundary of the packed QKV",
                   s[1], hq, hk),
            split_packed()};
  }
  if (s[2] == d) {
    if (const std::int64_t n = times(hk, s[1]); n > 1) {
      return {format("k has {} heads, 1/{} of num_kv_heads = {}: num_kv_heads is the whole model's, and k is this rank's part "
                     "under tensor "
                     "parallelism",
                     s[1], n, hk),
              format("num_kv_heads={}", s[1])};
    }
    if (const std::int64_t n = times(s[1], hk); n > 1) {
      return {format("k has {} heads, {} times num_kv_heads = {}: K may have been repeated for grouped-query attention, or "
                     "num_kv_heads is one "
                     "rank's under tensor parallelism",
                     s[1], n, hk),
              ""};
    }
  }
  return other_head_dim(a, k_heads(a));
}

Diagnosis v_shape(const Args& a) {
  const Shape &k = a.k.shape, &v = a.v.shape;
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (!is_3d(a.k) || !is_3d(a.v)) return {};
  if (v[1] == k[1] && v[2] == k[2]) return token_counts_differ(a, "v", v[0], "k", k[0]);
  if (auto order = axes_in_other_order(v_heads(a), k[0], d); !order.cause.empty()) return order;
  if (elements(v) == elements(k)) {
    return {format("v has the {} elements of k in another arrangement, {}", elements(v), to_string(v)), reshape(v_heads(a), d)};
  }
  if (v[0] == k[0] && v[2] == k[2] && k[1] == hk) {
    if (v[1] == hq + hk && hq != hk) {
      return {
          format(
              "v has {} heads = num_qo_heads + num_kv_heads ({} + {}): it was sliced from kv_size of the packed QKV instead of "
              "q_size + kv_size, and k from 0, so k holds Q's data",
              v[1], hq, hk),
          "k = qkv[..., q_size : q_size + kv_size]; v = qkv[..., q_size + kv_size :]"};
    }
    const bool two = v[1] == 2 * hk;
    if (v[1] == hq) {
      return {format("v has num_qo_heads = {} heads: either it is Q's slice of the packed QKV, or V was repeated for "
                     "grouped-query attention "
                     "before the call{}",
                     hq, two ? ", or it was sliced from q_size to the end and holds K and V" : ""),
              "pass v as the projection gives it, with num_kv_heads heads"};
    }
    if (two) {  // without grouped heads q_size is kv_size
      return {
          format(
              "v has 2 * num_kv_heads = {} heads: it was sliced from q_size of the packed QKV to its end, so it holds K and V",
              v[1]),
          "v = qkv[..., q_size + kv_size :]"};
    }
    if (v[1] == packed_heads(a)) {
      return {format("v is the whole packed QKV: {} heads = {} + 2 * {}", v[1], hq, hk), split_packed()};
    }
    if (times(v[1], hk) > 1) {
      return {format("v has {} heads, {} times k's {}: V may have been repeated for grouped-query attention, or sliced at a "
                     "wrong boundary of "
                     "the packed QKV",
                     v[1], v[1] / hk, hk),
              ""};
    }
    const std::int64_t width = packed_heads(a) * d, begin = width - v[1] * d, right = (hq + hk) * d;
    if (begin >= 0) {
      return {format("v has {} heads, k has {}: if v runs to the end of the packed QKV, it was sliced from lane {} instead of "
                     "q_size + "
                     "kv_size = {}",
                     v[1], k[1], begin, right),
              format("v = qkv[..., {}:]", right)};
    }
  }
  if (v[0] == k[0] && v[1] == k[1]) {
    return {format("v has heads of {} lanes and k of {}: v may come from another kind of layer, have a head_dim of its own as "
                   "in MLA, or have "
                   "been sliced at a wrong boundary",
                   v[2], k[2]),
            "this call takes K and V of one head_dim"};
  }
  return {};
}

// ---- RP007

Diagnosis token_count(const Args& a) {
  if (!is_3d(a.q) || !is_1d(a.positions) || !is_1d(a.slots)) return {};
  const std::int64_t tokens = a.q.shape[0], p = a.positions.shape[0], s = a.slots.shape[0];
  if (p == s) {
    if (p > tokens) {
      return {format("positions and slots have {} entries, q has {} tokens: q, k and v were sliced to a chunk, or stripped of "
                     "padding, and "
                     "positions and slots were not",
                     p, tokens),
              "slice positions and slots as q was sliced"};
    }
    if (const std::int64_t n = times(tokens, p); n > 1) {
      return {format("positions and slots have {} entries, q has {} = {} * {} tokens: they may hold one entry for each "
                     "sequence, not for each "
                     "token",
                     p, tokens, p, n),
              "give each token its own position and slot"};
    }
    return {
        format(
            "positions and slots have {} entries, q has {} tokens: q, k and v may be padded, or hold tokens of another chunk",
            p, tokens),
        "give padding tokens a position of 0 and the slot -1"};
  }
  const bool positions = p != tokens;
  const char* name = positions ? "positions" : "slots";
  const std::int64_t n = positions ? p : s;
  const auto counts = format("{} has {} entries, q has {} tokens", name, n, tokens);
  if (n == tokens + 1) {
    return {counts + format(": {} may be cumulative sequence lengths, or reach one token too far", name), ""};
  }
  if (n > tokens) {
    return {counts + (positions
                          ? ": it covers the whole prompt while q holds one chunk of the prefill, or is padded"
                          : ": it covers the whole prompt while q holds one chunk of the prefill, or the slot list is padded"),
            format("slice {} as q was sliced", name)};
  }
  if (n > 0 && times(tokens, n) > 1) {
    return {
        counts +
            (positions
                 ? format(": it may hold one entry for each of {} sequences, not for each token", n)
                 : format(": it may hold one entry for each page of {} tokens, or for each of {} sequences, not for each token",
                          tokens / n, n)),
        positions ? "" : "slots = pages[t // page_size] * page_size + t % page_size, for each token t"};
  }
  if (!positions && n > 0) {
    return {counts + ": it may hold pages instead of slots, or be of another chunk",
            "slots holds one row of the pool for each token, -1 for none"};
  }
  if (n > 0) return {counts + ": it may be of another chunk than q", format("slice {} as q was sliced", name)};
  return {};
}

// ---- RP008, RP009: the pools

Diagnosis pool_shape(const Args& a, const char* name, const Shape& s) {
  const std::int64_t d = a.head_dim, hq = a.num_qo_heads, hk = a.num_kv_heads;
  if (s.rank() != 3) return {};
  if (s[0] == hk && s[2] == d && s[1] != hk) {
    return {format("{} is laid out heads first: [heads, slots, head_dim] = {}", name, to_string(s)),
            format("{0} = {0}.swapaxes(0, 1), a view", name)};
  }
  if (s[1] == d && s[2] == hk && d != hk) {
    return {format("{} has lanes before heads: [slots, head_dim, heads] = {}", name, to_string(s)),
            "lay the pool out as [num_slots, num_kv_heads, head_dim]"};
  }
  if (s[2] == hk * d && d != hk * d && !(s[1] == hk && hk == 2)) {
    return {
        format("{} comes in pages of {} slots with heads and lanes in one axis: [pages, page_size, num_kv_heads * head_dim]",
               name, s[1]),
        format("{0} = {0}.reshape(-1, {1}, {2})", name, hk, d)};
  }
  if (s[1] == hk && s[2] == 2 * d) {
    return {format("{} has rows of 2 * head_dim = {} lanes: K and V side by side, or another head_dim", name, s[2]),
            "k_pool, v_pool = pool[..., :head_dim], pool[..., head_dim:], views"};
  }
  const bool two = s[1] == 2 * hk;
  if (s[2] == d && s[1] == hq) {
    return {format("{} has num_qo_heads = {} heads: it was made for query heads{}; the pool holds num_kv_heads = {} heads",
                   name, hq, two ? ", or holds K and V together" : "", hk),
            format("make the pool with [num_slots, {}, {}]", hk, d)};
  }
  if (s[2] == d && two) {
    return {format("{} has 2 * num_kv_heads = {} heads: it holds K and V together, or is the whole model's under tensor "
                   "parallelism over 2",
                   name, s[1]),
            "k_pool, v_pool = pool[:, :num_kv_heads], pool[:, num_kv_heads:], views"};
  }
  if (s[2] == d && times(s[1], hk) > 1) {
    return {format("{} has {} heads, {} times num_kv_heads = {}: it was made for the whole model, and k is this rank's part "
                   "under tensor "
                   "parallelism",
                   name, s[1], s[1] / hk, hk),
            format("make the pool with [num_slots, {}, {}]", hk, d)};
  }
  if (s[2] == d && times(hk, s[1]) > 1) {
    return {format("{} has {} heads, 1/{} of num_kv_heads = {}: it was made for one rank under tensor parallelism, or for "
                   "another model",
                   name, s[1], hk / s[1], hk),
            format("make the pool with [num_slots, {}, {}]", hk, d)};
  }
  if (s[1] * s[2] == hk * d) {
    return {format("{} was split into {} heads of {} lanes instead of {} of {}", name, s[1], s[2], hk, d),
            format("{0} = {0}.reshape(-1, {1}, {2})", name, hk, d)};
  }
  if (s[1] == hk) {
    return {format("{} has heads of {} lanes where the call says head_dim = {}: it may be the pool of another kind of layer or "
                   "another model",
                   name, s[2], d),
            "pass the pool of the layer that k and v come from"};
  }
  return {};
}

Diagnosis v_pool_shape(const Args& a) {
  const Shape &k = a.k_pool.shape, &v = a.v_pool.shape;
  if (!is_3d(a.k_pool) || !is_3d(a.v_pool)) return {};
  if (v[1] == k[1] && v[2] == k[2]) {
    return {
        format("v_pool has {} slots and k_pool has {}: {}", v[0], k[0],
               std::abs(v[0] - k[0]) == 1 ? "one of them has a row for padding that the other lacks, or they are of two pools"
                                          : "they are of two pools, or one of them was sliced"),
        "make both pools with one number of slots"};
  }
  return pool_shape(a, "v_pool", v);
}

// ---- RP010 to RP013: dtypes

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
// Of the types beyond those with values of their own, only float8 and its like have names; of any other nothing is known.
bool is_quantised(DType dtype) {
  return dtype == DType::i8 || dtype == DType::u8 || (dtype >= DType::other && !name_of(dtype).empty());
}
bool is_swapped(DType dtype) { return dtype >= DType::f32_swapped && dtype <= DType::i64_swapped; }

// What a single array's dtype says by itself, whatever the others have.
Diagnosis odd_dtype(const char* name, DType dtype) {
  if (dtype == DType::u16 || dtype == DType::i16) {
    return {format("{} holds {}: bfloat16 or float16 bits that were read as integers", name, to_string(dtype)),
            format("{0} = {0}.view(ml_dtypes.bfloat16), the same bits", name)};
  }
  if (dtype == DType::f64) {
    return {format("{} is float64, NumPy's default, or what Python floats and numpy.random give", name),
            format("{0} = {0}.astype(numpy.float32), or make it with a dtype", name)};
  }
  if (is_swapped(dtype)) {
    return {format("{} is in the other byte order, as arrays read from a big-endian file are", name),
            format("{0} = {0}.astype({0}.dtype.newbyteorder('='))", name)};
  }
  if (is_quantised(dtype)) {
    return {format("{} is quantised ({}): this op stores K and V in the model's dtype", name, name_of(dtype)),
            "keep these in float32, float16 or bfloat16"};
  }
  return {};
}

Diagnosis qkv_dtypes(const Args& a) {
  const DType q = a.q.dtype, k = a.k.dtype, v = a.v.dtype;
  for (const Heads& x : {q_heads(a), k_heads(a), v_heads(a)}) {
    if (auto odd = odd_dtype(x.name, x.tensor.dtype); !odd.cause.empty()) return odd;
  }
  const auto types = format("q is {}, k {}, v {}", to_string(q), to_string(k), to_string(v));
  const auto back = [&](const char* names, DType to) {
    return format("cast {} back to {} before the call", names, to_string(to));
  };
  if (q == DType::f32 && k == DType::f32 && is_half(v)) {
    return {types + ": q and k were widened to float32, by a norm or a rope in float32, and v was not", back("q and k", v)};
  }
  if (q == DType::f32 && k == v && is_half(k)) {
    return {types + ": q alone was widened to float32, by a norm, a bias or a scale in float32", back("q", k)};
  }
  if (k == DType::f32 && q == v && is_half(q)) {
    return {types + ": k alone was widened to float32, by a norm or a bias in float32", back("k", q)};
  }
  if (v == DType::f32 && q == k && is_half(q))
    return {types + ": v alone was widened to float32, or q and k alone were narrowed", back("v", q)};
  if (is_half(q) && is_half(k) && is_half(v)) {
    return {types + ": float16 and bfloat16 are mixed, as with a cache or a layer loaded in another dtype",
            back("all three", q)};
  }
  return {types, "cast all three to the model's dtype"};
}

Diagnosis pool_dtypes(const Args& a) {
  const bool k = a.k_pool.dtype != a.q.dtype, both = k && a.v_pool.dtype == a.k_pool.dtype;
  const char* name = both ? "the pools" : k ? "k_pool" : "v_pool";
  const DType pool = k ? a.k_pool.dtype : a.v_pool.dtype, data = a.q.dtype;
  const char* verb = both ? "are" : "is";
  const auto make = format("make both pools with the dtype of q: {}", to_string(data));
  if (pool == DType::u16 && is_half(data)) {
    return {format("{} {} uint16: {} bits that were allocated or read as integers", name, verb, to_string(data)),
            data == DType::bf16 ? "k_pool = k_pool.view(ml_dtypes.bfloat16), the same bits; v_pool likewise"
                                : "k_pool = k_pool.view(numpy.float16), the same bits; v_pool likewise"};
  }
  if (pool == DType::f32 && is_half(data)) {
    return {format("{} {} float32, a default dtype, while q, k and v are {}", name, verb, to_string(data)), make};
  }
  if (is_half(pool) && is_half(data)) {
    return {format("{} {} {} and q, k and v are {}: the model and the pool were made with two different 16-bit types", name,
                   verb, to_string(pool), to_string(data)),
            make};
  }
  if (is_half(pool) && data == DType::f32) {
    return {format("{} {} {} and q, k and v are float32: they were widened, or the pool was made for a 16-bit model", name,
                   verb, to_string(pool)),
            format("cast q, k and v to {} before the call, or {}", to_string(pool), make)};
  }
  return odd_dtype(name, pool);
}

Diagnosis float_dtypes(const Args& a) {
  for (const auto& [name, tensor] : {std::pair{"q", &a.q}, std::pair{"k", &a.k}, std::pair{"v", &a.v},
                                     std::pair{"k_pool", &a.k_pool}, std::pair{"v_pool", &a.v_pool}}) {
    if (!is_data_type(tensor->dtype)) return odd_dtype(name, tensor->dtype);
  }
  return {};
}

Diagnosis index_dtypes(const Args& a) {
  const bool positions = !is_index_type(a.positions.dtype);
  const char* name = positions ? "positions" : "slots";
  const Tensor& tensor = positions ? a.positions : a.slots;
  const auto convert = format("{0} = {0}.astype(numpy.int64)", name);
  switch (tensor.dtype) {
    case DType::f64:
      if (tensor.empty())
        return {format("{} was made from an empty list, which NumPy gives float64", name),
                format("{} = numpy.array([], numpy.int64)", name)};
      return {format("{} is float64: it was computed with /, or made without a dtype", name), convert};
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return {format("{} is {}: it was computed with floats, or cast along with the model", name, to_string(tensor.dtype)),
              convert};
    case DType::u32:
    case DType::u64:
      return {format("{} is unsigned ({}), in which -1 can't be said and becomes a huge number", name, to_string(tensor.dtype)),
              convert + (positions ? "" : ", and -1 for tokens that must not be stored")};
    case DType::boolean:
      return {format("{} is a mask (bool), not one number for each token", name),
              positions ? "" : "slots = numpy.where(mask, slots, -1)"};
    case DType::i8:
    case DType::i16:
    case DType::u8:
    case DType::u16:
      return {format("{} is {}, too narrow for positions and slots of a real pool", name, to_string(tensor.dtype)), convert};
    case DType::i32_swapped:
    case DType::i64_swapped:
      return odd_dtype(name, tensor.dtype);
    default:
      return {};
  }
}

// ---- RP014, RP015: numbers

Diagnosis geometry(const Args& a) {
  const auto suggest = [](const char* name, const Tensor& t, int axis) {
    return is_3d(t) && t.shape[axis] > 0 ? format("{}={}, as the array has it", name, t.shape[axis]) : std::string();
  };
  if (a.head_dim < 1) {
    return {format("head_dim = {} was read from a config that does not have the key", a.head_dim), suggest("head_dim", a.q, 2)};
  }
  if (a.num_qo_heads < 1) {
    return {format("num_qo_heads = {} was read from a config that does not have the key, or divided by too many ranks",
                   a.num_qo_heads),
            suggest("num_qo_heads", a.q, 1)};
  }
  if (a.num_kv_heads < 1) {
    return {format("num_kv_heads = {}: fewer key/value heads than ranks were divided among them, or a config without "
                   "num_key_value_heads, "
                   "which then equals num_attention_heads",
                   a.num_kv_heads),
            suggest("num_kv_heads", a.k, 1)};
  }
  return {format("head_dim = {} is odd and can't be turned in pairs: it may be hidden_size // num_attention_heads of a model "
                 "that says its "
                 "own head_dim, or a count of something else",
                 a.head_dim),
          ""};
}

Diagnosis rope(const Args& a) {
  const double base = a.rope_base;
  if (a.angles != Angles::exact && a.angles != Angles::float32)
    return {"", "angles='exact', or 'float32' for what transformers computes"};
  if (std::isnan(base)) return {"neither rope_base nor rope was given, or rope_base was computed as NaN", ""};
  if (base == 0)
    return {"rope_base = 0: rope_theta was read from a config that does not have it, or this layer has no rope", ""};
  if (std::isinf(base)) return {"rope_base overflowed: a scaled base was computed with a power of too large a number", ""};
  return {format("rope_base = {} is below 0: a base scaled for a longer context was computed from a length below the trained "
                 "one, or a sign "
                 "was lost",
                 base),
          ""};
}

// ---- RP016 to RP019: memory

std::array<std::pair<const char*, const Tensor*>, 9> all_arrays(const Args& a) {
  return {{{"q", &a.q},
           {"k", &a.k},
           {"v", &a.v},
           {"positions", &a.positions},
           {"slots", &a.slots},
           {"k_pool", &a.k_pool},
           {"v_pool", &a.v_pool},
           {"q_out", &a.q_out},
           {"k_out", &a.k_out}}};
}

bool broadcast(const Tensor& tensor) {
  for (int axis = 0; axis < std::min(tensor.rank(), Dims::kMaxRank); ++axis) {
    if (tensor.shape[axis] > 1 && tensor.strides[axis] == 0) return true;
  }
  return false;
}

Diagnosis layout(const Args& a) {
  for (const auto& [name, tensor] : all_arrays(a)) {
    const int last = std::min(tensor->rank(), Dims::kMaxRank) - 1;
    if (!tensor->given() || tensor->empty() || last < 0) continue;
    const auto copy = format("{0} = numpy.ascontiguousarray({0})", name);
    const std::int64_t item = item_size(tensor->dtype);
    if (tensor->unaligned ||
        (item > 0 && reinterpret_cast<std::uintptr_t>(tensor->data) % static_cast<std::uintptr_t>(item) != 0)) {
      return {format("{} is a view into packed bytes or a record, whose elements lie between element boundaries", name),
              format("{0} = {0}.copy()", name)};
    }
    const std::int64_t stride = tensor->strides[last];
    if (stride == 1 || tensor->shape[last] == 1) continue;
    if (stride == 0) return {format("{} is one value broadcast over its last axis", name), copy};
    if (stride == -1) return {format("{} is reversed along its last axis", name), copy};
    if (last == 0) {
      return {format("{0} takes one element in {1}: it is a column of a [tokens, {1}] table, or was sliced [::{1}]", name,
                     std::abs(stride)),
              copy};
    }
    for (int axis = 0; axis < last; ++axis) {
      if (tensor->strides[axis] == 1 && tensor->shape[axis] > 1) {
        return {format("{} is transposed: its axis {} is the contiguous one, not the last", name, axis), copy};
      }
    }
    return {format("{0} takes one lane in {1}: it was sliced [..., ::{1}], or is one part of interleaved values", name,
                   std::abs(stride)),
            copy};
  }
  return {};
}

Diagnosis outputs(const Args& a) {
  const Tensor &qo = a.q_out, &ko = a.k_out;
  if (qo.given() && ko.given() && a.q.shape != a.k.shape && qo.shape == a.k.shape && ko.shape == a.q.shape) {
    return {"q_out and k_out are swapped: each has the other's shape", "q_out=k_out and k_out=q_out"};
  }
  struct Pair {
    const char *name, *like_name;
    const Tensor &out, &like;
  };
  for (const auto& [name, like_name, out, like] : {Pair{"q_out", "q", qo, a.q}, Pair{"k_out", "k", ko, a.k}}) {
    if (!out.given()) continue;
    const auto make = format("{} = numpy.empty({}.shape, {}.dtype)", name, like_name, like_name);
    if (out.shape != like.shape) {
      if (is_3d(out) && is_3d(like) && out.shape[1] == like.shape[1] && out.shape[2] == like.shape[2]) {
        return {format("{} has {} tokens and {} has {}: it is the output of another step", name, out.shape[0], like_name,
                       like.shape[0]),
                format("slice it to this step's tokens: {0}={0}[:{1}]", name, like.shape[0])};
      }
      if (elements(out.shape) == elements(like.shape))
        return {format("{} has {}'s elements in another shape", name, like_name),
                format("{0} = {0}.reshape({1}.shape)", name, like_name)};
      return {"", make};
    }
    if (out.dtype != like.dtype) {
      return {format("{} was made as {}{}", name, to_string(out.dtype),
                     out.dtype == DType::f64 || out.dtype == DType::f32 ? ", a default dtype" : ""),
              make};
    }
  }
  for (const auto& [name, tensor] :
       {std::pair{"q_out", &qo}, std::pair{"k_out", &ko}, std::pair{"k_pool", &a.k_pool}, std::pair{"v_pool", &a.v_pool}}) {
    if (!tensor->read_only) continue;
    if (broadcast(*tensor))
      return {format("{} comes from numpy.broadcast_to: many of its elements are one", name), format("{0} = {0}.copy()", name)};
    return {format("{} can't be written: it is a view of bytes, a file mapped with mode 'r', or an array of a library whose "
                   "arrays are "
                   "immutable",
                   name),
            format("{0} = {0}.copy(), or map the file with mode 'r+'", name)};
  }
  return {};
}

Diagnosis devices(const Args& a) {
  if (a.q.device.type == DeviceType::cpu) {
    return {"q is on the CPU and another array is not: it was made on the accelerator, or q was moved alone", ""};
  }
  for (const auto& [name, tensor] : all_arrays(a)) {
    if (tensor->given() && tensor->device.type == DeviceType::cpu) {
      return {format("{} is on the CPU and q on {}; this build has no kernel for {} in any case", name, to_string(a.q.device),
                     to_string(a.q.device)),
              ""};
    }
  }
  return {format("this build was made for the CPU alone, and the arrays are on {}", to_string(a.q.device)),
          "move the arrays to the CPU"};
}

bool same_data(const Tensor& x, const Tensor& y) { return x.data != nullptr && x.data == y.data; }

Diagnosis overlap(const Args& a) {
  for (const auto& [name, tensor] : {std::pair{"q_out", &a.q_out}, std::pair{"k_out", &a.k_out}, std::pair{"k_pool", &a.k_pool},
                                     std::pair{"v_pool", &a.v_pool}}) {
    if (tensor->given() && broadcast(*tensor)) {
      return {format("{} is broadcast: an axis of stride 0 makes many of its elements one", name),
              format("{0} = {0}.copy()", name)};
    }
  }
  if (same_data(a.q_out, a.k_out))
    return {"q_out and k_out begin at one address: one buffer serves both outputs", "give each output a buffer of its own"};
  if (same_data(a.k_pool, a.v_pool))
    return {"k_pool and v_pool are one array: K would be overwritten by V", "pass the V pool as v_pool"};
  if (same_data(a.q_out, a.k) || same_data(a.k_out, a.q)) {
    if (same_data(a.q, a.k))
      return {"q and k are one array, so neither can be turned in place", "leave q_out and k_out out, or copy k first"};
    return {"q_out is k's memory or k_out is q's: the outputs for working in place are swapped", "q_out=q, k_out=k"};
  }
  if (same_data(a.q, a.k) && (same_data(a.q_out, a.q) || same_data(a.k_out, a.k))) {
    return {"q and k are one array, so neither can be turned in place", "leave q_out and k_out out, or copy k first"};
  }
  if (same_data(a.v, a.k) && same_data(a.k_out, a.k)) {
    return {"v is k, and k is turned in place: v would be stored turned", "copy v first, or leave k_out out"};
  }
  if (same_data(a.q_out, a.q) || same_data(a.k_out, a.k)) {
    return {"an output begins where its input does but has other strides: in place means the same view", "q_out=q, k_out=k"};
  }
  for (const auto& [name, tensor] : {std::pair{"q_out", &a.q_out}, std::pair{"k_out", &a.k_out}}) {
    for (const auto& [pool_name, pool] : {std::pair{"k_pool", &a.k_pool}, std::pair{"v_pool", &a.v_pool}}) {
      if (same_data(*tensor, *pool)) {
        return {format("{} is {}'s memory: the op itself writes the pool, by slots", name, pool_name),
                format("give {} memory of its own, or leave it out", name)};
      }
    }
  }
  return {
      "two views of one buffer reach into each other: a slice that is off by some rows or lanes, or a buffer that is reused",
      ""};
}

// ---- RP020, RP021: values

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();

struct Values {
  std::int64_t first_bad = 0, bad = 0, count = 0, low = 0, high = 0;
  bool consecutive = true;  // each one more than the one before
};

// Of a 1-D array of integers in the CPU's memory, which is what rules 20 and 21 find faults in.
Values look_at(const Tensor& tensor, std::int64_t limit) {
  Values seen;
  visit_index_array(tensor, [&](const auto* values) {
    seen.count = tensor.strides[0] == 0 ? std::min<std::int64_t>(tensor.shape[0], 1) : tensor.shape[0];
    std::int64_t before = 0;
    bool found = false;
    for (std::int64_t i = 0; i < seen.count; ++i) {
      const std::int64_t value = load_once(values + i * tensor.strides[0]);
      if (i == 0) seen.low = seen.high = value;
      seen.low = std::min(seen.low, value);
      seen.high = std::max(seen.high, value);
      seen.consecutive = seen.consecutive && (i == 0 || value - 1 == before);
      before = value;
      if (!found && (value > limit || value < -kMaxInt32)) {
        found = true;
        seen.first_bad = i;
        seen.bad = value;
      }
    }
  });
  return seen;
}

bool readable(const Tensor& tensor) {
  return is_1d(tensor) && is_index_type(tensor.dtype) && tensor.device.type == DeviceType::cpu && !tensor.empty() &&
         tensor.data != nullptr && !tensor.unaligned;
}

Diagnosis slot_values(const Args& a) {
  const std::int64_t num_slots = a.k_pool.shape[0];
  const Values slots = look_at(a.slots, num_slots - 1);
  if (num_slots == 0) return {"the pools have no slots yet", "make the pools before the first call; slot -1 stores nothing"};
  if (slots.high == kMaxInt32 || slots.high == kMaxUint32 || slots.high == std::numeric_limits<std::int64_t>::max()) {
    return {format("{} is a padding value, {}", slots.high,
                   slots.high == kMaxUint32 ? "-1 read as an unsigned number" : "the largest of its type"),
            "give padding tokens the slot -1"};
  }
  if (readable(a.positions)) {
    const Values positions = look_at(a.positions, kMaxInt32);
    if (slots.count > 1 && slots.consecutive && !positions.consecutive && positions.low >= -1 && positions.high < num_slots) {
      return {"slots counts up one by one and positions does not: positions and slots are swapped in the argument list",
              "pass positions first, then slots"};
    }
  }
  if (slots.high == num_slots) {
    return {format("{} is one past the last slot: slots are counted from 1, or the allocator hands out one row too many",
                   num_slots),
            format("slots run from 0 to {}", num_slots - 1)};
  }
  return {format("the highest slot is {}, the pools have {}: the slots may be of a larger pool, of all layers' pools in one, "
                 "or offsets in "
                 "elements instead of rows",
                 slots.high, num_slots),
          ""};
}

Diagnosis position_values(const Args& a) {
  const Values positions = look_at(a.positions, kMaxInt32);
  if (positions.bad == kMaxUint32)
    return {"4294967295 is -1 read as an unsigned number: a padding position",
            "give padding tokens the position 0 and the slot -1"};
  if (positions.bad == std::numeric_limits<std::int32_t>::min() || positions.bad == std::numeric_limits<std::int64_t>::min()) {
    return {format("{} is the smallest number of its type: an array that was never filled, or a NaN cast to an integer",
                   positions.bad),
            ""};
  }
  return {format("{} is no position of a token: it may be a hash, an address, a time or memory that was never filled",
                 positions.bad),
          ""};
}

// Beyond these no number is a length that a user meant, and products of them might not fit.
constexpr std::int64_t kMaxCount = 1 << 24, kMaxLength = std::int64_t{1} << 31;

bool within(std::int64_t value, std::int64_t limit) { return -limit <= value && value <= limit; }

bool is_plausible(const Args& a) {
  if (!within(a.head_dim, kMaxCount) || !within(a.num_qo_heads, kMaxCount) || !within(a.num_kv_heads, kMaxCount)) return false;
  return std::ranges::all_of(all_arrays(a), [](const auto& array) {
    const auto fits = [](std::int64_t value) { return within(value, kMaxLength * kMaxLength / 2); };
    return std::ranges::all_of(array.second->shape, [](std::int64_t length) { return within(length, kMaxLength); }) &&
           std::ranges::all_of(array.second->strides, fits);
  });
}

}  // namespace

Diagnosis diagnose(Refusal refusal, const RopePoolFusedArgs& a) {
  if (!is_plausible(a)) return {};
  switch (refusal) {
    case Refusal::qkv_not_3d:
      return qkv_rank(a);
    case Refusal::positions_slots_not_1d:
      return positions_slots_rank(a);
    case Refusal::pools_not_3d:
      return pools_rank(a);
    case Refusal::q_shape_mismatch:
      return q_shape(a);
    case Refusal::k_shape_mismatch:
      return k_shape(a);
    case Refusal::v_shape_mismatch:
      return v_shape(a);
    case Refusal::token_count_mismatch:
      return token_count(a);
    case Refusal::k_pool_shape_mismatch:
      return pool_shape(a, "k_pool", a.k_pool.shape);
    case Refusal::v_pool_shape_mismatch:
      return v_pool_shape(a);
    case Refusal::qkv_dtype_mismatch:
      return qkv_dtypes(a);
    case Refusal::pool_dtype_mismatch:
      return pool_dtypes(a);
    case Refusal::float_dtype_unsupported:
      return float_dtypes(a);
    case Refusal::index_dtype_unsupported:
      return index_dtypes(a);
    case Refusal::geometry_unsupported:
      return geometry(a);
    case Refusal::rope_unsupported:
      return rope(a);
    case Refusal::layout_unsupported:
      return layout(a);
    case Refusal::output_unsuitable:
      return outputs(a);
    case Refusal::device_unsupported:
      return devices(a);
    case Refusal::overlap:
      return overlap(a);
    case Refusal::slot_out_of_range:
      return slot_values(a);
    case Refusal::position_out_of_range:
      return position_values(a);
  }
  return {};
}

}  // namespace ropepool
