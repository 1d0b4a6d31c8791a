"""Mistakes as users make them with ropes and configs, for the test of what their refusals say (RP022 to RP030).

A kind is a function that makes the mistake, once for each of its variants. With it stand the code of the refusal and what the
named cause must say: patterns, all of which must be found in it. rope_mistakes.py is to Rope what mistakes.py is to the call.
"""

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ropepool
from ropepool import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkAlphaScaling,
    ProportionalScaling,
    Rope,
    YarnScaling,
)


@dataclasses.dataclass
class Kind:
    name: str
    code: str
    patterns: tuple[str, ...]
    make: Callable[[Any], Any]
    variants: tuple


KINDS: list[Kind] = []


def kind(code, *patterns, of=(None,)):
    def register(make):
        KINDS.append(Kind(make.__name__, code, patterns, make, tuple(of)))
        return make

    return register


def seeded():
    return [(k, variant) for k in KINDS for variant in k.variants]


# ---- RP022: a Rope by hand


@kind("RP022", "sections count pairs", "may count lanes", of=([16, 24, 24], [32, 48, 48], [44, 44, 40]))
def sections_in_lanes(sections):
    Rope(1e6, rotary_dim=sum(sections), sections=sections)


@kind("RP022", "each section twice", "transformers", of=([16, 24, 24], [24, 20, 20]))
def sections_doubled_as_for_cos_and_sin(sections):
    Rope(1e6, rotary_dim=128, sections=sections * 2)


@kind("RP022", "whole head", "only a part turns", of=([11, 11, 10], [8, 12, 12]))
def sections_of_the_rotated_part_of_a_whole_head(sections):
    Rope(1e6, rotary_dim=256, sections=sections)


@kind("RP022", "longer heads|heads of 128 lanes", of=((64, [16, 24, 24]), (96, [24, 20, 20])))
def sections_of_a_larger_model(variant):
    rotary_dim, sections = variant
    Rope(1e6, rotary_dim=rotary_dim, sections=sections)


@kind("RP022", "in blocks", of=([16, 24, 24],))
def sections_of_qwen2_vl_interleaved(sections):
    Rope(1e6, rotary_dim=128, sections=sections, section_order="interleaved")


def long_rope(pairs, rotary_dim):
    factors = {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs}
    return Rope(1e4, rotary_dim=rotary_dim, scaling=LongRopeScaling(**factors, original_length=4096, factor=32.0))


@kind("RP022", "rotary_dim may be that of the whole head", of=((48, 128), (32, 80)))
def long_rope_without_the_partial_factor(variant):
    long_rope(*variant)


@kind("RP022", "those of the whole head", of=((64, 96), (64, 32)))
def long_rope_factors_of_the_whole_head(variant):
    long_rope(*variant)


@kind("RP022", "one a lane", of=(64, 96))
def long_rope_factors_for_each_lane(rotary_dim):
    long_rope(rotary_dim, rotary_dim)


@kind("RP022", "repeated for both lanes", "rotary_dim counts pairs", of=(64, 128))
def frequencies_repeated_as_for_cos_and_sin(rotary_dim):
    inverse = 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    Rope(rotary_dim=rotary_dim, frequencies=np.concatenate([inverse, inverse]).tolist())


@kind("RP022", "only a part turns", of=(32, 16))
def frequencies_of_the_rotated_part_of_a_whole_head(pairs):
    Rope(rotary_dim=128, frequencies=[0.5**i for i in range(pairs)])


@kind("RP022", "wavelength", "stands still", of=(0, 3))
def wavelengths_of_pairs_that_stand_still(pair):
    wavelengths = [2 * math.pi * 10.0**i for i in range(4)]
    wavelengths[pair] = math.inf
    Rope(rotary_dim=8, frequencies=wavelengths)


@kind("RP022", "what follows from a base", of=(1e4, 5e5))
def a_base_beside_frequencies(base):
    Rope(base, rotary_dim=8, frequencies=[1.0, 0.1, 0.01, 0.001])


@kind("RP022", "scaling would be lost", of=(LinearScaling(factor=2.0), NtkAlphaScaling(alpha=8.0)))
def a_scaling_beside_frequencies(scaling):
    Rope(rotary_dim=8, scaling=scaling, frequencies=[1.0, 0.1, 0.01, 0.001])


@kind("RP022", "partial_rotary_factor", "config lacks", of=(0.4, 0.75))
def rotary_dim_is_a_part_cut_to_a_whole_number(part):
    Rope(1e4, rotary_dim=int(part))


@kind("RP022", "1 may be a partial_rotary_factor")
def rotary_dim_is_the_whole_part(_):
    Rope(1e4, rotary_dim=int(1.0))


@kind("RP022", "in pairs", r"head_dim \* partial_rotary_factor", of=((100, 0.25), (50, 0.5)))
def rotary_dim_comes_out_odd(variant):
    head_dim, part = variant
    Rope(1e4, rotary_dim=int(head_dim * part))


@kind("RP022", "no base", of=(None, math.nan))
def no_base(base):
    Rope(base, rotary_dim=64)


@kind("RP022", "config lacks", of=(0, 0.0))
def base_of_a_config_without_one(base):
    Rope({"head_dim": 64}.get("rope_theta", base), rotary_dim=64)


@kind(
    "RP022",
    "0 may stand for a key that the config lacks",
    of=(
        LinearScaling(factor=0),
        NtkAlphaScaling(alpha=0),
        YarnScaling(factor=4.0, original_length=0),
        DynamicNtkScaling(factor=2.0, original_length=0, length=4096),
        DynamicNtkScaling(factor=2.0, original_length=4096, length=0),
        Llama3Scaling(factor=8.0, low_freq_factor=0, high_freq_factor=4, original_length=8192),
    ),
)
def scaling_with_what_the_config_lacks(scaling):
    Rope(1e4, rotary_dim=64, scaling=scaling)


@kind("RP022", "beta_fast and beta_slow are swapped", of=((1.0, 32.0), (1.0, 16.0)))
def yarn_with_its_betas_swapped(betas):
    fast, slow = betas
    Rope(1e4, rotary_dim=64, scaling=YarnScaling(factor=4.0, original_length=4096, beta_fast=fast, beta_slow=slow))


@kind("RP022", "low_freq_factor and high_freq_factor are swapped", of=((4.0, 1.0), (2.0, 1.0)))
def llama3_with_its_factors_swapped(factors):
    low, high = factors
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=low, high_freq_factor=high, original_length=8192)
    Rope(5e5, rotary_dim=64, scaling=scaling)


@kind("RP022", "percent", of=(25, 50.0))
def proportion_in_percent(proportion):
    Rope(1e6, rotary_dim=256, scaling=ProportionalScaling(proportion=proportion))


@kind("RP022", "from the end", of=(-64, -32))
def rotary_offset_from_the_end(offset):
    Rope(1e4, rotary_dim=64, rotary_offset=offset)


# Tables as they are laid out elsewhere: 20 positions, 64 lanes.
ANGLES = np.arange(20)[:, None] * 1e4 ** (-np.arange(0, 64, 2) / 64)
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)
TABLE = np.concatenate([COS, SIN], axis=-1)
TWICE = {"cos": np.concatenate([COS, COS], axis=-1), "sin": np.concatenate([SIN, SIN], axis=-1)}
TABLES = {
    "side by side": np.stack([COS, SIN], axis=-1),
    "are stacked": np.stack([COS, SIN]),
    "has a batch axis": TABLE[None],
    "complex numbers": COS + 1j * SIN,
    "cos or sin alone": COS,
    "each as wide as the rotated part": np.concatenate(list(TWICE.values()), axis=-1),
    "float64 is NumPy's default": TABLE.astype(np.float64),
    "is transposed$": np.ascontiguousarray(TABLE.T),
    "is transposed in memory": np.asfortranarray(TABLE),
    "leaves lanes out": np.repeat(TABLE, 2, axis=-1)[:, ::2],
}

for words, table in TABLES.items():
    KINDS.append(Kind(f"table: {words}", "RP022", (words,), lambda t: Rope(rotary_dim=64, cos_sin=t), (table,)))


@kind("RP022", "made for a rotary_dim of 64", of=(96, 80))
def table_of_another_width(rotary_dim):
    Rope(rotary_dim=rotary_dim, cos_sin=TABLE)


@kind("RP022", "scale would be lost", of=(1.1902, 0.5))
def table_with_a_scale(scale):
    Rope(rotary_dim=64, cos_sin=TABLE, attention_scale=scale)


@kind("RP022", "a position has several")
def table_with_sections(_):
    Rope(rotary_dim=64, cos_sin=TABLE, sections=[12, 10, 10])


@kind("RP022", "rotary_dim of 512 and of 256")
def layers_of_two_widths_joined(_):
    Rope.join([Rope(1e6, rotary_dim=512), Rope(1e4, rotary_dim=256)])


@kind("RP022", "one pairs as neox", of=(64, 128))
def pairings_joined(rotary_dim):
    Rope.join([Rope(1e4, rotary_dim=rotary_dim), Rope(1e4, rotary_dim=rotary_dim, pairing="interleaved")])


@kind("RP022", "no frequencies that could be a set")
def tables_joined(_):
    Rope.join([Rope(rotary_dim=64, cos_sin=TABLE)] * 2)


# ---- RP023 to RP026: calls


def call(rope, head_dim=64, tokens=6, **changes):
    q, k, v = (np.ones((tokens, heads, head_dim), np.float32) for heads in (4, 2, 2))
    pools = [np.zeros((16, 2, head_dim), np.float32) for _ in range(2)]
    arguments = {"rope": rope, "head_dim": head_dim, "num_qo_heads": 4, "num_kv_heads": 2} | changes
    positions = arguments.pop("positions", np.arange(tokens))
    ropepool.rope_pool_fused(q, k, v, positions, np.arange(tokens), *pools, **arguments)


TWO_SETS = long_rope(32, 64)


@kind("RP023", "another model", of=(128, 256))
def rope_of_a_larger_model(rotary_dim):
    call(Rope(1e4, rotary_dim=rotary_dim))


@kind("RP023", "rotated lanes alone", of=(64, 128))
def rotated_lanes_of_latent_attention_alone(offset):
    call(Rope(1e4, rotary_dim=64, rotary_offset=offset))


@kind("RP023", "rotary_dim counts the whole head", of=(16, 32))
def rotary_dim_counts_the_whole_head(offset):
    call(Rope(1e4, rotary_dim=64, rotary_offset=offset))


@kind("RP024", "2 sets", "depends on its sequence", of=(1, 6))
def no_sets_for_long_rope(tokens):
    call(TWO_SETS, tokens=tokens)


@kind("RP024", "one a request", of=(2, 5))
def a_set_for_each_request(requests):
    call(TWO_SETS, rope_sets=np.zeros(requests, np.int32))


@kind("RP024", "padded batch", of=(8, 100))
def sets_of_the_padded_batch(tokens):
    call(TWO_SETS, rope_sets=np.zeros(tokens, np.int32))


@kind("RP024", "mask", of=(4096, 2))
def a_mask_of_long_sequences(length):
    call(TWO_SETS, rope_sets=np.arange(6) > length)


@kind("RP024", "float64", "numpy.zeros", of=(np.zeros(6), np.arange(6) / 6))
def sets_without_a_dtype(sets):
    call(TWO_SETS, rope_sets=sets)


@kind("RP024", "single number", of=(0, 1))
def one_set_for_all(which):
    call(TWO_SETS, rope_sets=np.array(which))


@kind("RP024", "batch axis", of=((1, 6), (6, 1)))
def sets_with_another_axis(shape):
    call(TWO_SETS, rope_sets=np.zeros(shape, np.int32))


@kind("RP024", "rope is not passed", of=(1e4, 5e5))
def sets_without_their_rope(base):
    call(None, rope_base=base, rope_sets=np.zeros(6, np.int32))


@kind("RP025", "padding", of=(-1, -100))
def padding_of_sets(which):
    call(TWO_SETS, rope_sets=np.array([0, 0, 1, 1, which, which]))


@kind("RP025", "counted from 1")
def sets_counted_from_one(_):
    call(TWO_SETS, rope_sets=np.array([1, 1, 2, 2, 2, 2]))


@kind("RP025", "length or a request's number", of=(4096, 7))
def lengths_as_sets(length):
    call(TWO_SETS, rope_sets=np.full(6, length))


@kind("RP026", "negative positions", of=(-1, -20))
def padding_positions_with_a_table(position):
    call(Rope(rotary_dim=64, cos_sin=TABLE), positions=np.array([0, 1, 2, 3, position, position]))


@kind("RP026", "counted from 1")
def positions_counted_from_one_with_a_table(_):
    call(Rope(rotary_dim=64, cos_sin=TABLE), tokens=16, positions=np.arange(5, 21))


@kind("RP026", "longer than the table", of=(25, 4096))
def a_sequence_past_the_table(position):
    call(Rope(rotary_dim=64, cos_sin=TABLE), positions=np.arange(position, position + 6))


# ---- RP027 to RP030: configs

PLAIN = {"model_type": "llama", "head_dim": 64, "rope_theta": 10000.0}
GGUF = {"general.architecture": "qwen2", "qwen2.attention.key_length": 64, "qwen2.rope.freq_base": 1e6}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
TWO_ROPES = {"model_type": "gemma3_text", "head_dim": 256}


def scaled(**keys):
    return Rope.from_config(PLAIN | {"rope_scaling": keys})


def text_as_config(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        Rope.from_config(path)


@kind("RP027", "another spelling", of=("YARN", "Yarn", "yarn_scaling", "LLaMA3", "llama-3", "llama3.1", "long_rope", "linnear"))
def a_type_in_another_spelling(rope_type):
    scaled(rope_type=rope_type, factor=8.0)


@kind("RP027", "NTK-aware", of=("ntk", "ntk-aware", "NTK"))
def ntk_without_saying_which(rope_type):
    scaled(rope_type=rope_type, factor=8.0)


@kind("RP027", "vLLM's name")
def a_type_of_vllm(_):
    scaled(rope_type="deepseek_yarn", factor=40.0)


@kind("RP027", "vision tower")
def the_vision_towers_rope(_):
    scaled(rope_type="axial")


@kind("RP027", "in a tensor")
def llama3_in_gguf(_):
    Rope.from_config(GGUF | {"qwen2.rope.scaling.type": "llama3"})


@kind("RP027", "llama.cpp does not have")
def dynamic_in_gguf(_):
    Rope.from_config(GGUF | {"qwen2.rope.scaling.type": "dynamic", "qwen2.rope.scaling.factor": 2.0})


@kind("RP028", "without its type", "in silence", of=({"factor": 8.0}, {"short_factor": [1.0], "long_factor": [2.0]}))
def a_scaling_without_its_type(keys):
    scaled(**keys)


@kind("RP028", "without all of its keys", of=("factor", "low_freq_factor", "high_freq_factor"))
def llama3_without_a_key(key):
    scaled(**{name: value for name, value in LLAMA3.items() if name != key})


@kind("RP028", "max_position_embeddings 131072", "before the scaling or after", of=(YARN, LLAMA3))
def no_original_length(scaling):
    scaling = {name: value for name, value in scaling.items() if "original" not in name}
    Rope.from_config(PLAIN | {"max_position_embeddings": 131072, "rope_scaling": scaling})


@kind("RP028", "beside that object", of=("factor", "low_freq_factor"))
def a_key_beside_the_scaling(key):
    scaling = {name: value for name, value in LLAMA3.items() if name != key}
    Rope.from_config(PLAIN | {"rope_scaling": scaling, key: LLAMA3[key]})


@kind("RP028", "how long a sequence may get")
def dynamic_without_a_length(_):
    Rope.from_config(PLAIN | {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})


@kind("RP028", "different ways", of=("gemma3_text", "olmo3"))
def no_layer_type(model_type):
    Rope.from_config({"model_type": model_type, "hidden_size": 2048, "num_attention_heads": 8})


@kind("RP028", "describes no model", "generation_config.json")
def generation_config(_):
    Rope.from_config({"bos_token_id": 1, "eos_token_id": 2, "max_length": 4096, "transformers_version": "4.52.4"})


@kind("RP028", "describes no model", "adapter_config.json")
def adapter_config(_):
    Rope.from_config({"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "peft_type": "LORA", "r": 16, "lora_alpha": 32})


@kind("RP028", "params.json", "2i", of=({"rope_theta": 5e5, "use_scaled_rope": True}, {"head_dim": 128, "rope_theta": 1e6}))
def params_of_the_authors_checkpoint(keys):
    Rope.from_config({"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256} | keys)


@kind("RP028", "default of model_type 'my_llama' is not known")
def a_model_type_of_ones_own(_):
    Rope.from_config({"model_type": "my_llama", "hidden_size": 4096, "num_attention_heads": 32})


@kind("RP028", "in a tensor", of=(131072, 16384))
def llama3_in_gguf_without_its_tensor(length):
    keys = {"attention.key_length": 128, "context_length": length, "rope.freq_base": 500000.0}
    Rope.from_config({"general.architecture": "llama"} | {f"llama.{key}": value for key, value in keys.items()})


@kind("RP028", "attention.key_length", "from which it would follow")
def gguf_cut_to_its_rope(_):
    Rope.from_config({"general.architecture": "qwen2", "qwen2.rope.freq_base": 1e6})


@kind("RP029", "two names of one thing", of=(("yarn", "linear"), ("llama3", "default")))
def type_and_rope_type_differ(types):
    scaled(rope_type=types[0], type=types[1], factor=4.0)


@kind("RP029", "today's place", "left over", of=(5e5, 1e6))
def a_base_set_in_its_former_place(base):
    Rope.from_config(PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": base}})


@kind("RP029", "today's place", "left over", of=(2.0, 8.0))
def a_factor_set_in_its_former_place(factor):
    linear = {"rope_type": "linear", "factor": 4.0}
    Rope.from_config(PLAIN | {"rope_parameters": linear, "rope_scaling": linear | {"factor": factor}})


@kind("RP029", "outer one may be left over")
def a_base_set_outside_of_text_config(_):
    Rope.from_config({"model_type": "llava", "text_config": PLAIN, "rope_theta": 5e5})


@kind("RP029", "two names of one thing")
def two_parts_of_the_head(_):
    Rope.from_config(PLAIN | {"partial_rotary_factor": 0.5, "rotary_pct": 0.25})


@kind("RP029", "both say how many lanes turn")
def rotary_dim_beside_another_part(_):
    Rope.from_config(PLAIN | {"partial_rotary_factor": 0.5, "rotary_dim": 16})


@kind(
    "RP029", "misspelt", of=("original_max_position_embedding", "orig_max_position_embeddings", "beta_fst", "atention_factor")
)
def a_key_misspelt(key):
    scaled(**YARN, **{key: 1.0})


@kind("RP029", "key of rope type 'llama3'", of=("low_freq_factor", "high_freq_factor"))
def yarn_with_keys_of_llama3(key):
    scaled(**YARN, **{key: LLAMA3[key]})


@kind("RP029", "key of rope type 'linear'", "'yarn'", of=(2.0, 4.0))
def a_factor_beside_the_default_type(factor):
    scaled(rope_type="default", factor=factor)


@kind("RP029", "for each layer type", "left over", of=(10000.0, 5e5))
def a_base_beside_those_of_the_layer_types(base):
    ropes = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 2e4}}
    Rope.from_config(TWO_ROPES | {"rope_parameters": ropes, "rope_theta": base}, layer_type="full_attention")


@kind("RP029", "more lanes", of=(128, 256))
def rotary_dim_of_another_model(rotary_dim):
    Rope.from_config(PLAIN | {"rotary_dim": rotary_dim})


@kind("RP029", "head_dim does not follow")
def heads_that_do_not_divide_the_width(_):
    Rope.from_config({"model_type": "llama", "hidden_size": 5000, "num_attention_heads": 32})


@kind("RP029", "leaves the factor out")
def a_factor_beside_no_scaling_in_gguf(_):
    Rope.from_config(GGUF | {"qwen2.rope.scaling.type": "none", "qwen2.rope.scaling.factor": 4.0})


@kind("RP029", "stands twice")
def a_key_appended_to_the_file(_):
    text_as_config('{"head_dim": 64, "rope_theta": 10000.0, "rope_theta": 500000.0}')


@kind("RP030", "in quotes", of=({"rope_theta": "500000"}, {"rope_theta": "1e4"}, {"head_dim": "128"}))
def a_number_in_quotes(keys):
    Rope.from_config(PLAIN | keys)


@kind("RP030", "spells null", of=("None", "null"))
def null_in_quotes(text):
    Rope.from_config(PLAIN | {"rope_scaling": text})


@kind("RP030", "rope type alone", of=("linear", "yarn"))
def a_scaling_that_is_only_its_type(rope_type):
    Rope.from_config(PLAIN | {"rope_scaling": rope_type})


@kind("RP030", "number was lost", of=(math.nan, math.inf))
def a_number_that_was_lost(number):
    Rope.from_config(PLAIN | {"rope_theta": number})


@kind("RP030", "division", of=(4096 / 30, 85.3))
def head_dim_by_a_division(head_dim):
    Rope.from_config(PLAIN | {"head_dim": head_dim})


@kind("RP030", "percent", of=(25, 75))
def a_part_of_the_head_in_percent(part):
    Rope.from_config(PLAIN | {"partial_rotary_factor": part})


@kind("RP030", "numbers in JSON", of=(0, 1))
def a_flag_as_a_number(flag):
    scaled(**YARN, truncate=flag)


@kind("RP030", "each has its own", of=(4.0, 1))
def one_factor_for_all_pairs(factor):
    scaled(rope_type="longrope", short_factor=factor, long_factor=factor, original_max_position_embeddings=4096)


@kind("RP030", "'full_attention'", of=("global", "full"))
def a_layer_type_by_gemmas_word_for_all(layer_type):
    Rope.from_config(TWO_ROPES, layer_type=layer_type)


@kind("RP030", "'sliding_attention'", of=("local", "sliding", "sliding_window"))
def a_layer_type_by_gemmas_word_for_near(layer_type):
    Rope.from_config(TWO_ROPES, layer_type=layer_type)


@kind("RP030", "one rope for all layers", of=("full_attention", "sliding_attention"))
def a_layer_type_of_a_model_with_one_rope(layer_type):
    Rope.from_config(PLAIN, layer_type=layer_type)


@kind("RP030", "do not rotate")
def a_layer_type_without_a_rope(_):
    layers = {"layer_types": ["sliding_attention", "full_attention"]}
    Rope.from_config({"model_type": "cohere2", "head_dim": 128} | layers, layer_type="full_attention")


@kind("RP030", "cut short", of=(3, 60))
def a_file_that_is_cut_short(missing):
    text_as_config(json.dumps(PLAIN | {"rope_scaling": LLAMA3})[:-missing])


@kind("RP030", "Git LFS")
def a_pointer_of_git_lfs(_):
    text_as_config("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 826\n")


@kind("RP030", "web page", of=("<!doctype html>\n<html>", "\n<html><head>"))
def a_web_page(text):
    text_as_config(text)


@kind("RP030", "GGUF file")
def a_gguf_file(_):
    text_as_config(b"GGUF\x03\0\0\0" + bytes(16))


@kind("RP030", "safetensors file")
def a_safetensors_file(_):
    text_as_config(b"\x02\0\0\0\0\0\0\0{}")


@kind("RP030", "as Python prints it")
def a_dict_as_python_prints_it(_):
    text_as_config(str(PLAIN))


@kind("RP030", "other means", of=("absolute", "alibi"))
def a_model_without_a_rope(how):
    Rope.from_config({"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "position_embedding_type": how})


@kind("RP030", "pairs lanes by architecture", of=("llama5", "my-model"))
def an_architecture_that_is_not_known(name):
    Rope.from_config({"general.architecture": name, f"{name}.attention.key_length": 64})
