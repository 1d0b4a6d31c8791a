"""The ops beside rope_pool_fused as Python sees them: arrays of other libraries, references, copies, signatures."""

import doctest
import gc
import pathlib
import pickle
import resource
import sys
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest
import ropepool
from oracle import FLOATS, assert_same_bits, copies
from ropepool import ContractError, LayerNorm, RMSNorm
from test_frontend import Exporter, to_torch, torch_bits
from test_op_properties import assert_same_results

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
WRITTEN = ("k_pool", "v_pool")


def calls(dtype=np.float32, tokens=4, head_dim=64):
    """Op -> the arguments of a call that goes through."""
    random = np.random.default_rng(tokens)

    def normal(*shape):
        return random.standard_normal(shape, np.float32).astype(dtype)

    q, k, v = normal(tokens, 8, head_dim), normal(tokens, 2, head_dim), normal(tokens, 2, head_dim)
    pools = {name: np.full((tokens + 4, 2, head_dim), 99, dtype) for name in WRITTEN}
    positions, slots = np.arange(tokens) + 3, (np.arange(tokens) * 3) % (tokens + 4)
    heads = {"head_dim": head_dim, "num_kv_heads": 2}
    rope = {"rope_base": 10000.0}
    both = heads | {"num_qo_heads": 8} | rope
    biases = {"q_bias": normal(8, head_dim), "k_bias": normal(2 * head_dim), "v_bias": normal(2, head_dim)}
    moved = {
        "k_pool": normal(tokens + 4, 2, head_dim),
        "slots": slots,
        "old_positions": positions,
        "new_positions": positions * 7,
    }
    return {
        "rope_pool_fused": {"q": q, "k": k, "v": v, "positions": positions, "slots": slots} | pools | both | biases,
        "rope_pool_fused_qkv": {"qkv": normal(tokens, 12 * head_dim), "positions": positions, "slots": slots}
        | pools
        | both
        | {"bias": normal(12 * head_dim), "order": "groups"},
        "rope": {"q": q, "k": k, "positions": positions} | both,
        "write_kv": {"k": k, "v": v, "slots": slots} | pools | heads,
        "rerotate": moved | heads | rope,
    }


OPS = list(calls())
NEW = OPS[1:]
each_op = pytest.mark.parametrize("op", OPS)
each_new = pytest.mark.parametrize("op", NEW)


def run(op, call):
    result = getattr(ropepool, op)(**call)
    return list(result) if isinstance(result, tuple) else [result]


# ---- Arrays of others


@each_dtype
@each_op
@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(op, versioned, dtype):
    """Any array that exports DLPack goes in, the pools come back as they are, and what was lent is given back."""
    expected = run(op, calls(dtype)[op])
    call = calls(dtype)[op]
    exporters = {name: Exporter(x, versioned=versioned) for name, x in call.items() if isinstance(x, np.ndarray)}
    exporters.pop("qkv", None)  # whose parts are views of it: it has to be an array itself
    result = run(op, call | exporters)
    assert len(result) == len(expected)
    for one, other in zip(result, expected, strict=True):
        assert_same_bits(one.array if isinstance(one, Exporter) else one, other)
    pools = [x for x in result if isinstance(x, Exporter)]
    assert [id(x) for x in pools] == [id(exporters[name]) for name in WRITTEN if name in call]
    assert all(exporter.lent == exporter.returned == 1 for exporter in exporters.values())


@each_dtype
@each_op
def test_torch(op, dtype):
    torch = pytest.importorskip("torch")
    expected = run(op, calls(dtype)[op])
    call = to_torch(torch, calls(dtype)[op])
    result = run(op, call)
    assert all(isinstance(x, torch.Tensor) for x in result)
    assert [torch_bits(torch, x) for x in result] == [x.tobytes() for x in map(np.ascontiguousarray, expected)]
    assert all(any(x is call[name] for x in result) for name in WRITTEN if name in call)


def test_a_packed_array_that_only_exports_dlpack():
    """Outputs are NumPy's; views of it can't be made, which is said."""
    random = np.random.default_rng(0)
    qkv = random.standard_normal((4, 12 * 64), np.float32)

    def call(array, **more):
        pools = np.zeros((2, 8, 2, 64), np.float32)
        heads = {"head_dim": 64, "num_qo_heads": 8, "num_kv_heads": 2, "rope_base": 10000.0}
        return ropepool.rope_pool_fused_qkv(array, np.arange(4), np.arange(4), *pools, **heads, **more)

    for mine, right in zip(call(Exporter(qkv)), call(qkv), strict=True):
        assert_same_bits(mine, right)
    with pytest.raises(TypeError, match="in_place returns views of qkv, which a Exporter can't give"):
        call(Exporter(qkv), in_place=True)


@pytest.mark.parametrize("order", ["blocks", "groups"])
def test_torch_packed_in_place(order):
    torch = pytest.importorskip("torch")
    for dtype in FLOATS:
        call = calls(dtype)["rope_pool_fused_qkv"] | {"order": order}
        ours, theirs = copies(call), to_torch(torch, call)
        expected = run("rope_pool_fused_qkv", ours | {"in_place": True})
        q_rot, k_rot, *_ = run("rope_pool_fused_qkv", theirs | {"in_place": True})
        assert torch_bits(torch, theirs["qkv"]) == ours["qkv"].tobytes()
        for one, other in ((q_rot, expected[0]), (k_rot, expected[1])):
            assert tuple(one.shape) == other.shape
            assert torch_bits(torch, one) == np.ascontiguousarray(other).tobytes()
            assert one.untyped_storage().data_ptr() == theirs["qkv"].untyped_storage().data_ptr()


def test_torch_weights_beside_numpy_and_the_reverse():
    """bfloat16 weights of a module under float32 data are refused, of either library."""
    torch = pytest.importorskip("torch")
    weight = np.random.default_rng(0).uniform(0.5, 2, 64).astype(np.float32)
    call = {name: x for name, x in calls()["rope_pool_fused"].items() if not name.endswith("_bias")}
    expected = run("rope_pool_fused", copies(call) | {"q_norm": RMSNorm(weight, eps=1e-6)})
    tensor = torch.from_numpy(weight)
    assert_same_results(run("rope_pool_fused", copies(call) | {"q_norm": RMSNorm(tensor, eps=1e-6)}), expected, "")
    q_rot = run("rope_pool_fused", to_torch(torch, call) | {"q_norm": RMSNorm(weight, eps=1e-6)})[0]
    assert torch_bits(torch, q_rot) == expected[0].tobytes()
    with pytest.raises(ContractError) as caught:
        run("rope_pool_fused", copies(call) | {"q_norm": LayerNorm(tensor.bfloat16(), eps=1e-6)})
    assert (caught.value.code, caught.value.argument, caught.value.actual) == ("RP034", "q_norm", "bfloat16")
    with pytest.raises(BufferError, match="gradient"):
        run("rope_pool_fused", copies(call) | {"q_norm": RMSNorm(torch.nn.Parameter(tensor), eps=1e-6)})


# ---- Copies and memory


@each_op
def test_no_hidden_copies(op):
    call = calls(tokens=2048)[op]
    if op in ("rope_pool_fused", "rope"):
        wide = np.zeros((2048, 8, 256), np.float32)
        call |= {"q": wide[..., 64:128], "q_out": np.empty((2048, 8, 64), np.float32), "k_out": np.empty_like(call["k"])}
    if op == "rope_pool_fused":
        call |= {"q_norm": RMSNorm(np.ones((8, 64), np.float32), eps=1e-6), "k_norm": LayerNorm(eps=1e-6), "q_scale": 0.5}
    if op == "rope_pool_fused_qkv":
        call |= {"qkv": np.zeros((2048, 1000), np.float32)[:, 7 : 7 + 768], "in_place": True}
    run(op, call)
    tracemalloc.start()
    run(op, call)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000


def fails(op, call):
    with pytest.raises((ContractError, TypeError)):
        run(op, call)


WAYS = {op: (lambda call, op=op: run(op, call[op])) for op in NEW}
WAYS |= {f"{op}, refused": (lambda call, op=op: fails(op, call[op] | {"head_dim": 62})) for op in NEW}
WAYS |= {f"{op}, no array": (lambda call, op=op: fails(op, call[op] | {"slots": 3, "positions": 3})) for op in NEW}
WAYS["in place"] = lambda call: run("rope_pool_fused_qkv", call["rope_pool_fused_qkv"] | {"in_place": True})
WAYS["biases"] = lambda call: run("rope_pool_fused", call["rope_pool_fused"])
WAYS["norms"] = lambda call: run(
    "rope_pool_fused",
    call["rope_pool_fused"] | {"q_norm": RMSNorm(call["rope"]["q"][0], eps=1e-6), "k_norm": LayerNorm(eps=0.0)},
)
WAYS["a refused norm"] = lambda call: fails(
    "rope_pool_fused", call["rope_pool_fused"] | {"q_norm": RMSNorm(call["rope"]["q"], eps=1e-6)}
)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_references_are_given_back_and_no_memory_is_lost(way):
    call = calls(tokens=1)
    values = [x for arguments in call.values() for x in arguments.values()] + [np.dtype(np.float32), ContractError, None]

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    for _ in range(500):
        way(call)
    gc.collect()
    before, memory = [sys.getrefcount(value) for value in values], resident()
    for _ in range(4000):
        way(call)
    gc.collect()
    after = [sys.getrefcount(value) for value in values]
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True)), (before, after)
    assert resident() - memory < 4000 * 50


# ---- Norms


def test_norms_say_what_they_are():
    weight = np.ones(64, np.float32)
    norm = RMSNorm(weight, eps=1e-6, unit_offset=True)
    assert norm.weight is weight and norm.eps == 1e-6 and norm.unit_offset is True
    assert RMSNorm(eps=1e-6).weight is None and RMSNorm(eps=1e-6).unit_offset is False
    assert LayerNorm(weight=weight, eps=0).eps == 0 and LayerNorm(eps=0.5).weight is None
    for name in ("weight", "eps", "unit_offset"):
        with pytest.raises(AttributeError):
            setattr(norm, name, None)


def test_a_weight_that_holds_its_norm_is_collected():
    class Held(np.ndarray):
        pass

    weight = np.ones(64, np.float32).view(Held)
    weight.norm = RMSNorm(weight, eps=1e-6)
    gone = weakref.ref(weight)
    del weight
    gc.collect()
    assert gone() is None


# ---- Signatures and documentation


@each_new
def test_examples_run(op):
    test = doctest.DocTestParser().get_doctest(getattr(ropepool, op).__doc__, {}, op, None, None)
    assert test.examples
    report = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)


@each_new
def test_functions_know_their_place(op):
    function = getattr(ropepool, op)
    assert function.__module__ == "ropepool" and op in ropepool.__all__
    assert pickle.loads(pickle.dumps(function)) is function


@each_new
def test_calling_conventions(op):
    call = calls()[op]
    arrays = [name for name, x in call.items() if isinstance(x, np.ndarray) and name != "bias"]
    places, names = [call[name] for name in arrays], {name: x for name, x in call.items() if name not in arrays}
    expected = run(op, {name: np.array(x) if isinstance(x, np.ndarray) else x for name, x in call.items()})
    result = getattr(ropepool, op)(*copies(dict(enumerate(places))).values(), **names)
    for one, other in zip(result if isinstance(result, tuple) else (result,), expected, strict=True):
        assert_same_bits(one, other)
    for words, args, kwargs in (
        (rf"{op}\(\) takes {len(places)} positional arguments but {len(places) + 1} were given", [*places, 64], names),
        (rf"missing required argument: '{arrays[-1]}'", places[:-1], names),
        (r"missing required argument: 'head_dim'", places, {}),
        (rf"multiple values for argument '{arrays[0]}'", places, names | {arrays[0]: places[0]}),
        (r"unexpected keyword argument 'head_dimm'", places, names | {"head_dimm": 1}),
    ):
        with pytest.raises(TypeError, match=words):
            getattr(ropepool, op)(*args, **kwargs)


@each_new
def test_a_failed_call_changes_nothing(op):
    """A TypeError in the last argument, as well as a refusal."""
    call = calls()[op]
    before = copies(call)
    last = "angles" if op != "write_kv" else "v_head_dim"
    for changes in ({last: 3.5}, {"head_dim": "64"}, {"num_kv_heads": 3}):
        with pytest.raises((TypeError, ContractError)):
            run(op, call | changes)
    for name, x in before.items():
        if isinstance(x, np.ndarray):
            assert_same_bits(call[name], x)
