"""The numbers of rope_pool_fused against the oracle: dtypes, head sizes, positions, bases, special values."""

import math

import ml_dtypes
import mpmath
import numpy as np
import oracle
import pytest
import ropepool
from oracle import FLOATS, INDICES, MAX_POSITION, arguments, assert_rotated, assert_same_bits, bits, checked_call
from peers import at_line

POSITIONS = [0, 1, 2, 5, 255, 256, 257, 1857, 4000, 4096, 32767, 65504, 131071, 1_000_000, 2**24 - 1, 2**24 + 1]
POSITIONS += [123_456_789, 2**30 + 1, MAX_POSITION - 1, MAX_POSITION]
POSITIONS += [-position for position in POSITIONS[1:]]
BASES = [1.0, 1.0001, 100.0, 1e4, 10000.5, 1e5, 5e5, 1e6, 1e7]
# Every even head_dim up to 512 is swept below; these lie about what vectors, stages and tables of angles hold.
WIDTHS = [2, 4, 6, 8, 14, 16, 18, 30, 32, 34, 62, 64, 66, 80, 96, 112, 128, 192, 256, 320, 510, 512, 576, 1030, 2046, 2048]
WIDTHS += [2050, 4098]

each_dtype = pytest.mark.parametrize("dtype", FLOATS)


def rotated_units(positions, base, head_dim, angles="exact"):
    """The op's own cos and sin in float32, [num_tokens, head_dim / 2] each: what it makes of ones in the lower lanes."""
    call = arguments(len(positions), head_dim, 1, 1, 1, rope_base=base, angles=angles)
    call |= {"positions": np.asarray(positions, np.int64), "slots": np.full(len(positions), -1)}
    call["q"][:] = np.arange(head_dim) < head_dim // 2
    q_rot = ropepool.rope_pool_fused(**call)[0]
    return q_rot[:, 0, : head_dim // 2].astype(np.float64), q_rot[:, 0, head_dim // 2 :].astype(np.float64)


# ---- The oracle itself


@pytest.mark.parametrize("base", [2.0**-32, 1.0, 10000.5, 1e7])
@pytest.mark.parametrize("position", [0, 5, -257, MAX_POSITION])
def test_the_oracle_agrees_with_mpmath(position, base):
    cos, sin = oracle.exact_cos_sin(position, base, 96)
    with mpmath.workprec(400):
        for i in (0, 1, 23, 47):
            angle = position * mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / 96)
            assert abs(cos[i] - mpmath.cos(angle)) < 1e-15 and abs(sin[i] - mpmath.sin(angle)) < 1e-15


@each_dtype
def test_the_oracle_sees_a_unit_in_the_last_place(dtype):
    """A float16 or bfloat16 result next to the right one is refused: the tolerance is one rounding."""
    call = arguments(dtype=dtype)
    rotated = ropepool.rope_pool_fused(**call)[0]
    step = 1 if dtype != np.float32 else 64
    moved = (bits(rotated) + bits(rotated).dtype.type(step)).view(dtype)
    with pytest.raises(AssertionError, match="times the tolerance"):
        assert_rotated(moved, call["q"], call["positions"], call["rope_base"])
    assert np.all(oracle.error_in_ulps(moved, rotated.astype(np.float64), dtype) <= step)


# ---- Shapes


@each_dtype
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_widths(head_dim, dtype):
    positions = np.array([0, 5, 131071, -MAX_POSITION])
    checked_call(arguments(4, head_dim, 3, 2, 8, dtype, positions=positions))


@each_dtype
def test_every_even_width_up_to_512(dtype):
    for head_dim in range(2, 513, 2):
        checked_call(arguments(2, head_dim, 2, 1, 4, dtype, positions=np.array([5, 4001])))


@each_dtype
@pytest.mark.parametrize("num_qo_heads, num_kv_heads", [(1, 1), (1, 3), (2, 1), (7, 5), (32, 8), (64, 64), (128, 1)])
def test_head_counts(num_qo_heads, num_kv_heads, dtype):
    checked_call(arguments(3, 32, num_qo_heads, num_kv_heads, dtype=dtype))


@each_dtype
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 15, 16, 17, 63, 64, 65, 300])
def test_token_counts(num_tokens, dtype):
    """Around where a token's duplicates are searched in another way, and where stores go past the caches."""
    checked_call(arguments(num_tokens, 16, 2, 1, 310, dtype))


def test_stores_past_the_caches():
    """From 2 MiB on outputs are written past the caches too, where they and the pools begin at cache lines."""
    call = arguments(700, 64, 40, 4, 1024)
    assert 2 * call["q"].nbytes > 8 * 2**20
    outputs = {"q_out": call["q"], "k_out": call["k"]}
    pools = {name: call[name] for name in ("k_pool", "v_pool")}
    checked_call(call | {name: at_line(array) for name, array in (outputs | pools).items()})


@each_dtype
@pytest.mark.parametrize("positions_index", INDICES)
@pytest.mark.parametrize("slots_index", INDICES)
def test_index_types(positions_index, slots_index, dtype):
    positions, slots = np.array([0, 3, -2, MAX_POSITION]), np.array([3, -1, 0, 15])
    results = [
        checked_call(arguments(dtype=dtype, positions=positions.astype(p), slots=slots.astype(s)))
        for p, s in ((np.int64, np.int64), (positions_index, slots_index))
    ]
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


# ---- Angles


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("base", BASES)
def test_exact_cos_and_sin(base, head_dim):
    """Off by at most 2e-7 at any position."""
    for values, true in zip(
        rotated_units(POSITIONS, base, head_dim),
        next(oracle.cos_sin_candidates(POSITIONS, base, head_dim, "exact")),
        strict=True,
    ):
        assert np.abs(values - true).max() <= oracle.ANGLE_ERROR


@each_dtype
@pytest.mark.parametrize("base", BASES)
def test_positions_and_bases(base, dtype):
    checked_call(arguments(len(POSITIONS), 64, 2, 1, 64, dtype, rope_base=base, positions=np.array(POSITIONS)))


@pytest.mark.parametrize("base", [2.0**-32, 1e-3, 0.5, 1e12, 1e300])
def test_unusual_bases(base):
    checked_call(arguments(len(POSITIONS), 64, 1, 1, 64, rope_base=base, positions=np.array(POSITIONS)))


def test_every_constant_counts():
    """10000.0 and 10000.5 are two ropes, as are neighbouring float64 numbers, also when they take turns."""
    positions = np.array([4000, MAX_POSITION])
    for base in (10000.0, 10000.5, 10000.0, math.nextafter(10000.0, math.inf)):
        call = arguments(2, 64, rope_base=base, positions=positions)
        checked_call(call)
    first, second = (ropepool.rope_pool_fused(**arguments(rope_base=base))[0] for base in (10000.0, 10000.5))
    assert (bits(first) != bits(second)).any()


def test_rope_base_of_other_types():
    expected = ropepool.rope_pool_fused(**arguments())[0]
    for base in (10000, np.float32(10000), np.float64(10000), np.int64(10000)):
        assert_same_bits(ropepool.rope_pool_fused(**arguments(rope_base=base))[0], expected)


def test_more_ropes_than_are_kept():
    bases = [100.0 + i for i in range(200)]
    for base in bases + bases:
        call = arguments(1, 8, 1, 1, rope_base=base)
        assert_rotated(ropepool.rope_pool_fused(**call)[0], call["q"], call["positions"], base)


# ---- Closed forms


@each_dtype
def test_unit_vectors_and_ones(dtype):
    """Position 1, head_dim 4, base 10000: angles 1 and 0.01."""
    call = arguments(1, 4, 4, 1, dtype=dtype, positions=np.array([1]))
    call["q"][0] = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]])
    c, s, c2, s2 = math.cos(1), math.sin(1), math.cos(0.01), math.sin(0.01)
    expected = np.array([[c, 0, s, 0], [0, c2, 0, s2], [-s, 0, c, 0], [c - s, c2 - s2, c + s, c2 + s2]])
    q_rot = checked_call(call)[0]
    assert oracle.error_in_ulps(q_rot[0], expected, dtype).max() <= (4 if dtype == np.float32 else 0.51)


@each_dtype
def test_position_0_changes_no_bit(dtype):
    random = np.random.default_rng(1)
    # All finite values but 0, whose sign is lost in the sum with the other product.
    item = np.dtype(dtype).itemsize
    values = random.integers(1, 2 ** (8 * item), 3 * 2 * 96, f"u{item}").view(dtype).reshape(3, 2, 96)
    with np.errstate(invalid="ignore"):
        values = np.where(np.isfinite(values.astype(np.float64)) & (values != 0), values, dtype(1))
    call = arguments(3, 96, 2, 2, dtype=dtype, q=values, k=values[::-1], positions=np.zeros(3, np.int64), slots=np.arange(3))
    q_rot, k_rot, k_pool, _ = ropepool.rope_pool_fused(**call)
    for actual, expected in ((q_rot, values), (k_rot, values[::-1]), (k_pool[:3], values[::-1])):
        assert_same_bits(actual, expected)


def test_zeros_stay_zero():
    call = arguments(2, 64)
    for name in "qkv":
        call[name][:] = 0
    q_rot, k_rot, k_pool, v_pool = checked_call(call)
    assert not q_rot.any() and not k_rot.any() and not k_pool[call["slots"]].any() and not v_pool[call["slots"]].any()


# ---- What any rotation must do


@pytest.mark.parametrize("head_dim", [2, 64, 96, 192])
def test_norms_are_preserved(head_dim):
    call = arguments(len(POSITIONS), head_dim, 3, 1, 64, positions=np.array(POSITIONS))
    before = np.linalg.norm(call["q"].astype(np.float64), axis=-1)
    after = np.linalg.norm(ropepool.rope_pool_fused(**call)[0].astype(np.float64), axis=-1)
    np.testing.assert_allclose(after, before, rtol=6e-7)


@pytest.mark.parametrize("distance", [0, 1, 100, 4096, 1_000_000])
def test_attention_depends_on_the_distance_only(distance):
    starts = [0, 1, 77, 4000, 131_072, 10**6, 2**30, -(2**31 - 1), MAX_POSITION - distance]
    q, k = np.random.default_rng(2).standard_normal((2, 1, 1, 128), np.float32)
    call = arguments(len(starts), 128, 1, 1, 64, slots=np.full(len(starts), -1))
    call |= {"q": np.repeat(q[None], len(starts), 0)[:, 0], "k": np.repeat(k[None], len(starts), 0)[:, 0]}
    q_rot = ropepool.rope_pool_fused(**call | {"positions": np.array(starts) + distance})[0]
    k_rot = ropepool.rope_pool_fused(**call | {"positions": np.array(starts)})[1]
    scores = np.einsum("thd,thd->t", q_rot.astype(np.float64), k_rot.astype(np.float64))
    assert np.ptp(scores) <= 1e-6 * np.linalg.norm(q) * np.linalg.norm(k)


@each_dtype
def test_back_and_forth(dtype):
    call = arguments(len(POSITIONS), 80, 2, 2, 64, dtype, positions=np.array(POSITIONS))
    there = ropepool.rope_pool_fused(**call)[0]
    back = ropepool.rope_pool_fused(**call | {"q": there, "positions": -call["positions"]})[0]
    error = np.abs(back.astype(np.float64) - call["q"].astype(np.float64))
    low, high = np.split(np.abs(call["q"].astype(np.float64)), 2, axis=-1)
    allowed = 1e-6 if dtype == np.float32 else 4 * float(ml_dtypes.finfo(dtype).eps)
    assert np.all(error <= allowed * np.concatenate([low + high] * 2, axis=-1))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_rounded_once(dtype):
    """The arithmetic is float32's, whatever the dtype: its results, rounded once to nearest even, are the same bits."""
    random = np.random.default_rng(3)
    call = arguments(len(POSITIONS), 96, 16, 4, 64, dtype, positions=np.array(POSITIONS))
    for name in "qk":  # all magnitudes: denormals, and sums beyond the largest finite value
        info = ml_dtypes.finfo(dtype)
        exponents = random.uniform(float(np.log2(info.smallest_subnormal)), 16, call[name].shape).astype(int)
        values = np.ldexp(random.uniform(-2, 2, call[name].shape), exponents)
        call[name] = values.clip(float(info.min), float(info.max)).astype(dtype)
    wide = {name: value.astype(np.float32) for name, value in call.items() if name in ("q", "k", "v", "k_pool", "v_pool")}
    narrow_results, wide_results = ropepool.rope_pool_fused(**call), ropepool.rope_pool_fused(**call | wide)
    with np.errstate(over="ignore"):
        for narrow, expected in zip(narrow_results[:3], wide_results[:3], strict=True):
            assert_same_bits(narrow, expected.astype(dtype))
    if dtype == np.float16:
        assert np.isinf(narrow_results[0]).any()
    small = np.abs(narrow_results[0].astype(np.float64))
    assert ((small > 0) & (small < float(ml_dtypes.finfo(dtype).smallest_normal))).any()


# ---- Special values


@each_dtype
def test_nan_and_inf_pass_through_the_arithmetic(dtype):
    specials = np.array([0, 1, -2, np.inf, -np.inf, np.nan])
    pairs = np.array([(low, high) for low in specials for high in specials], np.float64)
    call = arguments(5, 2 * len(pairs), 1, 1, dtype=dtype, positions=np.array([0, 1, -2, 4000, MAX_POSITION]))
    for name in "qk":
        call[name][:] = np.concatenate([pairs[:, 0], pairs[:, 1]]).astype(dtype)
    q_rot, k_rot, k_pool, _ = ropepool.rope_pool_fused(**call)
    cos, sin = next(oracle.cos_sin_candidates(call["positions"], 10000.0, 2 * len(pairs), "exact"))
    with np.errstate(invalid="ignore"):
        expected = oracle.rotate(call["q"], cos, sin)
    for actual in (q_rot, k_rot, k_pool[call["slots"]]):
        actual = actual.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        infinite = np.isinf(expected)
        np.testing.assert_array_equal(actual[infinite], expected[infinite])
        assert np.isfinite(actual[np.isfinite(expected)]).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_value_of_a_dtype(dtype):
    """All 65,536: what is finite is rotated right, denormals too, NaN stays NaN and Inf Inf."""
    values = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(512, 1, 128)
    call = arguments(512, 128, 1, 1, 512, dtype, q=values, k=values, v=values, positions=np.full(512, 3), slots=np.arange(512))
    q_rot, k_rot, k_pool, v_pool = ropepool.rope_pool_fused(**call)
    wide = {name: call[name].astype(np.float32) for name in ("q", "k", "v", "k_pool", "v_pool")}
    with np.errstate(over="ignore", invalid="ignore"):
        expected = ropepool.rope_pool_fused(**call | wide)[0].astype(dtype)
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(q_rot.astype(np.float32)), nan)
    np.testing.assert_array_equal(np.where(nan, 0, bits(q_rot)), np.where(nan, 0, bits(expected)))
    assert_same_bits(k_rot, q_rot)
    assert_same_bits(k_pool, q_rot)
    assert_same_bits(v_pool, values)


@each_dtype
def test_v_keeps_its_bits(dtype):
    """NaN payloads, signaling NaN and denormals: v is copied, never computed with."""
    item = np.dtype(dtype).itemsize
    random = np.random.default_rng(4).integers(0, 2 ** (8 * item), 100 * 2 * 96, f"u{item}")
    random[::7] |= {2: 0x7C00 if dtype == np.float16 else 0x7F80, 4: 0x7F800000}[item]  # many NaN of all payloads
    v = random.view(dtype).reshape(100, 2, 96)
    for num_tokens in (1, 20, 100):  # a few, and so many that they are stored past the caches
        call = arguments(num_tokens, 96, 1, 2, 128, dtype, v=v[:num_tokens])
        assert_same_bits(ropepool.rope_pool_fused(**call)[3][call["slots"]], v[:num_tokens])


@each_dtype
def test_denormals_are_kept(dtype):
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    call = arguments(2, 64, 1, 1, dtype=dtype, positions=np.array([0, 1]))
    for name in "qkv":
        call[name][:] = (np.arange(64) * tiny).astype(dtype)
    q_rot = checked_call(call)[0]
    assert_same_bits(q_rot[0], call["q"][0])
    assert np.count_nonzero(q_rot[1]) > 48


# ---- The angles of Hugging Face transformers


@pytest.mark.parametrize("base", [1e4, 10000.5, 5e5, 1e6, 1e7])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_float32_angles(head_dim, base):
    """One inverse frequency for each pair, within one unit in the last place of Hugging Face's steps, serves all positions."""
    values = rotated_units(POSITIONS, base, head_dim, "float32")
    errors = []
    for expected in oracle.cos_sin_candidates(POSITIONS, base, head_dim, "float32"):
        errors.append(np.maximum(*(np.abs(v - e) for v, e in zip(values, expected, strict=True))).max(axis=0))
    assert np.min(errors, axis=0).max() <= oracle.ANGLE_ERROR


def test_float32_angles_take_the_base_as_float32():
    """As Hugging Face's formula does: rounded before the power, or a pair can be two units off."""
    for base in (33164.080078125, 10000.1, 499_999.99):
        checked_call(arguments(len(POSITIONS), 64, 2, 1, 64, rope_base=base, positions=np.array(POSITIONS), angles="float32"))


@each_dtype
def test_float32_angles_of_each_dtype(dtype):
    checked_call(arguments(len(POSITIONS), 96, 2, 1, 64, dtype, positions=np.array(POSITIONS), angles="float32"))


def test_float32_angles_as_in_transformers():
    torch = pytest.importorskip("torch")
    head_dim, base, positions = 128, 10000.0, [0, 1, 255, 4000, 131_000, 1_000_000]
    # LlamaRotaryEmbedding and apply_rotary_pos_emb, line for line.
    inverse = 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.int64).to(dtype=torch.float) / head_dim))
    frequencies = (inverse[None, :, None].float() @ torch.tensor(positions)[None, None, :].float()).transpose(1, 2)
    embedding = torch.cat((frequencies, frequencies), dim=-1)
    cos, sin = embedding.cos()[0][:, None, :].numpy(), embedding.sin()[0][:, None, :].numpy()
    call = arguments(len(positions), head_dim, angles="float32", positions=np.array(positions))
    q = call["q"]
    half_turned = np.concatenate([-q[..., head_dim // 2 :], q[..., : head_dim // 2]], axis=-1)
    np.testing.assert_allclose(ropepool.rope_pool_fused(**call)[0], q * cos + half_turned * sin, rtol=0, atol=4e-6)


@pytest.mark.parametrize("position, stated", [(4000, 5e-4), (131_000, 2e-2), (1_000_000, 6e-2)])
def test_float32_angles_differ_from_exact_ones_as_stated(position, stated):
    """The amounts of the documentation are what such angles reach around these positions, within a factor of 3."""
    positions = range(position - 100, position + 100)
    exact, float32 = (np.array(rotated_units(positions, 1e4, 128, angles)) for angles in ("exact", "float32"))
    assert stated / 3 < np.hypot(*(exact - float32)).max() < stated * 1.05
