#include "rope.h"

#include <ropepool/rope_config.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "core/rope_tables.h"
#include "errors.h"

namespace ropepool::python {
namespace {

using namespace nb::literals;
using Scaling = decltype(RopeForm::scaling);

Rope made(Result<Rope> rope) {
  if (!rope) raise(rope.error());
  return std::move(rope.value());
}

Pairing to_pairing(const std::string& word) {
  if (word == "neox") return Pairing::neox;
  if (word == "interleaved") return Pairing::interleaved;
  throw nb::value_error(("pairing must be 'neox' or 'interleaved', got '" + word + "'").c_str());
}

Sections::Order to_order(const std::string& word) {
  if (word == "blocks") return Sections::Order::blocks;
  if (word == "interleaved") return Sections::Order::interleaved;
  throw nb::value_error(("section_order must be 'blocks' or 'interleaved', got '" + word + "'").c_str());
}

void init_rope(PyRope* self, std::optional<double> base, std::int64_t rotary_dim, std::int64_t rotary_offset,
               const std::string& pairing, Scaling scaling, std::optional<std::vector<std::int64_t>> sections,
               const std::string& section_order, double attention_scale, std::optional<std::vector<double>> frequencies,
               nb::object cos_sin) {
  RopeForm form;
  if (base) form.base = *base;
  form.rotary_dim = rotary_dim;
  form.rotary_offset = rotary_offset;
  form.pairing = to_pairing(pairing);
  form.scaling = std::move(scaling);
  if (sections) form.sections = Sections{*std::move(sections), to_order(section_order)};
  form.attention_scale = attention_scale;
  if (frequencies && !cos_sin.is_none()) throw nb::value_error("frequencies and cos_sin are two answers: give one of them");
  if (frequencies) {
    new (self) PyRope{made(Rope::from_frequencies(*frequencies, form))};
  } else if (!cos_sin.is_none()) {
    auto reader = std::make_shared<ArrayReader>();
    const Tensor table = reader->read(cos_sin, "cos_sin");
    new (self) PyRope{made(Rope::from_table(table, form)), std::move(reader), std::move(cos_sin)};
  } else {
    new (self) PyRope{made(Rope::make(form))};
  }
}

PyRope join(const std::vector<nb::object>& ropes) {
  std::vector<Rope> joined;
  for (const nb::object& rope : ropes) {
    if (!nb::isinstance<PyRope>(rope)) raise_type_error("join takes Ropes, not %U", nb::inst_name(rope).ptr());
    joined.push_back(nb::inst_ptr<PyRope>(rope)->rope);
  }
  return {made(Rope::join(joined))};
}

// The text of a config: a dict's as JSON, a file's as it is. A folder is that of a model.
std::string text_of_config(nb::handle config) {
  if (PyDict_Check(config.ptr())) return nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(config));
  const nb::module_ os = nb::module_::import_("os");
  if (!PyUnicode_Check(config.ptr()) && !nb::isinstance(config, os.attr("PathLike"))) {
    raise_type_error("config must be a dict or a path, not %U", nb::inst_name(config).ptr());
  }
  nb::object path = os.attr("fspath")(config);
  if (nb::cast<bool>(os.attr("path").attr("isdir")(path))) path = os.attr("path").attr("join")(path, "config.json");
  nb::object text = nb::module_::import_("pathlib").attr("Path")(path).attr("read_bytes")();
  const auto bytes = nb::cast<nb::bytes>(text);
  return {bytes.c_str(), bytes.size()};
}

PyRope from_config(nb::handle config, std::optional<std::string> layer_type, std::optional<std::int64_t> length) {
  const std::string json = text_of_config(config);
  return {made(rope_from_config(json, {std::move(layer_type), length}))};
}

std::vector<std::string> layer_types(nb::handle config) {
  auto types = rope_layer_types(text_of_config(config));
  if (!types) raise(types.error());
  return std::move(types.value());
}

void check_set(const PyRope& self, std::int64_t set) {
  if (set < 0 || set >= self.rope.num_sets()) {
    throw nb::index_error(
        ("the rope has " + std::to_string(self.rope.num_sets()) + " sets, not " + std::to_string(set)).c_str());
  }
}

}  // namespace

void add_rope(nb::module_& module) {
  nb::class_<LinearScaling>(module, "LinearScaling", "Frequencies over `factor` (position interpolation). Config: linear.")
      .def(
          "__init__", [](LinearScaling* self, double factor) { new (self) LinearScaling{factor}; }, nb::kw_only(), "factor"_a)
      .def_ro("factor", &LinearScaling::factor);
  nb::class_<DynamicNtkScaling>(
      module, "DynamicNtkScaling",
      "The base grows with the `length` of the sequence once that is above `original_length`. Config: dynamic, with "
      "max_position_embeddings as original_length.\n\nA sequence must keep one length: its keys are in the pool already.")
      .def(
          "__init__",
          [](DynamicNtkScaling* self, double factor, std::int64_t original_length, std::int64_t length) {
            new (self) DynamicNtkScaling{factor, original_length, length};
          },
          nb::kw_only(), "factor"_a, "original_length"_a, "length"_a)
      .def_ro("factor", &DynamicNtkScaling::factor)
      .def_ro("original_length", &DynamicNtkScaling::original_length)
      .def_ro("length", &DynamicNtkScaling::length);
  nb::class_<NtkAlphaScaling>(module, "NtkAlphaScaling",
                              "The base times alpha^(d / (d - 2)), whatever the length. Config: dynamic with alpha.")
      .def(
          "__init__", [](NtkAlphaScaling* self, double alpha) { new (self) NtkAlphaScaling{alpha}; }, nb::kw_only(), "alpha"_a)
      .def_ro("alpha", &NtkAlphaScaling::alpha);
  nb::class_<YarnScaling>(
      module, "YarnScaling",
      "Slow pairs are interpolated, fast ones are not, a ramp lies between. Config: yarn.\n\n"
      "attention_factor is the final factor of cos and sin; where it is None it follows from factor, or from "
      "mscale and mscale_all_dim where both are given (DeepSeek).")
      .def(
          "__init__",
          [](YarnScaling* self, double factor, std::int64_t original_length, double beta_fast, double beta_slow, bool truncate,
             std::optional<double> attention_factor, std::optional<double> mscale, std::optional<double> mscale_all_dim) {
            new (self)
                YarnScaling{factor, original_length, beta_fast, beta_slow, truncate, attention_factor, mscale, mscale_all_dim};
          },
          nb::kw_only(), "factor"_a, "original_length"_a, "beta_fast"_a = 32.0, "beta_slow"_a = 1.0, "truncate"_a = true,
          "attention_factor"_a = nb::none(), "mscale"_a = nb::none(), "mscale_all_dim"_a = nb::none())
      .def_ro("factor", &YarnScaling::factor)
      .def_ro("original_length", &YarnScaling::original_length)
      .def_ro("beta_fast", &YarnScaling::beta_fast)
      .def_ro("beta_slow", &YarnScaling::beta_slow)
      .def_ro("truncate", &YarnScaling::truncate)
      .def_ro("attention_factor", &YarnScaling::attention_factor)
      .def_ro("mscale", &YarnScaling::mscale)
      .def_ro("mscale_all_dim", &YarnScaling::mscale_all_dim);
  nb::class_<Llama3Scaling>(module, "Llama3Scaling", "Long wavelengths are scaled, short ones are not. Config: llama3.")
      .def(
          "__init__",
          [](Llama3Scaling* self, double factor, double low_freq_factor, double high_freq_factor,
             std::int64_t original_length) {
            new (self) Llama3Scaling{factor, low_freq_factor, high_freq_factor, original_length};
          },
          nb::kw_only(), "factor"_a, "low_freq_factor"_a, "high_freq_factor"_a, "original_length"_a)
      .def_ro("factor", &Llama3Scaling::factor)
      .def_ro("low_freq_factor", &Llama3Scaling::low_freq_factor)
      .def_ro("high_freq_factor", &Llama3Scaling::high_freq_factor)
      .def_ro("original_length", &Llama3Scaling::original_length);
  nb::class_<LongRopeScaling>(
      module, "LongRopeScaling",
      "A factor for each pair; one list for sequences up to original_length tokens, one for longer ones. "
      "Config: longrope.\n\nThe Rope has two sets, 0 short and 1 long: rope_sets says which a token takes. With length it has "
      "the "
      "one that sequences of this length need.")
      .def(
          "__init__",
          [](LongRopeScaling* self, std::vector<double> short_factor, std::vector<double> long_factor,
             std::int64_t original_length, double factor, std::optional<double> attention_factor,
             std::optional<std::int64_t> length) {
            new (self) LongRopeScaling{
                std::move(short_factor), std::move(long_factor), original_length, factor, attention_factor, length};
          },
          nb::kw_only(), "short_factor"_a, "long_factor"_a, "original_length"_a, "factor"_a, "attention_factor"_a = nb::none(),
          "length"_a = nb::none())
      .def_ro("short_factor", &LongRopeScaling::short_factor)
      .def_ro("long_factor", &LongRopeScaling::long_factor)
      .def_ro("original_length", &LongRopeScaling::original_length)
      .def_ro("factor", &LongRopeScaling::factor)
      .def_ro("attention_factor", &LongRopeScaling::attention_factor)
      .def_ro("length", &LongRopeScaling::length);
  nb::class_<ProportionalScaling>(module, "ProportionalScaling",
                                  "Only the first `proportion` of the pairs turn, with the frequencies of the whole head. "
                                  "Config: proportional.")
      .def(
          "__init__",
          [](ProportionalScaling* self, double proportion, double factor) {
            new (self) ProportionalScaling{proportion, factor};
          },
          nb::kw_only(), "proportion"_a, "factor"_a = 1.0)
      .def_ro("proportion", &ProportionalScaling::proportion)
      .def_ro("factor", &ProportionalScaling::factor);

  nb::class_<PyRope>(module, "Rope", R"(How positions become rotations: frequencies, and which lanes they turn.

base: the model's rope_theta. rotary_dim: how many lanes of a head are turned, from lane rotary_offset on; the others pass
through. pairing: 'neox' pairs lane i with i + rotary_dim / 2, 'interleaved' 2i with 2i + 1. scaling: one of the Scaling
classes. sections: for M-RoPE, how many pairs follow each axis of a position, in 'blocks' (Qwen2-VL) or 'interleaved'
(Qwen3-VL); positions are then [axes, num_tokens]. attention_scale: what cos and sin are multiplied by, beside what the
scaling has. Instead of base and scaling: frequencies of your own, [rotary_dim / 2] in radians a position, or cos_sin,
[positions, rotary_dim], the cos of all pairs and then their sin, which is read at each call and never copied.

Raises ContractError (RP022) for what makes no sense, and a plain ValueError for an unknown pairing or section_order. A Rope
never changes.)")
      .def("__init__", &init_rope, "base"_a = nb::none(), nb::kw_only(), "rotary_dim"_a, "rotary_offset"_a = 0,
           "pairing"_a = "neox", "scaling"_a = nb::none(), "sections"_a = nb::none(), "section_order"_a = "blocks",
           "attention_scale"_a = 1.0, "frequencies"_a = nb::none(), "cos_sin"_a = nb::none())
      .def_static("join", &join, "ropes"_a,
                  "Several ropes that differ in frequencies and attention scale alone, as one with a set for each: rope_sets "
                  "of a call says which a token takes.")
      .def_static("from_config", &from_config, "config"_a, nb::kw_only(), "layer_type"_a = nb::none(), "length"_a = nb::none(),
                  R"(The rope of a model, from its config.

config: a dict, or the path of a config.json or of the folder that holds one. Read are rope_parameters (also one a layer type),
rope_theta with rope_scaling (type or rope_type), partial_rotary_factor, rotary_pct, rotary_dim, head_dim or what it follows
from, all of these inside text_config too, and GGUF metadata of llama.cpp as a dict. layer_type: which rope of a model that has
several, such as Gemma 3. length: the most tokens a sequence may get; dynamic NTK needs it, of LongRoPE it picks the set.

Raises ContractError for an unknown rope type (RP027), a missing key (RP028), keys that contradict each other (RP029) or a value
of the wrong kind (RP030), and OSError where a file can't be read. Keys that have nothing to do with the rope are ignored.)")
      .def_static("layer_types", &layer_types, "config"_a,
                  "The layer types of a config that have a rope of their own, as from_config takes them; empty where one rope "
                  "serves all layers.")
      .def("__repr__",
           [](const PyRope& self) {
             const Rope& rope = self.rope;
             const auto number = [](std::int64_t value) { return std::to_string(value); };
             std::string text = "<ropepool.Rope of lanes " + number(rope.rotary_offset()) + " to " +
                                number(rope.rotary_offset() + rope.rotary_dim() - 1) +
                                (rope.pairing() == Pairing::neox ? ", neox" : ", interleaved");
             if (rope.num_axes() > 1) text += ", " + number(rope.num_axes()) + " axes";
             if (rope.num_sets() > 1) text += ", " + number(rope.num_sets()) + " sets";
             const Tensor& table = rope.tables().table;
             if (table.given()) text += ", a table of " + number(table.shape[0]) + " positions";
             return text + ">";
           })
      .def_prop_ro("rotary_dim", [](const PyRope& self) { return self.rope.rotary_dim(); })
      .def_prop_ro("rotary_offset", [](const PyRope& self) { return self.rope.rotary_offset(); })
      .def_prop_ro("pairing", [](const PyRope& self) { return self.rope.pairing() == Pairing::neox ? "neox" : "interleaved"; })
      .def_prop_ro("num_sets", [](const PyRope& self) { return self.rope.num_sets(); })
      .def_prop_ro("num_axes", [](const PyRope& self) { return self.rope.num_axes(); })
      .def_prop_ro("table_rows",
                   [](const PyRope& self) -> std::optional<std::int64_t> {
                     const Tensor& table = self.rope.tables().table;
                     return table.given() ? std::optional(table.shape[0]) : std::nullopt;
                   })
      .def(
          "frequencies",
          [](const PyRope& self, std::int64_t set) {
            check_set(self, set);
            return self.rope.frequencies(set);
          },
          "set"_a = 0, "Of a set, in radians a position, [rotary_dim / 2]; empty where a table says it.")
      .def(
          "attention_scale",
          [](const PyRope& self, std::int64_t set) {
            check_set(self, set);
            return self.rope.attention_scale(set);
          },
          "set"_a = 0, "What cos and sin of a set are multiplied by.");
}

}  // namespace ropepool::python
