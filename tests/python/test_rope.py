"""Every form of Rope against formulas in mpmath, and what went wrong with it elsewhere."""

import itertools

import ml_dtypes
import mpmath
import numpy as np
import pytest
import rope_oracle
import ropepool
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLOATS
from peers import at_line
from ropepool import Rope

BF16 = ml_dtypes.bfloat16
LONG = {
    "type": "longrope",
    "short_factor": [1.0 + i / 64 for i in range(32)],
    "long_factor": [1.0 + i for i in range(32)],
    "original_length": 4096,
    "factor": 32.0,
}
# name: base, rotary_dim, scaling; of published models where one has it
FORMS = {
    "plain": (10000.0, 64, None),
    "linear": (10000.0, 64, {"type": "linear", "factor": 8.0}),  # Gemma 3, full attention
    "dynamic": (10000.0, 64, {"type": "dynamic", "factor": 2.0, "original_length": 2048, "length": 5000}),
    "alpha": (10000.0, 128, {"type": "alpha", "alpha": 1000.0}),  # HunYuan
    "yarn": (1000000.0, 128, {"type": "yarn", "factor": 4.0, "original_length": 32768}),  # Qwen2.5
    "yarn-gpt-oss": (150000.0, 64, {"type": "yarn", "factor": 32.0, "original_length": 4096, "truncate": False}),
    "yarn-deepseek": (
        10000.0,
        64,
        {"type": "yarn", "factor": 40.0, "original_length": 4096, "mscale": 0.707, "mscale_all_dim": 1.0},
    ),
    "llama3": (
        500000.0,
        128,
        {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 8192},
    ),
    "longrope": (10000.0, 64, LONG),
    "proportional": (1000000.0, 512, {"type": "proportional", "proportion": 0.25}),  # Gemma 4, full attention
}
POSITIONS = (0, 1, -1, 5, 4095, 131071, 1000000, 2**31 - 1, -(2**31) + 1)


def call(x, positions, rope, angles="exact", **others):
    """q turned by the op, with k the same and every token stored; checks that k and the pool agree."""
    tokens, heads, head_dim = x.shape
    pools = [at_line(np.zeros((tokens + 1, heads, head_dim), x.dtype)) for _ in range(2)]
    slots = np.arange(tokens)[::-1].copy()
    q_out, k_out, k_pool, v_pool = ropepool.rope_pool_fused(
        x,
        x.copy(),
        x.copy(),
        np.asarray(positions),
        slots,
        *pools,
        head_dim=head_dim,
        num_qo_heads=heads,
        num_kv_heads=heads,
        rope=rope,
        angles=angles,
        **others,
    )
    np.testing.assert_array_equal(q_out.view(np.uint8), k_out.view(np.uint8))
    np.testing.assert_array_equal(k_pool[slots].view(np.uint8), k_out.view(np.uint8))
    np.testing.assert_array_equal(v_pool[slots].view(np.uint8), x.view(np.uint8))
    return q_out


def heads_of(tokens, heads, head_dim, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((tokens, heads, head_dim)).astype(dtype)


# ---- Frequencies


@pytest.mark.parametrize("name", FORMS)
def test_frequencies_are_those_of_the_formula(name):
    base, rotary_dim, scaling = FORMS[name]
    rope = rope_oracle.make(base, rotary_dim, scaling)
    for which in range(rope.num_sets):
        expected = np.array([float(f) for f in rope_oracle.frequencies(base, rotary_dim, scaling, which)])
        np.testing.assert_allclose(rope.frequencies(which), expected, rtol=4e-16, atol=0)
        assert rope.attention_scale(which) == np.float32(rope_oracle.scale(scaling))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("name", FORMS)
def test_heads_are_turned_by_the_true_angle_at_any_position(name, pairing, dtype):
    base, rotary_dim, scaling = FORMS[name]
    rope = rope_oracle.make(base, rotary_dim, scaling, pairing=pairing)
    x = heads_of(len(POSITIONS), 3, rotary_dim, dtype)
    for which in range(rope.num_sets):
        sets = {"rope_sets": np.full(len(POSITIONS), which)} if rope.num_sets > 1 else {}
        inverse = rope_oracle.frequencies(base, rotary_dim, scaling, which)
        cos, sin = rope_oracle.cos_sin(POSITIONS, inverse, rope_oracle.scale(scaling))
        rope_oracle.assert_turned(call(x, POSITIONS, rope, **sets), x, cos, sin, 0, pairing)


def test_a_plain_rope_gives_the_bits_of_rope_base():
    x = heads_of(5, 2, 80, np.float32)
    pools = [np.zeros((5, 2, 80), np.float32) for _ in range(4)]
    heads = {"head_dim": 80, "num_qo_heads": 2, "num_kv_heads": 2}
    arrays = (x, x.copy(), x.copy(), np.arange(5) * 1000, np.arange(5))
    one = ropepool.rope_pool_fused(*arrays, *pools[:2], **heads, rope_base=10000.0)
    two = ropepool.rope_pool_fused(*arrays, *pools[2:], **heads, rope=Rope(10000.0, rotary_dim=80))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


# ---- Which lanes


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize(
    "head_dim, rotary_dim, rotary_offset, pairing",
    [
        (128, 64, 0, "neox"),
        (80, 32, 0, "neox"),
        (192, 64, 128, "interleaved"),
        (96, 26, 7, "neox"),
        (96, 26, 7, "interleaved"),
        (128, 64, 64, "neox"),
        (256, 64, 0, "interleaved"),
        (10, 2, 3, "interleaved"),
        (8, 2, 6, "neox"),
        (1200, 1026, 100, "neox"),
        (1200, 1026, 100, "interleaved"),
    ],
)
def test_lanes_outside_the_rotated_part_pass_through(head_dim, rotary_dim, rotary_offset, pairing, dtype):
    rope = Rope(10000.0, rotary_dim=rotary_dim, rotary_offset=rotary_offset, pairing=pairing)
    inverse = rope_oracle.frequencies(10000.0, rotary_dim)
    for tokens in (1, 9):
        positions = np.arange(tokens) * 977
        x = heads_of(tokens, 3, head_dim, dtype)
        cos, sin = rope_oracle.cos_sin(positions.tolist(), inverse)
        rope_oracle.assert_turned(call(x, positions, rope), x, cos, sin, rotary_offset, pairing)


@pytest.mark.parametrize("offset, lanes", [(-1, 64), (-32, 64), (-64, 64), (-96, 96)])
def test_the_mend_of_a_negative_offset_leaves_room_for_the_lanes_that_turn(offset, lanes):
    with pytest.raises(ropepool.ContractError) as caught:
        Rope(1e4, rotary_dim=64, rotary_offset=offset)
    assert caught.value.hint == f"rotary_offset = head_dim - {lanes}"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("rotary_dim, rotary_offset", [(128, 0), (64, 0), (64, 64), (32, 32)])
def test_outputs_past_the_caches_have_the_same_bits(rotary_dim, rotary_offset, pairing, dtype):
    # 2 MiB of outputs and more that begin at cache lines are stored past the caches; a few tokens of them alone are not.
    rope = Rope(10000.0, rotary_dim=rotary_dim, rotary_offset=rotary_offset, pairing=pairing)
    x = heads_of(1024, 16, 128, dtype)
    positions = np.arange(1024) * 31
    whole = call(x, positions, rope, q_out=at_line(x), k_out=at_line(x))
    for begin in (0, 500, 1020):
        part = call(x[begin : begin + 4].copy(), positions[begin : begin + 4], rope)
        np.testing.assert_array_equal(whole[begin : begin + 4].view(np.uint8), part.view(np.uint8))


def test_in_place_gives_the_same_bits():
    for pairing, dtype in itertools.product(["neox", "interleaved"], [np.float32, BF16]):
        rope = Rope(10000.0, rotary_dim=64, rotary_offset=32, pairing=pairing)
        x = heads_of(7, 2, 128, dtype)
        expected = call(x, np.arange(7), rope)
        q, k = x.copy(), x.copy()
        pools = [np.zeros((7, 2, 128), dtype) for _ in range(2)]
        arrays = (q, k, x.copy(), np.arange(7), np.arange(7), *pools)
        heads = {"head_dim": 128, "num_qo_heads": 2, "num_kv_heads": 2}
        ropepool.rope_pool_fused(*arrays, **heads, rope=rope, q_out=q, k_out=k)
        for got in (q, k, pools[0]):
            np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


# ---- Several sets


def test_each_token_takes_its_set():
    ropes = [rope_oracle.make(*FORMS[name]) for name in ("plain", "linear", "yarn-deepseek")]
    joined = Rope.join(ropes)
    assert joined.num_sets == 3
    x = heads_of(9, 2, 64, np.float32)
    sets = np.arange(9, dtype=np.int32) % 3
    positions = np.arange(9) * 500
    got = call(x, positions, joined, rope_sets=sets)
    for which, rope in enumerate(ropes):
        mine = sets == which
        alone = call(x[mine].copy(), positions[mine], rope)
        np.testing.assert_array_equal(got[mine].view(np.uint32), alone.view(np.uint32))


# ---- M-RoPE


@pytest.mark.parametrize(
    "sections, order, axes",
    [
        ([2, 1, 1], "blocks", [0, 0, 1, 2]),
        ([16, 24, 24], "blocks", [0] * 16 + [1] * 24 + [2] * 24),  # Qwen2-VL
        ([16, 16, 16, 16], "blocks", [0] * 16 + [1] * 16 + [2] * 16 + [3] * 16),
        ([24, 20, 20], "interleaved", [0, 1, 2] * 20 + [0] * 4),  # Qwen3-VL
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_pairs_follow_their_axis(sections, order, axes, dtype):
    rotary_dim = 2 * len(axes)
    rope = Rope(10000.0, rotary_dim=rotary_dim, sections=sections, section_order=order)
    assert rope.num_axes == len(sections)
    buffer = np.random.default_rng(1).integers(0, 5000, (len(sections), 32))
    positions = buffer[:, 3:9]  # a view, as a batch has it
    inverse = rope_oracle.frequencies(10000.0, rotary_dim)
    x = heads_of(6, 2, rotary_dim, dtype)
    of_pairs = [[int(positions[axis, t]) for axis in axes] for t in range(6)]
    cos, sin = rope_oracle.cos_sin(of_pairs, inverse)
    rope_oracle.assert_turned(call(x, positions, rope), x, cos, sin)
    text = np.arange(6)
    np.testing.assert_array_equal(call(x, text, rope), call(x, np.stack([text] * len(sections)), rope))


# ---- Frequencies and tables of the caller's own


def test_given_frequencies_are_used_as_they_are():
    inverse = [1.0, 0.5, 1e-3, 0.0]
    rope = Rope(rotary_dim=8, frequencies=inverse)
    assert rope.frequencies() == inverse
    x = heads_of(3, 2, 8, np.float32)
    cos, sin = rope_oracle.cos_sin([0, 7, 100000], [mpmath.mpf(f) for f in inverse])
    rope_oracle.assert_turned(call(x, [0, 7, 100000], rope), x, cos, sin)


def test_float32_angles_of_given_frequencies_are_float32_products():
    inverse = np.float32(1.0) / np.float32(10000.0) ** (np.arange(0, 64, 2, dtype=np.float32) / np.float32(64))
    rope = Rope(rotary_dim=64, frequencies=inverse.tolist())
    positions = np.array([3, 4000, 131071])
    angles = (positions[:, None].astype(np.float32) * inverse).astype(np.float64)
    x = heads_of(3, 2, 64, np.float32)
    rope_oracle.assert_turned(call(x, positions, rope, angles="float32"), x, np.cos(angles), np.sin(angles))


@pytest.mark.parametrize("table_dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("head_dim, rotary_dim", [(64, 64), (80, 26)])
def test_a_table_is_read_as_it_is(head_dim, rotary_dim, pairing, table_dtype):
    inverse = rope_oracle.frequencies(10000.0, rotary_dim)
    cos, sin = rope_oracle.cos_sin(range(50), inverse)
    buffer = np.full((50, rotary_dim + 5), 99, table_dtype)
    table = buffer[:, 3 : 3 + rotary_dim]
    table[:] = np.concatenate([cos, sin], axis=-1).astype(table_dtype)
    rope = Rope(rotary_dim=rotary_dim, cos_sin=table, pairing=pairing)
    assert rope.table_rows == 50
    positions = np.array([0, 49, 7, 7])
    rows = table[positions].astype(np.float64)
    x = heads_of(4, 2, head_dim, np.float32)
    cos, sin = np.split(rows, 2, axis=-1)
    rope_oracle.assert_turned(call(x, positions, rope), x, cos, sin, 0, pairing, angle_error=0)


@pytest.mark.parametrize("table_dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_of_all_ones_in_a_table_is_nan_in_the_heads(dtype, pairing, table_dtype):
    """A table whose memory was set to 0xFF: the carry of rounding it to bfloat16 would make it 0."""
    table = np.zeros((4, 64), table_dtype)
    table.view(np.uint8).reshape(4, -1)[2] = 0xFF
    turned = call(heads_of(2, 2, 64, dtype), [0, 2], Rope(rotary_dim=64, cos_sin=table, pairing=pairing))
    assert [bool(np.isnan(heads.astype(np.float32)).all()) for heads in turned] == [False, True]


def test_a_table_lives_as_long_as_its_rope():
    def made():
        table = np.concatenate([np.ones((4, 4)), np.zeros((4, 4))], axis=-1).astype(np.float32)
        return Rope(rotary_dim=8, cos_sin=table)

    rope = made()
    junk = [np.full((4, 8), 7, np.float32) for _ in range(100)]
    x = heads_of(4, 1, 8, np.float32)
    np.testing.assert_array_equal(call(x, np.arange(4), rope), x)
    assert junk


# ---- What went wrong elsewhere (shared facts, by number)


def test_f03_an_attention_factor_is_final():
    for factor, given_factor in ((128.0, 1.4852030), (64.0, 1.0)):
        scaling = ropepool.YarnScaling(factor=factor, original_length=4096, attention_factor=given_factor)
        rope = Rope(10000.0, rotary_dim=8, scaling=scaling)
        np.testing.assert_array_equal(call(np.ones((1, 1, 8), np.float32), [0], rope), np.float32(given_factor))


def test_f05_truncate_and_the_place_of_the_factor():
    plain = np.array(Rope(150000.0, rotary_dim=64).frequencies())
    for truncate, ratio in ((False, 0.593227), (True, 0.612500)):
        scaling = ropepool.YarnScaling(factor=32.0, original_length=4096, truncate=truncate)
        ratios = np.array(Rope(150000.0, rotary_dim=64, scaling=scaling).frequencies()) / plain
        assert ratios[12] == pytest.approx(ratio, abs=1e-6)
        np.testing.assert_allclose(ratios[:9], 1, rtol=1e-15)
        np.testing.assert_allclose(ratios[18:], 1 / 32, rtol=1e-15)


def test_f06_llama3_bends_where_it_should():
    for rotary_dim, factor, first, bend in (
        (64, 32.0, 15, [0.605573, 0.303743, 0.103448]),
        (128, 8.0, 29, [0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211]),
    ):
        scaling = ropepool.Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)
        scaled = np.array(Rope(500000.0, rotary_dim=rotary_dim, scaling=scaling).frequencies())
        ratios = scaled / np.array(Rope(500000.0, rotary_dim=rotary_dim).frequencies())
        np.testing.assert_allclose(ratios[:first], 1, rtol=1e-15)
        np.testing.assert_allclose(ratios[first : first + len(bend)], bend, atol=1e-6)
        np.testing.assert_allclose(ratios[first + len(bend) :], 1 / factor, rtol=1e-15)


def test_f08_a_sequence_keeps_its_set():
    scaling = ropepool.LongRopeScaling(
        short_factor=[1.0] * 4, long_factor=[4.0] * 4, original_length=8, factor=4.0, attention_factor=1.0
    )
    rope = Rope(10000.0, rotary_dim=8, scaling=scaling)
    unit = np.full((1, 1, 8), 8**-0.5, np.float32)
    for which in (0, 1):
        # 6 tokens of prefill, then decode; and chunks of 4, 4 and 2.
        for chunks in ([6, 1, 1, 1, 1], [4, 4, 2]):
            keys, start = [], 0
            for size in chunks:
                positions = np.arange(start, start + size)
                keys.append(call(np.repeat(unit, size, axis=0), positions, rope, rope_sets=np.full(size, which)))
                start += size
            keys = np.concatenate(keys)[:, 0].astype(np.float64)
            scores = keys @ keys.T
            for distance in range(10):
                assert np.ptp(np.diagonal(scores, distance)) <= 1e-5


def test_f09_dynamic_ntk_below_the_trained_length_changes_nothing():
    for length, base in ((512, 1000.0), (2048, 1000.0), (4096, 1000.0 * 3 ** (64 / 62))):
        scaling = ropepool.DynamicNtkScaling(factor=2.0, original_length=2048, length=length)
        got = Rope(1000.0, rotary_dim=64, scaling=scaling).frequencies()
        np.testing.assert_allclose(got, Rope(base, rotary_dim=64).frequencies(), rtol=1e-14)
    with pytest.raises(ropepool.ContractError, match="rotary_dim must be at least 4") as error:
        Rope(1000.0, rotary_dim=2, scaling=ropepool.DynamicNtkScaling(factor=2.0, original_length=2048, length=4096))
    assert error.value.code == "RP022"


def test_f10_rows_of_all_axes_are_read():
    rope = Rope(10000.0, rotary_dim=8, sections=[2, 1, 1])
    buffer = np.zeros((3, 16), np.int64)
    buffer[:, 0] = 5, 7, 11
    got = call(np.ones((1, 1, 8), np.float32), buffer[:, :1], rope)[0, 0]
    expected = [1.242586, 0.398157, 0.927608, 0.988940, -0.675262, 1.357008, 1.067494, 1.010939]
    np.testing.assert_allclose(got, expected, atol=1e-6)
    with pytest.raises(ropepool.ContractError) as error:
        call(np.ones((1, 1, 8), np.float32), buffer[:, :1], Rope(10000.0, rotary_dim=8))
    assert error.value.code == "RP002"


def test_f12_pairing_is_heeded():
    x = np.array([[[1, 2, 3, 4]]], np.float32)
    for dtype in (np.float32, np.float16, BF16):
        for pairing, row in (
            ("neox", [-1.984111, 1.959901, 2.462378, 4.019800]),
            ("interleaved", [-1.142640, 1.922076, 2.959851, 4.029800]),
        ):
            got = call(x.astype(dtype), [1], Rope(10000.0, rotary_dim=4, pairing=pairing))[0, 0]
            np.testing.assert_allclose(got.astype(np.float64), row, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-6)


def test_f13_the_table_says_how_many_lanes_turn():
    angles = np.outer(np.arange(4), [1.0, 0.01])
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)
    got = call(x, [1], Rope(rotary_dim=4, cos_sin=table))[0, 0]
    np.testing.assert_allclose(got, [-1.984111, 1.959901, 2.462378, 4.019800, 5, 6, 7, 8], atol=1e-6)
    with pytest.raises(ropepool.ContractError, match=r"cos_sin must be of shape \(positions, 8\), got \(4, 4\)"):
        Rope(rotary_dim=8, cos_sin=table)


@pytest.mark.parametrize("width", range(2, 258, 2))
def test_f15_every_even_width_keeps_the_norm(width):
    for dtype, eps in ((np.float32, 1e-6), (BF16, 0.01)):
        got = call(np.ones((1, 1, width), dtype), [5], Rope(10000.0, rotary_dim=width))[0, 0].astype(np.float64)
        assert np.linalg.norm(got) == pytest.approx(np.sqrt(width), rel=eps)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("positions, token, value", [([0, 4096], 1, 4096), ([-1, 0], 0, -1)])
def test_f23_positions_outside_a_table_are_refused(positions, token, value, dtype):
    table = np.zeros((4096, 8), np.float32)
    rope = Rope(rotary_dim=8, cos_sin=table)
    x = np.ones((2, 1, 8), np.float32)
    with pytest.raises(ropepool.ContractError) as error:
        call(x, np.array(positions, dtype), rope)
    assert error.value.code == "RP026"
    assert str(error.value).startswith(f"positions[{token}] is {value}, but the rope's table has 4096 positions")
    call(x, np.array([0, 4095], dtype), rope)


# ---- What must hold for every form


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("name", FORMS)
def test_scores_depend_on_the_distance_alone(name, pairing):
    base, rotary_dim, scaling = FORMS[name]
    rope = rope_oracle.make(base, rotary_dim, scaling, pairing=pairing)
    starts = np.array([0, 1, 1000, 99999, 2**31 - 50])
    q, k = (np.repeat(heads_of(1, 1, rotary_dim, np.float32, seed), len(starts), axis=0) for seed in (1, 2))
    sets = {"rope_sets": np.ones(len(starts), np.int32)} if rope.num_sets > 1 else {}
    turned_q, turned_k = call(q, starts + 17, rope, **sets), call(k, starts, rope, **sets)
    scores = (turned_q.astype(np.float64) * turned_k.astype(np.float64)).sum(axis=(1, 2))
    scale = np.linalg.norm(turned_q[0]) * np.linalg.norm(turned_k[0])
    assert np.ptp(scores) <= 8e-7 * scale
    norms = np.linalg.norm(turned_q.astype(np.float64), axis=(1, 2)) / np.linalg.norm(q.astype(np.float64), axis=(1, 2))
    np.testing.assert_allclose(norms, rope_oracle.scale(scaling), rtol=4e-7)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_lanes_any_layout(data):
    pairs = data.draw(st.integers(1, 70))
    before, behind = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    head_dim = before + 2 * pairs + behind
    head_dim += head_dim % 2
    tokens, heads = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, BF16]))
    pairing = data.draw(st.sampled_from(["neox", "interleaved"]))
    scaling = data.draw(st.sampled_from([None, {"type": "linear", "factor": 4.0}]))
    base = data.draw(st.floats(1.5, 1e7))
    rope = rope_oracle.make(base, 2 * pairs, scaling, rotary_offset=before, pairing=pairing)
    positions = data.draw(st.lists(st.integers(-(2**31) + 1, 2**31 - 1), min_size=tokens, max_size=tokens))
    x = heads_of(tokens, heads, head_dim, dtype, seed=3)
    got = call(x, np.array(positions, np.int64), rope)
    cos, sin = rope_oracle.cos_sin(positions, rope_oracle.frequencies(base, 2 * pairs, scaling))
    rope_oracle.assert_turned(got, x, cos, sin, before, pairing)


def test_a_rope_says_what_it_is():
    assert repr(Rope(1e4, rotary_dim=64)) == "<ropepool.Rope of lanes 0 to 63, neox>"
    rope = Rope(1e4, rotary_dim=64, rotary_offset=128, pairing="interleaved", sections=[8, 12, 12])
    assert repr(rope) == "<ropepool.Rope of lanes 128 to 191, interleaved, 3 axes>"
    assert repr(Rope.join([Rope(1e4, rotary_dim=8)] * 2)) == "<ropepool.Rope of lanes 0 to 7, neox, 2 sets>"
    table = Rope(rotary_dim=8, cos_sin=np.zeros((5, 8), np.float32))
    assert repr(table) == "<ropepool.Rope of lanes 0 to 7, neox, a table of 5 positions>"


# ---- What is refused


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"base": 0.0, "rotary_dim": 8}, "base must be finite and above 0, got 0"),
        ({"base": float("nan"), "rotary_dim": 8}, "base must be finite and above 0, got nan"),
        ({"rotary_dim": 8}, "base must be finite and above 0, got nan"),
        ({"base": 1e4, "rotary_dim": 7}, "rotary_dim must be even and at least 2, got 7"),
        ({"base": 1e4, "rotary_dim": 0}, "rotary_dim must be even and at least 2, got 0"),
        ({"base": 1e4, "rotary_dim": 8, "rotary_offset": -1}, "rotary_offset must be at least 0, got -1"),
        (
            {"base": 1e4, "rotary_dim": 8, "attention_scale": float("inf")},
            "attention_scale must be finite and not 0 in float32, got inf",
        ),
        ({"base": 1e4, "rotary_dim": 8, "sections": [4]}, "sections must be 3 or 4 numbers, one an axis, got [4]"),
        ({"base": 1e4, "rotary_dim": 8, "sections": [2, 2, 1]}, "sections must be 4 pairs in all, got [2, 2, 1]"),
        ({"base": 1e4, "rotary_dim": 8, "sections": [6, -1, -1]}, "sections must be 4 pairs in all, got [6, -1, -1]"),
        (
            {"base": 1e4, "rotary_dim": 8, "sections": [0, 4, 0], "section_order": "interleaved"},
            "sections must be 3 numbers of which the second and third are a third of the pairs at most",
        ),
        ({"base": 1e4, "rotary_dim": 8, "frequencies": [1.0] * 4}, "base must be left out where frequencies are given"),
        ({"rotary_dim": 8, "frequencies": [1.0] * 3}, "frequencies must be 4 numbers, one a pair, got 3"),
        ({"rotary_dim": 2, "frequencies": [float("inf")]}, "frequencies must be finite, got inf"),
        (
            {"base": 1e4, "rotary_dim": 8, "scaling": ropepool.LinearScaling(factor=0.0)},
            "factor must be finite and above 0, got 0",
        ),
        (
            {"base": 1.0, "rotary_dim": 8, "scaling": ropepool.YarnScaling(factor=2.0, original_length=64)},
            "base must be above 1 with YaRN, got 1",
        ),
        (
            {
                "base": 1e4,
                "rotary_dim": 8,
                "scaling": ropepool.LongRopeScaling(
                    short_factor=[1.0] * 4, long_factor=[1.0] * 8, original_length=64, factor=2.0
                ),
            },
            "long_factor must be 4 numbers, one a pair, got 8",
        ),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(ropepool.ContractError) as error:
        Rope(**arguments)
    assert error.value.code == "RP022"
    assert str(error.value).startswith(f"Rope: {words}")


def test_a_rope_and_a_base_are_two_answers():
    x = np.ones((1, 1, 8), np.float32)
    with pytest.raises(ropepool.ContractError, match="rope_base must be left out where rope is given, got 10000") as error:
        call(x, [0], Rope(1e4, rotary_dim=8), rope_base=10000.0)
    assert error.value.code == "RP015"


def test_what_is_no_rope_is_a_type_error():
    with pytest.raises(TypeError, match=r"rope must be a ropepool\.Rope, not dict"):
        call(np.ones((1, 1, 8), np.float32), [0], {"rope_theta": 10000.0})
