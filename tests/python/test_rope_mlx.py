"""Rope against mlx_lm's own ropes, on the CPU: every type that mlx_lm has, both pairings, whole heads and the first half."""

import numpy as np
import pytest
import ropepool
from ropepool import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Rope,
    YarnScaling,
)

mx = pytest.importorskip("mlx.core")
rope_utils = pytest.importorskip("mlx_lm.models.rope_utils")

BASE, HEAD_DIM, TOKENS, MOST_TOKENS = 500000.0, 128, 32, 8192
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def factors(rotary_dim):
    return {"short_factor": [1.0] * (rotary_dim // 2), "long_factor": list(np.linspace(1, 40, rotary_dim // 2))}


# What mlx_lm is told, and what ropepool is, for a rotary_dim.
FORMS = {
    "plain": lambda d: (None, None),
    "linear": lambda d: ({"type": "linear", "factor": 8.0}, LinearScaling(factor=8.0)),
    "llama3": lambda d: (
        LLAMA3 | {"rope_type": "llama3", "original_max_position_embeddings": 8192},
        Llama3Scaling(**LLAMA3, original_length=8192),
    ),
    "yarn": lambda d: (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        YarnScaling(factor=4.0, original_length=4096),
    ),
    "yarn of DeepSeek": lambda d: (
        {
            "rope_type": "deepseek_yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
        },
        YarnScaling(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=0.707),
    ),
    # mlx_lm takes the long set whatever the length.
    "longrope": lambda d: (
        {"rope_type": "longrope", "original_max_position_embeddings": 4096, **factors(d)},
        LongRopeScaling(**factors(d), original_length=4096, factor=2.0, length=MOST_TOKENS),
    ),
    "dynamic": lambda d: (
        {"rope_type": "dynamic", "factor": 4.0},
        # The length of a sequence that ends within what the model was trained for.
        DynamicNtkScaling(factor=4.0, original_length=MOST_TOKENS, length=MOST_TOKENS),
    ),
    "proportional": lambda d: (
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
        ProportionalScaling(proportion=0.25, factor=2.0),
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rotary_dim", [HEAD_DIM, HEAD_DIM // 2])
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
def test_heads_are_turned_as_by_mlx_lm(form, rotary_dim, pairing):
    words, scaling = FORMS[form](rotary_dim)
    if form == "longrope" and pairing == "interleaved":
        pytest.skip("mlx_lm has it for halves only")
    turn = rope_utils.initialize_rope(rotary_dim, BASE, pairing == "interleaved", words, MOST_TOKENS)
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((TOKENS, heads, HEAD_DIM), np.float32) for heads in (3, 2))
    rope = Rope(BASE, rotary_dim=rotary_dim, pairing=pairing, scaling=scaling)
    positions = np.arange(7, 7 + TOKENS)
    ours = ropepool.rope(q, k, positions, head_dim=HEAD_DIM, num_qo_heads=3, num_kv_heads=2, rope=rope)
    for x, mine in zip((q, k), ours, strict=True):
        theirs = np.array(turn(mx.array(x.transpose(1, 0, 2)[None]), offset=7))[0].transpose(1, 0, 2)
        # float32 angles of at most 38 radians, with a few roundings of half a unit in the last place (2^-19 at 38).
        assert np.abs(mine - theirs).max() <= 8 * 2.0**-19 * 2 * np.abs(x).max()
        assert np.abs(mine - x).max() > 0.1


@pytest.mark.parametrize("position", [131071, 1000000])
def test_far_positions_are_nearer_to_the_truth_than_mlx_lm(position):
    """Its angles are float32, so no agreement can be asked for there."""
    turn = rope_utils.initialize_rope(HEAD_DIM, 10000.0, False, None, MOST_TOKENS)
    ones = np.zeros((1, 1, HEAD_DIM), np.float32)
    ones[..., : HEAD_DIM // 2] = 1
    rope = {"rope_base": 10000.0, "head_dim": HEAD_DIM, "num_qo_heads": 1, "num_kv_heads": 1}
    mine = ropepool.rope(ones, ones, np.array([position]), **rope)[0][0, 0]
    theirs = np.array(turn(mx.array(ones[None]), offset=position))[0, 0, 0]
    angle = position * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)  # float64: off by 1e-10 here
    true = np.concatenate([np.cos(angle), np.sin(angle)])
    errors = [np.abs(each - true).max() for each in (mine, theirs)]
    print(f"largest error at {position}: {errors[0]:.3g}, of mlx_lm {errors[1]:.3g}")
    assert errors[0] <= 2.5e-7 and 1000 * errors[0] <= errors[1]
