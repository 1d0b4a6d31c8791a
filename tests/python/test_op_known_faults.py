"""Faults that other implementations of this op had (their numbers are those of the project's list), each for its whole kind."""

import itertools
import math
import mmap
import os
import re
import subprocess
import sys
import textwrap
import tracemalloc

import ml_dtypes
import numpy as np
import oracle
import pytest
import ropepool
from oracle import FLOATS, INDICES, MAX_POSITION, arguments, assert_same_bits, checked_call

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
each_index = pytest.mark.parametrize("index", INDICES)


def call_of_one_row(k, positions, dtype=np.float32, base=10000.0, **changes):
    """Every token's q and k are the row `k`, stored in the slot of its number."""
    num_tokens, head_dim = len(positions), len(k)
    call = arguments(num_tokens, head_dim, 1, 1, num_tokens, dtype, rope_base=base)
    call |= {"positions": np.array(positions), "slots": np.arange(num_tokens)}
    call["q"][:], call["k"][:] = np.array(k, dtype), np.array(k, dtype)
    return call | changes


def assert_lanes(actual, expected, dtype):
    """The stated decimals, and one rounding of the dtype."""
    expected = np.asarray(expected)
    allowed = 1e-6 + (0 if dtype == np.float32 else oracle.ulp(expected, dtype) / 2)
    assert np.all(np.abs(np.asarray(actual).astype(np.float64) - expected) <= allowed), (actual, expected)


# ---- F02: angles in the precision of the data


def test_f02_positions_are_not_held_in_float16():
    k_rot = checked_call(call_of_one_row(np.eye(32)[1], [1857], np.float16))[1]
    assert_lanes(k_rot[0, 0, [1, 17]], [0.306693, 0.951809], np.float16)


def test_f02_bfloat16_counts_past_256():
    k_rot = checked_call(call_of_one_row(np.eye(8)[0], [256, 257], BF16))[1]
    assert_lanes(k_rot[:, 0, 0], [-0.039791, 0.819306], BF16)


@each_dtype
@pytest.mark.parametrize("head_dim", [8, 32, 64, 128])
def test_f02_every_position_has_its_own_angle(head_dim, dtype):
    """Around where float16, bfloat16 and float32 stop counting."""
    edges = [255, 256, 257, 2047, 2048, 2049, 65503, 65504, 65505, 65520, 2**24, 2**24 + 1, 2**24 + 3, MAX_POSITION - 1]
    checked_call(call_of_one_row(np.ones(head_dim), edges + [-edge for edge in edges], dtype))


# ---- F12: the pairing


@each_dtype
def test_f12_neox_pairing(dtype):
    k_rot = checked_call(call_of_one_row([1, 2, 3, 4], [1], dtype))[1]
    assert_lanes(k_rot[0, 0], [-1.984111, 1.959901, 2.462378, 4.019800], dtype)


@pytest.mark.parametrize("head_dim", [2, 4, 6, 64, 80, 192, 2050])
def test_f12_lane_i_pairs_with_lane_i_plus_half(head_dim):
    """A unit vector moves into its partner and nowhere else."""
    half = head_dim // 2
    call = arguments(1, head_dim, head_dim, 1, positions=np.array([3]))
    call["q"][0] = np.eye(head_dim)
    moved = ropepool.rope_pool_fused(**call)[0][0] != 0
    lanes = np.arange(head_dim)
    partners = (lanes + half) % head_dim
    expected = np.eye(head_dim, dtype=bool) | np.eye(head_dim, dtype=bool)[partners]
    np.testing.assert_array_equal(moved, expected)


# ---- F15: widths that are no power of two


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_f15_the_stated_sample(dtype):
    k_rot = checked_call(call_of_one_row(np.ones(192), [5], dtype))[1]
    assert_lanes(k_rot[0, 0, [0, 96, 95]], [1.242586, -0.675262, 0.999450], dtype)


@each_dtype
def test_f15_norms_at_every_even_width(dtype):
    for head_dim in range(2, 258, 2):
        k_rot = ropepool.rope_pool_fused(**call_of_one_row(np.ones(head_dim), [5, 4001], dtype))[1]
        norms = np.linalg.norm(k_rot.astype(np.float64), axis=-1)
        allowed = 1e-6 if dtype == np.float32 else float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(norms, math.sqrt(head_dim), rtol=allowed)


# ---- F16: one head


@each_dtype
@pytest.mark.parametrize("num_qo_heads, num_kv_heads", [(2, 1), (1, 1), (1, 2), (7, 1), (1, 8)])
def test_f16_a_single_head_is_rotated(num_qo_heads, num_kv_heads, dtype):
    call = arguments(2, 128, num_qo_heads, num_kv_heads, dtype=dtype, positions=np.array([1, 1]))
    call["q"][:] = call["k"][:] = np.eye(128)[0].astype(dtype)[None, None]
    q_rot, k_rot, k_pool, _ = checked_call(call)
    for rotated in (q_rot, k_rot, k_pool[call["slots"]]):
        assert_lanes(rotated[..., 0], np.full(rotated.shape[:2], 0.540302), dtype)
        assert_lanes(rotated[..., 64], np.full(rotated.shape[:2], 0.841471), dtype)


@pytest.mark.parametrize("stride", [0, 1, 3, 127, 128, 12345, -128, -(2**40), 2**62])
@pytest.mark.parametrize("name", ["q", "k", "v", "k_pool", "v_pool", "q_out", "k_out"])
def test_f16_an_axis_of_one_head_may_have_any_stride(name, stride):
    call = arguments(3, 128, 1, 1)
    call |= {"q_out": np.zeros_like(call["q"]), "k_out": np.zeros_like(call["k"])}
    array = call[name]
    strides = (array.strides[0], stride * (4 if abs(stride) < 2**60 else 1), 4)
    odd = np.lib.stride_tricks.as_strided(array, array.shape, strides)
    assert odd.strides == strides
    checked_call(call | {name: odd})


@pytest.mark.parametrize("axis", [0, 1])
def test_f16_one_token_or_one_slot_may_have_any_stride(axis):
    call = arguments(1, 64, 2, 2, num_slots=1, slots=np.array([0]), positions=np.array([9]))
    shape = (1, 2, 64) if axis == 0 else (1, 1, 64)
    call |= {"num_qo_heads": shape[1], "num_kv_heads": shape[1]}
    for name in ("q", "k", "v", "k_pool", "v_pool"):
        array = call[name][:, : shape[1]]
        strides = [array.strides[0], array.strides[1], 4]
        strides[axis] = -(2**50)
        call[name] = np.lib.stride_tricks.as_strided(array, shape, strides)
    checked_call(call)


# ---- F17: one token each of many sequences


@each_dtype
@pytest.mark.parametrize("num_tokens", [2, 3, 17, 256])
def test_f17_all_rows_of_a_decode_batch(num_tokens, dtype):
    call = arguments(num_tokens, 256, 16, 2, 300, dtype, positions=np.full(num_tokens, 6), slots=np.arange(num_tokens) + 1)
    for name in "qkv":
        call[name][:] = call[name][:1]
    results = checked_call(call)
    for rows in (results[0], results[1], results[2][1 : num_tokens + 1], results[3][1 : num_tokens + 1]):
        assert rows.astype(np.float32).any(axis=(1, 2)).all()
        assert_same_bits(rows, np.broadcast_to(rows[:1], rows.shape))
    # The same as one token by itself, and as a view [batch * heads, 1, head_dim].
    one = ropepool.rope_pool_fused(**call | {name: call[name][:1] for name in ("q", "k", "v", "positions", "slots")})
    assert_same_bits(results[0][0], one[0][0])
    flat = {"q": call["q"].reshape(-1, 1, 256), "k": call["q"].reshape(-1, 1, 256), "v": call["q"].reshape(-1, 1, 256)}
    pool = np.zeros((1, 1, 256), dtype)
    count = len(flat["q"])
    flat |= {"positions": np.full(count, 6), "slots": np.full(count, -1), "k_pool": pool, "v_pool": pool.copy()}
    turned = ropepool.rope_pool_fused(**call | flat | {"num_qo_heads": 1, "num_kv_heads": 1})[0]
    assert_same_bits(turned.reshape(results[0].shape), results[0])


@each_dtype
def test_f18_the_same_numbers_at_every_batch_size(dtype):
    whole = arguments(512, 128, 16, 4, 512, dtype, slots=np.arange(512))
    expected = ropepool.rope_pool_fused(**whole)[0]
    for num_tokens in (1, 2, 511):
        part = {name: whole[name][:num_tokens] for name in ("q", "k", "v", "positions", "slots")}
        assert_same_bits(ropepool.rope_pool_fused(**whole | part)[0], expected[:num_tokens])


# ---- F19: offsets beyond 32 bits


class SparseMemory:
    """An array in memory that comes into being where it is written; it goes with its last view."""

    def __init__(self, shape, dtype):
        self.size = math.prod(shape) * np.dtype(dtype).itemsize
        self.file = os.memfd_create("sparse")
        os.ftruncate(self.file, self.size)
        self.array = np.frombuffer(mmap.mmap(self.file, self.size), np.uint8).view(dtype).reshape(shape)

    def __del__(self):
        os.close(self.file)

    def written(self):
        """The ranges of bytes, whole pages, that anybody wrote."""
        ranges, end = [], 0
        while end < self.size:
            try:
                begin = os.lseek(self.file, end, os.SEEK_DATA)
            except OSError:  # nothing but holes from here on
                break
            end = os.lseek(self.file, begin, os.SEEK_HOLE)
            ranges.append((begin, end))
        return ranges


def pages_of(ranges):
    return {page for begin, end in ranges for page in range(begin // mmap.PAGESIZE, -(-end // mmap.PAGESIZE))}


needs_sparse_memory = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or mmap.PAGESIZE > 8192 or sys.maxsize < 2**33, reason="needs memfd_create, 64 bits"
)


@needs_sparse_memory
@each_index
@pytest.mark.parametrize(
    "dtype, num_slots, row",
    [
        (BF16, 524_289, (32, 128)),  # 2^31 elements, 2^32 bytes to the last row
        (np.float32, 262_145, (32, 128)),  # 2^30 elements, 2^32 bytes
        (np.float32, 1_048_577, (32, 128)),  # 2^32 elements, 2^34 bytes
        (np.float16, 1_500_001, (8, 256)),  # no power of two
    ],
)
def test_f19_rows_beyond_32_bits(dtype, num_slots, row, index):
    k_pool, v_pool = (SparseMemory((num_slots, *row), dtype) for _ in range(2))
    slots = [num_slots - 1, -1, num_slots // 2]
    call = arguments(3, row[1], 1, row[0], 1, dtype, slots=np.array(slots, index), positions=np.array([0, 0, 1]))
    call["k"][:], call["v"][:] = 1, 2
    k_rot = ropepool.rope_pool_fused(**call | {"k_pool": k_pool.array, "v_pool": v_pool.array})[1]
    row_bytes = call["k"][0].nbytes
    for pool, rows in ((k_pool, k_rot), (v_pool, call["v"])):
        # Pages come into being whole.
        rows_bytes = [(slot * row_bytes, (slot + 1) * row_bytes) for slot in slots if slot >= 0]
        assert pages_of(pool.written()) == pages_of(rows_bytes)
        for token in (0, 2):
            assert_same_bits(pool.array[slots[token]], rows[token])


@needs_sparse_memory
def test_f19_strides_beyond_32_bits():
    """Tokens, heads and slots that lie 4 GiB apart, forwards and backwards."""
    step = 2**32
    memory = SparseMemory((2 * step + 8192,), np.uint8).array

    def far(shape, offset, strides):
        return np.ndarray(shape, np.float32, memory, offset, (*strides, 4))

    call = arguments(2, 64, 1, 2, 2, slots=np.array([1, 0])) | {
        "q": far((2, 1, 64), step, (-step, 256)),
        "q_out": far((2, 1, 64), 512, (step, 256)),
        "k": far((2, 2, 64), 1024, (256, step)),
        "v": far((2, 2, 64), 2048, (step, 256)),
        "k_pool": far((2, 2, 64), 2 * step + 3072, (-step, 256)),
        "v_pool": far((2, 2, 64), 3584, (256, step)),
        "k_out": far((2, 2, 64), 4096, (2 * step, 256)),
    }
    for name in ("q", "k", "v"):
        call[name][...] = arguments(2, 64, 1, 2)[name]
    checked_call(call)


# ---- F21: negative slots


@each_dtype
@each_index
@pytest.mark.parametrize("slots", [[0, -1, 2], [-1, -1, -1], [-7, 0, -4], [-4, -3, 3]])
def test_f21_negative_slots_skip(slots, index, dtype):
    call = arguments(3, 8, 2, 1, 4, dtype, slots=np.array(slots, index))
    _, _, k_pool, v_pool = checked_call(call)
    for row in set(range(4)) - set(slots):
        assert (k_pool[row] == 99).all() and (v_pool[row] == 99).all()


@each_index
def test_f21_any_negative_value_skips(index):
    lowest = np.iinfo(index).min
    values = [-1, -2, -16, -17, -(2**31), lowest, lowest + 1, lowest + 16, -(2**16)]
    if index == np.int64:  # low halves that look like slots
        values += [-(2**32), -(2**32) + 3, lowest + 3, -(2**63) + 2**32 + 1]
    call = arguments(len(values), 8, 2, 1, 16, index=index, slots=np.array(values, index))
    _, _, k_pool, v_pool = checked_call(call)
    assert (k_pool == 99).all() and (v_pool == 99).all()


@each_index
def test_f21_torch(index):
    torch = pytest.importorskip("torch")
    call = arguments(3, 8, 2, 1, 4, slots=np.array([0, -1, 2], index))
    tensors = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in call.items()}
    _, k_rot, k_pool, _ = ropepool.rope_pool_fused(**tensors)
    assert (k_pool[[1, 3]] == 99).all() and (k_pool[[0, 2]] == k_rot[[0, 2]]).all()


# ---- F25: pools that are views


def assert_stored_as_in_plain_pools(call, pools, base):
    """The call writes the rows it writes to contiguous pools, and not a byte beside them in `base`."""
    plain = oracle.copies(call | pools)
    ropepool.rope_pool_fused(**plain)
    expected = base.copy()
    for name, pool in pools.items():
        byte_offset = pool.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        np.ndarray(pool.shape, pool.dtype, expected.view(np.uint8).reshape(-1), byte_offset, pool.strides)[...] = plain[name]
    checked_call(call | pools)
    assert_same_bits(base, expected)


@each_dtype
@each_index
def test_f25_pages_of_a_unified_buffer(dtype, index):
    """[blocks, heads, page, 2 * head_dim] where slots lie evenly: pages of one slot, or one head."""
    for blocks, num_heads, page in ((33, 2, 1), (4, 1, 16)):
        base = np.full((blocks, num_heads, page, 16), 99, dtype)
        k_pool, v_pool = np.split(base.transpose(0, 2, 1, 3).reshape(blocks * page, num_heads, 16), 2, axis=-1)
        assert np.shares_memory(k_pool, base)
        call = arguments(2, 8, 4, num_heads, 1, dtype, index, slots=np.array([17, 32], index))
        assert_stored_as_in_plain_pools(call, {"k_pool": k_pool, "v_pool": v_pool}, base)


def test_f25_pages_that_do_not_lie_evenly_are_refused():
    """The sample of the list: [blocks, heads, page, 2 * head_dim] has no stride from one slot to the next."""
    base = np.full((4, 2, 16, 16), 99, np.float32)
    k_pool, v_pool = np.split(base.transpose(0, 2, 1, 3), 2, axis=-1)
    call = arguments(2, 8, 4, 2, 1, slots=np.array([17, 33]), k_pool=k_pool, v_pool=v_pool)
    with pytest.raises(ropepool.ContractError, match="^rope_pool_fused expects pool tensors to be 3-D\n") as caught:
        ropepool.rope_pool_fused(**call)
    assert "reshape" in caught.value.hint and (base == 99).all()


@each_dtype
@pytest.mark.parametrize(
    "shape, axes, cut",
    [
        ((16, 3, 2 * 8), (0, 1, 2), 2),  # [slots, heads, K and V]
        ((3, 16, 2 * 8), (1, 0, 2), 2),  # [heads, slots, K and V]
        ((16, 2 * 3, 8), (0, 1, 2), 1),  # [slots, K heads and V heads]
        ((2 * 3, 16, 8), (1, 0, 2), 1),  # [K heads and V heads, slots]
        ((2 * 16, 3, 8), (0, 1, 2), 0),  # K's slots, then V's
        ((3, 2 * 16, 8), (1, 0, 2), 0),  # for each head K's slots, then V's
    ],
)
def test_f25_halves_of_one_buffer(shape, axes, cut, dtype):
    base = np.full(shape, 99, dtype)
    k_pool, v_pool = np.split(base.transpose(axes), 2, axis=cut)
    call = arguments(4, 8, 2, 3, 1, dtype, slots=np.array([5, -1, 15, 0]))
    assert_stored_as_in_plain_pools(call, {"k_pool": k_pool, "v_pool": v_pool}, base)


def test_f25_every_second_slot():
    base = np.full((16, 2, 8), 99, np.float32)
    call = arguments(4, 8, 2, 2, 1, slots=np.array([5, -1, 7, 0]))
    assert_stored_as_in_plain_pools(call, {"k_pool": base[::2], "v_pool": base[1::2]}, base)
    assert_stored_as_in_plain_pools(call, {"k_pool": base[::-2], "v_pool": base[-2::-2]}, base)


def test_f25_layers_of_one_buffer():
    base = np.full((16, 4, 2, 2, 8), 99, np.float32)  # [slots, layers, K or V, heads, head_dim]
    call = arguments(4, 8, 2, 2, 1, slots=np.array([5, -1, 15, 0]))
    for layer in range(4):
        assert_stored_as_in_plain_pools(call, {"k_pool": base[:, layer, 0], "v_pool": base[:, layer, 1]}, base)


def test_f25_lanes_that_are_not_innermost_are_refused():
    base = np.zeros((16, 8, 2), np.float32)
    call = arguments(4, 8, 2, 2, 16, k_pool=base.transpose(0, 2, 1))
    with pytest.raises(ropepool.ContractError, match=r"^k_pool must have an innermost stride of 1, got 2\n") as caught:
        ropepool.rope_pool_fused(**call)
    assert caught.value.code == "RP016" and not base.any()


# ---- F26: nothing to do


@each_dtype
@pytest.mark.parametrize("num_slots", [0, 1, 8])
@pytest.mark.parametrize("width", [1, 2])
def test_f26_no_tokens(num_slots, width, dtype, num_threads):
    num_threads(width)
    empty, full = arguments(0, 64, 4, 1, num_slots, dtype), arguments(3, 64, 4, 1, 8, dtype)
    for _ in range(2):
        q_rot, k_rot, k_pool, v_pool = checked_call(empty)
        assert (q_rot.shape, k_rot.shape, q_rot.dtype, k_rot.dtype) == ((0, 4, 64), (0, 1, 64), dtype, dtype)
        assert (k_pool == 99).all() and (v_pool == 99).all()
        checked_call(full)


def test_f26_a_pool_of_no_slots_with_no_token_to_write():
    call = arguments(3, 64, 4, 1, 0, slots=np.array([-1, -5, -(2**40)]))
    checked_call(call)
    call["slots"][1] = 0
    with pytest.raises(ropepool.ContractError, match=r"^slots\[1\] is 0, but the pools have 0 slots\n"):
        ropepool.rope_pool_fused(**call)


def test_f26_empty_outputs_in_place_and_given():
    call = arguments(0, 64, 4, 1)
    checked_call(call | {"q_out": call["q"], "k_out": call["k"]})
    checked_call(call | {"q_out": np.empty((0, 4, 64), np.float32), "k_out": np.empty((0, 1, 64), np.float32)})


# ---- F27: in place


@pytest.mark.parametrize("width", [1, 2, 16])
def test_f27_in_place_is_the_same_every_time(width, num_threads):
    num_threads(width)
    random = np.random.default_rng(0)
    qkv = random.standard_normal((8, (64 + 8 + 8) * 128), np.float32).astype(BF16)
    call = arguments(8, 128, 64, 8, 16, BF16)

    def views(buffer):
        heads = buffer.reshape(8, 80, 128)
        return {"q": heads[:, :64], "k": heads[:, 64:72], "v": heads[:, 72:]}

    apart = ropepool.rope_pool_fused(**call | views(qkv))
    expected = [apart[0].copy(), apart[1].copy(), apart[2].copy(), apart[3].copy()]
    for _ in range(200):
        buffer = qkv.copy()
        parts = views(buffer)
        results = ropepool.rope_pool_fused(**call | parts | {"q_out": parts["q"], "k_out": parts["k"]})
        for actual, right in zip(results, expected, strict=True):
            assert_same_bits(actual, right)
        assert_same_bits(parts["v"], views(qkv)["v"])


@pytest.mark.parametrize("name", ["q", "k"])
def test_f27_only_the_same_view_is_in_place(name):
    shape = arguments()[name].shape
    memory = np.ones(4 * math.prod(shape), np.float32)

    def at(offset, strides=None):
        view = memory[offset : offset + math.prod(shape)].reshape(shape)
        return view if strides is None else np.lib.stride_tricks.as_strided(view, shape, strides)

    for out in (at(0), at(0).view(), np.asarray(memoryview(at(0)))):
        call = arguments(**{name: at(0), f"{name}_out": out})
        assert ropepool.check(**call) == []
    row, head, lane = at(0).strides
    near = [at(1), at(64), at(math.prod(shape) - 1), at(0, (row + head, head, lane)), at(0)[::-1], at(0)[:, ::-1]]
    for out in near:
        before = memory.copy()
        with pytest.raises(ropepool.ContractError, match=f"^{name}_out must share no memory with {name}\n") as caught:
            ropepool.rope_pool_fused(**arguments(**{name: at(0), f"{name}_out": out}))
        assert caught.value.code == "RP019"
        np.testing.assert_array_equal(memory, before)
    assert ropepool.check(**arguments(**{name: at(0), f"{name}_out": at(math.prod(shape))})) == []


# ---- F29: one slot for several tokens


@each_index
@pytest.mark.parametrize("width", [1, 2, 16])
def test_f29_the_last_token_wins(width, index, num_threads):
    num_threads(width)
    for _ in range(100):
        call = arguments(3, 8, 1, 1, 4, slots=np.array([3, 3, 1], index), positions=np.zeros(3, index))
        call["k"][:] = np.array([1, 2, 3], np.float32).reshape(3, 1, 1)
        call["v"][:] = 10 * call["k"]
        _, _, k_pool, v_pool = ropepool.rope_pool_fused(**call)
        for slot, value in ((3, 2), (1, 3)):
            assert (k_pool[slot] == value).all() and (v_pool[slot] == 10 * value).all()
        for slot in (0, 2):
            assert (k_pool[slot] == 99).all() and (v_pool[slot] == 99).all()


@pytest.mark.parametrize("width", [1, 2, 16])
@pytest.mark.parametrize("kind", ["one slot", "pairs far apart", "a ring", "many in slot 0"])
def test_f29_never_a_mix_across_threads(kind, width, num_threads):
    num_threads(width)
    num_tokens = 1024
    token = np.arange(num_tokens)
    slots = {
        "one slot": np.full(num_tokens, 7),
        "pairs far apart": token % 512,
        "a ring": token % 37,
        "many in slot 0": np.where(token % 3, 0, token),
    }[kind]
    for repeat in range(10):
        call = arguments(num_tokens, 128, 1, 4, num_tokens, slots=slots, positions=np.zeros(num_tokens, np.int64), seed=repeat)
        call["k"][:] = call["v"][:] = token.reshape(-1, 1, 1)
        _, _, k_pool, v_pool = ropepool.rope_pool_fused(**call)
        winner = np.full(num_tokens, 99)
        winner[slots] = token  # NumPy: the last one stays
        expected = np.broadcast_to(winner.reshape(-1, 1, 1).astype(np.float32), k_pool.shape)
        np.testing.assert_array_equal(k_pool, expected)
        np.testing.assert_array_equal(v_pool, expected)


# ---- F35: k itself is rotated too


@each_dtype
@pytest.mark.parametrize("in_place", [True, False])
def test_f35_k_out_is_the_pool_row(in_place, dtype):
    call = arguments(22, 128, 32, 4, 64, dtype, slots=np.arange(22)[::-1].copy())
    call["slots"][9] = -1
    unrotated = call["k"].copy()
    _, k_rot, k_pool, _ = checked_call(call | ({"q_out": call["q"], "k_out": call["k"]} if in_place else {}))
    stored = call["slots"] >= 0
    assert_same_bits(k_pool[call["slots"][stored]], k_rot[stored])
    oracle.assert_rotated(k_rot[9:10], unrotated[9:10], call["positions"][9:10], 10000.0)
    assert (k_rot is call["k"]) == in_place


# ---- F54: no hidden copies


def test_f54_nothing_is_allocated_beyond_the_outputs():
    num_tokens = 2048
    big = np.ones((num_tokens, 8, 192), np.float32)
    call = arguments(num_tokens, 64, 8, 2, num_tokens, q=big[..., 128:192])
    ropepool.rope_pool_fused(**call)  # what is kept for the next call
    tracemalloc.start()
    try:
        results = ropepool.rope_pool_fused(**call)
        _, made = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        ropepool.rope_pool_fused(**call, q_out=results[0], k_out=results[1])
        _, given = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made < results[0].nbytes + results[1].nbytes + 4096
    assert given - before < 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's count of a process's memory")
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_f54_the_process_does_not_grow(dtype, index):
    """Copies made below Python would show in the peak of the resident set."""
    source = f"""
        import resource, ml_dtypes, numpy as np, ropepool
        tokens, dtype = 4096, np.dtype("{dtype}")
        big = np.ones((tokens, 8, 192), dtype)
        q, k = big[..., 128:192], np.ones((tokens, 2, 64 * 2), dtype)[..., 64:]
        pools = [np.ones((tokens, 2, 64), dtype) for _ in range(2)]
        q_out, k_out = np.ones(q.shape, dtype), np.ones(k.shape, dtype)
        def run(count):
            at = np.arange(tokens, dtype="{index}")[:count]
            ropepool.rope_pool_fused(q[:count], k[:count], k[:count], at, at, *pools, head_dim=64, num_qo_heads=8,
                                     num_kv_heads=2, rope_base=1e4, q_out=q_out[:count], k_out=k_out[:count])
        run(16)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(tokens)
        print(q.nbytes // 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True)
    kibibytes_of_q, grown = map(int, run.stdout.split())
    assert grown < kibibytes_of_q / 4 + 512  # and what threads and the search for duplicates take


# ---- F56: what is refused is refused at once, by name, and the next call works


def refused(call):
    """The ContractError of a call that must change nothing and leave the next call whole."""
    before = oracle.copies(call)
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope_pool_fused(**call)
    for name, value in before.items():
        if isinstance(value, np.ndarray):
            assert_same_bits(call[name], value)
    checked_call(arguments())
    return caught.value


@each_index
@pytest.mark.parametrize("token, beyond", list(itertools.product([0, 7, 19], [0, 1, 2**20])))
def test_f56_slots_name_token_value_and_limit(token, beyond, index):
    slots = np.arange(20, dtype=index)
    slots[token] = 32 + beyond
    slots[19] = 33 if token < 19 else slots[19]  # the first one is named
    error = refused(arguments(20, 64, 4, 2, 32, slots=slots))
    assert error.summary == f"slots[{token}] is {32 + beyond}, but the pools have 32 slots"
    assert (error.code, error.argument, error.actual) == ("RP020", "slots", str(32 + beyond)) and error.hint


@pytest.mark.parametrize("position", [2**31, -(2**31), 2**40 + 5, -(2**63), 2**63 - 1])
def test_f56_positions_name_token_and_value(position):
    error = refused(arguments(20, positions=np.where(np.arange(20) == 7, position, 0), num_slots=32))
    assert error.summary == f"positions[7] is {position}, beyond +-2147483647"
    assert (error.code, error.argument, error.actual) == ("RP021", "positions", str(position)) and error.hint


def test_f56_the_lowest_int32_position():
    error = refused(arguments(2, positions=np.array([5, -(2**31)], np.int32)))
    assert (error.code, error.actual) == ("RP021", "-2147483648")


@pytest.mark.parametrize(
    "changes, code, argument, words",
    [
        ({"k": np.zeros((3, 2, 64), np.float32)}, "RP005", "k", r"got \(3, 2, 64\)"),
        ({"positions": np.zeros(5, np.int64)}, "RP007", "positions", "one entry per token"),
        ({"slots": np.zeros(3, np.int32)}, "RP007", "slots", "one entry per token"),
        ({"num_kv_heads": 4}, "RP005", "k", r"got \(4, 2, 64\)"),
        ({"head_dim": 32}, "RP004", "q", r"got \(4, 4, 64\)"),
        (
            {name: arguments(head_dim=7)[name] for name in ("q", "k", "v", "k_pool", "v_pool")} | {"head_dim": 7},
            "RP014",
            "head_dim",
            "even, got 7",
        ),
    ],
)
def test_f56_shapes_and_numbers(changes, code, argument, words):
    error = refused(arguments() | changes)
    assert (error.code, error.argument) == (code, argument) and re.search(words, error.summary)
    assert error.expected and error.actual and error.hint and code in str(error)


# ---- What else was seen: leads of the list without a number


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_each_array_has_its_own_strides_and_heads(name):
    """Crossed inputs, or one array addressed by another's strides, show when only one of them is a view."""
    call = arguments(5, 64, 6, 2, dtype=np.float16)
    wide = np.full((5, call[name].shape[1] + 3, 100), 7, np.float16)
    wide[:, 2:-1, 30:94] = call[name]
    expected = ropepool.rope_pool_fused(**oracle.copies(call))
    for actual, right in zip(checked_call(call | {name: wide[:, 2:-1, 30:94]}), expected, strict=True):
        assert_same_bits(actual, right)


@each_dtype
def test_a_source_is_read_by_its_strides(dtype):
    """Not in the order of its memory: [heads, tokens, head_dim] turned round."""
    call = arguments(6, 72, 4, 4, dtype=dtype)
    for name in "qkv":
        call[name] = np.ascontiguousarray(call[name].transpose(1, 0, 2)).transpose(1, 0, 2)
    checked_call(call)


@pytest.mark.parametrize("head_dim", [72, 80, 96, 112])
def test_head_sizes_between_the_powers_of_two_in_a_large_batch(head_dim, num_threads):
    num_threads(2)
    checked_call(arguments(600, head_dim, 8, 8, 700, BF16))


@pytest.mark.parametrize("name", ["positions", "slots"])
def test_int32_is_not_read_as_int64(name):
    """What lies behind an int32 array would be its upper halves."""
    memory = np.full(8, 2**31 - 1, np.int32)
    memory[:4] = [3, 1, 0, 2]
    checked_call(arguments(**{name: memory[:4]}))
