"""write_kv: rows of K and V into the pools, bit by bit."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import ropepool
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLOATS, INDICES, arguments, assert_same_bits, bits, copies, scatter
from test_op_properties import SETTINGS, calls

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
NAMES = ("k", "v", "slots", "k_pool", "v_pool", "head_dim", "num_kv_heads", "v_head_dim")


def call_for(num_tokens=5, head_dim=64, num_kv_heads=2, dtype=np.float32, v_head_dim=None, num_slots=None, seed=0, **changes):
    """Rows of any bits: NaN of all payloads, denormals."""
    random, item = np.random.default_rng(seed), np.dtype(dtype).itemsize
    num_slots = num_tokens + 3 if num_slots is None else num_slots

    def noise(*shape):
        return random.integers(0, 2 ** (8 * item), shape, f"u{item}").view(dtype)

    widths = {"k": head_dim, "v": v_head_dim or head_dim}
    call = {name: noise(num_tokens, num_kv_heads, width) for name, width in widths.items()}
    call |= {f"{name}_pool": noise(num_slots, num_kv_heads, width) for name, width in widths.items()}
    call["slots"] = random.permutation(num_slots)[:num_tokens]
    return call | {"head_dim": head_dim, "num_kv_heads": num_kv_heads, "v_head_dim": v_head_dim} | changes


def checked(call):
    before = copies(call)
    k_pool, v_pool = ropepool.write_kv(**call)
    assert k_pool is call["k_pool"] and v_pool is call["v_pool"]
    for name, pool in (("k", k_pool), ("v", v_pool)):
        assert_same_bits(pool, scatter(before[f"{name}_pool"], before["slots"], before[name]), f"{name}_pool")
        assert_same_bits(call[name], before[name], f"{name} was written")
    assert_same_bits(call["slots"], before["slots"])
    return k_pool, v_pool


@each_dtype
@pytest.mark.parametrize("head_dim", [1, 2, 3, 5, 7, 15, 16, 33, 64, 65, 80, 96, 127, 128, 192, 513, 576, 1025])
def test_any_width(head_dim, dtype):
    for v_head_dim, num_tokens in itertools.product((None, 1, 7, 64, 129), (1, 5, 40)):
        checked(call_for(num_tokens, head_dim, 3, dtype, v_head_dim))


@each_dtype
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 15, 16, 17, 64, 300, 3000])
def test_token_counts(num_threads, num_tokens, dtype):
    for width in (1, 2, 8):
        num_threads(width)
        for index in INDICES:
            call = call_for(num_tokens, 80, 4, dtype)
            checked(call | {"slots": call["slots"].astype(index)})


@each_dtype
@pytest.mark.parametrize("index", INDICES)
def test_negative_slots_are_skipped(index, dtype):
    for slots in ([0, -1, 2], [-1, -1, -1], [-7, np.iinfo(index).min, 3]):
        checked(call_for(3, 8, 1, dtype, num_slots=4, slots=np.array(slots, index)))


@settings(max_examples=60, **SETTINGS)
@given(st.integers(0, 2**32 - 1), st.integers(0, 300), st.integers(1, 200), st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 9))
def test_the_last_token_wins(seed, num_tokens, num_slots, skipped, v_head_dim):
    random = np.random.default_rng(seed)
    slots = random.integers(0, num_slots, num_tokens)
    slots[random.random(num_tokens) < skipped] = -1
    call = call_for(num_tokens, 3, 2, np.float32, v_head_dim, num_slots, slots=slots)
    call["k"][:] = call["v"][:] = 0
    call["k"] += np.arange(num_tokens, dtype=np.float32).reshape(-1, 1, 1)
    call["v"] += np.arange(num_tokens, dtype=np.float32).reshape(-1, 1, 1)
    k_pool, v_pool = checked(call)
    written = np.unique(slots[slots >= 0])
    np.testing.assert_array_equal(k_pool[written][..., 0], v_pool[written][..., 0])


def test_f29_one_slot_for_many(num_threads):
    """K and V from one token, for every number of threads and again and again."""
    for width in (1, 2, 16):
        num_threads(width)
        for _ in range(100):
            call = call_for(3, 2, 1, num_slots=4, slots=np.array([3, 3, 1]))
            call["k"][:], call["v"][:] = np.array([1, 2, 3]).reshape(-1, 1, 1), np.array([10, 20, 30]).reshape(-1, 1, 1)
            k_pool, v_pool = checked(call)
            assert (k_pool[3, 0, 0], v_pool[3, 0, 0], k_pool[1, 0, 0], v_pool[1, 0, 0]) == (2, 20, 3, 30)
        call = call_for(2000, 64, 8, BF16, num_slots=50)
        call["slots"] = np.random.default_rng(1).integers(-3, 50, 2000)
        checked(call)


@settings(max_examples=150, **SETTINGS)
@given(calls())
def test_any_layout(case):
    """Views of any kind: the bits of arrays of their own, and not a byte beside the rows written."""
    buffers, call = case.prepare()
    before = {name: buffer.copy() for name, buffer in buffers.items()}
    checked({name: call[name] for name in NAMES if name in call})
    for name in ("k_pool", "v_pool"):
        case.places[name].on(before)[...] = call[name]
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=f"wrote beside the arrays in {name}")


@each_dtype
def test_what_rope_has_turned(dtype):
    """rope and then write_kv is rope_pool_fused, to the bit."""
    call = arguments(7, 80, 4, 2, 12, dtype)
    expected = ropepool.rope_pool_fused(**copies(call))
    heads = {name: call[name] for name in ("head_dim", "num_kv_heads")}
    q_rot, k_rot = ropepool.rope(
        call["q"], call["k"], call["positions"], **heads, num_qo_heads=call["num_qo_heads"], rope_base=call["rope_base"]
    )
    pools = ropepool.write_kv(k_rot, call["v"], call["slots"], call["k_pool"], call["v_pool"], **heads)
    for one, other in zip((q_rot, k_rot, *pools), expected, strict=True):
        assert_same_bits(one, other)


@each_dtype
def test_latent_rows(dtype):
    """Both parts of a latent row, from a row as wide, with odd widths and the parts in the other order."""
    for first, second in ((512, 64), (7, 3), (1, 1)):
        source = call_for(6, first + second, 1, dtype)["k"]
        pool = call_for(6, first + second, 1, dtype, seed=1)["k_pool"]
        expected = scatter(pool, [4, -1, 0, 8, 1, 4], source)
        checked(
            {
                "k": source[..., first:],
                "v": source[..., :first],
                "slots": np.array([4, -1, 0, 8, 1, 4]),
                "k_pool": pool[..., first:],
                "v_pool": pool[..., :first],
                "head_dim": second,
                "num_kv_heads": 1,
                "v_head_dim": first,
            }
        )
        assert_same_bits(pool, expected)


def test_inputs_may_be_one():
    call = call_for()
    checked(call | {"v": call["k"]})
    repeated = np.broadcast_to(call["k"][:1], call["k"].shape)
    checked(call | {"k": repeated, "v": call["v"][::-1]})


# ---- What is refused


def refusal(**changes):
    call = call_for(4, 64, 2, num_slots=7, slots=np.array([0, 1, 2, 3])) | changes
    before = {name: np.array(call[name]) for name in ("k_pool", "v_pool")}
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.write_kv(**call)
    for name, array in before.items():
        np.testing.assert_array_equal(bits(call[name]), bits(array))
    assert ropepool.explain(caught.value.summary)["code"] == caught.value.code, caught.value.summary
    return caught.value


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


DOUBLE = {name: zeros(4, 2, 64, dtype=np.float64) for name in "kv"} | {
    name: zeros(7, 2, 64, dtype=np.float64) for name in ("k_pool", "v_pool")
}
REFUSALS = {
    "k of 2 axes": ({"k": zeros(4, 128)}, "RP001", "k", "write_kv expects k/v to be 3-D"),
    "v of 4 axes": ({"v": zeros(4, 1, 2, 64)}, "RP001", "v", "write_kv expects k/v to be 3-D"),
    "slots of 2 axes": ({"slots": zeros(4, 1, dtype=int)}, "RP002", "slots", "write_kv expects slots to be 1-D"),
    "a pool of pages": ({"k_pool": zeros(2, 4, 2, 64)}, "RP003", "k_pool", "write_kv expects pool tensors to be 3-D"),
    "k of other heads": (
        {"k": zeros(4, 3, 64)},
        "RP005",
        "k",
        "k shape must be [num_tokens, num_kv_heads, head_dim], got (4, 3, 64)",
    ),
    "v of other tokens": ({"v": zeros(3, 2, 64)}, "RP006", "v", "v shape must match k shape, got (3, 2, 64) vs (4, 2, 64)"),
    "v of other lanes": (
        {"v_head_dim": 96},
        "RP006",
        "v",
        "v shape must match k shape, got (4, 2, 64) vs (4, 2, 96)",
    ),
    "a slot too many": ({"slots": np.arange(5)}, "RP007", "slots", "slots must have one entry per token"),
    "k_pool of other heads": (
        {"k_pool": zeros(7, 3, 64)},
        "RP008",
        "k_pool",
        "k_pool has incompatible shape (7, 3, 64)",
    ),
    "v_pool of other slots": (
        {"v_pool": zeros(6, 2, 64)},
        "RP009",
        "v_pool",
        "v_pool shape must match k_pool shape, got (6, 2, 64) vs (7, 2, 64)",
    ),
    "v of another dtype": ({"v": zeros(4, 2, 64, dtype=np.float16)}, "RP010", "v", "k/v dtypes must match"),
    "a pool of another dtype": (
        {"k_pool": zeros(7, 2, 64, dtype=BF16)},
        "RP011",
        "k_pool",
        "pool dtypes must match k/v dtype",
    ),
    "float64": (DOUBLE, "RP012", "k", "k must be float32, float16 or bfloat16, got float64"),
    "slots in floats": ({"slots": zeros(4)}, "RP013", "slots", "slots must be int32 or int64, got float32"),
    "no heads": (
        {"num_kv_heads": 0, "k": zeros(4, 0, 64), "v": zeros(4, 0, 64), "k_pool": zeros(7, 0, 64), "v_pool": zeros(7, 0, 64)},
        "RP014",
        "num_kv_heads",
        "num_kv_heads must be at least 1, got 0",
    ),
    "no lanes": (
        {"head_dim": 0, "k": zeros(4, 2, 0), "v": zeros(4, 2, 0), "k_pool": zeros(7, 2, 0), "v_pool": zeros(7, 2, 0)},
        "RP014",
        "head_dim",
        "head_dim must be at least 1, got 0",
    ),
    "no lanes of v": (
        {"v_head_dim": 0, "v": zeros(4, 2, 0), "v_pool": zeros(7, 2, 0)},
        "RP014",
        "v_head_dim",
        "v_head_dim must be at least 1, got 0",
    ),
    "every second lane": ({"v": zeros(4, 2, 128)[..., ::2]}, "RP016", "v", "v must have an innermost stride of 1, got 2"),
    "a slot too high": ({"slots": np.array([0, 1, 7, 9])}, "RP020", "slots", "slots[2] is 7, but the pools have 7 slots"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals(what):
    changes, code, argument, line = REFUSALS[what]
    error = refusal(**changes)
    assert (error.code, error.argument) == (code, argument)
    assert error.summary == line
    for word in ("position", "rope_pool_fused", "q/k"):
        assert word not in error.summary + error.cause


def test_overlap():
    pool, rows = zeros(7, 2, 64), zeros(20, 2, 64)
    for changes, line in (
        ({"k_pool": pool, "v_pool": pool}, "k_pool must share no memory with v_pool"),
        ({"k": rows[2:6], "k_pool": rows[4:11]}, "k_pool must share no memory with k"),
        ({"v": rows[2:6], "k_pool": rows[4:11]}, "k_pool must share no memory with v"),
        ({"k": rows[2:6], "v_pool": rows[5:12]}, "v_pool must share no memory with k"),
        ({"v_pool": np.lib.stride_tricks.as_strided(pool, (7, 2, 64), (0, 256, 4))}, "v_pool must share no memory with itself"),
    ):
        error = refusal(**changes)
        assert (error.code, error.summary) == ("RP019", line)


def test_read_only():
    call = call_for()
    call["k"].flags.writeable = call["v"].flags.writeable = call["slots"].flags.writeable = False
    checked(call)
    pool = zeros(7, 2, 64)
    pool.flags.writeable = False
    error = refusal(v_pool=pool)
    assert (error.code, error.summary) == ("RP017", "v_pool must be writable, got a read-only array")


def test_types():
    call = call_for()
    for changes in ({"k": [0.0]}, {"slots": 3}, {"head_dim": 64.0}, {"positions": np.arange(5)}, {"rope_base": 1e4}):
        with pytest.raises(TypeError, match=next(iter(changes))):
            ropepool.write_kv(**call | changes)
