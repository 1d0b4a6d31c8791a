// RP010 to RP013: what dtypes say about a mistake.
#include <algorithm>

#include "core/dtype.h"
#include "ops/rope_pool_fused.h"
#include "ops/rope_pool_fused_diagnosis_parts.h"

namespace ropepool::diagnosis {
namespace {

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
bool is_bits(DType dtype) { return dtype == DType::u16 || dtype == DType::i16; }
bool is_swapped(DType dtype) { return dtype >= DType::f32_swapped && dtype <= DType::i64_swapped; }
// Of the types beyond those with values of their own, only float8 and its like have names; of any other nothing is known.
bool is_small_float(DType dtype) { return dtype >= DType::other && !name_of(dtype).empty(); }

using Names = std::vector<std::string>;

// "q", "q and k", "q, k and v".
std::string listed(const Names& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

// "q = q.{call}; k = k.{call}".
std::string each(const Names& names, const std::string& call) {
  std::string text;
  for (const auto& name : names) text += format("{0}{1} = {1}.{2}", text.empty() ? "" : "; ", name, call);
  return text;
}

// Arrays of one dtype that should be `target`; DType::none where all that is known is what this op takes.
struct Odd {
  Names names;
  DType dtype;
  DType target;
  std::string target_of;  // an array that has it
  bool written;           // pools: to convert them would leave the caller's own as they are
};

std::string target_name(const Odd& odd) { return odd.target == DType::none ? "float32" : to_string(odd.target); }

std::string converted(const Odd& odd) {
  if (odd.written) return format("allocate {} as {}", listed(odd.names), target_name(odd));
  return each(odd.names,
              odd.target == DType::none ? std::string("astype(numpy.float32)") : format("astype({}.dtype)", odd.target_of));
}

// Beside a conversion of types that have no name.
std::string or_view(bool unnamed) {
  return unnamed ? ", or view instead of astype where these are raw bytes, as numpy.load reads bfloat16" : "";
}

// What a dtype that this op does not take says by itself, if anything.
Diagnosis unsupported(const Odd& odd) {
  const auto names = listed(odd.names);
  const char *are = odd.names.size() > 1 ? "are" : "is", *hold = odd.names.size() > 1 ? "hold" : "holds";
  if (is_bits(odd.dtype)) {
    const bool known = is_half(odd.target);
    auto view = each(odd.names, known ? format("view({}.dtype)", odd.target_of) : std::string("view(ml_dtypes.bfloat16)"));
    return {format("{} {} {}: {} bits that were allocated or read as integers, or quantised numbers", names, hold,
                   to_string(odd.dtype), known ? to_string(odd.target) : "bfloat16 or float16"),
            view + ", the same bits, where they are bits"};
  }
  if (odd.dtype == DType::f64) {
    return {format("{} {} float64, NumPy's default, or what Python floats and numpy.random give", names, are), converted(odd)};
  }
  if (is_swapped(odd.dtype)) {
    return {format("{} {} in the other byte order, as arrays read from a big-endian file are", names, are),
            odd.written
                ? format("allocate {} in the machine's byte order", names)
                : each(odd.names, odd.target == DType::none ? format("astype({}.dtype.newbyteorder('='))", odd.names.front())
                                                            : format("astype({}.dtype)", odd.target_of))};
  }
  if (is_small_float(odd.dtype)) {
    return {format("{} {} quantised ({}): this op stores K and V in the model's dtype", names, are, name_of(odd.dtype)),
            "keep these in float32, float16 or bfloat16"};
  }
  if (odd.dtype == DType::i8 || odd.dtype == DType::u8) {
    return {format("{} {} {}: quantised, where this op stores K and V in the model's dtype, or bytes that were not viewed as "
                   "numbers",
                   names, are, name_of(odd.dtype)),
            "keep these in float32, float16 or bfloat16"};
  }
  return {};
}

// The same, with the dtype's name where it says nothing.
Diagnosis unsupported_or_named(const Odd& odd) {
  Diagnosis diagnosis = unsupported(odd);
  if (!diagnosis.cause.empty()) return diagnosis;
  return {format("{} {} {}", listed(odd.names), odd.names.size() > 1 ? "are" : "is", to_string(odd.dtype)),
          converted(odd) + or_view(!odd.written && name_of(odd.dtype).empty())};
}

// Those of the arrays that have this dtype.
Names of_dtype(std::initializer_list<std::pair<const char*, const Tensor*>> arrays, DType dtype) {
  Names names;
  for (const auto& [name, tensor] : arrays) {
    if (tensor->dtype == dtype) names.push_back(name);
  }
  return names;
}

}  // namespace

Diagnosis qkv_dtypes(const Args& a, const Finding& finding) {
  const std::array<Heads, 3> all{q_heads(a), k_heads(a), v_heads(a)};
  const DType target = contract::common_dtype(a);  // one of theirs
  const auto has_target = [&](const Heads& x) { return x.tensor.dtype == target; };
  const Heads& right = *std::ranges::find_if(all, has_target);
  const DType odd = array_named(a, finding.argument)->dtype;
  Names names, others;
  bool one_kind = true, unnamed = false;
  for (const Heads& x : all) {
    (has_target(x) ? others : names).push_back(x.name);
    if (!has_target(x) && x.tensor.dtype != odd) one_kind = false;
    unnamed = unnamed || name_of(x.tensor.dtype).empty();
  }
  const auto types = format("q is {}, k {}, v {}", to_string(a.q.dtype), to_string(a.k.dtype), to_string(a.v.dtype));
  const auto mend = each(names, format("astype({}.dtype)", right.name));
  const bool pools_agree = a.k_pool.dtype == target && a.v_pool.dtype == target;
  if (!is_data_type(odd)) {
    const Names rest = of_dtype({{"q", &a.q}, {"k", &a.k}, {"v", &a.v}}, target);
    Diagnosis diagnosis = unsupported({of_dtype({{"q", &a.q}, {"k", &a.k}, {"v", &a.v}}, odd), odd, target, right.name, false});
    if (diagnosis.cause.empty()) {
      if (is_data_type(target))
        return {types + (pools_agree ? ", the pools " + to_string(target) : ""), mend + or_view(unnamed)};
      const bool pool_is_right = is_data_type(a.k_pool.dtype);  // none of the three is
      return {types,
              each({"q", "k", "v"}, pool_is_right ? "astype(k_pool.dtype)" : "astype(numpy.float32)") + or_view(unnamed)};
    }
    diagnosis.cause += format("; {} {} {}{}", listed(rest), rest.size() > 1 ? "are" : "is", to_string(target),
                              pools_agree ? ", as are the pools" : "");
    return diagnosis;
  }
  const auto which = listed(names) + (names.size() > 1 ? " were" : " alone was");
  if (one_kind && odd == DType::f32 && is_half(target)) {
    return {format("{}: {} widened to float32, by a norm, a bias, a scale or a rope in float32{}", types, which,
                   pools_agree ? "" : format(", or {} narrowed", listed(others))),
            mend};
  }
  if (one_kind && is_half(odd) && target == DType::f32) {
    return {format("{}: {} narrowed to {}{}", types, which, to_string(odd),
                   pools_agree ? ", or loaded so" : format(", or {} widened", listed(others))),
            mend};
  }
  if (is_half(a.q.dtype) && is_half(a.k.dtype) && is_half(a.v.dtype)) {
    return {types + ": float16 and bfloat16 are mixed, as with a cache or a layer loaded in another dtype", mend};
  }
  return {types, mend};
}

Diagnosis pool_dtypes(const Args& a, const Finding& finding) {
  const DType data = a.q.dtype;
  const Names pools = of_dtype({{"k_pool", &a.k_pool}, {"v_pool", &a.v_pool}}, array_named(a, finding.argument)->dtype);
  const DType pool = array_named(a, finding.argument)->dtype;
  if (!is_data_type(data) && is_data_type(pool)) {
    Diagnosis diagnosis =
        unsupported_or_named({of_dtype({{"q", &a.q}, {"k", &a.k}, {"v", &a.v}}, data), data, pool, finding.argument, false});
    diagnosis.cause += format("; {} {} {}", listed(pools), pools.size() > 1 ? "are" : "is", to_string(pool));
    return diagnosis;
  }
  const auto what =
      format("{} {} {}", pools.size() > 1 ? "the pools" : pools.front(), pools.size() > 1 ? "are" : "is", to_string(pool));
  const auto make = format("allocate {} with the dtype of q, {}", listed(pools), to_string(data));
  const auto cast = each({"q", "k", "v"}, format("astype({}.dtype)", pools.front()));
  if (pool == DType::f32 && is_half(data)) {
    return {format("{0}, a default dtype, while q, k and v are {1}, or q, k and v were narrowed to {1}", what, to_string(data)),
            make + ", or where q, k and v were narrowed leave them float32"};
  }
  if (is_half(pool) && is_half(data)) {
    return {format("{} and q, k and v are {}: the model and the pool were made with two different 16-bit types", what,
                   to_string(data)),
            make};
  }
  if (is_half(pool) && data == DType::f32) {
    return {format("{} and q, k and v are float32: they were widened, or the pool was made for a 16-bit model", what),
            pools.size() > 1 ? cast + ", or " + make : make};
  }
  return unsupported_or_named({pools, pool, is_data_type(data) ? data : DType::none, "q", true});
}

Diagnosis float_dtypes(const Args& a, const Finding& finding) {
  const DType dtype = array_named(a, finding.argument)->dtype;
  const Names data = of_dtype({{"q", &a.q}, {"k", &a.k}, {"v", &a.v}}, dtype);
  const Names pools = of_dtype({{"k_pool", &a.k_pool}, {"v_pool", &a.v_pool}}, dtype);
  if (data.empty()) return unsupported_or_named({pools, dtype, DType::none, "", true});
  Names names = data;
  if (is_bits(dtype)) names.insert(names.end(), pools.begin(), pools.end());  // a view is written in place
  Diagnosis diagnosis = unsupported_or_named({names, dtype, DType::none, "", false});
  const bool quantised = is_small_float(dtype) || dtype == DType::i8 || dtype == DType::u8;
  if (!pools.empty() && !is_bits(dtype) && !quantised) {
    diagnosis.hint += format("; allocate {} likewise", listed(pools));
  }
  return diagnosis;
}

Diagnosis index_dtypes(const Args& a, const Finding& finding) {
  const std::string& name = finding.argument;
  const Tensor& tensor = *array_named(a, name);
  const auto convert = format("{0} = {0}.astype(numpy.int64)", name);
  switch (tensor.dtype) {
    case DType::f64:
      if (tensor.empty()) {
        return {format("{} was made from an empty list, which NumPy gives float64, or without a dtype", name),
                format("{} = numpy.array([], numpy.int64)", name)};
      }
      return {format("{} is float64: it was computed with /, or made without a dtype", name), convert};
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return {format("{} is {}: it was computed with floats, or cast along with the model", name, to_string(tensor.dtype)),
              convert};
    case DType::u32:
    case DType::u64:  // astype would keep what was -1 as a huge number
      return {
          format("{} is unsigned ({}), in which -1 can't be said and becomes a huge number", name, to_string(tensor.dtype)),
          format("{0} = {0}.view(numpy.{1}), in which that is -1 again", name, tensor.dtype == DType::u32 ? "int32" : "int64")};
    case DType::boolean:
      return {format("{} is a mask (bool), not one number for each token", name),
              name == "positions" ? "positions = positions.cumsum() - 1, where it is the attention mask of one sequence; else "
                                    "give each token its position"
                                  : "slots = numpy.where(mask, slots, -1)"};
    case DType::i8:
    case DType::i16:
    case DType::u8:
    case DType::u16:
      return {format("{} is {}, too narrow for positions and slots of a real pool", name, to_string(tensor.dtype)), convert};
    case DType::i32_swapped:
    case DType::i64_swapped:
      return {format("{} is in the other byte order, as arrays read from a big-endian file are", name), convert};
    default:
      return {"", convert + ", where it holds whole numbers"};
  }
}

}  // namespace ropepool::diagnosis
