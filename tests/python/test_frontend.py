"""The Python front-end: arrays in and out, errors, threads. The numbers of the op have tests of their own."""

import ast
import copy
import ctypes
import doctest
import gc
import inspect
import itertools
import os
import pathlib
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import ropepool
from ropepool import ContractError, check, rope_pool_fused

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
INDICES = [np.int32, np.int64]
ARRAY_NAMES = ("q", "k", "v", "positions", "slots", "k_pool", "v_pool")
HEAD_DIM, NUM_QO_HEADS, NUM_KV_HEADS, NUM_SLOTS = 64, 8, 2, 16


def arguments(num_tokens=4, dtype=np.float32, **changes):
    """The arguments of a call that goes through, by name, with some of them changed."""
    random = np.random.default_rng(num_tokens)
    heads = {"q": NUM_QO_HEADS, "k": NUM_KV_HEADS, "v": NUM_KV_HEADS}
    arrays = {name: random.standard_normal((num_tokens, count, HEAD_DIM), np.float32) for name, count in heads.items()}
    pools = {name: np.full((NUM_SLOTS, NUM_KV_HEADS, HEAD_DIM), 99, np.float32) for name in ("k_pool", "v_pool")}
    return {
        **{name: array.astype(dtype) for name, array in arrays.items()},
        "positions": np.arange(num_tokens, dtype=np.int64) + 3,
        "slots": (np.arange(num_tokens, dtype=np.int64) * 3) % NUM_SLOTS,
        **{name: pool.astype(dtype) for name, pool in pools.items()},
        "head_dim": HEAD_DIM,
        "num_qo_heads": NUM_QO_HEADS,
        "num_kv_heads": NUM_KV_HEADS,
        "rope_base": 10000.0,
    } | changes


def large_arguments(num_tokens=2048, **changes):
    """A call that takes some milliseconds, and more than one thread where there are more."""
    return arguments(num_tokens, **changes) | {"slots": np.arange(num_tokens) % NUM_SLOTS}


def rotated(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angles = positions.astype(np.float64)[:, None, None] * base ** (-np.arange(half) / half)
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def bits(array):
    return np.ascontiguousarray(array).tobytes()


def refusal(**call):
    """The ContractError of a call, which must be the first that check() lists too."""
    listed = check(**call)
    with pytest.raises(ContractError) as caught:
        rope_pool_fused(**call)
    assert str(caught.value) == str(listed[0])
    return caught.value


def codes(**call):
    return [error.code for error in check(**call)]


# --- What comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_rotates_and_stores(dtype, index):
    call = arguments(dtype=dtype)
    call["positions"], call["slots"] = call["positions"].astype(index), np.array([5, -1, 0, 15], index)
    q_rot, k_rot, k_pool, v_pool = rope_pool_fused(**call)
    tolerance = {2: 2e-2, 4: 1e-5}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(q_rot.astype(float), rotated(call["q"], call["positions"]), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(k_rot.astype(float), rotated(call["k"], call["positions"]), rtol=tolerance, atol=tolerance)
    for token, slot in ((0, 5), (2, 0), (3, 15)):
        assert bits(k_pool[slot]) == bits(k_rot[token])
        assert bits(v_pool[slot]) == bits(call["v"][token])
    untouched = sorted(set(range(NUM_SLOTS)) - {5, 0, 15})
    assert (k_pool[untouched] == 99).all() and (v_pool[untouched] == 99).all()


def test_returns_the_same_objects():
    call = arguments()
    outputs = {"q_out": np.empty_like(call["q"]), "k_out": np.empty_like(call["k"])}
    result = rope_pool_fused(**call, **outputs)
    assert isinstance(result, tuple)
    for returned, passed in zip(result, (*outputs.values(), call["k_pool"], call["v_pool"]), strict=True):
        assert returned is passed


def test_in_place():
    call = arguments()
    q_rot, k_rot, k_pool, v_pool = rope_pool_fused(**arguments())
    result = rope_pool_fused(**call, q_out=call["q"], k_out=call["k"])
    assert result[0] is call["q"] and result[1] is call["k"]
    assert [bits(array) for array in result] == [bits(array) for array in (q_rot, k_rot, k_pool, v_pool)]


@pytest.mark.parametrize("given", ["q_out", "k_out"])
def test_one_output_given(given):
    call = arguments()
    output = np.empty_like(call[given[0]])
    result = rope_pool_fused(**call, **{given: output})
    expected = rope_pool_fused(**arguments())
    assert result[("q_out", "k_out").index(given)] is output
    assert [bits(array) for array in result] == [bits(array) for array in expected]


@pytest.mark.parametrize("dtype", FLOATS)
def test_made_outputs(dtype):
    call = arguments(dtype=dtype)
    call["q"] = call["q"].transpose(1, 0, 2).copy().transpose(1, 0, 2)
    q_rot, k_rot, *_ = rope_pool_fused(**call)
    for made, source in ((q_rot, call["q"]), (k_rot, call["k"])):
        assert type(made) is np.ndarray and made.dtype == source.dtype and made.shape == source.shape
        assert made.flags.c_contiguous and made.flags.owndata and made.flags.writeable


@pytest.mark.parametrize("dtype", FLOATS)
def test_large_made_outputs_begin_at_a_cache_line(dtype):
    call = arguments(2100, dtype=dtype)
    outputs = {"q_out": np.empty_like(call["q"]), "k_out": np.empty_like(call["k"])}
    expected = rope_pool_fused(**call | {name: call[name].copy() for name in ("k_pool", "v_pool")} | outputs)
    result = rope_pool_fused(**call)
    assert [bits(array) for array in result] == [bits(array) for array in expected]
    for made, source in zip(result[:2], (call["q"], call["k"]), strict=True):
        assert made.nbytes >= 2**18 and made.ctypes.data % 64 == 0
        assert type(made) is np.ndarray and made.dtype == source.dtype and made.shape == source.shape
        assert made.flags.c_contiguous and made.flags.writeable
        assert made.base is None or made.base.nbytes <= made.nbytes + 64


def test_no_tokens():
    call = arguments(0)
    q_rot, k_rot, k_pool, v_pool = rope_pool_fused(**call)
    assert q_rot.shape == (0, NUM_QO_HEADS, HEAD_DIM) and k_rot.shape == (0, NUM_KV_HEADS, HEAD_DIM)
    assert (k_pool == 99).all() and (v_pool == 99).all()
    empty_pool = np.empty((0, NUM_KV_HEADS, HEAD_DIM), np.float32)
    rope_pool_fused(**arguments(0) | {"k_pool": empty_pool, "v_pool": empty_pool})
    rope_pool_fused(**arguments(2, slots=np.array([-1, -7])) | {"k_pool": empty_pool, "v_pool": empty_pool.copy()})


def test_positional_and_named():
    call = arguments()
    by_place = list(call.values())[:7]
    options = dict(list(call.items())[7:])
    assert bits(rope_pool_fused(*by_place, **options)[0]) == bits(rope_pool_fused(**arguments())[0])
    shuffled = dict(sorted(arguments().items(), reverse=True))
    assert bits(rope_pool_fused(**shuffled)[0]) == bits(rope_pool_fused(**arguments())[0])


def test_angles():
    exact, float32 = (rope_pool_fused(**arguments(positions=np.full(4, 99_999), angles=a))[0] for a in ("exact", "float32"))
    assert bits(exact) == bits(rope_pool_fused(**arguments(positions=np.full(4, 99_999)))[0])
    assert bits(exact) != bits(float32)


# --- Arrays of all kinds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_views_of_a_packed_qkv(dtype):
    call = arguments(dtype=dtype)
    packed = np.concatenate([call["q"], call["k"], call["v"]], axis=1)
    ends = [NUM_QO_HEADS, NUM_QO_HEADS + NUM_KV_HEADS]
    q, k, v = np.split(packed, ends, axis=1)
    unified = np.full((NUM_SLOTS, NUM_KV_HEADS, 2 * HEAD_DIM), 99).astype(dtype)
    k_pool, v_pool = np.split(unified, 2, axis=2)
    result = rope_pool_fused(**call | {"q": q, "k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool}, q_out=q, k_out=k)
    expected = rope_pool_fused(**call)
    assert [bits(array) for array in result] == [bits(array) for array in expected]
    assert bits(np.split(packed, ends, axis=1)[0]) == bits(expected[0]) and bits(v) == bits(call["v"])


def test_negative_and_zero_strides():
    call = arguments()
    expected = rope_pool_fused(**call)
    mirrored = {name: call[name][::-1].copy()[::-1] for name in ("q", "k", "v")}
    broadcast = {"q": np.broadcast_to(call["q"][:, :1], call["q"].shape), "positions": np.zeros(4, np.int32)}
    assert bits(rope_pool_fused(**call | mirrored)[1]) == bits(expected[1])
    assert bits(rope_pool_fused(**call | broadcast)[0]) == bits(broadcast["q"])


def test_no_hidden_copies():
    big = np.zeros((2048, NUM_QO_HEADS, 4 * HEAD_DIM), np.float32)
    call = large_arguments(q=big[..., HEAD_DIM : 2 * HEAD_DIM])
    outputs = {"q_out": np.empty((2048, NUM_QO_HEADS, HEAD_DIM), np.float32), "k_out": np.empty_like(call["k"])}
    rope_pool_fused(**call, **outputs)
    tracemalloc.start()
    rope_pool_fused(**call, **outputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


def test_read_only_inputs_are_fine():
    call = arguments()
    for name in ("q", "k", "v", "positions", "slots"):
        call[name].setflags(write=False)
    assert bits(rope_pool_fused(**call)[0]) == bits(rope_pool_fused(**arguments())[0])
    mapped = np.frombuffer(bytes(call["q"]), np.float32).reshape(call["q"].shape)
    assert bits(rope_pool_fused(**call | {"q": mapped})[0]) == bits(rope_pool_fused(**arguments())[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["q_out", "k_out", "k_pool", "v_pool"])
def test_read_only_outputs_are_refused(name, dtype):
    call = arguments(dtype=dtype)
    call |= {"q_out": np.empty_like(call["q"]), "k_out": np.empty_like(call["k"])}
    call[name].setflags(write=False)
    error = refusal(**call)
    assert (error.code, error.argument) == ("RP017", name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_byte_swapped(dtype):
    swapped = np.dtype(dtype).newbyteorder()
    names = ("q", "k", "v", "k_pool", "v_pool")
    call = arguments(dtype=dtype)
    assert codes(**call | {name: call[name].view(swapped) for name in names}) == ["RP012"]
    assert codes(**call | {"q": call["q"].view(swapped)}) == ["RP010", "RP011", "RP012"]
    assert codes(**call | {"k_pool": call["k_pool"].view(swapped)}) == ["RP011", "RP012"]


@pytest.mark.parametrize("name", ["positions", "slots"])
@pytest.mark.parametrize("dtype", INDICES)
def test_byte_swapped_indices(name, dtype):
    call = arguments()
    swapped = call[name].astype(np.dtype(dtype).newbyteorder())
    assert codes(**call | {name: swapped}) == ["RP013"]


REFUSED = [
    *("float64", "longdouble", "bool", "int8", "int16", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
    *("S4", "U1", "M8[s]", "V2", "V4", "O", ">u2", ml_dtypes.float8_e4m3fn, ml_dtypes.int4, [("x", "f4")]),
]


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_refused_dtypes(dtype):
    call = arguments()
    everywhere = {name: np.zeros(call[name].shape, dtype) for name in ("q", "k", "v", "k_pool", "v_pool")}
    assert codes(**call | everywhere) == ["RP012"]
    assert codes(**call | {"v": everywhere["v"]}) == ["RP010", "RP012"]
    assert codes(**call | {"slots": np.zeros(4, dtype)}) == ["RP013"]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "complex64", "complex128"])
def test_refused_dtypes_are_named(name):
    call = arguments()
    dtype = getattr(ml_dtypes, name, None) or np.dtype(name)
    error = refusal(**call | {pool: np.zeros(call[pool].shape, dtype) for pool in ("k_pool", "v_pool")})
    assert (error.code, error.actual) == ("RP011", name)
    error = refusal(**call | {"slots": np.zeros(4, object)})
    assert (error.code, error.actual) == ("RP013", "an unsupported type")


def test_dtypes_without_a_name_are_told_apart():
    call = arguments()

    def dtypes_of(q, k, v):
        arrays = {"q": q, "k": k, "v": v, "k_pool": v, "v_pool": v}
        return codes(**call | {name: np.zeros(call[name].shape, dtype) for name, dtype in arrays.items()})

    assert dtypes_of("M8[s]", "M8[s]", "M8[s]") == ["RP012"]
    assert dtypes_of("M8[s]", "M8[ms]", "M8[ms]")[0] == "RP010"
    assert dtypes_of([("a", "f4")], [("a", "f4")], [("a", "f4")]) == ["RP012"]
    assert dtypes_of([("a", "f4")], [("b", "f4")], [("b", "f4")])[0] == "RP010"
    k_pool = np.zeros(call["k_pool"].shape, [("a", "f4")])
    k_pool.setflags(write=False)
    assert codes(**call | {"k_pool": k_pool}) == ["RP011", "RP012", "RP017"]


def unaligned(array):
    """The same values, one byte off."""
    raw = np.empty(array.nbytes + 1, np.uint8)
    shifted = raw[1:].view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return shifted


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["q", "k", "v", "positions", "slots", "k_pool", "v_pool"])
def test_unaligned_data(name, dtype):
    call = arguments(dtype=dtype)
    error = refusal(**call | {name: unaligned(call[name])})
    assert (error.code, error.argument) == ("RP016", name)


def test_strides_that_are_no_multiple_of_the_item_size():
    call = arguments()
    rows = np.zeros((4, call["q"][0].nbytes + 2), np.uint8)
    q = np.ndarray(call["q"].shape, np.float32, rows, strides=(rows.strides[0], HEAD_DIM * 4, 4))
    assert refusal(**call | {"q": q}).code == "RP016"
    # Along an axis of one element nobody steps.
    one = arguments(1)
    q = np.ndarray(one["q"].shape, np.float32, rows, strides=(rows.strides[0], HEAD_DIM * 4, 4))
    assert codes(**one | {"q": q}) == []


@pytest.mark.parametrize("rank", [0, 1, 2, 4, 8, 9, 10, 32])
def test_any_number_of_axes(rank):
    call = arguments()
    array = np.zeros((1,) * rank, np.float32)
    assert "RP001" in codes(**call | {"q": array})
    assert "RP002" in codes(**call | {"slots": np.zeros((1,) * rank, np.int64)}) or rank == 1
    assert "RP003" in codes(**call | {"v_pool": array})
    assert refusal(**call | {"q": array, "k": array, "v": array}).code == "RP001"


@pytest.mark.parametrize("rank", [8, 9, 32])
@pytest.mark.parametrize("name", [*ARRAY_NAMES, "q_out", "k_out"])
def test_more_axes_than_are_judged(name, rank):
    """The first eight lengths are told, and that there are more."""
    call = arguments()
    lengths = (*range(2, 10), *(1 for _ in range(rank - 8)))
    error = refusal(**call | {name: np.zeros(lengths, call.get(name, call["q"]).dtype)})
    rule = {"q": 1, "k": 1, "v": 1, "positions": 2, "slots": 2, "k_pool": 3, "v_pool": 3, "q_out": 17, "k_out": 17}[name]
    assert error.code == f"RP{rule:03}"
    assert f"(2, 3, 4, 5, 6, 7, 8, 9{', ...' if rank > 8 else ''})" in error.actual


def test_subclasses():
    class Named(np.ndarray):
        pass

    call = arguments()
    for name in ("q", "k", "v", "positions", "slots", "k_pool", "v_pool"):
        call[name] = call[name].view(Named)
    q_rot, _, k_pool, _ = rope_pool_fused(**call)
    assert bits(q_rot) == bits(rope_pool_fused(**arguments())[0])
    assert k_pool is call["k_pool"]
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(np.zeros((4, 64), np.float32))
    assert refusal(**call | {"q": matrix}).code == "RP001"


@pytest.mark.parametrize("name", ARRAY_NAMES)
def test_masked_arrays(name):
    """What a mask hides must not be taken for a value; one that hides nothing is as good as none."""
    call = arguments()
    whole = np.ma.MaskedArray(call[name], mask=np.zeros(call[name].shape, bool))
    assert check(**call | {name: whole}) == check(**call | {name: np.ma.MaskedArray(call[name])}) == []
    whole[0] = np.ma.masked
    for function in (check, rope_pool_fused):
        with pytest.raises(TypeError, match=rf"^{name} is a masked array .* pass {name}\.filled\(\.\.\.\) or {name}\.data$"):
            function(**call | {name: whole})
    assert check(**call | {name: whole.data}) == []


def test_memory_maps(tmp_path):
    call = arguments()
    k_pool = np.memmap(tmp_path / "k_pool", np.float32, "w+", shape=call["k_pool"].shape)
    rope_pool_fused(**call | {"k_pool": k_pool})
    assert bits(k_pool[0]) == bits(rope_pool_fused(**arguments())[1][0])
    k_pool.flush()
    reopened = np.memmap(tmp_path / "k_pool", np.float32, "r", shape=call["k_pool"].shape)
    assert refusal(**call | {"k_pool": reopened}).code == "RP017"


# --- DLPack ---------------------------------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
is_capsule = ctypes.pythonapi.PyCapsule_IsValid
is_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p)


class Exporter:
    """An array that exports DLPack in every way that the tests ask for, and counts what it lent and got back."""

    def __init__(self, array, *, versioned=True, **changes):
        self.array, self.versioned, self.changes = array, versioned, changes
        self.lent = self.returned = 0
        self.structs = []

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("__dlpack__() takes no keyword arguments")
        if options:
            assert options == {"max_version": (1, 0)}
        code = {"f": 2, "i": 0, "u": 1, "V": 4, "b": 6, "c": 5}[self.array.dtype.kind]
        shape, strides = self.array.shape, [step // self.array.itemsize for step in self.array.strides]
        fields = {
            "data": self.array.ctypes.data,
            "device_type": 1,
            "ndim": len(shape),
            "code": code,
            "bits": 8 * self.array.itemsize,
            "lanes": 1,
            "shape": (ctypes.c_int64 * len(shape))(*shape),
            "strides": (ctypes.c_int64 * len(shape))(*strides),
        }
        header = {name: self.changes[name] for name in ("major", "flags") if name in self.changes}
        tensor = DLTensor(**fields | {name: value for name, value in self.changes.items() if name not in header})
        deleter = Deleter(self.take_back)
        if self.versioned:
            name = b"dltensor_versioned"
            struct = ManagedVersioned(**{"major": 1, "deleter": deleter, "tensor": tensor} | header)
        else:
            struct, name = Managed(tensor, None, deleter), b"dltensor"
        # As DLPack demands, a capsule that nobody took gives its tensor back when it goes.
        destructor = Deleter(lambda capsule: self.take_back(None) if is_capsule(capsule, name) else None)
        self.structs.append((struct, deleter, destructor, name, fields))
        self.lent += 1
        return new_capsule(ctypes.addressof(struct), name, destructor)

    def take_back(self, _):
        self.returned += 1


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dlpack(dtype, versioned):
    call = arguments(dtype=dtype)
    exporters = {name: Exporter(call[name], versioned=versioned) for name in ARRAY_NAMES}
    q_rot, k_rot, k_pool, v_pool = rope_pool_fused(**call | exporters)
    assert k_pool is exporters["k_pool"] and v_pool is exporters["v_pool"]
    assert type(q_rot) is np.ndarray and q_rot.dtype == dtype
    expected = rope_pool_fused(**arguments(dtype=dtype))
    assert [bits(x) for x in (q_rot, k_rot, k_pool.array, v_pool.array)] == [bits(x) for x in expected]
    assert all(exporter.lent == exporter.returned == 1 for exporter in exporters.values())


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_is_given_back_when_refused(versioned):
    call = arguments()
    exporters = {name: Exporter(call[name], versioned=versioned) for name in ARRAY_NAMES}
    with pytest.raises(ContractError):
        rope_pool_fused(**call | exporters | {"head_dim": 32})
    with pytest.raises(TypeError):
        rope_pool_fused(**call | exporters | {"v_pool": None})
    with pytest.raises(TypeError):
        rope_pool_fused(**call | exporters | {"rope_base": "10000"})
    assert check(**call | exporters) == []
    assert exporters["v_pool"].lent == 3 and exporters["q"].lent == 4
    assert all(exporter.lent == exporter.returned for exporter in exporters.values())


def test_dlpack_read_only():
    call = arguments()
    read_only = {name: Exporter(call[name], flags=1) for name in ARRAY_NAMES[:5]}
    assert check(**call | read_only) == []
    assert refusal(**call | {"k_pool": Exporter(call["k_pool"], flags=1)}).code == "RP017"
    assert refusal(**call, q_out=Exporter(call["q"], flags=1)).code == "RP017"


def test_dlpack_offset_and_missing_strides():
    call = arguments()
    expected = rope_pool_fused(**arguments())
    q = Exporter(call["q"], data=call["q"].ctypes.data - 64, byte_offset=64, strides=None)
    assert bits(rope_pool_fused(**call | {"q": q})[0]) == bits(expected[0])
    assert refusal(**call | {"q": Exporter(call["q"], byte_offset=1)}).code == "RP016"


@pytest.mark.parametrize("device_type, code", [(1, []), (2, ["RP018"]), (3, []), (8, ["RP018"]), (11, []), (14, ["RP018"])])
def test_dlpack_devices(device_type, code):
    call = arguments()
    assert codes(**call | {name: Exporter(call[name], device_type=device_type) for name in ARRAY_NAMES}) == code
    if code:
        assert codes(**call | {"v": Exporter(call["v"], device_type=device_type, device_id=1)}) == code


def test_dlpack_dtypes():
    call = arguments()

    def dtypes_of(q, k, v):
        changes = {"q": q, "k": k, "v": v, "k_pool": v, "v_pool": v}
        return codes(**call | {name: Exporter(call[name], **fields) for name, fields in changes.items()})

    def same(**fields):
        return dtypes_of(fields, fields, fields)

    assert same() == []
    for code, width in ((2, 64), (0, 32), (1, 8), (1, 16), (5, 64), (6, 8), (4, 32), (10, 8), (17, 4), (3, 64)):
        assert same(code=code, bits=width)[0] == "RP012", (code, width)
    assert same(lanes=2)[0] == "RP012"
    float8 = [{"code": code, "bits": 8} for code in (7, 8, 10, 12)]
    for q, k in itertools.permutations([*float8, {"lanes": 2}, {"lanes": 4}, {"code": 17, "bits": 4}], 2):
        assert dtypes_of(q, k, k)[0] == "RP010"


def test_dlpack_of_a_later_generation():
    q = Exporter(arguments()["q"], major=2)
    with pytest.raises(BufferError, match=r"q is exported by DLPack 2\.0, ropepool reads 1\.x"):
        rope_pool_fused(**arguments(q=q))
    assert q.lent == q.returned == 1


def test_dlpack_errors_are_the_exporters():
    class Broken:
        def __dlpack__(self, **options):
            raise BufferError("on strike")

    class NotACapsule:
        def __dlpack__(self, **options):
            return 7

    with pytest.raises(BufferError, match="on strike") as caught:
        rope_pool_fused(**arguments(k_pool=Broken()))
    assert caught.value.__notes__ == ["while ropepool read the argument k_pool"]
    with pytest.raises(TypeError, match="k_pool must be a NumPy array"):
        rope_pool_fused(**arguments(k_pool=NotACapsule()))


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def to_torch(torch, call):
    def convert(value):
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(value.view(np.uint16).copy()).view(torch.bfloat16)
        return torch.from_numpy(value.copy())

    return {name: convert(value) for name, value in call.items()}


def torch_bits(torch, tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_torch(torch, dtype):
    call = to_torch(torch, arguments(dtype=dtype))
    result = rope_pool_fused(**call)
    assert all(isinstance(tensor, torch.Tensor) for tensor in result)
    assert result[2] is call["k_pool"] and result[3] is call["v_pool"]
    assert result[0].dtype == call["q"].dtype
    expected = rope_pool_fused(**arguments(dtype=dtype))
    assert [torch_bits(torch, tensor) for tensor in result] == [bits(array) for array in expected]


def test_torch_in_place_and_views(torch):
    packed = torch.randn(4, NUM_QO_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM)
    q, k, v = packed.split([NUM_QO_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
    call = to_torch(torch, arguments()) | {"q": q, "k": k, "v": v}
    expected = rope_pool_fused(**call | {"k_pool": call["k_pool"].clone(), "v_pool": call["v_pool"].clone()})
    assert expected[0].is_contiguous()
    result = rope_pool_fused(**call, q_out=q, k_out=k)
    assert result[0] is q and result[1] is k
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_torch_beside_numpy(torch):
    call, other = arguments(), to_torch(torch, arguments())
    q_rot, k_rot, k_pool, _ = rope_pool_fused(**call | {"k": other["k"], "k_pool": other["k_pool"]})
    assert isinstance(q_rot, np.ndarray) and isinstance(k_rot, torch.Tensor) and isinstance(k_pool, torch.Tensor)
    assert bits(q_rot) == bits(rope_pool_fused(**arguments())[0])


def test_torch_subclasses(torch):
    call = to_torch(torch, arguments())
    call["q"] = torch.nn.Parameter(call["q"], requires_grad=False)
    assert isinstance(rope_pool_fused(**call)[0], torch.Tensor)


def test_torch_negated_views(torch):
    call = to_torch(torch, arguments())
    negated = torch._neg_view(call["v"])
    with pytest.raises(TypeError, match=r"^v stands for the negative of what lies in its memory: pass v\.resolve_neg\(\)$"):
        rope_pool_fused(**call | {"v": negated})
    v_pool = rope_pool_fused(**call | {"v": negated.resolve_neg()})[3]
    assert torch.equal(v_pool[call["slots"]], -call["v"])


def test_torch_refusals(torch):
    call = to_torch(torch, arguments())
    wrong = torch.zeros(4, 10, HEAD_DIM)
    assert str(refusal(**call | {"v": wrong})) == str(refusal(**arguments(v=wrong.numpy())))
    with pytest.raises(BufferError, match="gradient") as caught:
        rope_pool_fused(**call | {"v": call["v"].requires_grad_()})
    assert caught.value.__notes__ == ["while ropepool read the argument v"]
    strange = {name: torch.zeros(call[name].shape, dtype=torch.float8_e5m2) for name in ("q", "k", "v", "k_pool", "v_pool")}
    assert codes(**call | strange) == ["RP012"]


# --- Refusals ---------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


FIRST_LINES = [
    ({"q": zeros(4, 512)}, "RP001", "rope_pool_fused expects q/k/v to be 3-D"),
    ({"slots": zeros(2, 2, dtype=int)}, "RP002", "rope_pool_fused expects positions/slots to be 1-D"),
    ({"k_pool": zeros(4, 4, 2, 64)}, "RP003", "rope_pool_fused expects pool tensors to be 3-D"),
    ({"q": zeros(4, 4, 64)}, "RP004", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 4, 64)"),
    ({"k": zeros(4, 8, 64)}, "RP005", "k shape must be [num_tokens, num_kv_heads, head_dim], got (4, 8, 64)"),
    ({"v": zeros(4, 10, 64)}, "RP006", "v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)"),
    ({"slots": zeros(5, dtype=int)}, "RP007", "positions/slots must have one entry per token"),
    ({"k_pool": zeros(16, 8, 64)}, "RP008", "k_pool has incompatible shape (16, 8, 64)"),
    ({"v_pool": zeros(17, 2, 64)}, "RP009", "v_pool shape must match k_pool shape, got (17, 2, 64) vs (16, 2, 64)"),
    ({"k": zeros(4, 2, 64, dtype=np.float16)}, "RP010", "q/k/v dtypes must match"),
    ({"v_pool": zeros(16, 2, 64, dtype=np.float16)}, "RP011", "pool dtypes must match q/k/v dtype"),
]


@pytest.mark.parametrize("changes, code, line", FIRST_LINES, ids=[code for _, code, _ in FIRST_LINES])
def test_first_lines(changes, code, line):
    error = refusal(**arguments(**changes))
    assert (error.code, error.summary, str(error).splitlines()[0]) == (code, line, line)


OTHER_REFUSALS = [
    ({name: zeros(*arguments()[name].shape, dtype=float) for name in ("q", "k", "v", "k_pool", "v_pool")}, "RP012", "q"),
    ({"positions": zeros(4)}, "RP013", "positions"),
    ({"rope_base": None}, "RP015", "rope_base"),
    ({"rope_base": 0}, "RP015", "rope_base"),
    ({"rope_base": -1.0}, "RP015", "rope_base"),
    ({"rope_base": float("inf")}, "RP015", "rope_base"),
    ({"rope_base": float("nan")}, "RP015", "rope_base"),
    ({"angles": "Exact"}, "RP015", "angles"),
    ({"angles": ""}, "RP015", "angles"),
    ({"slots": np.arange(8)[::2]}, "RP016", "slots"),
    ({"q_out": zeros(4, 4, 64)}, "RP017", "q_out"),
    ({"k_out": zeros(4, 2, 64, dtype=np.float16)}, "RP017", "k_out"),
    ({"slots": np.array([0, 1, 16, 17])}, "RP020", "slots"),
    ({"positions": np.array([0, 2**31, 0, 0])}, "RP021", "positions"),
]


@pytest.mark.parametrize("changes, code, argument", OTHER_REFUSALS)
def test_other_refusals(changes, code, argument):
    error = refusal(**arguments(**changes))
    assert (error.code, error.argument) == (code, argument)


def test_geometry():
    call = arguments()
    for name in ("head_dim", "num_qo_heads", "num_kv_heads"):
        for value in (0, -1, -(2**63), 2**63 - 1):
            assert codes(**call | {name: value})[0] in ("RP004", "RP005", "RP008", "RP014")
    odd = {name: array[..., :63].copy() for name, array in call.items() if getattr(array, "ndim", 0) == 3}
    assert refusal(**call | odd | {"head_dim": 63}).code == "RP014"


def test_overlap():
    call = arguments()
    error = refusal(**call | {"v_pool": call["k_pool"]})
    assert error.code == "RP019" and error.argument in ("k_pool", "v_pool")
    assert codes(**call | {"q_out": call["q"]}) == []


def test_a_whole_refusal():
    error = refusal(**arguments(v=zeros(4, 10, 64)))
    assert (error.code, error.name, error.argument) == ("RP006", "v-shape-mismatch", "v")
    assert (error.expected, error.actual, error.url) == ("(4, 2, 64)", "(4, 10, 64)", "errors/RP006.html")
    assert str(error).splitlines() == [
        error.summary,
        f"cause: {error.cause}",
        f"mend:  {error.hint}",
        "RP006 v-shape-mismatch: ropepool explain RP006",
    ]
    assert "packed QKV" in error.cause and "q_size" in error.hint


def test_check_lists_all_in_order():
    call = arguments(v=zeros(4, 10, 64), v_pool=zeros(3, 2, 64, dtype=np.float16), rope_base=None, positions=zeros(4))
    assert codes(**call) == ["RP006", "RP009", "RP011", "RP013", "RP015"]
    assert all(type(error) is ContractError for error in check(**call))
    assert check(**arguments()) == []


def test_check_touches_nothing():
    call = arguments()
    before = {name: bits(call[name]) for name in ARRAY_NAMES}
    assert check(**call, q_out=call["q"], k_out=call["k"]) == []
    assert before == {name: bits(call[name]) for name in ARRAY_NAMES}


@pytest.mark.parametrize("changes", [{"slots": np.array([0, 1, 2, 16])}, {"v_pool": zeros(16, 2, 65)}, {"rope_base": "x"}])
def test_a_failed_call_changes_nothing(changes):
    call = arguments(**changes)
    outputs = {"q_out": np.full_like(call["q"], 7), "k_out": np.full_like(call["k"], 7)}
    before = {name: bits(array) for name, array in (call | outputs).items() if isinstance(array, np.ndarray)}
    with pytest.raises((ContractError, TypeError)):
        rope_pool_fused(**call, **outputs)
    assert before == {name: bits(array) for name, array in (call | outputs).items() if isinstance(array, np.ndarray)}


def test_contract_error_travels():
    error = refusal(**arguments(v=zeros(4, 10, 64)))
    error.add_note("layer 3")
    assert isinstance(error, ValueError) and type(error).__module__ == "ropepool"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        twin = pickle.loads(pickle.dumps(error, protocol))
        assert type(twin) is ContractError and str(twin) == str(error) and vars(twin) == vars(error)
    for twin in (copy.copy(error), copy.deepcopy(error)):
        assert str(twin) == str(error) and vars(twin) == vars(error)
    assert repr(error) == "<ContractError RP006 v-shape-mismatch: v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)>"


NOT_ARRAYS = [[1.0], None, 3, 2.5, "q", np.float32(3), object(), (1, 2), b"q", {}]


@pytest.mark.parametrize("name", ARRAY_NAMES)
@pytest.mark.parametrize("value", NOT_ARRAYS, ids=lambda value: type(value).__name__)
def test_not_an_array(name, value):
    for function in (rope_pool_fused, check):
        with pytest.raises(TypeError, match=rf"^{name} must be a NumPy array or an array that exports DLPack, not \S+$"):
            function(**arguments(**{name: value}))


@pytest.mark.parametrize("name", ["q_out", "k_out"])
def test_not_an_output(name):
    with pytest.raises(TypeError, match=f"^{name} must be a NumPy array"):
        rope_pool_fused(**arguments(**{name: [0.0]}))


@pytest.mark.parametrize("name", ["head_dim", "num_qo_heads", "num_kv_heads"])
def test_integers(name):
    right = arguments()[name]
    for value in (np.int64(right), np.uint8(right), np.array(right), type("Index", (), {"__index__": lambda self: right})()):
        assert check(**arguments(**{name: value})) == []
    for value in (float(right), np.float32(right), str(right), None, [right], 1j):
        with pytest.raises(TypeError, match=f"^{name} must be an integer, not "):
            check(**arguments(**{name: value}))
    for value in (2**63, 2**70, 10**30, 2**63 + 1, -(2**63) - 1, -(2**70)):
        listed = [error.code for error in check(**arguments(**{name: value}))]
        bad = value < 0 or (name == "head_dim" and value % 2 == 1)
        assert listed[:1] == ["RP004" if name != "num_kv_heads" else "RP005"]
        assert ("RP014" in listed) is bad


def test_rope_base():
    for value in (np.float32(10000), np.float64(10000), 10000, np.int32(10000), np.array(10000.0)):
        assert bits(rope_pool_fused(**arguments(rope_base=value))[0]) == bits(rope_pool_fused(**arguments())[0])
    for value in ("10000", [1e4], 1j, b"1"):
        with pytest.raises(TypeError, match=r"^rope_base must be a real number, not "):
            check(**arguments(rope_base=value))
    for value, shown in ((10**400, "inf"), (-(10**400), "-inf")):  # beyond every double
        error = refusal(**arguments(rope_base=value))
        assert (error.code, error.actual) == ("RP015", shown)


def test_set_num_threads(num_threads):
    for value in (0, -1, 1025, 2**31, -(2**31) - 1, 10**30, np.int64(0)):
        with pytest.raises(ValueError, match=f"the number of threads must be from 1 to 1024, got {value}"):
            num_threads(value)
    num_threads(np.int64(2))
    assert ropepool.get_num_threads() == 2
    for value in (2.0, "2", None):
        with pytest.raises(TypeError):
            num_threads(value)


def test_rope_and_angles_types():
    assert check(**arguments(rope=None)) == []
    for value in ("linear", {}, 1, False):
        with pytest.raises(TypeError, match=r"rope must be a ropepool\.Rope, not "):
            check(**arguments(rope=value))
    for value in (None, 1, b"exact"):
        with pytest.raises(TypeError, match="angles must be a string, not "):
            check(**arguments(angles=value))


def test_calling_conventions():
    call = arguments()
    places = [call[name] for name in ARRAY_NAMES]
    names = {name: value for name, value in call.items() if name not in ARRAY_NAMES}
    for expected, args, kwargs in (
        (r"rope_pool_fused\(\) takes 7 positional arguments but 8 were given", [*places, 64], names),
        (r"missing required argument: 'v_pool'", places[:-1], names),
        (r"missing required argument: 'head_dim'", places, {}),
        (r"missing required argument: 'q'", [], {}),
        (r"multiple values for argument 'k_pool'", places, names | {"k_pool": places[5]}),
        (r"unexpected keyword argument 'head_dimm'", places, names | {"head_dimm": 1}),
        (r"unexpected keyword argument 'ü'", places, names | {"ü": 1}),
    ):
        with pytest.raises(TypeError, match=expected):
            rope_pool_fused(*args, **kwargs)
    # Names that are equal to ours and not the same object.
    assert check(**{"".join(list(name)): value for name, value in call.items()}) == []


def test_out_of_memory():
    call = arguments(1, num_qo_heads=2**40)
    call["q"] = np.broadcast_to(call["q"][:, :1], (1, 2**40, HEAD_DIM))
    with pytest.raises(MemoryError):
        rope_pool_fused(**call)
    assert (call["k_pool"] == 99).all() and (call["v_pool"] == 99).all()


# --- The error reference ------------------------------------------------------------------------------------------------

KEYS = ["code", "name", "message", "argument", "meaning", "trigger", "situations", "solutions", "example", "guard", "related"]
KEYS += ["url", "where"]


def test_errors():
    entries = ropepool.errors()
    assert [entry["code"] for entry in entries] == [f"RP{number:03d}" for number in range(1, len(entries) + 1)]
    for entry in entries:
        assert list(entry) == KEYS
        assert set(entry["example"]) == {"failing", "mended"} and set(entry["where"]) == {"file", "function"}
        assert all(isinstance(entry[key], list) for key in ("situations", "solutions", "related"))
        assert all(isinstance(text, str) for key in ("situations", "solutions", "related") for text in entry[key])
        assert entry["solutions"] and all(entry["solutions"])
    entries[0]["solutions"].clear()
    assert ropepool.errors()[0]["solutions"]


def test_explain():
    entry = ropepool.explain("RP006")
    assert entry in ropepool.errors() and entry["name"] == "v-shape-mismatch"
    error = refusal(**arguments(v=zeros(4, 10, 64)))
    for text in ("rp006", 6, "v-shape-mismatch", str(error), error, f"Traceback ...\nContractError: {error.summary}\n"):
        assert ropepool.explain(text) == entry
    for changes, code, line in FIRST_LINES:
        assert ropepool.explain(line)["code"] == code
        assert ropepool.explain(refusal(**arguments(**changes)))["code"] == code


@pytest.mark.parametrize("text", ["", "nothing of ours", "RP999", 0, -1])
def test_explain_finds_nothing(text):
    with pytest.raises(LookupError, match=r"ropepool\.errors\(\) lists all"):
        ropepool.explain(text)


def test_explain_takes_no_other_types():
    for value in (None, 1.5, b"RP006"):
        with pytest.raises(TypeError, match="explain takes"):
            ropepool.explain(value)


# --- Threads, signals, processes ----------------------------------------------------------------------------------------


def test_num_threads(num_threads):
    for count in (1, 2, np.int64(3)):
        num_threads(count)
        assert ropepool.get_num_threads() == count
    for count in (0, -1):
        with pytest.raises((RuntimeError, ValueError)):
            num_threads(count)
    for count in ("2", 2.0, None):
        with pytest.raises(TypeError):
            num_threads(count)
    assert ropepool.get_num_threads() == 3


@pytest.mark.parametrize("width", [1, 2])
def test_many_python_threads(num_threads, width):
    num_threads(width)
    sizes = [1, 7, 300, 600]
    expected = [[bits(array) for array in rope_pool_fused(**large_arguments(size))] for size in sizes]
    shared = [large_arguments(size) for size in sizes]
    wrong = []

    def work(seed):
        for turn in range(20):
            which = (seed + turn) % len(sizes)
            own = {name: np.full_like(shared[which][name], 99) for name in ("k_pool", "v_pool")}
            if [bits(array) for array in rope_pool_fused(**shared[which] | own)] != expected[which]:
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_released(num_threads):
    num_threads(1)
    call = large_arguments(8192, q_out=np.empty((8192, NUM_QO_HEADS, HEAD_DIM), np.float32))
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0002)

    thread = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(30)  # the other thread runs only where this one lets go
    try:
        thread.start()
        progress = 0
        for _ in range(50):
            before = ticks[0]
            rope_pool_fused(**call)
            progress += ticks[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert progress >= 10


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork(num_threads):
    num_threads(2)
    expected = bits(rope_pool_fused(**large_arguments())[0])
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            same = all(bits(rope_pool_fused(**large_arguments())[0]) == expected for _ in range(5))
            os._exit(0 if same else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bits(rope_pool_fused(**large_arguments())[0]) == expected


@pytest.fixture
def interruptible():
    """Even where a shell started the tests in the background, with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("width", [1, 2])
def test_interrupt(num_threads, width):
    num_threads(width)
    expected = bits(rope_pool_fused(**large_arguments())[0])
    call = large_arguments()
    call["q_out"] = np.empty_like(call["q"])
    for delay in (0.005, 0.02, 0.05):
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                call["q_out"].fill(np.nan)
                rope_pool_fused(**call)
        timer.join()
        assert np.isnan(call["q_out"]).all() or bits(call["q_out"]) == expected
    assert bits(rope_pool_fused(**call)[0]) == expected


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


DAEMON = """
import threading, time, numpy as np, ropepool
def work():
    T = {tokens}
    q, k, pool = np.ones((T, 8, 64), np.float32), np.ones((T, 2, 64), np.float32), np.zeros((2, T, 2, 64), np.float32)
    call = dict(head_dim=64, num_qo_heads=8, num_kv_heads=2, rope_base=1e4)
    while True:
        ropepool.{function}(q, k, k, np.arange(T), np.arange(T), pool[0], pool[1], **call)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("tokens", [2, 64, 2048])
@pytest.mark.parametrize("function", ["rope_pool_fused", "check"])
def test_exit_while_daemon_threads_call(function, tokens):
    for _ in range(4):
        done = run_python(DAEMON.format(tokens=tokens, function=function))
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name, value", [("ROPEPOOL_TARGET", "AVX9000"), ("ROPEPOOL_NUM_THREADS", "many")])
def test_a_bad_environment_fails_the_import(name, value):
    done = run_python("import ropepool", **{name: value})
    assert done.returncode != 0
    assert re.search(rf"^RuntimeError: .*{name}", done.stderr, re.MULTILINE), done.stderr


def test_environment():
    code = "import ropepool; print(ropepool.simd_target(), ropepool.get_num_threads())"
    worst = ropepool.simd_targets()[-1]
    done = run_python(code, ROPEPOOL_TARGET=worst, ROPEPOOL_NUM_THREADS="3")
    assert done.stdout.split() == [worst, "3"], done.stderr


def test_build_information():
    assert re.fullmatch(r"\d+\.\d+\.\d+", ropepool.__version__)
    assert ropepool.simd_target() in ropepool.simd_targets()
    assert set(ropepool.simd_targets()) <= set(ropepool.compiled_simd_targets())


# --- Memory -----------------------------------------------------------------------------------------------------------


def fail(call):
    with pytest.raises((ContractError, TypeError)):
        rope_pool_fused(**call)


WAYS = {
    "a call": lambda call: rope_pool_fused(**call),
    "in place": lambda call: rope_pool_fused(**call, q_out=call["q"], k_out=call["k"]),
    "check": lambda call: check(**call | {"v": call["q"]}),
    "a refusal": lambda call: fail(call | {"v": call["q"]}),
    "a TypeError": lambda call: fail(call | {"v_pool": None}),
    "other dtypes": lambda call: check(**call | {"q": call["q"].view([("x", "f4")])}),
    "explain": lambda call: ropepool.explain("RP006"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_references_are_given_back(way):
    call = arguments(1)
    values = [*call.values(), np.dtype(np.float32), ContractError, None]
    way(call)
    gc.collect()
    before = [sys.getrefcount(value) for value in values]
    for _ in range(1000):
        way(call)
    gc.collect()
    after = [sys.getrefcount(value) for value in values]
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True)), (before, after)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_no_memory_is_lost(way):
    call = arguments(1)

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    count = 100_000 if way is WAYS["a call"] else 20_000
    for _ in range(count // 10):
        way(call)
    before = resident()
    for _ in range(count):
        way(call)
    assert resident() - before < count * 20


# --- Documentation, types, build ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rope_pool_fused", "check", "explain"])
def test_examples_run(name):
    test = doctest.DocTestParser().get_doctest(getattr(ropepool, name).__doc__, {}, name, None, None)
    assert test.examples
    report = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)


def test_everything_public_is_documented():
    for name in ropepool.__all__:
        assert name == "__version__" or getattr(ropepool, name).__doc__
    text = rope_pool_fused.__doc__
    for word in ("2104.09864", "GPT-NeoX", "[num_tokens, num_qo_heads, head_dim]", "radians", "Threads", "M-RoPE"):
        assert word in text


def stub_functions():
    """Name or Class.name -> parameters, of functions and methods; properties have none."""
    stub = ast.parse(pathlib.Path(ropepool.__file__).with_name("_ext.pyi").read_text())
    functions = {node.name: node.args for node in stub.body if isinstance(node, ast.FunctionDef)}
    for owner in (node for node in stub.body if isinstance(node, ast.ClassDef) and not node.bases):
        for node in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            if not any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
                functions[f"{owner.name}.{node.name}"] = node.args
    return functions


def runtime_functions():
    """The same of the extension. inspect can't read nanobind's functions, but they hold their signature as text."""
    functions = {name: value for name, value in vars(ropepool._ext).items() if callable(value) and not isinstance(value, type)}
    for owner in (value for value in vars(ropepool._ext).values() if isinstance(value, type)):
        for name, value in vars(owner).items():
            if hasattr(value, "__nb_signature__"):
                functions[f"{owner.__name__}.{name}"] = value

    def text(name, value):
        if not hasattr(value, "__nb_signature__"):
            return f"def {name}{inspect.signature(value)}"
        signature, _, defaults = value.__nb_signature__[0]
        return re.sub(r"\\(\d+)", lambda match: repr(defaults[int(match[1])]), signature)

    return {name: ast.parse(f"{text(name, value)}: ...").body[0].args for name, value in functions.items()}


def test_stubs_fit_the_extension():
    def parameters(functions):
        return {
            name: (
                [arg.arg for arg in args.args],
                [arg.arg for arg in args.kwonlyargs],
                [value and ast.literal_eval(value) for value in (*args.defaults, *args.kw_defaults)],
            )
            for name, args in functions.items()
        }

    assert parameters(stub_functions()) == parameters(runtime_functions())


@pytest.mark.parametrize("name", ["rope_pool_fused", "check"])
def test_functions_know_their_place(name):
    function = getattr(ropepool, name)
    assert function.__module__ == "ropepool"
    assert pickle.loads(pickle.dumps(function)) is function


USER_CODE = """
from typing import assert_type

import numpy as np
import numpy.typing as npt
import ropepool

F32 = npt.NDArray[np.float32]


def step(q: F32, k: F32, v: F32, positions: npt.NDArray[np.int32], slots: npt.NDArray[np.int64], pool: F32) -> str:
    out = ropepool.rope_pool_fused(
        q, k, v, positions, slots, pool, pool, head_dim=64, num_qo_heads=8, num_kv_heads=np.int64(2), rope_base=1e4, q_out=q
    )
    assert_type(out, tuple[F32, F32, F32, F32])
    found = ropepool.check(
        q, k, v, positions, slots, pool, pool, head_dim=64, num_qo_heads=8, num_kv_heads=2, rope_base=1e4, angles="float32"
    )
    assert_type(found, list[ropepool.ContractError])
    entry: ropepool.ErrorEntry = ropepool.explain(found[0])
    return entry["solutions"][0] + found[0].hint + ropepool.simd_target() + ropepool.__version__


def wrong(x: F32) -> None:
    ropepool.rope_pool_fused([1.0], x, x, x, x, x, x, head_dim=64, num_qo_heads=8, num_kv_heads=2)  # type: ignore[type-var]
    ropepool.rope_pool_fused(x, x, x, x, x, x, x, head_dim=6.4, num_qo_heads=8, num_kv_heads=2)  # type: ignore[arg-type]
    ropepool.check(x, x, x, x, x, x, x, head_dim=64, num_qo_heads=8, num_kv_heads=2, angles="fast")  # type: ignore[arg-type]
"""


def test_user_code_type_checks(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER_CODE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "user.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_extension_exports_nothing_else():
    nm = shutil.which("nm") or pytest.skip("needs nm")
    symbols = subprocess.run([nm, "-D", "--defined-only", ropepool._ext.__file__], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in symbols.stdout.splitlines()]
    assert "PyInit__ext" in names
    assert not [name for name in names if "ropepool" in name]
