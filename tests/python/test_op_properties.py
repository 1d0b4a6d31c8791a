"""rope_pool_fused for random shapes, views, slots and threads: the oracle's values, nothing else written, one answer."""

import dataclasses
import time

import numpy as np
import oracle
import pytest
import ropepool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import FLOATS, INDICES, MAX_POSITION, arguments, assert_same_bits, bits, checked_call

# Time says nothing on a shared machine, and a test run should leave no files in the tree.
SETTINGS = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
}

# ---- Arrays placed in memory of which every byte is watched


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an array lies in the buffer of this name."""

    buffer: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int  # bytes
    strides: tuple[int, ...]  # bytes

    def on(self, buffers):
        return np.ndarray(self.shape, self.dtype, buffers[self.buffer], self.offset, self.strides)


@dataclasses.dataclass
class Call:
    """A call whose arrays are views into buffers of random bytes."""

    constants: dict
    places: dict  # name -> Place
    sizes: dict  # buffer -> bytes
    values: dict  # name -> array
    in_place: tuple = ()  # of "q", "k": those whose output is the very same array

    def prepare(self):
        """Fresh buffers, filled, and the arguments that lie in them."""
        random = np.random.default_rng(0)
        buffers = {name: random.integers(0, 256, size, np.uint8) for name, size in self.sizes.items()}
        call = self.constants | {name: place.on(buffers) for name, place in self.places.items()}
        for name, values in self.values.items():
            call[name][...] = values
        return buffers, call | {f"{name}_out": call[name] for name in self.in_place}

    def plain(self):
        """The same call with arrays of their own, without gaps, and outputs to be made."""
        return oracle.copies({name: value for name, value in self.prepare()[1].items() if name not in ("q_out", "k_out")})


def byte_strides(shape, heads_first, gaps):
    """Strides, in elements, of [rows, heads, lanes] with gaps between the heads and between the rows."""
    rows, heads, lanes = shape
    inner = lanes + gaps[0]
    outer = (rows if heads_first else heads) * inner + gaps[1]
    return (inner, outer, 1) if heads_first else (outer, inner, 1)


@st.composite
def places_of_its_own(draw, name, shape, dtype, may_repeat):
    """Any view with a unit innermost stride: gaps, heads first, turned around and, for inputs, repeated rows or heads."""
    dtype = np.dtype(dtype)
    strides = list(byte_strides(shape, draw(st.booleans()), draw(st.tuples(st.integers(0, 5), st.integers(0, 40)))))
    low = high = draw(st.integers(0, 3))
    for axis in (0, 1):
        strides[axis] *= draw(st.sampled_from([1, 1, -1, 0] if may_repeat else [1, 1, -1]))
        reach = strides[axis] * max(shape[axis] - 1, 0)
        low, high = low + max(-reach, 0), high + abs(reach)
    size = (high + shape[2] + draw(st.integers(0, 3))) * dtype.itemsize
    strides = tuple(stride * dtype.itemsize for stride in strides)
    return Place(name, dtype, shape, low * dtype.itemsize, strides), size


def columns_of(buffer, dtype, parts, gap):
    """Places side by side in the rows of one buffer, and its size: {name: (rows, heads, lanes)}."""
    item = np.dtype(dtype).itemsize
    rows = next(iter(parts.values()))[0]
    width = sum(heads * lanes for _, heads, lanes in parts.values()) + gap
    places, offset = {}, 0
    for name, (_, heads, lanes) in parts.items():
        places[name] = Place(buffer, np.dtype(dtype), (rows, heads, lanes), offset * item, (width * item, lanes * item, item))
        offset += heads * lanes
    return places, max(rows, 1) * width * item


@st.composite
def placed_inputs(draw, shapes, dtype):
    if draw(st.booleans()):  # a packed projection
        places, size = columns_of("qkv", dtype, shapes, draw(st.integers(0, 3)))
        return places, {"qkv": size}, draw(st.sampled_from([(), ("q",), ("k",), ("q", "k")]))
    places, sizes = {}, {}
    for name in "qkv":
        places[name], sizes[name] = draw(places_of_its_own(name, shapes[name], dtype, may_repeat=True))
    if draw(st.integers(0, 4)) == 0:
        places["v"] = places["k"]  # inputs may share memory in any way
        if shapes["q"][1] >= shapes["k"][1]:
            places["k"] = places["v"] = dataclasses.replace(places["q"], shape=shapes["k"])
    unique = [name for name in "qk" if all(s or n == 1 for s, n in zip(places[name].strides, shapes[name], strict=True))]
    unique = unique if places["v"] != places["k"] else []
    return places, sizes, tuple(name for name in unique if draw(st.booleans()))


@st.composite
def placed_pools(draw, shape, dtype):
    slots, heads, lanes = shape
    item = np.dtype(dtype).itemsize
    layout = draw(st.sampled_from(["own", "lanes", "rows", "halves"]))
    if layout == "own":
        pairs = {name: draw(places_of_its_own(name, shape, dtype, may_repeat=False)) for name in ("k_pool", "v_pool")}
        return {name: place for name, (place, _) in pairs.items()}, {name: size for name, (_, size) in pairs.items()}
    row = heads * lanes
    strides, second = {  # in elements, and where v_pool begins
        "lanes": ((2 * row, 2 * lanes, 1), lanes),
        "rows": ((2 * row, lanes, 1), row),
        "halves": ((row, lanes, 1), slots * row),
    }[layout]
    places = {
        name: Place("kv", np.dtype(dtype), shape, offset * item, tuple(stride * item for stride in strides))
        for name, offset in (("k_pool", 0), ("v_pool", second))
    }
    return places, {"kv": 2 * max(slots, 1) * row * item}


@st.composite
def calls(draw, num_tokens=(0, 24), heads=(1, 5), head_dims=range(2, 81, 2)):
    dtype, head_dim = draw(st.sampled_from(FLOATS)), draw(st.sampled_from(head_dims))
    num_tokens = draw(st.integers(*num_tokens))
    num_qo_heads, num_kv_heads = draw(st.integers(*heads)), draw(st.integers(*heads))
    num_slots = draw(st.integers(0, 2 * num_tokens + 1))
    q_shape, kv_shape = (num_tokens, num_qo_heads, head_dim), (num_tokens, num_kv_heads, head_dim)
    places, sizes, in_place = draw(placed_inputs({"q": q_shape, "k": kv_shape, "v": kv_shape}, dtype))
    pools, pool_sizes = draw(placed_pools((num_slots, num_kv_heads, head_dim), dtype))
    places, sizes = places | pools, sizes | pool_sizes
    for name, shape in (("q", q_shape), ("k", kv_shape)):
        if name not in in_place and draw(st.booleans()):
            out = f"{name}_out"
            places[out], sizes[out] = draw(places_of_its_own(out, shape, dtype, may_repeat=False))

    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = {name: random.standard_normal(places[name].shape, np.float32).astype(dtype) for name in "qkv"}
    span = draw(st.sampled_from([10, 5000, MAX_POSITION]))
    values["positions"] = random.integers(-span, span, num_tokens, endpoint=True)
    # From no duplicate to nothing else, from no token to be skipped to all of them.
    highest = draw(st.integers(-1, num_slots - 1))
    values["slots"] = random.integers(min(draw(st.integers(-5, 0)), highest), highest, num_tokens, endpoint=True)
    for name in ("positions", "slots"):
        index = np.dtype(draw(st.sampled_from(INDICES)))
        lead, step = draw(st.integers(0, 3)), index.itemsize
        places[name] = Place(name, index, (num_tokens,), lead * step, (step,))
        sizes[name] = (lead + num_tokens + 1) * step
    constants = {"head_dim": head_dim, "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads}
    constants["rope_base"] = draw(st.one_of(st.sampled_from([1.0, 1e4, 10000.5, 5e5, 1e6]), st.floats(1, 1e7, width=32)))
    constants["angles"] = draw(st.sampled_from(["exact", "exact", "float32"]))
    return Call(constants, places, sizes, values, in_place)


def results(call):
    return [np.array(result) for result in ropepool.rope_pool_fused(**call)]


def assert_same_results(actual, expected, what):
    for name, one, other in zip(("q_rot", "k_rot", "k_pool", "v_pool"), actual, expected, strict=True):
        assert_same_bits(one, other, f"{name}, {what}")


# ---- Properties


@settings(max_examples=250, **SETTINGS)
@given(calls())
def test_any_call(case):
    buffers, call = case.prepare()
    before = {name: buffer.copy() for name, buffer in buffers.items()}
    assert ropepool.check(**call) == []
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=f"check wrote to {name}")
    values_of_inputs = case.plain()
    actual = checked_call(call)

    # Not a byte beside the written arrays has changed.
    written = {name.removesuffix("_out"): name for name in oracle.WRITTEN if name in call}
    for short, name in written.items():
        place = case.places[short if short in case.in_place else name]
        place.on(before)[...] = call[name]
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=f"wrote beside the arrays in {name}")

    # Views, in place or not, give the bits that arrays without gaps give.
    assert_same_results(actual, results(values_of_inputs), "against arrays of their own")


@settings(max_examples=100, **SETTINGS)
@given(calls(), st.data())
def test_a_batch_in_two_calls(case, data):
    _, call = case.prepare()
    whole = results(call)
    _, call = case.prepare()
    num_tokens = len(call["positions"])
    cut = data.draw(st.integers(0, num_tokens))
    for part in (slice(cut), slice(cut, None)):
        sliced = {name: call[name][part] for name in ("q", "k", "v", "positions", "slots", "q_out", "k_out") if name in call}
        for name in case.in_place:
            sliced[f"{name}_out"] = sliced[name]
        q_rot, k_rot, k_pool, v_pool = results(call | sliced)
        assert_same_bits(q_rot, whole[0][part])
        assert_same_bits(k_rot, whole[1][part])
    assert_same_bits(k_pool, whole[2])
    assert_same_bits(v_pool, whole[3])


# So large that the work is split.
large_calls = calls((300, 700), (3, 8), (64, 80, 128))


@settings(max_examples=25, **SETTINGS)
@given(large_calls)
def test_any_number_of_threads(num_threads, case):
    expected = None
    for width in (1, 2, 3, 8):
        num_threads(width)
        buffers, call = case.prepare()
        actual = results(call)
        if expected is None:
            expected, expected_buffers = actual, {name: buffer.copy() for name, buffer in buffers.items()}
        assert_same_results(actual, expected, f"{width} threads")
        for name, buffer in buffers.items():
            np.testing.assert_array_equal(buffer, expected_buffers[name], err_msg=f"{name}, {width} threads")


@settings(max_examples=6, **SETTINGS)
@given(large_calls)
def test_large_calls_give_the_oracles_values(case):
    checked_call(case.prepare()[1])


def test_large_calls_are_split_at_all(num_threads):
    """What the thread tests rest on: of a call of their size another thread takes a part, sooner or later."""
    num_threads(2)
    call = arguments(700, 64, 8, 8, 1024)
    others = -time.process_time() + time.thread_time()
    for _ in range(2000):
        ropepool.rope_pool_fused(**call)
        if time.process_time() - time.thread_time() + others > 0.001:
            return
    pytest.fail("the calling thread did all the work of 2000 calls")


@settings(max_examples=60, **SETTINGS)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 200),
    st.integers(1, 300),
    st.sampled_from(INDICES),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_last_token_wins(seed, num_tokens, num_slots, index, skipped):
    """K and V of a row come from one token, whether duplicates are searched one by one or in a table."""
    random = np.random.default_rng(seed)
    slots = random.integers(0, num_slots, num_tokens)
    slots[random.random(num_tokens) < skipped / 2] = -1
    slots[random.random(num_tokens) < skipped / 2] = np.iinfo(index).min
    call = arguments(num_tokens, 2, 1, 1, num_slots, positions=np.zeros(num_tokens, index), slots=slots.astype(index))
    for name in "kv":
        call[name][:] = np.arange(num_tokens).reshape(-1, 1, 1) + 1
    ropepool.rope_pool_fused(**call)
    winner = np.full(num_slots, 99.0)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            winner[slot] = token + 1
    for pool in (call["k_pool"], call["v_pool"]):
        np.testing.assert_array_equal(pool, np.broadcast_to(winner.reshape(-1, 1, 1), pool.shape))


@settings(max_examples=40, **SETTINGS)
@given(calls())
def test_the_same_call_twice(case):
    first, second = (results(case.prepare()[1]) for _ in range(2))
    assert_same_results(first, second, "again")


@settings(max_examples=40, **SETTINGS)
@given(calls(num_tokens=(1, 12)))
def test_tokens_do_not_see_each_other(case):
    """A token's rotation has the same bits alone and in any company, at any place of the batch."""
    call = case.plain()
    together = results(call)
    for token in range(len(call["positions"])):
        alone = {name: call[name][token : token + 1] for name in ("q", "k", "v", "positions", "slots")}
        q_rot, k_rot, _, _ = results(call | alone)
        np.testing.assert_array_equal(bits(q_rot[0]), bits(together[0][token]))
        np.testing.assert_array_equal(bits(k_rot[0]), bits(together[1][token]))
