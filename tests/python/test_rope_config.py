"""Rope.from_config: configs of published models, written out from their figures, against formulas in mpmath; what is refused;
and the page docs/rope.md, whose configs and rows are run from it."""

import ast
import json
import pathlib
import re

import numpy as np
import pytest
import rope_oracle
import ropepool
from hypothesis import given, settings
from hypothesis import strategies as st
from ropepool import ContractError, Rope

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "rope.md"


def turned(rope, positions, head_dim=8, sets=None):
    """Rows of ones, turned by the op and stored: what the pool has of them."""
    positions = np.asarray(positions)
    tokens = positions.shape[-1]
    ones = np.ones((tokens, 1, head_dim), np.float32)
    pools = [np.zeros_like(ones) for _ in range(2)]
    heads = {"head_dim": head_dim, "num_qo_heads": 1, "num_kv_heads": 1}
    slots = np.arange(tokens)
    ropepool.rope_pool_fused(ones, ones.copy(), ones, positions, slots, *pools, **heads, rope=rope, rope_sets=sets)
    return pools[0][:, 0]


def ratios(rope, base, which=0):
    plain = base ** (-np.arange(rope.rotary_dim // 2) * 2 / rope.rotary_dim)
    return np.array(rope.frequencies(which)) / plain


def refusal(config, **options):
    with pytest.raises(ContractError) as raised:
        Rope.from_config(config, **options)
    return raised.value


# ---- The page


def forms_of_page():
    """Of each config in the page: the lines that call from_config with it, and the row that stands below each."""
    heading, config = "", None
    for match in re.finditer(r"^### ([^\n]+)$|^```(json|text)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        if match[1]:
            heading = match[1]
        elif match[2] == "json":
            config = json.loads(match[3])
        else:
            call, row = match[3].splitlines()
            yield pytest.param(config, call, [float(x) for x in row.split()], id=f"{heading}-{call}")


@pytest.mark.parametrize("config, call, row", list(forms_of_page()))
def test_rows_of_the_page(config, call, row):
    options, positions = re.fullmatch(r"Rope\.from_config\(config(?:, (.*))?\), positions (.*)", call).groups()
    arguments = {word.arg: ast.literal_eval(word.value) for word in ast.parse(f"f({options or ''})").body[0].value.keywords}
    rope = Rope.from_config(config, **arguments)
    np.testing.assert_allclose(turned(rope, ast.literal_eval(positions), len(row))[0], row, rtol=0, atol=2e-6)


def test_the_page_has_every_form():
    page = PAGE.read_text(encoding="utf-8")
    for word in ("linear", "dynamic", "alpha", "yarn", "llama3", "longrope", "proportional", "mrope_section", "freq_base"):
        assert f'"{word}"' in page or f'.{word}"' in page, word


# ---- Known faults


def test_a_given_attention_factor_is_the_last_word():
    for factor, attention_factor in ((128.0, 1.4852030), (64.0, 1.0)):
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 4096}
        config = {"rope_theta": 10000.0, "head_dim": 8, "rope_scaling": scaling | {"attention_factor": attention_factor}}
        np.testing.assert_allclose(turned(Rope.from_config(config), [0]), attention_factor, rtol=1e-7)


GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "max_position_embeddings": 131072,
    "initial_context_length": 4096,
    "rope_theta": 150000,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}


def test_yarn_rounds_its_ramp_only_where_the_config_does():
    ratio = ratios(Rope.from_config(GPT_OSS), 150000)
    assert ratio[12] == pytest.approx(0.593227, abs=1e-6)
    rounded = GPT_OSS | {"rope_scaling": GPT_OSS["rope_scaling"] | {"truncate": True}}
    ratio = ratios(Rope.from_config(rounded), 150000)
    assert ratio[12] == pytest.approx(0.612500, abs=1e-6)
    np.testing.assert_allclose(ratio[:9], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[18:], 1 / 32, rtol=1e-14)


@pytest.mark.parametrize("spelling", ["rope_type", "type", "both"])
def test_llama3_is_applied_under_both_spellings(spelling):
    names = {"rope_type": "llama3", "type": "llama3"}
    names = names if spelling == "both" else {spelling: "llama3"}
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192} | names
    config = {"rope_theta": 500000.0, "head_dim": 64, "rope_scaling": scaling | {"factor": 32.0}}
    ratio = ratios(Rope.from_config(config), 5e5)
    np.testing.assert_allclose(ratio[:15], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[15:18], [0.605573, 0.303743, 0.103448], atol=1e-6)
    np.testing.assert_allclose(ratio[18:], 1 / 32, rtol=1e-14)
    config = {"rope_theta": 500000.0, "head_dim": 128, "rope_scaling": scaling | {"factor": 8.0}}
    ratio = ratios(Rope.from_config(config), 5e5)
    np.testing.assert_allclose(ratio[:29], 1, rtol=1e-14)
    np.testing.assert_allclose(ratio[29:35], [0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211], atol=1e-6)
    np.testing.assert_allclose(ratio[35:], 1 / 8, rtol=1e-14)


@pytest.mark.parametrize("admitted", [8, 10])
def test_longrope_keeps_one_set_for_a_sequence(admitted):
    config = {
        "rope_theta": 10000.0,
        "head_dim": 8,
        "max_position_embeddings": 32,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 8,
            "attention_factor": 1.0,
        },
    }
    rope = Rope.from_config(config, length=admitted)
    both = Rope.from_config(config)
    assert (rope.num_sets, both.num_sets) == (1, 2)
    which = int(admitted > 8)
    assert rope.frequencies() == both.frequencies(which)
    rows = turned(rope, np.arange(10)).astype(np.float64)
    products = rows @ rows.T
    for distance in range(10):
        along = np.diagonal(products, distance)
        assert np.ptp(along) <= 1e-5
    mixed = turned(both, np.arange(10), sets=np.full(10, which))
    np.testing.assert_array_equal(mixed, rows.astype(np.float32))


def test_dynamic_ntk_below_the_trained_length_is_plain():
    scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2048}
    config = {"rope_theta": 1000.0, "head_dim": 64} | scaling
    for length in (512, 2048):
        np.testing.assert_allclose(ratios(Rope.from_config(config, length=length), 1000.0), 1, rtol=1e-14)
    rope = Rope.from_config(config, length=4096)
    np.testing.assert_allclose(ratios(rope, 1000.0 * 3 ** (64 / 62)), 1, rtol=1e-14)
    assert refusal(config | {"head_dim": 2}, length=4096).code == "RP022"


def test_sections_turn_height_and_width():
    config = {"model_type": "qwen2_vl", "rope_theta": 1e4, "head_dim": 8}
    config["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 1, 1]}
    buffer = np.zeros((3, 16), np.int64)
    buffer[:, 4] = 5, 7, 11
    row = turned(Rope.from_config(config), buffer[:, 4:5])[0]
    right = [1.242586, 0.398157, 0.927608, 0.988940, -0.675262, 1.357008, 1.067494, 1.010939]
    np.testing.assert_allclose(row, right, atol=2e-6)


@pytest.mark.parametrize("part", [{"partial_rotary_factor": 0.5}, {"rotary_pct": 0.5}, {"rotary_dim": 4}])
def test_only_the_rotated_part_turns(part):
    rope = Rope.from_config({"rope_theta": 1e4, "head_dim": 8} | part)
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
    pools = [np.zeros_like(x) for _ in range(2)]
    heads = {"head_dim": 8, "num_qo_heads": 1, "num_kv_heads": 1}
    ropepool.rope_pool_fused(x, x.copy(), x, np.array([1]), np.array([0]), *pools, **heads, rope=rope)
    np.testing.assert_allclose(pools[0][0, 0], [-1.984111, 1.959901, 2.462378, 4.019800, 5, 6, 7, 8], atol=2e-6)


# ---- Published models: config.json as far as the rope and its surroundings go

LLAMA3 = {"type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 8192}
LLAMA3_KEYS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
PHI3_SHORT, PHI3_LONG = [1.0 + i / 50 for i in range(48)], [1.0 + i * 1.3 for i in range(48)]
PHI3_128K = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0}
PHI3_SCALING = {"short_factor": PHI3_SHORT, "long_factor": PHI3_LONG}
LONG = {"type": "longrope", "original_length": 4096, "factor": 32.0, "short_factor": PHI3_SHORT, "long_factor": PHI3_LONG}
DEEPSEEK_LANES = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
GEMMA3_12B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "num_attention_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "model_type": "siglip_vision_model"},
}
GEMMA4 = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
    },
}
QWEN2_VL = {"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1000000.0}
FULL, SLIDING = {"layer_type": "full_attention"}, {"layer_type": "sliding_attention"}


def published(name, config, base, rotary_dim, scaling=None, options=None, **others):
    others = {"pairing": "neox", "rotary_offset": 0, "num_axes": 1} | others
    return pytest.param(config, options or {}, base, rotary_dim, scaling, others, id=name)


def geometry(model_type, hidden_size, heads, **others):
    return {"model_type": model_type, "hidden_size": hidden_size, "num_attention_heads": heads} | others


PUBLISHED = [
    published(
        "Llama 3.1 8B",
        geometry("llama", 4096, 32, max_position_embeddings=131072, rope_theta=500000.0)
        | {"rope_scaling": LLAMA3_KEYS | {"factor": 8.0}},
        5e5,
        128,
        LLAMA3 | {"factor": 8.0},
    ),
    published(
        "Llama 3.2 1B",
        geometry("llama", 2048, 32, head_dim=64, rope_theta=500000.0) | {"rope_scaling": LLAMA3_KEYS | {"factor": 32.0}},
        5e5,
        64,
        LLAMA3 | {"factor": 32.0},
    ),
    published(
        "Llama 3.2 1B, as written today",
        geometry("llama", 2048, 32, head_dim=64) | {"rope_parameters": LLAMA3_KEYS | {"factor": 32.0, "rope_theta": 500000.0}},
        5e5,
        64,
        LLAMA3 | {"factor": 32.0},
    ),
    published("Llama 2 7B", geometry("llama", 4096, 32, rope_scaling=None), 1e4, 128),
    published("Mistral 7B v0.3", geometry("mistral", 4096, 32, rope_theta=1000000.0, head_dim=128), 1e6, 128),
    published("Yi 34B 200K", geometry("llama", 7168, 56, rope_theta=5000000.0), 5e6, 128),
    published("OLMo 2 7B", geometry("olmo2", 4096, 32, rope_theta=500000, rope_scaling=None), 5e5, 128),
    published("SmolLM3 3B", geometry("smollm3", 2048, 16, rope_theta=5000000.0, no_rope_layer_interval=4), 5e6, 128),
    published("Qwen2 7B", geometry("qwen2", 3584, 28, rope_theta=1000000.0, max_position_embeddings=32768), 1e6, 128),
    published(
        "Qwen2.5 7B with YaRN",
        geometry("qwen2", 3584, 28, rope_theta=1000000.0, max_position_embeddings=32768)
        | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}},
        1e6,
        128,
        {"type": "yarn", "factor": 4.0, "original_length": 32768},
    ),
    published("Qwen3 0.6B", geometry("qwen3", 1024, 16, head_dim=128, rope_theta=1000000), 1e6, 128),
    published("Qwen3 0.6B, head_dim left out", geometry("qwen3", 1024, 16, rope_theta=1000000), 1e6, 128),
    published(
        "Qwen2-VL 7B", QWEN2_VL | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 1e6, 128, num_axes=3
    ),
    published(
        "Qwen2.5-VL, saved later",
        QWEN2_VL
        | {
            "model_type": "qwen2_5_vl",
            "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [16, 24, 24]},
        },
        1e6,
        128,
        num_axes=3,
    ),
    published(
        "Qwen3-VL 8B",
        {
            "model_type": "qwen3_vl",
            "text_config": geometry("qwen3_vl_text", 4096, 32, head_dim=128, rope_theta=5000000)
            | {"rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}},
        },
        5e6,
        128,
        num_axes=3,
    ),
    published("Gemma 3 12B, full", GEMMA3_12B, 1e6, 256, {"type": "linear", "factor": 8.0}, FULL),
    published("Gemma 3 12B, sliding", GEMMA3_12B, 1e4, 256, None, SLIDING),
    published(
        "Gemma 3 1B, sliding",
        geometry("gemma3_text", 1152, 4, head_dim=256, rope_theta=1000000, rope_local_base_freq=10000),
        1e4,
        256,
        None,
        SLIDING,
    ),
    published("Gemma 4, full", GEMMA4, 1e6, 512, {"type": "proportional", "proportion": 0.25}, FULL),
    published("Gemma 4, sliding", GEMMA4, 1e4, 256, None, SLIDING),
    published("Gemma 7B", geometry("gemma", 3072, 16, head_dim=256, rope_theta=10000.0), 1e4, 256),
    published(
        "Phi-3 mini 128K",
        geometry("phi3", 3072, 32) | PHI3_128K | {"rope_scaling": PHI3_SCALING | {"type": "longrope"}},
        1e4,
        96,
        LONG,
    ),
    published(
        "Phi-3 mini 128K, the first config",
        geometry("phi3", 3072, 32) | PHI3_128K | {"rope_scaling": PHI3_SCALING | {"type": "su"}},
        1e4,
        96,
        LONG,
    ),
    published(
        "Phi-4 mini",
        geometry("phi3", 3072, 24, partial_rotary_factor=0.75)
        | PHI3_128K
        | {"rope_scaling": PHI3_SCALING | {"type": "longrope"}},
        1e4,
        96,
        LONG,
    ),
    published("Phi-2", geometry("phi", 2560, 32, partial_rotary_factor=0.4, rope_theta=10000.0), 1e4, 32),
    published(
        "DeepSeek V2 Lite",
        geometry("deepseek_v2", 2048, 16, rope_theta=10000, max_position_embeddings=163840, **DEEPSEEK_LANES)
        | {"rope_scaling": DEEPSEEK_YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        1e4,
        64,
        {"type": "yarn", "factor": 40, "original_length": 4096, "mscale": 0.707, "mscale_all_dim": 0.707},
        rotary_offset=128,
        pairing="interleaved",
    ),
    published(
        "DeepSeek V3",
        geometry("deepseek_v3", 7168, 128, rope_theta=10000, max_position_embeddings=163840, **DEEPSEEK_LANES)
        | {"rope_scaling": DEEPSEEK_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        1e4,
        64,
        {"type": "yarn", "factor": 40, "original_length": 4096, "mscale": 1.0, "mscale_all_dim": 1.0},
        rotary_offset=128,
        pairing="interleaved",
    ),
    published("gpt-oss", GPT_OSS, 150000, 64, {"type": "yarn", "factor": 32.0, "original_length": 4096, "truncate": False}),
    published("GLM-4 9B 0414", geometry("glm4", 4096, 32, head_dim=128, rope_theta=10000.0), 1e4, 64, pairing="interleaved"),
    published("GLM-4.5", geometry("glm4_moe", 5120, 96, head_dim=128, rope_theta=1000000), 1e6, 64),
    published("GPT-NeoX 20B", geometry("gpt_neox", 6144, 64, rotary_pct=0.25, rotary_emb_base=10000), 1e4, 24),
    published("Pythia 70M", geometry("gpt_neox", 512, 8, rotary_pct=0.25, rotary_emb_base=10000), 1e4, 16),
    published(
        "GPT-J 6B", {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64}, 1e4, 64, pairing="interleaved"
    ),
    published("Cohere Command R", geometry("cohere", 8192, 64, rope_theta=8000000.0), 8e6, 128, pairing="interleaved"),
    published(
        "Cohere Command R7B", geometry("cohere2", 4096, 32, rope_theta=50000, head_dim=128), 5e4, 128, pairing="interleaved"
    ),
    published("StableLM 2 1.6B", geometry("stablelm", 2048, 32, partial_rotary_factor=0.25, rope_theta=10000), 1e4, 16),
    published(
        "HunYuan A13B",
        geometry("hunyuan_v1_moe", 4096, 32, rope_theta=10000.0)
        | {"rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "type": "dynamic"}},
        1e4,
        128,
        {"type": "alpha", "alpha": 1000.0},
    ),
    published(
        "InternLM2 with dynamic NTK",
        geometry("internlm2", 4096, 32, rope_theta=1000000, max_position_embeddings=32768)
        | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        1e6,
        128,
        {"type": "dynamic", "factor": 2.0, "original_length": 32768, "length": 100000},
        {"length": 100000},
    ),
    published(
        "Llama 2 with positions interpolated",
        geometry("llama", 4096, 32, rope_theta=10000.0) | {"rope_scaling": {"type": "linear", "factor": 2.0}},
        1e4,
        128,
        {"type": "linear", "factor": 2.0},
    ),
    published(
        "OLMo 3, sliding",
        geometry("olmo3", 4096, 32, rope_theta=500000)
        | {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}},
        5e5,
        128,
        None,
        SLIDING,
    ),
    published(
        "Ministral 3",
        {
            "model_type": "mistral3",
            "text_config": geometry("ministral3", 4096, 32, head_dim=128)
            | {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "type": "yarn",
                    "rope_theta": 1000000.0,
                    "factor": 16.0,
                    "original_max_position_embeddings": 16384,
                    "max_position_embeddings": 262144,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                }
            },
        },
        1e6,
        128,
        {"type": "yarn", "factor": 16.0, "original_length": 16384, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
]


@pytest.mark.parametrize("config, options, base, rotary_dim, scaling, others", PUBLISHED)
def test_published_models(config, options, base, rotary_dim, scaling, others):
    rope = Rope.from_config(config, **options)
    assert rope.rotary_dim == rotary_dim
    assert {name: getattr(rope, name) for name in others} == others
    assert rope.num_sets == (2 if scaling and scaling["type"] == "longrope" else 1)
    for which in range(rope.num_sets):
        expected = [float(f) for f in rope_oracle.frequencies(base, rotary_dim, scaling, which)]
        np.testing.assert_allclose(rope.frequencies(which), expected, rtol=4e-16)
        assert rope.attention_scale(which) == np.float32(rope_oracle.scale(scaling))


def test_sections_are_laid_out_as_the_model_has_them():
    positions = np.array([[3], [50], [700]])
    for model_type, sections in (("qwen2_vl", [16, 24, 24]), ("qwen3_vl_text", [24, 20, 20])):
        order = "interleaved" if "3" in model_type else "blocks"
        rope = Rope.from_config({"model_type": model_type, "head_dim": 128, "rope_theta": 1e6})
        right = Rope(1e6, rotary_dim=128, sections=sections, section_order=order)
        np.testing.assert_array_equal(turned(rope, positions, 128), turned(right, positions, 128))


def test_a_multimodal_models_own_type_will_do():
    config = {"model_type": "gemma3", "text_config": {"head_dim": 8}}
    assert Rope.layer_types(config) == ["sliding_attention", "full_attention"]
    assert Rope.from_config({"model_type": "qwen3_vl", "text_config": {"head_dim": 128}}).num_axes == 3


def test_the_innermost_text_model_is_read():
    text = {"model_type": "qwen2_5_omni_text", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1000000.0}
    config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": text, "audio_config": {"head_dim": 3}}}
    rope = Rope.from_config(config)
    assert (rope.rotary_dim, rope.num_axes) == (128, 3)


def test_layer_types():
    assert Rope.layer_types(GEMMA3_12B) == ["sliding_attention", "full_attention"]
    assert Rope.layer_types(GEMMA4) == ["sliding_attention", "full_attention"]
    assert Rope.layer_types(GPT_OSS) == []


def test_a_layer_type_that_the_config_names_may_be_given():
    config = GPT_OSS | {"layer_types": ["sliding_attention", "full_attention"]}
    assert Rope.from_config(config, **FULL).frequencies() == Rope.from_config(config).frequencies()


# ---- GGUF


def gguf(architecture, **keys):
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}


HEAD = {"attention.key_length": 128, "context_length": 32768}


@pytest.mark.parametrize(
    "metadata, options, base, rotary_dim, scaling, others",
    [
        published("qwen2", gguf("qwen2", **HEAD, **{"rope.freq_base": 1e6}), 1e6, 128),
        published("llama", gguf("llama", **HEAD, **{"rope.freq_base": 1e4}), 1e4, 128, pairing="interleaved"),
        published(
            "head from width",
            gguf("qwen2", **{"embedding_length": 3584, "attention.head_count": 28, "rope.freq_base": 1e6}),
            1e6,
            128,
        ),
        published("phi2", gguf("phi2", **HEAD, **{"rope.freq_base": 1e4, "rope.dimension_count": 32}), 1e4, 32),
        published(
            "linear, by its old key",
            gguf("llama", **HEAD, **{"rope.freq_base": 1e4, "rope.scale_linear": 4.0}),
            1e4,
            128,
            {"type": "linear", "factor": 4.0},
            pairing="interleaved",
        ),
        published(
            "yarn",
            gguf("qwen2", **HEAD)
            | {
                "qwen2.rope.freq_base": 1e6,
                "qwen2.rope.scaling.type": "yarn",
                "qwen2.rope.scaling.factor": 4.0,
                "qwen2.rope.scaling.original_context_length": 32768,
            },
            1e6,
            128,
            {"type": "yarn", "factor": 4.0, "original_length": 32768},
        ),
        published(
            "deepseek2",
            gguf("deepseek2")
            | {
                "deepseek2.attention.key_length_mla": 192,
                "deepseek2.attention.key_length": 576,
                "deepseek2.rope.dimension_count": 64,
                "deepseek2.rope.freq_base": 10000.0,
                "deepseek2.rope.scaling.type": "yarn",
                "deepseek2.rope.scaling.factor": 40.0,
                "deepseek2.rope.scaling.original_context_length": 4096,
                "deepseek2.rope.scaling.yarn_log_multiplier": 0.0707,
            },
            1e4,
            64,
            {"type": "yarn", "factor": 40, "original_length": 4096, "mscale": 0.707, "mscale_all_dim": 0.707},
            pairing="interleaved",
            rotary_offset=128,
        ),
        published(
            "gemma3, full",
            gguf("gemma3", **{"attention.key_length": 256, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0}),
            1e6,
            256,
            {"type": "linear", "factor": 8.0},
            FULL,
        ),
        published(
            "gemma3, sliding",
            gguf("gemma3", **{"attention.key_length": 256, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0}),
            1e4,
            256,
            None,
            SLIDING,
        ),
        published(
            "qwen2vl",
            gguf("qwen2vl", **HEAD, **{"rope.freq_base": 1e6, "rope.dimension_sections": [16, 24, 24, 0]}),
            1e6,
            128,
            num_axes=3,
        ),
    ],
)
def test_gguf(metadata, options, base, rotary_dim, scaling, others):
    test_published_models(metadata, options, base, rotary_dim, scaling, others)


def test_gguf_factors_of_a_tensor():
    llama31 = gguf("llama", **{"attention.key_length": 128, "context_length": 131072, "rope.freq_base": 500000.0})
    error = refusal(llama31)
    assert (error.code, error.argument) == ("RP028", "rope_freqs.weight")
    factors = (1 / ratios(Rope.from_config(PUBLISHED[0].values[0]), 5e5)).tolist()
    rope = Rope.from_config(llama31 | {"rope_freqs.weight": factors})
    right = rope_oracle.frequencies(5e5, 128, LLAMA3 | {"factor": 8.0})
    np.testing.assert_allclose(rope.frequencies(), [float(f) for f in right], rtol=1e-14)
    assert rope.attention_scale() == 1
    plain = Rope.from_config(llama31 | {"rope_freqs.weight": None})
    np.testing.assert_allclose(ratios(plain, 5e5), 1, rtol=1e-14)


# ---- Refusals

HEADS = {"head_dim": 64, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def scaled(**keys):
    return HEADS | {"rope_scaling": keys}


@pytest.mark.parametrize(
    "config, options, code, argument, words",
    [
        # An unknown type
        (scaled(rope_type="ntk", factor=2.0), {}, "RP027", "rope_scaling.rope_type", "'ntk'"),
        (scaled(type="deepseek_yarn", factor=2.0), {}, "RP027", "rope_scaling.type", "write 'yarn'"),
        (scaled(rope_type="YARN", factor=2.0), {}, "RP027", "rope_scaling.rope_type", "'YARN'"),
        (scaled(rope_type="axial"), {}, "RP027", "rope_scaling.rope_type", "vision tower"),
        (scaled(rope_type="dynamic with alpha", alpha=2.0), {}, "RP027", "rope_scaling.rope_type", "dynamic with alpha"),
        (scaled(rope_type=""), {}, "RP027", "rope_scaling.rope_type", "''"),
        (
            gguf("qwen2", **HEAD, **{"rope.freq_base": 1e6, "rope.scaling.type": "dynamic"}),
            {},
            "RP027",
            "qwen2.rope.scaling.type",
            "'dynamic'",
        ),
        # A missing key
        ({"head_dim": 64}, {}, "RP028", "rope_theta", "frequencies"),
        ({"head_dim": 64, "model_type": "unheard_of"}, {}, "RP028", "rope_theta", "'unheard_of'"),
        ({"rope_theta": 1e4}, {}, "RP028", "head_dim", "hidden_size"),
        ({"rope_theta": 1e4, "hidden_size": 64}, {}, "RP028", "head_dim", "num_attention_heads"),
        (scaled(factor=2.0), {}, "RP028", "rope_scaling.rope_type", "rope_scaling.factor"),
        (scaled(rope_type="linear"), {}, "RP028", "rope_scaling.factor", "'linear'"),
        (scaled(rope_type="linear", factor=None), {}, "RP028", "rope_scaling.factor", "'linear'"),
        (scaled(rope_type="yarn", factor=2.0), {}, "RP028", "rope_scaling.original_max_position_embeddings", "'yarn'"),
        (scaled(rope_type="yarn", original_max_position_embeddings=64), {}, "RP028", "rope_scaling.factor", "'yarn'"),
        (scaled(**LLAMA3_KEYS), {}, "RP028", "rope_scaling.factor", "'llama3'"),
        (
            scaled(**LLAMA3_KEYS | {"factor": 8.0, "low_freq_factor": None}),
            {},
            "RP028",
            "rope_scaling.low_freq_factor",
            "'llama3'",
        ),
        (scaled(rope_type="dynamic", factor=2.0), {"length": 9}, "RP028", "max_position_embeddings", "'dynamic'"),
        (scaled(rope_type="dynamic", factor=2.0) | {"max_position_embeddings": 8}, {}, "RP028", "length", "'dynamic'"),
        (
            scaled(rope_type="longrope", short_factor=[1] * 32, original_max_position_embeddings=8),
            {},
            "RP028",
            "rope_scaling.long_factor",
            "'longrope'",
        ),
        (
            scaled(rope_type="longrope", original_max_position_embeddings=8, short_factor=[1] * 32, long_factor=[1] * 32),
            {},
            "RP028",
            "max_position_embeddings",
            "'longrope'",
        ),
        ({"model_type": "gpt_oss", "head_dim": 64}, {}, "RP028", "rope_parameters", "'gpt_oss'"),
        (GEMMA3_12B, {}, "RP028", "layer_type", "'full_attention'"),
        (GEMMA4, {}, "RP028", "layer_type", "'full_attention'"),
        ({"rope_theta": 1e4, "qk_rope_head_dim": 64}, {}, "RP028", "qk_nope_head_dim", "lanes"),
        ({"rope_theta": 1e4} | DEEPSEEK_LANES, {}, "RP028", "rope_interleave", "pair"),
        (gguf("qwen2", **HEAD), {}, "RP028", "qwen2.rope.freq_base", "10000"),
        (gguf("gemma3", **HEAD, **{"rope.freq_base": 1e6}), {}, "RP028", "layer_type", "full_attention"),
        (
            gguf("phi3", **HEAD, **{"rope.freq_base": 1e4, "rope.scaling.type": "longrope"}),
            {},
            "RP028",
            "rope_factors_short.weight",
            "tensor",
        ),
        # Contradictions
        (scaled(rope_type="yarn", type="linear", factor=2.0), {}, "RP029", "rope_scaling.type", "'yarn'"),
        (scaled(**YARN, low_freq_factor=1.0), {}, "RP029", "rope_scaling.low_freq_factor", "beta_fast"),
        (scaled(**YARN, beta_fst=1.0), {}, "RP029", "rope_scaling.beta_fst", "beta_fast"),
        (scaled(rope_type="default", factor=2.0), {}, "RP029", "rope_scaling.factor", "no keys"),
        (scaled(rope_type="linear", factor=2.0, rope_theta=5e5), {}, "RP029", "rope_theta", "500000"),
        (HEADS | {"rope_parameters": {"rope_theta": 5e5}}, {}, "RP029", "rope_theta", "500000"),
        (
            scaled(rope_type="linear", factor=2.0) | {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
            {},
            "RP029",
            "rope_scaling.factor",
            "rope_parameters.factor 4",
        ),
        (
            scaled(rope_type="linear", factor=2.0) | {"rope_parameters": {"rope_type": "default"}},
            {},
            "RP029",
            "rope_scaling.rope_type",
            "'default'",
        ),
        ({"text_config": HEADS, "rope_theta": 5e5}, {}, "RP029", "rope_theta", "text_config.rope_theta 10000"),
        (HEADS | {"partial_rotary_factor": 0.5, "rotary_pct": 0.25}, {}, "RP029", "rotary_pct", "partial_rotary_factor"),
        (HEADS | {"partial_rotary_factor": 0.5, "rotary_dim": 16}, {}, "RP029", "rotary_dim", "32"),
        (HEADS | {"rotary_dim": 128}, {}, "RP029", "rotary_dim", "head_dim 64"),
        ({"rope_theta": 1e4, "hidden_size": 100, "num_attention_heads": 3}, {}, "RP029", "num_attention_heads", "100"),
        (
            scaled(**YARN) | {"original_max_position_embeddings": 8192},
            {},
            "RP029",
            "original_max_position_embeddings",
            "4096",
        ),
        (
            scaled(rope_type="dynamic", factor=2.0, original_max_position_embeddings=8) | {"max_position_embeddings": 16},
            {"length": 9},
            "RP029",
            "rope_scaling.original_max_position_embeddings",
            "16",
        ),
        (
            {"model_type": "qwen3_vl_text", "rope_parameters": {"mrope_interleaved": False}},
            {},
            "RP029",
            "rope_parameters.mrope_interleaved",
            "qwen3_vl_text",
        ),
        (
            {"head_dim": 64, "rope_theta": 5e5, "rope_parameters": {"a": {"rope_theta": 1.0}, "b": {"rope_theta": 2.0}}},
            {"layer_type": "a"},
            "RP029",
            "rope_theta",
            "500000",
        ),
        (
            HEADS | {"rope_parameters": {"a": {"rope_type": "default"}, "factor": 2.0}},
            {},
            "RP029",
            "rope_parameters.factor",
            "",
        ),
        (
            gguf("qwen2", **HEAD, **{"rope.freq_base": 1e6, "rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}),
            {},
            "RP029",
            "qwen2.rope.scale_linear",
            "2",
        ),
        (
            gguf("qwen2", **HEAD, **{"rope.freq_base": 1e6, "rope.scaling.type": "none", "rope.scaling.factor": 2.0}),
            {},
            "RP029",
            "qwen2.rope.scaling.factor",
            "'none'",
        ),
        (gguf("qwen2", **HEAD, **{"rope.freq_base": 1e6, "rope.swirl": 1}), {}, "RP029", "qwen2.rope.swirl", ""),
        (
            gguf("qwen2", **HEAD, **{"rope.freq_base": 1e6, "rope.scaling.yarn_beta_fast": 32.0}),
            {},
            "RP029",
            "qwen2.rope.scaling.yarn_beta_fast",
            "",
        ),
        # Values of the wrong kind
        (HEADS | {"rope_theta": "10000"}, {}, "RP030", "rope_theta", "a number, got '10000'"),
        (HEADS | {"rope_theta": True}, {}, "RP030", "rope_theta", "a number, got true"),
        (HEADS | {"rope_theta": float("nan")}, {}, "RP030", "rope_theta", "'NaN'"),
        (HEADS | {"rope_theta": float("-inf")}, {}, "RP030", "rope_theta", "'-Infinity'"),
        (HEADS | {"head_dim": 64.5}, {}, "RP030", "head_dim", "a whole number, got 64.5"),
        (HEADS | {"head_dim": 2**31}, {}, "RP030", "head_dim", "at most 65536"),
        (HEADS | {"rope_scaling": "linear"}, {}, "RP030", "rope_scaling", "an object, got 'linear'"),
        (HEADS | {"rope_scaling": [1, {}]}, {}, "RP030", "rope_scaling", "[1, {...}]"),
        (scaled(rope_type=3), {}, "RP030", "rope_scaling.rope_type", "a text, got 3"),
        (scaled(**YARN, truncate=0), {}, "RP030", "rope_scaling.truncate", "true or false, got 0"),
        (scaled(rope_type="default", mrope_section=[1.5]), {}, "RP030", "rope_scaling.mrope_section", "whole numbers"),
        (scaled(**PHI3_SCALING | {"rope_type": "longrope", "long_factor": 4}), {}, "RP030", "rope_scaling.long_factor", "list"),
        (HEADS | {"partial_rotary_factor": 1.5}, {}, "RP030", "partial_rotary_factor", "from 0 to 1"),
        (HEADS, {"layer_type": "full_attention"}, "RP030", "layer_type", "left out"),
        (GEMMA4, {"layer_type": "global"}, "RP030", "layer_type", "'sliding_attention', 'full_attention'"),
        (PUBLISHED[0].values[0], {"length": 0}, "RP030", "length", "at least 1"),
        ({"model_type": "nanochat", "head_dim": 64}, {}, "RP030", "model_type", "other way round"),
        ({"model_type": "bert", "position_embedding_type": "absolute"}, {}, "RP030", "position_embedding_type", "'absolute'"),
        ({"model_type": "falcon", "alibi": True}, {}, "RP030", "alibi", "true"),
        (
            {"model_type": "cohere2", "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"]},
            FULL,
            "RP030",
            "layer_type",
            "do not rotate",
        ),
        (gguf("gpt2"), {}, "RP030", "general.architecture", "'gpt2'"),
        # What a form can't be, told by Rope itself
        (HEADS | {"rope_theta": -1.0}, {}, "RP022", "base", "above 0"),
        (HEADS | {"partial_rotary_factor": 0.05}, {}, "RP022", "rotary_dim", "even"),
        (
            scaled(**PHI3_SCALING, rope_type="longrope", original_max_position_embeddings=8, factor=2.0),
            {},
            "RP022",
            "short_factor",
            "32 numbers",
        ),
        (scaled(rope_type="linear", factor=0), {}, "RP022", "factor", "above 0"),
    ],
)
def test_refusals(config, options, code, argument, words):
    error = refusal(config, **options)
    assert (error.code, error.argument) == (code, argument)
    assert words in str(error)
    assert error.hint and argument in error.summary
    assert ropepool.explain(error.summary)["code"] == code


def test_a_key_twice_is_refused_where_it_matters(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"head_dim": 64, "rope_theta": 1e4, "rope_theta": 5e5, "other": 1, "other": 2}')
    assert refusal(path).code == "RP029"
    path.write_text('{"head_dim": 64, "rope_theta": 1e4, "rope_theta": 10000.0, "other": 1, "other": 2}')
    assert Rope.from_config(path).rotary_dim == 64


@pytest.mark.parametrize(
    "text",
    ["", " \n", "{", "[]", "3", '"llama"', "{'rope_theta': 1e4}", "\xff\xfe", "{}x", "[" * 100000, '{"a":' * 100000, "1e999"],
)
def test_a_text_that_is_no_object(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    error = refusal(path)
    assert (error.code, error.argument) == ("RP030", "the text")


def test_keys_that_have_nothing_to_do_with_the_rope_are_ignored():
    plain = Rope.from_config(HEADS)
    others = {"vocab_size": "many", "rope": None, "quantization_config": {"rope_type": 3}, "time_step_limit": [0, float("inf")]}
    assert Rope.from_config(HEADS | others).frequencies() == plain.frequencies()


def test_max_position_embeddings_is_no_contradiction():
    for longest in (4096, 131072, 40960):
        config = scaled(**YARN) | {"max_position_embeddings": longest}
        right = rope_oracle.frequencies(1e4, 64, {"type": "yarn", "factor": 4.0, "original_length": 4096})
        np.testing.assert_allclose(Rope.from_config(config).frequencies(), [float(f) for f in right], rtol=4e-16)


# ---- Where a config comes from


def test_a_path_of_a_file_or_a_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HEADS))
    right = Rope.from_config(HEADS).frequencies()
    for where in (path, str(path), tmp_path, str(tmp_path)):
        assert Rope.from_config(where).frequencies() == right
    assert Rope.layer_types(tmp_path) == []


def test_what_is_no_config(tmp_path):
    for wrong in (None, 3, [HEADS], b"{}"):
        with pytest.raises(TypeError):
            Rope.from_config(wrong)
    with pytest.raises(TypeError):
        Rope.from_config(HEADS | {"rope_theta": {1}})
    with pytest.raises(FileNotFoundError):
        Rope.from_config(tmp_path / "config.json")


# ---- Anything at all

KEYS = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
    "partial_rotary_factor",
    "rotary_dim",
    "rotary_pct",
    "text_config",
    "model_type",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "alpha",
    "mrope_section",
    "mrope_interleaved",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "rope_interleave",
    "full_attention",
    "sliding_attention",
    "layer_types",
    "rope_local_base_freq",
    "general.architecture",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "llama.rope.dimension_count",
    "rope_freqs.weight",
)
WORDS = (
    "default",
    "linear",
    "dynamic",
    "yarn",
    "llama3",
    "longrope",
    "su",
    "mrope",
    "proportional",
    "llama",
    "gemma3_text",
    "gpt_oss",
    "phi3",
    "deepseek_v3",
    "qwen3_vl_text",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, 1, 2, 4, 8, 64, -1, 2**31, 2**63, 2**70, 0.25, 0.5, 1e4, 5e5, 1e300, 1e-300, float("nan"), float("inf")]
    ),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from([1, 1.0, 2.5, 0, "1"]), max_size=5),
)
JUNK = st.recursive(
    st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=6),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), SCALARS | inner, max_size=6),
    max_leaves=8,
)
OPTIONS = st.fixed_dictionaries(
    {}, optional={"length": st.sampled_from([1, 100, 10**6]), "layer_type": st.sampled_from(["full_attention", "x"])}
)


@settings(max_examples=1000, deadline=None)
@given(JUNK, OPTIONS)
def test_junk_gives_a_rope_or_a_refusal(config, options):
    try:
        rope = Rope.from_config(config, **options)
    except ContractError as error:
        assert error.code in ("RP022", "RP027", "RP028", "RP029", "RP030")
        assert error.summary and error.hint
        assert ropepool.explain(str(error))["code"] == error.code
    else:
        assert np.isfinite(rope.frequencies()).all()


KNOWN = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "su", "mrope")


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=12).filter(lambda word: word not in KNOWN),
    st.sampled_from(["rope_type", "type"]),
    st.sampled_from(["rope_scaling", "rope_parameters"]),
    st.dictionaries(st.sampled_from(KEYS[5:]), SCALARS, max_size=4),
)
def test_an_unknown_rope_type_is_never_passed_over(word, key, where, others):
    others = {name: value for name, value in others.items() if name not in ("rope_type", "type")}
    error = refusal(HEADS | {where: others | {key: word}})
    assert error.code == "RP027" or (error.code == "RP030" and error.argument != f"{where}.{key}")
