"""rope: q and k turned as rope_pool_fused turns them, to the bit, with no pool anywhere."""

import numpy as np
import oracle
import pytest
import ropepool
from hypothesis import given, settings
from oracle import FLOATS, INDICES, arguments, assert_rotated, assert_same_bits, copies
from ropepool import Rope
from test_op_properties import SETTINGS, calls

each_dtype = pytest.mark.parametrize("dtype", FLOATS)
NAMES = ("q", "k", "positions", "head_dim", "num_qo_heads", "num_kv_heads", "rope_base", "rope", "rope_sets", "angles")
NAMES += ("q_out", "k_out")


def turned(call):
    """What rope gives for the arguments of rope_pool_fused that it has."""
    return ropepool.rope(**{name: value for name, value in call.items() if name in NAMES})


def assert_same(call):
    expected = ropepool.rope_pool_fused(**copies({name: x for name, x in call.items() if name not in ("q_out", "k_out")}))
    before = copies(call)
    actual = turned(call)
    assert len(actual) == 2
    for one, other, name in zip(actual, expected, ("q", "k"), strict=False):
        assert_same_bits(one, other, name)
        if call.get(f"{name}_out") is not None:
            assert one is call[f"{name}_out"]
        else:
            assert_same_bits(call[name], before[name], f"{name} was written")
    assert_same_bits(call["positions"], before["positions"])
    return actual


@each_dtype
@pytest.mark.parametrize("head_dim", [2, 6, 64, 80, 96, 128, 192, 576, 1030, 2050])
def test_widths(head_dim, dtype):
    call = arguments(5, head_dim, 3, 2, 8, dtype, positions=np.array([0, 5, -1, 131071, oracle.MAX_POSITION]))
    for angles in ("exact", "float32"):
        q_rot, k_rot = assert_same(call | {"angles": angles})
        assert_rotated(q_rot, call["q"], call["positions"], 10000.0, angles)
        assert_rotated(k_rot, call["k"], call["positions"], 10000.0, angles)


@each_dtype
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 17, 64, 300, 1500])
def test_token_counts(num_threads, num_tokens, dtype):
    for width in (1, 3):
        num_threads(width)
        for index in INDICES:
            assert_same(arguments(num_tokens, 80, 16, 5, 2000, dtype, index))


@settings(max_examples=150, **SETTINGS)
@given(calls())
def test_any_call(case):
    """Views, in place or not: the bits of the fused op, and nothing beside the outputs written."""
    buffers, call = case.prepare()
    before = {name: buffer.copy() for name, buffer in buffers.items()}
    assert_same(call)
    for short in ("q", "k"):
        if call.get(f"{short}_out") is not None:
            place = case.places[short if short in case.in_place else f"{short}_out"]
            place.on(before)[...] = call[f"{short}_out"]
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=f"wrote beside the arrays in {name}")


def test_every_form_of_rope():
    table = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
    scaling = ropepool.LongRopeScaling(short_factor=[1.0] * 32, long_factor=[4.0] * 32, original_length=4096, factor=32.0)
    for dtype in FLOATS:
        for rope in (
            Rope(10000.0, rotary_dim=32, rotary_offset=7, pairing="interleaved"),
            Rope(1e6, rotary_dim=64, scaling=ropepool.YarnScaling(factor=4.0, original_length=32768)),
            Rope(10000.0, rotary_dim=64, sections=[8, 12, 12]),
            Rope(10000.0, rotary_dim=64, scaling=scaling),
            Rope(rotary_dim=32, cos_sin=table),
        ):
            call = arguments(dtype=dtype) | {"rope": rope, "rope_base": None}
            if rope.num_axes > 1:
                call["positions"] = np.random.default_rng(1).integers(0, 5000, (3, 9))[:, 2:6]
                assert_same(call)
                call["positions"] = np.arange(4)
            if rope.num_sets > 1:
                call["rope_sets"] = np.array([0, 1, 1, 0], np.int32)
            assert_same(call)


def test_k_and_q_of_one_projection():
    """The heads of one packed projection, in place."""
    call = arguments(6, 64, 4, 2)
    qkv = np.random.default_rng(1).standard_normal((6, 8 * 64), np.float32)
    rows = qkv.reshape(6, 8, 64)
    call |= {"q": rows[:, :4], "k": rows[:, 4:6]}
    expected, v = turned(copies(call)), rows[:, 6:].copy()
    q_rot, k_rot = turned(call | {"q_out": call["q"], "k_out": call["k"]})
    assert_same_bits(np.concatenate([*expected, v], axis=1), rows)
    assert q_rot is call["q"] or np.shares_memory(q_rot, qkv)
    assert np.shares_memory(k_rot, qkv)


# ---- What is refused


def refusal(**changes):
    call = {name: value for name, value in arguments(4, 64, 4, 2).items() if name in NAMES} | changes
    before = copies({name: value for name, value in call.items() if name.endswith("_out") or name in ("q", "k")})
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope(**call)
    for name, array in before.items():
        assert_same_bits(call[name], array, f"{name} was written")
    error = caught.value
    assert ropepool.explain(error.summary)["code"] == error.code, error.summary
    return error


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


REFUSALS = {
    "q of 2 axes": ({"q": zeros(4, 256)}, "RP001", "q", "rope expects q/k to be 3-D"),
    "k of 2 axes": ({"k": zeros(4, 128)}, "RP001", "k", "rope expects q/k to be 3-D"),
    "positions of 2 axes": ({"positions": zeros(1, 4, dtype=int)}, "RP002", "positions", "rope expects positions to be 1-D"),
    "q of other heads": (
        {"q": zeros(4, 5, 64)},
        "RP004",
        "q",
        "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 5, 64)",
    ),
    "k of other tokens": (
        {"k": zeros(3, 2, 64)},
        "RP005",
        "k",
        "k shape must be [num_tokens, num_kv_heads, head_dim], got (3, 2, 64)",
    ),
    "a position too few": ({"positions": np.arange(3)}, "RP007", "positions", "positions must have one entry per token"),
    "k of another dtype": ({"k": zeros(4, 2, 64, dtype=np.float16)}, "RP010", "k", "q/k dtypes must match"),
    "float64": (
        {"q": zeros(4, 4, 64, dtype=np.float64), "k": zeros(4, 2, 64, dtype=np.float64)},
        "RP012",
        "q",
        "q must be float32, float16 or bfloat16, got float64",
    ),
    "uint32": ({"positions": zeros(4, dtype=np.uint32)}, "RP013", "positions", "positions must be int32 or int64, got uint32"),
    "odd heads": (
        {"q": zeros(4, 4, 7), "k": zeros(4, 2, 7), "head_dim": 7},
        "RP014",
        "head_dim",
        "head_dim must be even, got 7",
    ),
    "no base": ({"rope_base": None}, "RP015", "rope_base", "rope_base must be finite and above 0, got nan"),
    "every second lane": (
        {"k": zeros(4, 2, 128)[..., ::2]},
        "RP016",
        "k",
        "k must have an innermost stride of 1, got 2",
    ),
    "an output of other tokens": (
        {"q_out": zeros(5, 4, 64)},
        "RP017",
        "q_out",
        "q_out must be (4, 4, 64), got (5, 4, 64)",
    ),
    "position past all": (
        {"positions": np.array([0, 0, 2**31, 0])},
        "RP021",
        "positions",
        "positions[2] is 2147483648, beyond +-2147483647",
    ),
    "rope too wide": (
        {"rope": Rope(10000.0, rotary_dim=66), "rope_base": None},
        "RP023",
        "rope",
        "the rope turns lanes 0 to 65, but heads have 64",
    ),
    "sets without need": (
        {"rope_sets": np.zeros(4, np.int32)},
        "RP024",
        "rope_sets",
        "rope_sets must be left out where no rope is given",
    ),
    "a set too far": (
        {"rope": Rope(10000.0, rotary_dim=64), "rope_base": None, "rope_sets": np.array([0, 0, 0, 1])},
        "RP025",
        "rope_sets",
        "rope_sets[3] is 1, but the rope has 1 sets",
    ),
    "a row too far": (
        {"rope": Rope(rotary_dim=64, cos_sin=zeros(9, 64)), "rope_base": None},
        "RP026",
        "positions",
        "positions[1] is 10, but the rope's table has 9 positions",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals(what):
    changes, code, argument, line = REFUSALS[what]
    error = refusal(**changes)
    assert (error.code, error.argument) == (code, argument)
    assert error.summary.startswith(line)
    for word in ("pool", "slots", "q/k/v"):
        assert word not in error.summary + error.cause


def test_overlap():
    q = zeros(4, 4, 64)
    for changes, line in (
        ({"q": q, "q_out": q[:, ::-1]}, "q_out must share no memory with q"),
        ({"q_out": q, "k_out": q[:, 1:3]}, "q_out must share no memory with k_out"),
        ({"q": q, "k": q[:, 1:3], "k_out": q[:, 1:3]}, "k_out must share no memory with q"),
    ):
        error = refusal(**changes)
        assert (error.code, error.summary) == ("RP019", line)


def test_read_only():
    call = {name: value for name, value in arguments(4, 64, 4, 2).items() if name in NAMES}
    call["q"].flags.writeable = False
    assert_same(arguments(4, 64, 4, 2) | {"q": call["q"]})
    error = refusal(q=call["q"], q_out=call["q"])
    assert (error.code, error.summary) == ("RP017", "q_out must be writable, got a read-only array")


def test_types():
    call = {name: value for name, value in arguments(4, 64, 4, 2).items() if name in NAMES}
    for changes in ({"q": [0.0]}, {"slots": np.arange(4)}, {"v": call["k"]}, {"q_bias": call["q"][0]}, {"rope": "yarn"}):
        with pytest.raises(TypeError, match=next(iter(changes))):
            ropepool.rope(**call | changes)
