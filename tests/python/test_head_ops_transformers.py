"""Biases, norms, packed projections and latent rows against the attention modules of Hugging Face transformers themselves."""

import dataclasses
import importlib
import typing

import head_oracle
import ml_dtypes
import numpy as np
import pytest
import rope_oracle
import ropepool
from head_oracle import Norm, Value, allowed_of, assert_near, biased, exactly, normed, scaled, turned
from oracle import assert_same_bits
from ropepool import Rope

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
AttentionInterface = pytest.importorskip("transformers.modeling_utils").AttentionInterface

BF16 = ml_dtypes.bfloat16
SEEDS = range(3)
TOKENS = 23

# ---- What transformers computes, read off at the door of its attention function


@pytest.fixture(autouse=True)
def quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def part(family, name, of="modeling"):
    try:
        module = importlib.import_module(f"transformers.models.{family}.{of}_{family}")
    except ImportError:
        pytest.skip(f"this transformers has no {family}")
    return getattr(module, name)


class Caught(Exception):
    """q, k and v as an attention function gets them."""


def catch(_module, query, key, value, _mask, **options):
    raise Caught(query, key, value, options)


AttentionInterface.register("ropepool_catch", catch)


def caught(attention, *arguments, **options):
    with pytest.raises(Caught) as found, torch.no_grad():
        attention(*arguments, **options)
    *tensors, scaling = found.value.args
    return [tensor[0].transpose(0, 1) for tensor in tensors], scaling.get("scaling")


def made(family, prefix, config_name, dtype, **config):
    """An attention module in `dtype` with random norms and biases, and projections that pick lanes of the hidden state.

    A row of such a weight has a single 1. So projections are exact, and nothing but what comes after them can differ.
    """
    made_config = part(family, config_name, "configuration")(**config)
    made_config._attn_implementation = "ropepool_catch"
    attention = part(family, f"{prefix}Attention")(made_config, layer_idx=0).eval()
    for name, module in attention.named_modules():
        if isinstance(module, torch.nn.Linear):
            picks = torch.randint(module.in_features, (module.out_features,))
            module.weight.data = torch.nn.functional.one_hot(picks, module.in_features).float()
            if module.bias is not None:
                module.bias.data = torch.randn(module.out_features)
        elif "norm" in name:
            offset = float(module.weight.data.mean())  # 0 where 1 is added
            module.weight.data = offset + torch.randn(module.weight.shape) / 3
    return attention.to(dtype), made_config


def rotary_of(family, prefix, config, positions, layer_type=None):
    """cos and sin of the module, its float32 frequencies and its scale."""
    rotary = part(family, f"{prefix}RotaryEmbedding")(config)
    layer = {} if layer_type is None else {"layer_type": layer_type}
    embeddings = rotary(torch.zeros(1, dtype=torch.float32), torch.from_numpy(positions)[None], **layer)
    before = f"{layer_type}_" if layer_type else ""
    return embeddings, getattr(rotary, f"{before}inv_freq").numpy(), getattr(rotary, f"{before}attention_scaling", 1.0)


def numpy_of(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.uint16).numpy().view(BF16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def linear(module, hidden):
    """The projection without its bias."""
    with torch.no_grad():
        return torch.nn.functional.linear(hidden, module.weight)[0]


# ---- Models


@dataclasses.dataclass
class Case:
    """One layer on some tokens: what ropepool gets, and what transformers makes of it, [num_tokens, heads, lanes] each."""

    call: dict  # of rope_pool_fused or, with qkv, of rope_pool_fused_qkv
    theirs: list
    inverse: np.ndarray
    scale: float  # of cos and sin
    turn: dict  # rotary_dim, rotary_offset, pairing

    def rope(self):
        return Rope(frequencies=self.inverse.tolist(), attention_scale=self.scale, **self.turn)

    def run(self, angles):
        num_kv_heads, dtype = self.call["num_kv_heads"], self.theirs[0].dtype
        widths = [array.shape[-1] for array in self.theirs[1:]]
        pools = {name: np.zeros((TOKENS, num_kv_heads, x), dtype) for name, x in zip(("k_pool", "v_pool"), widths, strict=True)}
        slots = np.random.default_rng(0).permutation(TOKENS)
        options = {name: x.make() if isinstance(x, Norm) else x for name, x in self.call.items()}
        op = ropepool.rope_pool_fused_qkv if "qkv" in self.call else ropepool.rope_pool_fused
        q_rot, k_rot, k_pool, v_pool = op(**options, **pools, slots=slots, rope=self.rope(), angles=angles)
        assert_same_bits(k_pool[slots], k_rot)
        return q_rot, k_rot, v_pool[slots]

    def parts(self):
        """q, k and v of the projection and their biases."""
        call = self.call
        if "qkv" not in call:
            return [call[name] for name in "qkv"], [call.get(f"{name}_bias") for name in "qkv"]
        cuts = np.cumsum([call["num_qo_heads"], call["num_kv_heads"]])

        def split(rows):
            heads = rows.reshape(len(rows), -1, call["head_dim"])
            if call.get("order", "blocks") == "blocks":
                return np.split(heads, cuts, axis=1)
            groups = heads.reshape(len(rows), call["num_kv_heads"], -1, call["head_dim"])
            return [groups[:, :, :-2].reshape(len(rows), -1, call["head_dim"]), groups[:, :, -2], groups[:, :, -1]]

        bias = call.get("bias")
        return split(call["qkv"]), [None] * 3 if bias is None else [x[0] for x in split(bias[None])]

    def truth(self, exact_angles=False):
        """What q and k become in real arithmetic, by transformers' float32 angles or by true ones."""
        positions = self.call["positions"]
        if exact_angles:
            cos, sin = rope_oracle.cos_sin(positions.tolist(), [float(f) for f in self.inverse], self.scale)
        else:
            angles = (positions[:, None].astype(np.float32) * self.inverse).astype(np.float64)
            cos, sin = np.cos(angles) * self.scale, np.sin(angles) * self.scale
        arrays, biases = self.parts()
        offset, pairing = self.turn.get("rotary_offset", 0), self.turn.get("pairing", "neox")
        for name, x, bias, scale in zip("qk", arrays, biases, (self.call.get("q_scale", 1.0), 1.0), strict=False):
            yield scaled(
                turned(normed(biased(exactly(x), bias), self.call.get(f"{name}_norm")), cos, sin, offset, pairing), scale
            )


def positions_for(seed):
    return np.sort(np.random.default_rng(seed).integers(0, 4096, TOKENS))


def sizes(seed):
    """head_dim, query heads and key heads, and a hidden size that has nothing to do with them."""
    random = np.random.default_rng(seed)
    num_kv_heads = int(random.integers(1, 4))
    return int(random.choice([16, 64, 80, 96, 128])), num_kv_heads * int(random.integers(1, 4)), num_kv_heads, 192


def hidden_for(size, dtype):
    # No zeros, and of sizes from a hundredth to ten, so that an eps of 1e-2 counts.
    return (torch.randn(1, TOKENS, size) * torch.logspace(-2, 1, TOKENS)[None, :, None]).to(dtype)


def of_projections(attention, hidden, positions, head_dim, num_qo_heads, num_kv_heads, **others):
    """The arguments for a module with q_proj, k_proj and v_proj, their biases included."""
    call = {"positions": positions, "head_dim": head_dim, "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads}
    for name in "qkv":
        module = getattr(attention, f"{name}_proj")
        call[name] = numpy_of(linear(module, hidden)).reshape(TOKENS, -1, head_dim)
        if module.bias is not None:
            call[f"{name}_bias"] = numpy_of(module.bias)
    return call | others


def norms_of(attention, eps, **others):
    return {name: Norm(numpy_of(getattr(attention, name).weight), eps, **others) for name in ("q_norm", "k_norm")}


def llama_like(family, prefix, seed, dtype, eps_key=None, pairing="neox", layer_type=None, fraction=1.0, norm=None, **config):
    """A module with three projections: Qwen, Gemma, OLMo, Cohere, GLM."""
    torch.manual_seed(seed)
    head_dim, num_qo_heads, num_kv_heads, hidden_size = sizes(seed)
    if config.pop("whole", False):  # heads that share out the hidden size
        num_qo_heads, hidden_size = 192 // 16 // num_kv_heads * num_kv_heads, 192
        head_dim = hidden_size // num_qo_heads // 2 * 2
        hidden_size = num_qo_heads * head_dim
    words = {"hidden_size": hidden_size, "num_attention_heads": num_qo_heads, "num_key_value_heads": num_kv_heads}
    words |= {"head_dim": head_dim, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 32}
    eps = 10.0 ** -np.random.default_rng(seed).integers(2, 7)
    if eps_key:
        words[eps_key] = float(eps)
    name = config.pop("config_name", f"{prefix}Config")
    attention, made_config = made(family, prefix, name, dtype, **words | config)
    positions, hidden = positions_for(seed), hidden_for(hidden_size, dtype)
    embeddings, inverse, scale = rotary_of(family, config.get("rotary_prefix", prefix), made_config, positions, layer_type)
    embeddings = [embedding.to(dtype) for embedding in embeddings]
    theirs, scaling = caught(attention, hidden, position_embeddings=embeddings, attention_mask=None)
    call = of_projections(attention, hidden, positions, head_dim, num_qo_heads, num_kv_heads)
    if norm is not None:
        call |= norms_of(attention, float(eps), **norm)
    rotary_dim = int(head_dim * fraction)
    assert len(inverse) == rotary_dim // 2
    case = Case(call, [numpy_of(x) for x in theirs], inverse, scale, {"rotary_dim": rotary_dim, "pairing": pairing})
    return case, scaling, attention, hidden


def qwen2(seed, dtype):
    return llama_like("qwen2", "Qwen2", seed, dtype, whole=True)[0]


def qwen3(seed, dtype):
    return llama_like("qwen3", "Qwen3", seed, dtype, "rms_norm_eps", norm={}, attention_bias=bool(seed % 2))[0]


def gemma3(seed, dtype):
    layer_type = ("full_attention", "sliding_attention")[seed % 2]
    others = {"config_name": "Gemma3TextConfig", "layer_types": [layer_type], "query_pre_attn_scalar": 77}
    case, scaling, *_ = llama_like(
        "gemma3", "Gemma3", seed, dtype, "rms_norm_eps", layer_type=layer_type, norm={"unit_offset": True}, **others
    )
    assert scaling == pytest.approx(77**-0.5)
    if dtype == torch.float32:  # which the attention multiplies the scores by; q can bring it along
        case.call["q_scale"] = scaling
        case.theirs[0] = (case.theirs[0].astype(np.float64) * scaling).astype(np.float32)
    return case


def olmo2(seed, dtype):
    return llama_like("olmo2", "Olmo2", seed, dtype, "rms_norm_eps", norm={}, whole=True)[0]


def cohere(seed, dtype):
    others = {"use_qk_norm": True, "pairing": "interleaved", "norm": {"mean": True}, "whole": True}
    return llama_like("cohere", "Cohere", seed, dtype, "layer_norm_eps", **others)[0]


def glm45(seed, dtype):
    others = {"use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5, "moe_intermediate_size": 32}
    return llama_like("glm4_moe", "Glm4Moe", seed, dtype, "rms_norm_eps", fraction=0.5, norm={}, **others)[0]


def qwen3_next(seed, dtype):
    """A gate stands beside the queries of each head, so that these are a view with gaps."""
    torch.manual_seed(seed)
    head_dim, num_qo_heads, num_kv_heads, hidden_size = sizes(seed)
    head_dim = max(head_dim, 64)
    words = {"hidden_size": hidden_size, "num_attention_heads": num_qo_heads, "num_key_value_heads": num_kv_heads}
    words |= {"head_dim": head_dim, "num_hidden_layers": 1, "rms_norm_eps": 1e-3, "partial_rotary_factor": 0.25}
    attention, config = made("qwen3_next", "Qwen3Next", "Qwen3NextConfig", dtype, **words)
    positions, hidden = positions_for(seed), hidden_for(hidden_size, dtype)
    embeddings, inverse, scale = rotary_of("qwen3_next", "Qwen3Next", config, positions)
    theirs, _ = caught(attention, hidden, [x.to(dtype) for x in embeddings], None)
    both = numpy_of(linear(attention.q_proj, hidden)).reshape(TOKENS, num_qo_heads, 2 * head_dim)
    k, v = (numpy_of(linear(module, hidden)).reshape(TOKENS, -1, head_dim) for module in (attention.k_proj, attention.v_proj))
    call = {"q": both[..., :head_dim], "k": k, "v": v, "positions": positions}
    call |= {"head_dim": head_dim, "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads}
    call |= norms_of(attention, 1e-3, unit_offset=True)
    return Case(call, [numpy_of(x) for x in theirs], inverse, scale, {"rotary_dim": 2 * len(inverse)})


def packed(attention_projection, hidden, positions, head_dim, num_qo_heads, num_kv_heads, order):
    call = {"qkv": numpy_of(linear(attention_projection, hidden)), "positions": positions, "head_dim": head_dim}
    call |= {"num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "order": order}
    if attention_projection.bias is not None:
        call["bias"] = numpy_of(attention_projection.bias)
    return call


def gpt_neox(seed, dtype):
    torch.manual_seed(seed)
    heads, head_dim = 3 + seed, 96
    words = {"hidden_size": heads * head_dim, "num_attention_heads": heads, "num_hidden_layers": 1, "rotary_pct": 0.25}
    attention, config = made("gpt_neox", "GPTNeoX", "GPTNeoXConfig", dtype, **words)
    positions, hidden = positions_for(seed), hidden_for(heads * head_dim, dtype)
    embeddings, inverse, scale = rotary_of("gpt_neox", "GPTNeoX", config, positions)
    theirs, _ = caught(attention, hidden, None, position_embeddings=[x.to(dtype) for x in embeddings])
    call = packed(attention.query_key_value, hidden, positions, head_dim, heads, heads, "groups")
    return Case(call, [numpy_of(x) for x in theirs], inverse, scale, {"rotary_dim": 24})


def phi3(seed, dtype):
    torch.manual_seed(seed)
    num_kv_heads, group, head_dim = 1 + seed, 3, 64
    heads = num_kv_heads * group
    words = {"hidden_size": heads * head_dim, "num_attention_heads": heads, "num_key_value_heads": num_kv_heads}
    words |= {"num_hidden_layers": 1, "pad_token_id": 0, "vocab_size": 32}
    attention, config = made("phi3", "Phi3", "Phi3Config", dtype, **words)
    positions, hidden = positions_for(seed), hidden_for(heads * head_dim, dtype)
    embeddings, inverse, scale = rotary_of("phi3", "Phi3", config, positions)
    theirs, _ = caught(attention, hidden, [x.to(dtype) for x in embeddings], None)
    call = packed(attention.qkv_proj, hidden, positions, head_dim, heads, num_kv_heads, "blocks")
    return Case(call, [numpy_of(x) for x in theirs], inverse, scale, {"rotary_dim": head_dim})


def falcon(kind):
    def of(seed, dtype):
        """How its three generations pack a projection, by _split_heads; keys that it repeats for their group are taken once."""
        torch.manual_seed(seed)
        group = 1 if kind == "one each" else 4
        num_kv_heads = 1 if kind == "one for all" else 2 + seed
        heads, head_dim = num_kv_heads * group, 64
        words = {"hidden_size": heads * head_dim, "num_attention_heads": heads, "num_hidden_layers": 1, "alibi": False}
        words |= {"new_decoder_architecture": kind == "groups", "multi_query": kind == "one for all", "bias": True}
        if kind == "groups":
            words["num_kv_heads"] = num_kv_heads
        attention, config = made("falcon", "Falcon", "FalconConfig", dtype, **words)
        positions, hidden = positions_for(seed), hidden_for(heads * head_dim, dtype)
        embeddings, inverse, scale = rotary_of("falcon", "Falcon", config, positions)
        with torch.no_grad():
            q, k, v = (x.transpose(1, 2) for x in attention._split_heads(attention.query_key_value(hidden)))
            q, k = part("falcon", "apply_rotary_pos_emb")(q, k, *(x.to(dtype) for x in embeddings))
        theirs = [x[0].transpose(0, 1) for x in (q, k, v)]
        if kind == "groups":
            theirs[1:] = [x[:, ::group] for x in theirs[1:]]
        order = "blocks" if kind == "one for all" else "groups"
        call = packed(attention.query_key_value, hidden, positions, head_dim, heads, num_kv_heads, order)
        return Case(call, [numpy_of(x) for x in theirs], inverse, scale, {"rotary_dim": head_dim})

    return of


FAMILIES: dict[str, typing.Callable] = {
    "Qwen2": qwen2,
    "Qwen3": qwen3,
    "Gemma 3": gemma3,
    "OLMo 2": olmo2,
    "Cohere": cohere,
    "GLM-4.5": glm45,
    "Qwen3-Next": qwen3_next,
    "GPT-NeoX": gpt_neox,
    "Phi-3": phi3,
    "Falcon 40B": falcon("groups"),
    "Falcon 7B": falcon("one for all"),
    "Falcon RW": falcon("one each"),
}
each_family = pytest.mark.parametrize("family", FAMILIES)
each_seed = pytest.mark.parametrize("seed", SEEDS)


# ---- The same numbers


@each_seed
@each_family
def test_transformers_is_near_the_truth(family, seed):
    """So that what follows compares with what was meant: their float32 is within two of our tolerances of real arithmetic."""
    case = FAMILIES[family](seed, torch.float32)
    for name, expected, theirs in zip("qk", case.truth(), case.theirs, strict=False):
        twice = Value(expected.value, 2 * expected.error)
        assert_near(theirs, twice, np.float32, f"{family}, {name}")


@each_seed
@each_family
def test_the_same_as_the_attention_module(family, seed):
    case = FAMILIES[family](seed, torch.float32)
    ours = case.run("float32")
    for name, expected, mine, theirs in zip("qk", case.truth(), ours, case.theirs, strict=False):
        assert_near(mine, expected, np.float32, f"{family}, {name}")
        apart = np.abs(mine.astype(np.float64) - theirs)
        assert (apart <= 3 * allowed_of(expected, np.float32)).all(), f"{family}, {name}: {apart.max()}"
    assert_same_bits(ours[2], case.theirs[2], f"{family}, v")


@each_seed
@each_family
def test_bfloat16_is_nearer_to_the_truth_than_the_module(family, seed):
    """transformers rounds after the projection's bias, the norm, its weight, both products and their sum; ropepool once."""
    case = FAMILIES[family](seed, torch.bfloat16)
    assert all(theirs.dtype == BF16 for theirs in case.theirs)
    ours = case.run("exact")
    rotated = slice(0, case.turn["rotary_dim"])
    for name, expected, mine, theirs in zip("qk", case.truth(exact_angles=True), ours, case.theirs, strict=False):
        assert_near(mine, expected, BF16, f"{family}, {name}")
        size = np.abs(expected.value).mean()
        errors = [np.abs(x.astype(np.float64) - expected.value)[..., rotated].mean() / size for x in (mine, theirs)]
        print(f"{family}, {name}: mean error {errors[0]:.3g}, of transformers {errors[1]:.3g}: {errors[1] / errors[0]:.3g}")
        assert errors[0] * 1.3 <= errors[1]
    assert_same_bits(ours[2], case.theirs[2], f"{family}, v")


# ---- How others pack a projection


def test_bloom_packs_as_groups_of_one():
    torch.manual_seed(0)
    heads, head_dim = 3, 16
    words = {"hidden_size": heads * head_dim, "n_head": heads, "n_layer": 1}
    attention, _ = made("bloom", "Bloom", "BloomConfig", torch.float32, **words)
    hidden = hidden_for(heads * head_dim, torch.float32)
    with torch.no_grad():
        theirs = [numpy_of(x[0].transpose(0, 1)) for x in attention._reshape(attention.query_key_value(hidden))]
    call = packed(attention.query_key_value, hidden, np.zeros(TOKENS, np.int64), head_dim, heads, heads, "groups")
    pools = [np.zeros((TOKENS, heads, head_dim), np.float32) for _ in range(2)]
    q, k, k_pool, v_pool = ropepool.rope_pool_fused_qkv(
        **call, slots=np.arange(TOKENS), k_pool=pools[0], v_pool=pools[1], rope_base=10000.0
    )
    for ours, right in zip((q, k, k_pool, v_pool), (*theirs[:2], *theirs[1:]), strict=True):
        np.testing.assert_array_equal(ours, right)


# ---- Latent attention


class Cache:
    """Stands in for a cache of transformers, which gets the latent and the turned key before they are expanded."""

    def update(self, latent, key, layer_idx, kwargs=None):
        self.latent, self.key = latent, key
        return latent, key


@each_seed
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latent_rows_of_deepseek_v3(dtype, seed):
    """Queries turned where they lie, behind the lanes that do not turn, and one row a token of latent and turned key."""
    torch.manual_seed(seed)
    heads, nope, rotary_dim, rank = 2 + seed, 32, (64, 16, 8)[seed], (512, 40, 24)[seed]
    words = {"hidden_size": 192, "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": 1}
    words |= {"q_lora_rank": None, "kv_lora_rank": rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rotary_dim}
    words |= {"v_head_dim": 16, "max_position_embeddings": 163840, "rope_theta": 10000.0}
    words["rope_scaling"] = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    words["rope_scaling"] |= {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
    attention, config = made("deepseek_v3", "DeepseekV3", "DeepseekV3Config", dtype, **words)
    positions, hidden = positions_for(seed), hidden_for(192, dtype)
    embeddings, inverse, scale = rotary_of("deepseek_v3", "DeepseekV3", config, positions)
    cache = Cache()
    (their_q, *_), _ = caught(attention, hidden, [x.to(dtype) for x in embeddings], None, cache)

    q = numpy_of(linear(attention.q_proj, hidden)).reshape(TOKENS, heads, nope + rotary_dim).copy()
    k = numpy_of(linear(attention.kv_a_proj_with_mqa, hidden))[:, None, rank:]
    latent = numpy_of(cache.latent[0].transpose(0, 1))
    assert latent.shape == (TOKENS, 1, rank)
    pool = np.zeros((2 * TOKENS, 1, rank + rotary_dim), q.dtype)
    before, slots = q.copy(), np.random.default_rng(seed).permutation(2 * TOKENS)[:TOKENS]
    rope = Rope(frequencies=inverse.tolist(), rotary_dim=rotary_dim, attention_scale=scale, pairing="interleaved")
    q_rot, k_rot, *_ = ropepool.rope_pool_fused(
        q[..., nope:],
        k,
        latent,
        positions,
        slots,
        pool[..., rank:],
        pool[..., :rank],
        head_dim=rotary_dim,
        num_qo_heads=heads,
        num_kv_heads=1,
        v_head_dim=rank,
        rope=rope,
        angles="float32",
        q_out=q[..., nope:],
    )
    assert_same_bits(pool[slots], np.concatenate([latent, k_rot], axis=-1))
    assert_same_bits(q[..., :nope], numpy_of(their_q)[..., :nope])
    angles = (positions[:, None].astype(np.float32) * inverse).astype(np.float64)
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    their_k = cache.key[0].transpose(0, 1)
    for ours, theirs, x in ((q_rot, their_q[..., nope:], before[..., nope:]), (k_rot, their_k, k)):
        # They bring the first lanes of all pairs to the front.
        theirs = numpy_of(torch.stack(theirs.chunk(2, dim=-1), dim=-1).flatten(-2))
        expected = turned(exactly(x), cos, sin, 0, "interleaved")
        assert_near(ours, expected, ours.dtype)
        apart = np.abs(theirs.astype(np.float64) - expected.value)
        if dtype == torch.float32:
            assert (np.abs(ours - theirs) <= 3 * head_oracle.allowed_of(expected, np.float32)).all()
        else:
            assert np.abs(ours.astype(np.float64) - expected.value).mean() * 1.3 <= apart.mean()
