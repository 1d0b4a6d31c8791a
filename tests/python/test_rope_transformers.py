"""Rope against Hugging Face transformers itself, with the figures of published models."""

import contextlib
import dataclasses
import importlib

import ml_dtypes
import numpy as np
import pytest
import rope_oracle
import ropepool
from oracle import ANGLE_ERROR, ARITHMETIC_ERROR, bits
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

torch = pytest.importorskip("torch")
transformers_logging = pytest.importorskip("transformers").logging
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")

BF16 = ml_dtypes.bfloat16
UNIT = 2.0**-24  # half a unit in the last place of float32 in [1, 2), a whole one in [0.5, 1)


@pytest.fixture(autouse=True)
def quiet():
    """transformers remarks upon configs as they are published."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    yield
    transformers_logging.set_verbosity(before)


# ---- Models


@dataclasses.dataclass(frozen=True)
class Model:
    """A published model: what its config.json says for transformers, and the same for ropepool."""

    family: str  # the module of transformers that has it
    prefix: str  # of its classes' names
    config: dict
    rope: dict
    head_dim: int
    layer_type: str | None = None
    length: int | None = None  # that the init function is asked for

    @property
    def sets(self):
        return 2 if isinstance(self.rope.get("scaling"), LongRopeScaling) else 1

    def make(self):
        return Rope(**self.rope)


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PHI3_SHORT = [1.05, 1.05, 1.05, 1.1, 1.1, 1.1, 1.2500000000000002, 1.2500000000000002, 1.4000000000000004, 1.4500000000000004]
PHI3_SHORT += [1.5500000000000005, 1.8500000000000008, 1.9000000000000008] + [2.000000000000001] * 19
PHI3_SHORT += [2.1000000000000005, 2.1000000000000005, 2.2] + [2.3499999999999996] * 4 + [2.3999999999999995] * 2
PHI3_SHORT += [2.6499999999999986, 2.6999999999999984, 2.8999999999999977, 2.9499999999999975] + [3.049999999999997] * 3
# fmt: off
PHI3_LONG = [
    1.0299999713897705, 1.0499999523162842, 1.0499999523162842, 1.0799999237060547, 1.2299998998641968, 1.2299998998641968,
    1.2999999523162842, 1.4499999284744263, 1.5999999046325684, 1.6499998569488525, 1.8999998569488525, 2.859999895095825,
    3.68999981880188, 5.419999599456787, 5.489999771118164, 5.489999771118164, 9.09000015258789, 11.579999923706055,
    15.65999984741211, 15.769999504089355, 15.789999961853027, 18.360000610351562, 21.989999771118164, 23.079999923706055,
    30.009998321533203, 32.35000228881836, 32.590003967285156, 35.56000518798828, 39.95000457763672, 53.840003967285156,
    56.20000457763672, 57.95000457763672, 59.29000473022461, 59.77000427246094, 59.920005798339844, 61.190006256103516,
    61.96000671386719, 62.50000762939453, 63.3700065612793, 63.48000717163086, 63.48000717163086, 63.66000747680664,
    63.850006103515625, 64.08000946044922, 64.760009765625, 64.80001068115234, 64.81001281738281, 64.81001281738281,
]
PHI4_LONG = [
    1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898, 2.735880826,
    3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894,
    8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807,
    22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97,
    33.28, 33.49, 33.5, 44.16, 47.77,
]
# fmt: on
GEMMA3 = {
    "head_dim": 256,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    },
}
GEMMA4 = {
    "head_dim": 256,
    "global_head_dim": 512,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    },
}


def plain(family, prefix, hidden_size, heads, theta, head_dim=128, layers=None, **others):
    settings = {"hidden_size": hidden_size, "num_attention_heads": heads, "rope_theta": theta}
    return Model(family, prefix, settings | others, {"base": theta, "rotary_dim": head_dim} | (layers or {}), head_dim)


def llama3(hidden_size, factor, head_dim, **others):
    scaling = Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
    others = {"max_position_embeddings": 131072, "rope_scaling": LLAMA3 | {"factor": factor}} | others
    return plain("llama", "Llama", hidden_size, 32, 500000.0, head_dim, {"scaling": scaling}, **others)


def phi(heads, head_dim, short_factor, long_factor, **others):
    factors = {"short_factor": short_factor, "long_factor": long_factor}
    config = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, **others}
    config["rope_scaling"] = {"type": "longrope", **factors}
    layers = {"rotary_dim": 96, "scaling": LongRopeScaling(**factors, original_length=4096, factor=32.0)}
    return plain("phi3", "Phi3", 3072, heads, 10000.0, head_dim, layers, **config)


def deepseek(family, prefix, mscale):
    yarn = {"factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": mscale, "mscale_all_dim": mscale}
    config = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "max_position_embeddings": 163840, "rope_theta": 10000.0}
    config["rope_scaling"] = {"type": "yarn", **yarn, "original_max_position_embeddings": 4096}
    lanes = {"rotary_dim": 64, "rotary_offset": 128, "pairing": "interleaved"}
    rope = {"base": 10000.0, **lanes, "scaling": YarnScaling(**yarn, original_length=4096)}
    return Model(family, prefix, config, rope, 192)


def of_layers(family, prefix, config, layer_type, head_dim, base, scaling=None):
    return Model(family, prefix, config, {"base": base, "rotary_dim": head_dim, "scaling": scaling}, head_dim, layer_type)


MODELS = {
    "Llama-3.1-8B": llama3(4096, 8.0, 128),
    "Llama-3.2-1B": llama3(2048, 32.0, 64),
    "Llama-3.2-3B": llama3(3072, 32.0, 128, num_attention_heads=24),
    "Llama-3.3-70B": llama3(8192, 8.0, 128, num_attention_heads=64),
    "Llama-4-Scout": Model(
        "llama4",
        "Llama4Text",
        {
            "head_dim": 128,
            "max_position_embeddings": 10485760,
            "rope_theta": 500000.0,
            "rope_scaling": LLAMA3 | {"factor": 16.0, "high_freq_factor": 1.0},
        },
        {
            "base": 500000.0,
            "rotary_dim": 128,
            "pairing": "interleaved",
            "scaling": Llama3Scaling(factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0, original_length=8192),
        },
        128,
    ),
    "Qwen2-7B": plain("qwen2", "Qwen2", 3584, 28, 1000000.0),
    "Qwen2.5-7B with YaRN": plain(
        "qwen2",
        "Qwen2",
        3584,
        28,
        1000000.0,
        layers={"scaling": YarnScaling(factor=4.0, original_length=32768)},
        max_position_embeddings=131072,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    "Qwen3-8B": plain("qwen3", "Qwen3", 4096, 32, 1000000.0, head_dim=128),
    "Gemma-3-4B sliding": of_layers("gemma3", "Gemma3", GEMMA3, "sliding_attention", 256, 10000.0),
    "Gemma-3-4B full": of_layers("gemma3", "Gemma3", GEMMA3, "full_attention", 256, 1000000.0, LinearScaling(factor=8.0)),
    "Gemma-4 sliding": of_layers("gemma4", "Gemma4Text", GEMMA4, "sliding_attention", 256, 10000.0),
    "Gemma-4 full": of_layers(
        "gemma4", "Gemma4Text", GEMMA4, "full_attention", 512, 1000000.0, ProportionalScaling(proportion=0.25)
    ),
    "Phi-3-mini-128k": phi(32, 96, PHI3_SHORT, PHI3_LONG),
    "Phi-4-mini": phi(24, 128, [1.0] * 48, PHI4_LONG, partial_rotary_factor=0.75),
    "DeepSeek-V2-Lite": deepseek("deepseek_v2", "DeepseekV2", 0.707),
    "DeepSeek-V3": deepseek("deepseek_v3", "DeepseekV3", 1.0),
    "gpt-oss-20b": Model(
        "gpt_oss",
        "GptOss",
        {
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        {"base": 150000.0, "rotary_dim": 64, "scaling": YarnScaling(factor=32.0, original_length=4096, truncate=False)},
        64,
    ),
    "GLM-4-9B-0414": Model(
        "glm4",
        "Glm4",
        {"head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "max_position_embeddings": 32768},
        {"base": 10000.0, "rotary_dim": 64, "pairing": "interleaved"},
        128,
    ),
    "GPT-NeoX-20B": Model(
        "gpt_neox",
        "GPTNeoX",
        {"hidden_size": 6144, "num_attention_heads": 64, "rotary_pct": 0.25, "rotary_emb_base": 10000},
        {"base": 10000.0, "rotary_dim": 24},
        96,
    ),
    "GPT-J-6B": Model(
        "gptj",
        "GPTJ",
        {"n_embd": 4096, "n_head": 16, "rotary_dim": 64, "n_positions": 2048},
        {"base": 10000.0, "rotary_dim": 64, "pairing": "interleaved"},
        256,
    ),
    "Command-R": plain("cohere", "Cohere", 8192, 64, 8000000.0, layers={"pairing": "interleaved"}),
    "OLMo-2-7B": plain("olmo2", "Olmo2", 4096, 32, 500000.0),
    "SmolLM3-3B": plain("smollm3", "SmolLM3", 2048, 16, 5000000.0),
    "StableLM-2-1.6B": plain("stablelm", "StableLm", 2048, 32, 10000.0, 64, {"rotary_dim": 16}, partial_rotary_factor=0.25),
    "Yi-34B": plain("llama", "Llama", 7168, 56, 5000000.0),
    "Mistral-7B-v0.1": plain("mistral", "Mistral", 4096, 32, 10000.0),
    "Mistral-7B-v0.3": plain("mistral", "Mistral", 4096, 32, 1000000.0),
    "InternLM2.5-7B": dataclasses.replace(
        plain(
            "llama",
            "Llama",
            4096,
            32,
            1000000.0,
            layers={"scaling": DynamicNtkScaling(factor=2.0, original_length=32768, length=131072)},
            max_position_embeddings=32768,
            rope_scaling={"type": "dynamic", "factor": 2.0},
        ),
        length=131072,
    ),
    "HunYuan-7B": Model(
        "hunyuan_v1_dense",
        "HunYuanDenseV1",
        {"head_dim": 128, "rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
        {"base": 10000.0, "rotary_dim": 128, "scaling": NtkAlphaScaling(alpha=1000.0)},
        128,
    ),
    "Qwen2-VL-7B": plain(
        "qwen2_vl",
        "Qwen2VL",
        3584,
        28,
        1000000.0,
        layers={"sections": [16, 24, 24]},
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
    ),
    "Qwen3-VL-8B": Model(
        "qwen3_vl",
        "Qwen3VLText",
        {
            "head_dim": 128,
            "rope_theta": 5000000.0,
            "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
        },
        {"base": 5000000.0, "rotary_dim": 128, "sections": [24, 20, 20], "section_order": "interleaved"},
        128,
    ),
}
SETS = [(name, which) for name, model in MODELS.items() for which in range(model.sets)]
# GPT-J has its frequencies inside a function that gives a table of sines.
WITH_INVERSE = [(name, which) for name, which in SETS if MODELS[name].family != "gptj"]


# ---- Hugging Face's side


@contextlib.contextmanager
def correct_power():
    """torch's float32 power is off by up to 2 ulp, and otherwise by another machine's vectors: here with one rounding."""

    def power(exponents, base):
        return torch.pow(torch.tensor(float(np.float32(base)), dtype=torch.float64), exponents.double()).float()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__rpow__", power)
        yield


def part(model, end, of="modeling"):
    try:
        module = importlib.import_module(f"transformers.models.{model.family}.{of}_{model.family}")
    except ImportError:
        pytest.skip(f"this transformers has no {model.family}")
    return getattr(module, end)


def config_of(model):
    names = {"Gemma3": "Gemma3TextConfig", "Qwen2VL": "Qwen2VLTextConfig"}
    make = part(model, names.get(model.prefix, f"{model.prefix}Config"), "configuration")
    return make(**model.config)


def rotary_of(model):
    return part(model, f"{model.prefix}RotaryEmbedding")(config_of(model))


def init(model, which=0):
    """inv_freq and attention_factor of transformers' own init function."""
    config, rotary = config_of(model), part(model, f"{model.prefix}RotaryEmbedding")
    parameters = config.rope_parameters if model.layer_type is None else config.rope_parameters[model.layer_type]
    if parameters["rope_type"] == "default":
        if model.family == "gemma4":
            config = config.per_layer_config[model.layer_type]
        layer = {"layer_type": model.layer_type} if model.layer_type else {}
        inverse, factor = rotary.compute_default_rope_parameters(config, **layer)
    elif "alpha" in parameters:
        inverse, factor = rotary.compute_ntk_alpha_rope_parameters(config)
    else:
        length = parameters["original_max_position_embeddings"] + 1 if which else model.length
        compute = rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
        inverse, factor = compute(config, seq_len=length, layer_type=model.layer_type)
    assert inverse.dtype == torch.float32
    return inverse.numpy(), factor


def rotated_by_transformers(model, rotary, q, k, positions):
    """Heads [num_tokens, heads, head_dim] turned by the model's own code, and back in ropepool's order of lanes."""
    q, k = (x.transpose(0, 1)[None] for x in (q, k))  # [1, heads, num_tokens, head_dim]
    positions = torch.from_numpy(positions)
    positions = positions[:, None] if positions.ndim == 2 else positions[None]
    layer = {"layer_type": model.layer_type} if model.layer_type else {}
    rotary_dim, offset = model.rope["rotary_dim"], model.rope.get("rotary_offset", 0)
    # As the attention of each does it.
    if model.family == "gptj":
        sin, cos = rotary(q, positions)
        apply = part(model, "apply_rotary_pos_emb")
        turned = [
            torch.cat([apply(x[..., :rotary_dim].transpose(1, 2), sin, cos).transpose(1, 2), x[..., rotary_dim:]], dim=-1)
            for x in (q, k)
        ]
    elif model.family == "gemma4":
        turned = [part(model, "apply_rotary_pos_emb")(x, *rotary(x, positions, **layer)) for x in (q, k)]
    elif model.family == "llama4":
        turned = part(model, "apply_rotary_emb")(q.transpose(1, 2), k.transpose(1, 2), rotary(q, positions))
        turned = [x.transpose(1, 2) for x in turned]
    elif model.family == "deepseek_v2":
        ends = part(model, "apply_rotary_emb")(q[..., offset:], k[..., offset:], rotary(q, positions))
        turned = [torch.cat([x[..., :offset], end], dim=-1) for x, end in zip((q, k), ends, strict=True)]
    elif model.family == "deepseek_v3":
        apply = part(model, "apply_rotary_pos_emb_interleave")
        ends = apply(q[..., offset:], k[..., offset:], *rotary(q, positions))
        # The first lanes of all pairs come first, then the second ones.
        ends = [torch.stack(end.chunk(2, dim=-1), dim=-1).flatten(-2) for end in ends]
        turned = [torch.cat([x[..., :offset], end], dim=-1) for x, end in zip((q, k), ends, strict=True)]
    elif model.family == "stablelm":
        apply = part(model, "apply_rotary_pos_emb")
        starts = apply(q[..., :rotary_dim], k[..., :rotary_dim], *rotary(q, positions))
        turned = [torch.cat([start, x[..., rotary_dim:]], dim=-1) for x, start in zip((q, k), starts, strict=True)]
    else:
        turned = part(model, "apply_rotary_pos_emb")(q, k, *rotary(q, positions, **layer))
    return [x[0].transpose(0, 1).contiguous() for x in turned]


# ---- ropepool's side


def rotated(q, k, positions, rope, which=0, angles="float32"):
    tokens, kv_heads, head_dim = k.shape
    pools = [np.zeros((tokens, kv_heads, head_dim), k.dtype) for _ in range(2)]
    sets = {"rope_sets": np.full(tokens, which)} if rope.num_sets > 1 else {}
    heads = {"head_dim": head_dim, "num_qo_heads": q.shape[1], "num_kv_heads": kv_heads}
    call = ropepool.rope_pool_fused(
        q, k, k.copy(), positions, np.arange(tokens), *pools, **heads, rope=rope, angles=angles, **sets
    )
    np.testing.assert_array_equal(bits(call[2]), bits(call[1]))
    return call[:2]


def float32_inverses(rope, which=0):
    """The inverse frequencies of float32 angles, to the bit.

    They can't be asked for, but be read off a result. At a position that is a power of 2 the product with the position is
    not rounded, and at one so large that the angle is in the thousands a unit in the last place of the frequency moves the
    angle by 2e-6 and more. cos and sin say the angle to 3e-7, and rope.frequencies() in which turn it lies. Position 1 would
    say less: a unit in the last place is then at or below the error of cos and sin.
    """
    near = np.array(rope.frequencies(which))
    with np.errstate(divide="ignore"):
        exponents = np.clip(12 - np.floor(np.log2(near)), 0, 30).astype(np.int64)
    positions = np.int64(1) << exponents
    first, second = rope_oracle.pairs_of(rope.rotary_dim, rope.rotary_offset, rope.pairing)
    x = np.zeros((len(near), 1, rope.rotary_offset + rope.rotary_dim), np.float32)
    x[..., first] = 1
    out = rotated(x, x.copy(), positions, rope, which)[0][:, 0].astype(np.float64)
    token = np.arange(len(near))
    guess = near * positions
    angle = np.arctan2(out[token, second], out[token, first])
    angle = guess + np.remainder(angle - guess + np.pi, 2 * np.pi) - np.pi
    inverse = (angle / positions).astype(np.float32)
    turning = near != 0
    assert (np.spacing(inverse) * positions)[turning].min(initial=1) >= 1.5e-6, "a frequency too low to be read off"
    assert np.abs(inverse.astype(np.float64) * positions - angle).max() <= 5e-7, "no float32 frequency gives this angle"
    return inverse


def ulps_apart(a, b):
    return np.abs(a.view(np.int32).astype(np.int64) - b.view(np.int32))


# ---- Frequencies


@pytest.mark.parametrize("name, which", WITH_INVERSE)
def test_float32_frequencies_are_those_of_the_init_function(name, which):
    model = MODELS[name]
    ours = float32_inverses(model.make(), which)
    theirs, _ = init(model, which)
    with correct_power():
        right, _ = init(model, which)
    assert ours.shape == theirs.shape
    by_power, by_rest, in_all = (ulps_apart(*two) for two in ((theirs, right), (ours, right), (ours, theirs)))
    found = ", ".join(
        f"{np.count_nonzero(ulps)} of {len(ours)} lanes up to {ulps.max()} ulp {what}"
        for ulps, what in ((in_all, "off transformers"), (by_power, "by torch's power"), (by_rest, "otherwise"))
    )
    print(f"{name}, set {which}: {found}")
    assert by_rest.max() == 0, found
    assert in_all.max() <= 2, found


@pytest.mark.parametrize("name, which", WITH_INVERSE)
def test_a_given_inv_freq_is_used_bit_for_bit(name, which):
    model = MODELS[name]
    theirs, factor = init(model, which)
    lanes = {key: value for key, value in model.rope.items() if key not in ("base", "scaling")}
    rope = Rope(frequencies=theirs.tolist(), attention_scale=factor, **lanes)
    np.testing.assert_array_equal(bits(float32_inverses(rope)), bits(theirs))
    np.testing.assert_array_equal(rope.frequencies(), theirs.astype(np.float64))


@pytest.mark.parametrize("name, which", WITH_INVERSE)
def test_the_attention_scale_is_that_of_the_init_function(name, which):
    model = MODELS[name]
    _, factor = init(model, which)
    assert np.float32(model.make().attention_scale(which)) == np.float32(factor)


@pytest.mark.parametrize("name, which", WITH_INVERSE)
def test_exact_frequencies_are_near_those_of_the_init_function(name, which):
    # transformers rounds the exponent (the error of the power is u = 2^-24 times ln of the power, less for faster pairs), the
    # power, its inverse, and what a scaling does after that.
    model = MODELS[name]
    ours = np.array(model.make().frequencies(which))
    with correct_power():
        right, _ = init(model, which)
    relative = np.abs(ours - right) / np.where(ours == 0, 1, ours)
    assert relative.max() <= (-np.log(ours[ours > 0].min()) + 8) * UNIT


def random_scaling(kind, random, pairs):
    """A scaling in a config.json's words and ropepool's, with figures that are not round."""
    factor = float(random.uniform(1, 32))
    length = int(random.integers(512, 65536))
    words = {"factor": factor}
    if kind == "linear":
        return words, LinearScaling(**words)
    if kind == "dynamic":
        words["factor"] = factor = float(random.uniform(1, 8))
        return words, DynamicNtkScaling(factor=factor, original_length=2048, length=int(random.integers(1, 8000)))
    if kind == "proportional":
        proportion = float(random.uniform(0.1, 1))
        return words | {"partial_rotary_factor": proportion}, ProportionalScaling(proportion=proportion, factor=factor)
    if kind == "yarn":
        words |= {"beta_fast": float(random.uniform(8, 64)), "beta_slow": float(random.uniform(0.5, 4))}
        words["truncate"] = bool(random.integers(2))
        if random.integers(2):
            words |= {"mscale": float(random.uniform(0.5, 1.5)), "mscale_all_dim": float(random.uniform(0.5, 1.5))}
        scaling = YarnScaling(**words, original_length=length)
    elif kind == "longrope":
        words |= {f"{name}_factor": random.uniform(1, 64, pairs).tolist() for name in ("short", "long")}
        scaling = LongRopeScaling(**words, original_length=length)
    elif kind == "llama3":
        words |= {"low_freq_factor": float(random.uniform(0.5, 2)), "high_freq_factor": float(random.uniform(3, 8))}
        scaling = Llama3Scaling(**words, original_length=length)
    else:
        pytest.skip(f"a type of scaling that came after this test: {kind}")
    return words | {"original_max_position_embeddings": length}, scaling


def llama_with(base, head_dim, kind, words, scaling):
    config = {"rope_theta": base, "head_dim": head_dim, "max_position_embeddings": 2048}
    config["rope_scaling"] = words | {"rope_type": kind}
    rope = {"base": base, "rotary_dim": head_dim, "scaling": scaling}
    return Model("llama", "Llama", config, rope, head_dim, length=getattr(scaling, "length", None))


@pytest.mark.parametrize("kind", rope_utils.ROPE_INIT_FUNCTIONS)
def test_float32_frequencies_of_any_figures_are_those_of_the_init_function(kind):
    random = np.random.default_rng(7)
    for _ in range(40):
        base, head_dim = float(np.exp(random.uniform(np.log(500), np.log(1e6)))), int(random.choice([32, 64, 80, 96, 128, 256]))
        words, scaling = random_scaling(kind, random, head_dim // 2)
        model = llama_with(base, head_dim, kind, words, scaling)
        rope = model.make()
        for which in range(model.sets):
            with correct_power():
                right, factor = init(model, which)
            np.testing.assert_array_equal(bits(float32_inverses(rope, which)), bits(right), f"{base}, {head_dim}, {words}")
            assert np.float32(rope.attention_scale(which)) == np.float32(factor)


@pytest.mark.parametrize("base, head_dim, factor, length", [(1e4, 64, 2.0, 4096), (1e4, 64, 8.0, 8192), (6e5, 256, 32.0, 8192)])
def test_float32_frequencies_of_llama3_with_round_figures(base, head_dim, factor, length):
    words = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = Llama3Scaling(**words, original_length=length)
    model = llama_with(base, head_dim, "llama3", words | {"original_max_position_embeddings": length}, scaling)
    with correct_power():
        right, _ = init(model)
    np.testing.assert_array_equal(bits(float32_inverses(model.make())), bits(right))


# ---- Heads


def positions_of(model, which):
    if model.rope.get("sections"):
        return np.array([[0, 1, 17, 40, 40, 4095, 131071], [0, 1, 3, 77, 9, 4095, 1000], [0, 1, 5, 40, 900, 4095, 2]])
    if model.family == "gptj":
        last = [2047]  # of a table
    elif model.sets == 2 and which == 0:
        last = [4095]  # transformers takes the other set for all tokens if one stands farther
    else:
        last = [4095, 32768, 131071]
        if model.length is None:
            last += [2**24 + 3, 2**31 - 1]  # which float32 has not
    return np.array([0, 1, 2, 17, 1000, *last])


def heads_for(model, tokens, dtype, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal((tokens, heads, model.head_dim)).astype(dtype) for heads in (3, 2)]


def inverses_of(model, which, rotary):
    """The float32 frequencies that the rotary module uses, and what they were if torch's power had but one rounding."""
    if model.family == "gptj":
        with correct_power():
            right = 1.0 / (10000 ** (torch.arange(0, 64, 2, dtype=torch.int64) / 64))
        return (1.0 / (10000 ** (torch.arange(0, 64, 2, dtype=torch.int64) / 64))).numpy(), right.numpy()
    with correct_power():
        right, _ = init(model, which)
    return getattr(rotary, f"{model.layer_type}_inv_freq" if model.layer_type else "inv_freq").numpy(), right


def assert_near(ours, theirs, x, model, scale, angles_apart):
    """Two float32 rotations by float32 angles of which is known how far they are apart, [num_tokens, pairs]."""
    rotary_dim, offset, pairing = (model.rope.get(key, 0) for key in ("rotary_dim", "rotary_offset", "pairing"))
    first, second = rope_oracle.pairs_of(rotary_dim, offset, pairing or "neox")
    untouched = np.setdiff1d(np.arange(x.shape[-1]), np.concatenate([first, second]))
    np.testing.assert_array_equal(bits(ours[..., untouched]), bits(x[..., untouched]))
    np.testing.assert_array_equal(bits(theirs[..., untouched]), bits(x[..., untouched]))
    size = np.abs(x.astype(np.float64))
    size = (size[..., first] + size[..., second]) * scale
    # cos and sin: the contract's error of ropepool's, one unit in the last place below 1 of torch's. Then each side multiplies
    # them by the scale, and does two products and a sum. Nothing here grows with the position: both have the same float32
    # angle, but for torch's power, and that difference is known.
    error = ANGLE_ERROR + UNIT + 2 * (UNIT + ARITHMETIC_ERROR)
    allowed = (error + angles_apart[:, None, :]) * size
    for lanes in (first, second):
        over = np.abs(ours[..., lanes].astype(np.float64) - theirs[..., lanes]) - allowed
        worst = np.unravel_index(np.argmax(over), over.shape)
        assert over[worst] <= 0, f"(token, head, pair) {worst}: {ours[..., lanes][worst]}, not {theirs[..., lanes][worst]}"


def compare_heads(name, which, given):
    model = MODELS[name]
    positions = positions_of(model, which)
    q, k = heads_for(model, positions.shape[-1], np.float32)
    rotary = rotary_of(model)
    theirs = rotated_by_transformers(model, rotary, torch.from_numpy(q), torch.from_numpy(k), positions)
    used, right = inverses_of(model, which, rotary)
    scale = getattr(rotary, f"{model.layer_type}_attention_scaling" if model.layer_type else "attention_scaling", 1.0)
    if given:
        lanes = {key: value for key, value in model.rope.items() if key not in ("base", "scaling")}
        rope, right = Rope(frequencies=used.tolist(), attention_scale=scale, **lanes), used
    else:
        rope = model.make()
    angles = [positions.astype(np.float32)[..., None] * inverse for inverse in (used, right)]
    apart = np.abs(angles[0].astype(np.float64) - angles[1])
    apart = apart.max(axis=0) if apart.ndim == 3 else apart  # of a pair's axis or another's
    ours = rotated(q, k, positions, rope, 0 if given else which)
    for x, mine, others in zip((q, k), ours, theirs, strict=True):
        assert_near(mine, others.numpy(), x, model, max(scale, 1), apart)


@pytest.mark.parametrize("name, which", SETS)
def test_heads_are_turned_as_by_the_model(name, which):
    compare_heads(name, which, given=False)


@pytest.mark.parametrize("name, which", SETS)
def test_heads_are_turned_as_by_the_model_with_its_inv_freq(name, which):
    compare_heads(name, which, given=True)


@pytest.mark.parametrize(
    "name, scaling, gain",
    [
        ("Qwen2.5-7B with YaRN", {"type": "yarn", "factor": 4.0, "original_length": 32768}, 1.5),
        ("GLM-4-9B-0414", None, 1.5),
        ("StableLM-2-1.6B", None, 1.5),
        ("GPT-NeoX-20B", None, 1.5),
        # With many pairs that hardly turn at these positions: of those cos is 1 and sin next to nothing in bfloat16 too.
        ("Qwen3-8B", None, 1.4),
        ("Gemma-3-4B full", {"type": "linear", "factor": 8.0}, 1.4),
        (
            "Llama-3.1-8B",
            {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 8192},
            1.4,
        ),
    ],
)
def test_bfloat16_is_nearer_to_the_true_rotation_than_the_model(name, scaling, gain):
    # transformers rounds cos, sin, both products and the sum to bfloat16; ropepool the result alone.
    model = MODELS[name]
    positions = np.random.default_rng(1).integers(0, 4096, 48)
    q, k = heads_for(model, len(positions), BF16)
    tensors = [torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16) for x in (q, k)]
    theirs = rotated_by_transformers(model, rotary_of(model), *tensors, positions)
    assert all(x.dtype == torch.bfloat16 for x in theirs)
    base, rotary_dim, pairing = model.rope["base"], model.rope["rotary_dim"], model.rope.get("pairing", "neox")
    cos, sin = rope_oracle.cos_sin(
        positions.tolist(), rope_oracle.frequencies(base, rotary_dim, scaling), rope_oracle.scale(scaling)
    )
    for angles in ("exact", "float32"):
        ours = rotated(q, k, positions, model.make(), angles=angles)
        for x, mine, others in zip((q, k), ours, theirs, strict=True):
            true = rope_oracle.rotate(x, cos, sin, 0, pairing)[..., :rotary_dim]
            errors = [np.abs(y[..., :rotary_dim].astype(np.float64) - true).mean() for y in (mine, others.float().numpy())]
            print(f"{name}, {angles}: mean error {errors[0]:.3g}, of transformers {errors[1]:.3g}: {errors[1] / errors[0]:.3g}")
            assert errors[0] * gain <= errors[1]
