"""What biases, norms, a rope and a scale make of heads, computed apart from ropepool in float64; how near one must come."""

import dataclasses
import typing

import numpy as np
import rope_oracle
import ropepool
from oracle import ANGLE_ERROR, ARITHMETIC_ERROR, SMALLEST_FLOAT32, assert_same_bits, copies, scatter, ulp

UNIT = 2.0**-24  # half a unit in the last place of float32: one rounding

# ---- What is done to heads


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm for ropepool and for the oracle: RMSNorm or, with `mean`, LayerNorm."""

    weight: np.ndarray | None = None
    eps: float = 1e-6
    mean: bool = False
    unit_offset: bool = False

    def make(self):
        if self.mean:
            return ropepool.LayerNorm(self.weight, eps=self.eps)
        return ropepool.RMSNorm(self.weight, eps=self.eps, unit_offset=self.unit_offset)


@dataclasses.dataclass(frozen=True)
class Turn:
    """A rope for ropepool and for the oracle."""

    base: float = 10000.0
    rotary_dim: int = 64
    scaling: dict | None = None
    rotary_offset: int = 0
    pairing: str = "neox"
    axes: tuple = ()  # of each pair, with M-RoPE in blocks

    def make(self):
        others = {"rotary_offset": self.rotary_offset, "pairing": self.pairing}
        if self.axes:
            others["sections"] = [self.axes.count(axis) for axis in range(max(self.axes) + 1)]
        return rope_oracle.make(self.base, self.rotary_dim, self.scaling, **others)

    def cos_sin(self, positions, which=0):
        inverse = rope_oracle.frequencies(self.base, self.rotary_dim, self.scaling, which)
        positions = np.asarray(positions)
        if positions.ndim == 2:
            positions = positions[list(self.axes)].T
        return rope_oracle.cos_sin(positions.tolist(), inverse, rope_oracle.scale(self.scaling))


class Value(typing.NamedTuple):
    """Numbers in float64, and how far float32 arithmetic in any order may be from each."""

    value: np.ndarray
    error: np.ndarray


def exactly(x):
    value = np.asarray(x).astype(np.float64)
    return Value(value, np.zeros_like(value))


def biased(x, bias):
    """x [num_tokens, heads, lanes] and bias [heads, lanes] or [heads * lanes]; the sum is rounded once."""
    if bias is None:
        return x
    value = x.value + np.asarray(bias).astype(np.float64).reshape(x.value.shape[1:])
    return Value(value, x.error + UNIT * np.abs(value))


def roundings_of_a_sum(heads, lanes):
    """How often a summand is rounded on its way: every sixteenth lane is added up by itself, and then these sums are."""
    return heads * -(-lanes // 16) + 4


def normed(x, norm):
    """RMSNorm or LayerNorm of each head, or with a weight [heads * lanes] of all heads of a token at once."""
    if norm is None:
        return x
    tokens, heads, lanes = x.value.shape
    weight = None if norm.weight is None else np.asarray(norm.weight).astype(np.float64)
    together = weight is not None and weight.ndim == 1 and weight.size != lanes
    value, error = (part.reshape(tokens, heads * lanes) if together else part for part in x)
    many = roundings_of_a_sum(heads if together else 1, lanes) * UNIT

    def mean(part):
        return part.mean(axis=-1, keepdims=True)

    square_error = 2 * mean(np.abs(value) * error)
    if norm.mean:
        middle = mean(value)
        middle_error = many * mean(np.abs(value)) + mean(error)
        value = value - middle
        # An error of the mean is the same for all lanes, whose differences from it add up to 0: it counts squared.
        square_error = 2 * mean(np.abs(value) * (error + UNIT * np.abs(value))) + middle_error**2
        error = error + middle_error + UNIT * np.abs(value)
    squares = mean(value**2)
    total = squares + norm.eps
    with np.errstate(divide="ignore", invalid="ignore"):
        total_error = many * squares + square_error + 2 * UNIT * total
        by = 1 / np.sqrt(total)
        by_error = by * (total_error / (2 * total) + 3 * UNIT)
        result = value * by
        error = error * by + np.abs(value) * by_error + UNIT * np.abs(result)
    result, error = result.reshape(tokens, heads, lanes), error.reshape(tokens, heads, lanes)
    if weight is not None:
        weight = weight.reshape(heads, lanes) if weight.size != lanes or weight.ndim == 2 else weight
        weight = weight + 1 if norm.unit_offset else weight
        result, error = result * weight, error * np.abs(weight) + 3 * UNIT * np.abs(result * weight)
    return Value(result, error)


def turned(x, cos, sin, rotary_offset=0, pairing="neox"):
    value = rope_oracle.rotate(x.value, cos, sin, rotary_offset, pairing)
    first, second = rope_oracle.pairs_of(2 * cos.shape[1], rotary_offset, pairing)
    error = x.error.copy()
    by = np.hypot(cos, sin)[:, None, :]
    # What the angle and two products and their sum add, of both lanes; and each lane's error so far, of both.
    own = (ANGLE_ERROR + ARITHMETIC_ERROR + UNIT) * by * (np.abs(x.value[..., first]) + np.abs(x.value[..., second]))
    cos, sin = np.abs(cos)[:, None, :], np.abs(sin)[:, None, :]
    low, high = x.error[..., first], x.error[..., second]
    error[..., first], error[..., second] = cos * low + sin * high + own, cos * high + sin * low + own
    return Value(value, error)


def scaled(x, by):
    if by == 1:
        return x
    # The scale itself is rounded to float32.
    return Value(x.value * by, x.error * abs(by) + 2 * UNIT * np.abs(x.value * by))


def heads_of(x, positions, turn, bias=None, norm=None, scale=1.0, which=0):
    """All that the op does to q or k."""
    cos, sin = turn.cos_sin(positions, which)
    value = normed(biased(exactly(x), bias), norm)
    return scaled(turned(value, cos, sin, turn.rotary_offset, turn.pairing), scale)


# ---- How near


def allowed_of(x, dtype):
    """The error of the float32 arithmetic, and the rounding to `dtype`."""
    allowed = x.error + 4 * SMALLEST_FLOAT32
    if np.dtype(dtype) != np.float32:
        allowed = allowed + ulp(np.abs(x.value) + allowed, dtype) / 2
    return allowed


def assert_near(actual, expected, dtype, what=""):
    actual = np.asarray(actual)
    assert actual.shape == expected.value.shape and actual.dtype == dtype, what
    over = np.abs(actual.astype(np.float64) - expected.value) / allowed_of(expected, dtype)
    over = np.where(np.isnan(over), np.inf, over)
    worst = np.unravel_index(np.argmax(over), over.shape) if over.size else None
    assert worst is None or over[worst] <= 1, (
        f"{what} (token, head, lane) {tuple(map(int, worst))}: {actual[worst]} instead of {expected.value[worst]}, "
        f"off by {over[worst]:.3g} times the tolerance"
    )


def sum_of(v, bias):
    """v and its bias, added in float32 and rounded to v's dtype: what the pool must hold, to the bit."""
    if bias is None:
        return np.array(v)
    bias = np.asarray(bias).reshape(v.shape[1:])
    return (v.astype(np.float32) + bias.astype(np.float32)).astype(v.dtype)


# ---- Calls


def call_for(turn, num_tokens=4, head_dim=64, num_qo_heads=4, num_kv_heads=2, dtype=np.float32, seed=0, **changes):
    """The arguments of a call that goes through, and more slots than tokens; norms are Norm, and `rope` is a Turn."""
    random = np.random.default_rng(seed)

    def normal(heads, lanes):
        return random.standard_normal((num_tokens, heads, lanes), np.float32).astype(dtype)

    v_head_dim = changes.get("v_head_dim") or head_dim
    num_slots = num_tokens + 3
    return {
        "q": normal(num_qo_heads, head_dim),
        "k": normal(num_kv_heads, head_dim),
        "v": normal(num_kv_heads, v_head_dim),
        "positions": random.integers(0, 5000, num_tokens),
        "slots": random.permutation(num_slots)[:num_tokens],
        "k_pool": np.full((num_slots, num_kv_heads, head_dim), 99, dtype),
        "v_pool": np.full((num_slots, num_kv_heads, v_head_dim), 99, dtype),
        "head_dim": head_dim,
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "rope": turn,
    } | changes


def run(call, op="rope_pool_fused"):
    """The op with ropepool's own Rope and norms."""
    made = {name: value.make() if isinstance(value, Norm | Turn) else value for name, value in call.items()}
    return getattr(ropepool, op)(**made)


def checked_call(call):
    """Run rope_pool_fused, and hold every byte of what it gives and writes against the oracle."""
    before = copies(call)
    q_rot, k_rot, k_pool, v_pool = run(call)
    assert k_pool is call["k_pool"] and v_pool is call["v_pool"]
    for name, actual, scale in (("q", q_rot, call.get("q_scale", 1.0)), ("k", k_rot, 1.0)):
        bias, norm = call.get(f"{name}_bias"), call.get(f"{name}_norm")
        expected = heads_of(before[name], before["positions"], call["rope"], bias, norm, scale)
        assert_near(actual, expected, before[name].dtype, f"{name}_rot")
        if call.get(f"{name}_out") is not None:
            assert actual is call[f"{name}_out"]
    # The pool has what k_out has, whatever was done to k.
    assert_same_bits(k_pool, scatter(before["k_pool"], before["slots"], k_rot), "k_pool")
    assert_same_bits(v_pool, scatter(before["v_pool"], before["slots"], sum_of(before["v"], call.get("v_bias"))), "v_pool")
    outputs = [call.get(f"{name}_out") for name in "qk"]
    for name, array in before.items():
        written = name in ("k_pool", "v_pool") or name.endswith("_out") or any(call[name] is output for output in outputs)
        if isinstance(array, np.ndarray) and not written:
            assert_same_bits(call[name], array, f"{name} was written")
    return q_rot, k_rot, k_pool, v_pool
