"""What each rope form must give, computed apart from ropepool in mpmath, from the formulas of the papers and models."""

import mpmath
import numpy as np
import ropepool
from oracle import ANGLE_ERROR, ARITHMETIC_ERROR, SMALLEST_FLOAT32, ulp

mpmath.mp.prec = 200

SCALINGS = {
    "linear": ropepool.LinearScaling,
    "dynamic": ropepool.DynamicNtkScaling,
    "alpha": ropepool.NtkAlphaScaling,
    "yarn": ropepool.YarnScaling,
    "llama3": ropepool.Llama3Scaling,
    "longrope": ropepool.LongRopeScaling,
    "proportional": ropepool.ProportionalScaling,
}


def make(base, rotary_dim, scaling=None, **others):
    """ropepool's Rope of the form; `scaling` is None or {"type": ..., and the fields of its class}."""
    fields = dict(scaling or {})
    kind = fields.pop("type", None)
    return ropepool.Rope(base, rotary_dim=rotary_dim, scaling=SCALINGS[kind](**fields) if kind else None, **others)


def yarn_ramp(base, rotary_dim, s):
    def pair_of(rotations):
        turns = mpmath.mpf(s["original_length"]) / (rotations * 2 * mpmath.pi)
        return rotary_dim * mpmath.log(turns) / (2 * mpmath.log(mpmath.mpf(base)))

    low, high = pair_of(mpmath.mpf(s.get("beta_fast", 32))), pair_of(mpmath.mpf(s.get("beta_slow", 1)))
    if s.get("truncate", True):
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, mpmath.mpf(0)), min(high, mpmath.mpf(rotary_dim - 1))
    if low == high:
        high += mpmath.mpf("0.001")
    return [min(max((i - low) / (high - low), mpmath.mpf(0)), mpmath.mpf(1)) for i in range(rotary_dim // 2)]


def frequencies(base, rotary_dim, scaling=None, which=0):
    """Radians a position, [rotary_dim / 2]; `which` is the set of LongRoPE."""
    s = scaling or {}
    kind, base, d = s.get("type"), mpmath.mpf(base), mpmath.mpf(rotary_dim)
    if kind in ("dynamic", "alpha"):
        growth = mpmath.mpf(s["alpha"]) if kind == "alpha" else mpmath.mpf(1)
        if kind == "dynamic" and s["length"] > s["original_length"]:
            growth = s["factor"] * mpmath.mpf(s["length"]) / s["original_length"] - (mpmath.mpf(s["factor"]) - 1)
        base *= growth ** (d / (d - 2))
    plain = [base ** (-2 * i / d) for i in range(rotary_dim // 2)]
    if kind == "linear":
        return [f / mpmath.mpf(s["factor"]) for f in plain]
    if kind == "yarn":
        factor = mpmath.mpf(s["factor"])
        return [f / factor * ramp + f * (1 - ramp) for f, ramp in zip(plain, yarn_ramp(base, rotary_dim, s), strict=True)]
    if kind == "llama3":
        low, high, length = (mpmath.mpf(s[key]) for key in ("low_freq_factor", "high_freq_factor", "original_length"))
        scaled = []
        for f in plain:
            turns = length * f / (2 * mpmath.pi)  # over the original length
            kept = min(max((turns - low) / (high - low), mpmath.mpf(0)), mpmath.mpf(1))
            scaled.append(f * kept + f / mpmath.mpf(s["factor"]) * (1 - kept))
        return scaled
    if kind == "longrope":
        factors = s["long_factor"] if which else s["short_factor"]
        return [f / mpmath.mpf(factor) for f, factor in zip(plain, factors, strict=True)]
    if kind == "proportional":
        turning = int(s["proportion"] * rotary_dim // 2)
        return [f / mpmath.mpf(s.get("factor", 1)) if i < turning else mpmath.mpf(0) for i, f in enumerate(plain)]
    return plain


def scale(scaling=None):
    """What cos and sin are multiplied by."""
    s = scaling or {}
    if s.get("attention_factor") is not None:
        return s["attention_factor"]
    if s.get("type") == "yarn":

        def of(m):
            return 1.0 if s["factor"] <= 1 else 0.1 * m * np.log(s["factor"]) + 1.0

        if s.get("mscale") and s.get("mscale_all_dim"):
            return of(s["mscale"]) / of(s["mscale_all_dim"])
        return of(1.0)
    if s.get("type") == "longrope" and s["factor"] > 1:
        return float(np.sqrt(1 + np.log(s["factor"]) / np.log(s["original_length"])))
    return 1.0


def cos_sin(positions, inverse, by=1.0):
    """[num_tokens, pairs] each, in float64; `positions` is [num_tokens] or one list a pair."""
    turn = 2 * mpmath.pi
    rows = []
    for position in positions:
        of_pairs = position if isinstance(position, (list, tuple)) else [position] * len(inverse)
        rows.append([float(mpmath.fmod(p * f, turn)) for p, f in zip(of_pairs, inverse, strict=True)])
    angles = np.array(rows, np.float64).reshape(len(rows), len(inverse))
    return np.cos(angles) * by, np.sin(angles) * by


def pairs_of(rotary_dim, rotary_offset, pairing):
    """The lanes of each pair: two index arrays."""
    i = np.arange(rotary_dim // 2)
    if pairing == "neox":
        return rotary_offset + i, rotary_offset + i + rotary_dim // 2
    return rotary_offset + 2 * i, rotary_offset + 2 * i + 1


def rotate(x, cos, sin, rotary_offset=0, pairing="neox"):
    """x [num_tokens, heads, head_dim] turned, in float64; lanes outside the rotated part as they are."""
    out = np.asarray(x).astype(np.float64)
    first, second = pairs_of(2 * cos.shape[1], rotary_offset, pairing)
    low, high = out[..., first], out[..., second]
    cos, sin = cos[:, None, :], sin[:, None, :]
    out[..., first], out[..., second] = low * cos - high * sin, high * cos + low * sin
    return out


def assert_turned(actual, x, cos, sin, rotary_offset=0, pairing="neox", angle_error=ANGLE_ERROR):
    """Within the contract's angle error and one rounding; outside the rotated part the same bits."""
    actual, x = np.asarray(actual), np.asarray(x)
    assert actual.shape == x.shape and actual.dtype == x.dtype
    expected = rotate(x, cos, sin, rotary_offset, pairing)
    first, second = pairs_of(2 * cos.shape[1], rotary_offset, pairing)
    untouched = np.setdiff1d(np.arange(x.shape[-1]), np.concatenate([first, second]))
    np.testing.assert_array_equal(actual[..., untouched], x[..., untouched])
    size = np.abs(x.astype(np.float64))
    magnitude = np.zeros(x.shape)
    magnitude[..., first] = magnitude[..., second] = size[..., first] + size[..., second]
    by = np.maximum(np.hypot(cos, sin).max(initial=0), 1)
    allowed = (angle_error + ARITHMETIC_ERROR + 2.0**-24) * by * magnitude + SMALLEST_FLOAT32
    if x.dtype != np.float32:
        allowed = allowed + ulp(np.abs(expected) + allowed, x.dtype) / 2
    over = np.abs(actual.astype(np.float64) - expected) - allowed
    worst = np.unravel_index(np.argmax(over), over.shape) if over.size else None
    assert worst is None or over[worst] <= 0, f"(token, head, lane) {worst}: {actual[worst]} instead of {expected[worst]}"
