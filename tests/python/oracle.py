"""What rope_pool_fused must give, computed apart from it in NumPy and mpmath, and how near a result must come."""

import functools

import ml_dtypes
import mpmath
import numpy as np
import ropepool

FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)
INDICES = (np.int32, np.int64)
MAX_POSITION = 2**31 - 1
WRITTEN = ("q_out", "k_out", "k_pool", "v_pool")
ARRAYS = ("q", "k", "v", "positions", "slots", "k_pool", "v_pool", "q_out", "k_out")

# ---- Angles

# Frequencies are held as multiples of 2^-FRACTION of a turn. A position takes 31 bits of them and a float64 keeps 53.
FRACTION = 31 + 53 + 80
# A base below 1 has frequencies above 1, of at most 32 bits for the bases that the op is exact for.
PRECISION = FRACTION + 32


@functools.cache
def turns(base, head_dim):
    """base ** (-2i / head_dim) radians for each pair i, as integers in units of 2^-FRACTION of a turn."""
    with mpmath.workprec(PRECISION):
        unit = mpmath.ldexp(1, FRACTION) / (2 * mpmath.pi)
        return [int(mpmath.nint(unit * mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / head_dim))) for i in range(head_dim // 2)]


@functools.cache
def exact_cos_sin(position, base, head_dim):
    """cos and sin of position * frequency, each [head_dim / 2] in float64, off by less than 1e-15."""
    whole = 1 << FRACTION
    angles = np.array([2 * np.pi * (((position * turn) % whole) / whole) for turn in turns(base, head_dim)])
    return np.cos(angles), np.sin(angles)


@functools.cache
def float32_inverse(base, head_dim, ulps=0):
    """Inverse frequencies by Hugging Face's float32 steps, each rounded once, all moved by some units in the last place."""
    exponents = np.arange(0, head_dim, 2, dtype=np.int64).astype(np.float32) / np.float32(head_dim)
    # NumPy's own float32 power is off by up to two units.
    powers = np.power(np.float64(np.float32(base)), exponents.astype(np.float64)).astype(np.float32)
    inverse = np.float32(1.0) / powers
    return (inverse.view(np.int32) + np.int32(ulps)).view(np.float32)


@functools.cache
def float32_cos_sin(position, base, head_dim, ulps=0):
    """cos and sin of the angle that Hugging Face transformers has: a float32 product of two float32 numbers."""
    angles = (float32_inverse(base, head_dim, ulps) * np.float32(position)).astype(np.float64)
    return np.cos(angles), np.sin(angles)


def cos_sin_candidates(positions, base, head_dim, angles):
    """The cos and sin, [num_tokens, head_dim / 2] each, that a result may have used; more than one where freedom is granted."""
    one_unit_off = [functools.partial(float32_cos_sin, ulps=ulps) for ulps in (0, -1, 1)]
    ways = [exact_cos_sin] if angles == "exact" else one_unit_off
    shape = (len(positions), head_dim // 2)
    for way in ways:
        pairs = [way(position, float(base), head_dim) for position in np.asarray(positions).tolist()]
        yield tuple(np.array([pair[part] for pair in pairs], np.float64).reshape(shape) for part in (0, 1))


# ---- Rotation and its tolerance

# What the contract grants cos and sin in the exact mode. Those of float32 angles come from the same polynomials.
ANGLE_ERROR = 2e-7
# Two products and a sum in float32, half a unit in the last place each. Fused multiply-add rounds one time less.
ARITHMETIC_ERROR = 3 * 2.0**-24
SMALLEST_FLOAT32 = 2.0**-149


def rotate(x, cos, sin):
    """x [num_tokens, heads, head_dim] turned in the pairing of GPT-NeoX, in float64."""
    low, high = np.split(np.asarray(x).astype(np.float64), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def ulp(values, dtype):
    """The distance between neighbours of `dtype` at the magnitude of `values`."""
    info = ml_dtypes.finfo(dtype)
    _, exponents = np.frexp(np.abs(values))
    return np.ldexp(1.0, np.maximum(exponents - 1, info.minexp) - info.nmant)


def error_in_ulps(actual, expected, dtype):
    return np.abs(np.asarray(actual).astype(np.float64) - expected) / ulp(expected, dtype)


def tolerance(x, expected, dtype):
    """How far a rotated x may be from `expected`, lane by lane."""
    low, high = np.split(np.abs(np.asarray(x).astype(np.float64)), 2, axis=-1)
    magnitude = np.concatenate([low + high] * 2, axis=-1)
    error = (ANGLE_ERROR + ARITHMETIC_ERROR) * magnitude + SMALLEST_FLOAT32
    if np.dtype(dtype) == np.float32:
        return error
    return error + ulp(np.abs(expected) + error, dtype) / 2  # rounded once more, to nearest


def assert_rotated(actual, x, positions, base, angles="exact"):
    """`actual` is x turned by its positions, within the tolerance of its dtype."""
    actual, x = np.asarray(actual), np.asarray(x)
    assert actual.shape == x.shape and actual.dtype == x.dtype
    head_dim = x.shape[-1]
    excess = np.full((*x.shape[:-1], head_dim // 2), np.inf)
    for cos, sin in cos_sin_candidates(positions, base, head_dim, angles):
        expected = rotate(x, cos, sin)
        over = np.abs(actual.astype(np.float64) - expected) / tolerance(x, expected, x.dtype)
        over = np.where(np.isnan(over), np.inf, over)
        # Both lanes of a pair must fit the same angle.
        excess = np.minimum(excess, np.maximum(*np.split(over, 2, axis=-1)))
    worst = np.unravel_index(np.argmax(excess), excess.shape) if excess.size else None
    assert worst is None or excess[worst] <= 1, (
        f"(token, head, pair) {tuple(map(int, worst))} at position {int(np.asarray(positions)[worst[0]])}, base {base}, "
        f"head_dim {head_dim}, {x.dtype}: off by {excess[worst]:.3g} times the tolerance"
    )


# ---- Scatter and bits


def bits(array):
    """The array's bits as integers, so that NaN equals itself and -0.0 is not 0.0."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual, expected, what=""):
    assert np.asarray(actual).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=what)


def scatter(pool, slots, rows):
    """A copy of `pool` with rows[t] at slots[t], token after token, so that the last one stays; negative slots skip."""
    pool = np.array(pool)
    for slot, row in zip(np.asarray(slots).tolist(), rows, strict=True):
        if slot >= 0:
            pool[slot] = row
    return pool


# ---- Calls


def arguments(
    num_tokens=4,
    head_dim=64,
    num_qo_heads=4,
    num_kv_heads=2,
    num_slots=16,
    dtype=np.float32,
    index=np.int64,
    rope_base=10000.0,
    seed=0,
    **changes,
):
    """The keyword arguments of a call that goes through, with some changed."""
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.standard_normal(shape, np.float32).astype(dtype)

    return {
        "q": normal(num_tokens, num_qo_heads, head_dim),
        "k": normal(num_tokens, num_kv_heads, head_dim),
        "v": normal(num_tokens, num_kv_heads, head_dim),
        "positions": (np.arange(num_tokens) * 7 + 3).astype(index),
        "slots": random.permutation(max(num_tokens, num_slots))[:num_tokens].astype(index) % max(num_slots, 1),
        "k_pool": np.full((num_slots, num_kv_heads, head_dim), 99, dtype),
        "v_pool": np.full((num_slots, num_kv_heads, head_dim), 99, dtype),
        "head_dim": head_dim,
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "rope_base": rope_base,
    } | changes


def copies(call):
    """The arguments with arrays of their own, without gaps, which a later call can't write to."""
    return {name: np.array(value, order="C") if isinstance(value, np.ndarray) else value for name, value in call.items()}


def checked_call(call):
    """Run the op, and hold every byte of what it gives and writes against the oracle."""
    before = copies(call)
    q_rot, k_rot, k_pool, v_pool = ropepool.rope_pool_fused(**call)
    assert k_pool is call["k_pool"] and v_pool is call["v_pool"]
    for rotated, name in ((q_rot, "q"), (k_rot, "k")):
        if call.get(f"{name}_out") is not None:
            assert rotated is call[f"{name}_out"]
        assert_rotated(rotated, before[name], before["positions"], call["rope_base"], call.get("angles", "exact"))
    assert_same_bits(k_pool, scatter(before["k_pool"], before["slots"], k_rot), "k_pool")
    assert_same_bits(v_pool, scatter(before["v_pool"], before["slots"], before["v"]), "v_pool")
    outputs = [call.get(f"{name}_out") for name in "qk"]
    for name in ("q", "k", "v", "positions", "slots"):
        if not any(call[name] is output for output in outputs):
            assert_same_bits(call[name], before[name], f"{name} was written")
    return q_rot, k_rot, k_pool, v_pool
