"""rope_pool_fused_qkv: the same bits as rope_pool_fused on the parts of a packed projection, in both orders."""

import ml_dtypes
import numpy as np
import pytest
import ropepool
from head_oracle import Norm, Turn
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLOATS, INDICES, assert_same_bits
from ropepool import Rope
from test_frontend import Exporter
from test_head_ops import weight_of
from test_op_properties import SETTINGS

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
each_order = pytest.mark.parametrize("order", ["blocks", "groups"])


def split(qkv, order, num_qo_heads, num_kv_heads, head_dim):
    """q, k and v as views of the rows; of groups q has an axis for the group."""
    rows = qkv.reshape(len(qkv), num_qo_heads + 2 * num_kv_heads, head_dim)
    if order == "blocks":
        return rows[:, :num_qo_heads], rows[:, num_qo_heads:-num_kv_heads], rows[:, -num_kv_heads:]
    groups = rows.reshape(len(rows), num_kv_heads, num_qo_heads // num_kv_heads + 2, head_dim)
    return groups[:, :, :-2], groups[:, :, -2], groups[:, :, -1]


def packed_call(order="blocks", num_tokens=5, head_dim=64, num_qo_heads=4, num_kv_heads=2, dtype=np.float32, seed=0, **changes):
    random = np.random.default_rng(seed)
    width = (num_qo_heads + 2 * num_kv_heads) * head_dim
    return {
        "qkv": random.standard_normal((num_tokens, width), np.float32).astype(dtype),
        "positions": random.integers(0, 100_000, num_tokens),
        "slots": random.permutation(num_tokens + 3)[:num_tokens],
        "k_pool": np.full((num_tokens + 3, num_kv_heads, head_dim), 99, dtype),
        "v_pool": np.full((num_tokens + 3, num_kv_heads, head_dim), 99, dtype),
        "head_dim": head_dim,
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "rope_base": 10000.0,
        "order": order,
    } | changes


def sizes_of(call):
    return call["order"], call["num_qo_heads"], call["num_kv_heads"], call["head_dim"]


def unpacked(call):
    """The call of rope_pool_fused that says the same, with every array on its own."""
    order, num_qo_heads, num_kv_heads, head_dim = sizes_of(call)
    parts = split(np.ascontiguousarray(call["qkv"]), *sizes_of(call))
    q, k, v = (
        part.reshape(len(part), count, head_dim).copy()
        for part, count in zip(parts, (num_qo_heads, num_kv_heads, num_kv_heads), strict=True)
    )
    apart = {name: value for name, value in call.items() if name not in ("qkv", "order", "bias", "in_place", "q_out", "k_out")}
    apart |= {name: call[name].copy() for name in ("k_pool", "v_pool")} | {"q": q, "k": k, "v": v}
    if call.get("bias") is not None:
        parts = split(call["bias"][None], *sizes_of(call))
        apart |= {f"{name}_bias": part.reshape(-1).copy() for name, part in zip("qkv", parts, strict=True)}
    return apart


def made(call):
    return {name: value.make() if isinstance(value, Norm | Turn) else value for name, value in call.items()}


def checked(call):
    """Run it, and hold all bits against rope_pool_fused on the parts, and every byte of qkv."""
    expected = ropepool.rope_pool_fused(**made(unpacked(call)))
    before = call["qkv"].copy()
    q_rot, k_rot, k_pool, v_pool = ropepool.rope_pool_fused_qkv(**made(call))
    assert k_pool is call["k_pool"] and v_pool is call["v_pool"]
    assert_same_bits(k_pool, expected[2], "k_pool")
    assert_same_bits(v_pool, expected[3], "v_pool")
    order, num_qo_heads, num_kv_heads, head_dim = sizes_of(call)
    if call.get("in_place"):
        groups = (num_kv_heads, num_qo_heads // num_kv_heads) if order == "groups" else (num_qo_heads,)
        assert q_rot.shape == (len(before), *groups, head_dim) and k_rot.shape == (len(before), num_kv_heads, head_dim)
        parts = split(before, *sizes_of(call))
        for part, rotated in zip(parts, expected[:2], strict=False):  # V's part stays as it is
            part[...] = rotated.reshape(part.shape)
        assert_same_bits(call["qkv"], before, "qkv")
        for rotated in (q_rot, k_rot):
            assert rotated.size == 0 or np.shares_memory(rotated, call["qkv"])
    else:
        assert q_rot.shape == (len(before), num_qo_heads, head_dim)
        assert_same_bits(call["qkv"], before, "qkv was written")
        assert not np.shares_memory(q_rot, call["qkv"]) and not np.shares_memory(k_rot, call["qkv"])
        for rotated, name in ((q_rot, "q_out"), (k_rot, "k_out")):
            assert call.get(name) is None or rotated is call[name]
    assert_same_bits(q_rot.reshape(expected[0].shape), expected[0], "q_rot")
    assert_same_bits(k_rot, expected[1], "k_rot")
    return q_rot, k_rot, k_pool, v_pool


def everything(call, dtype=np.float32, seed=1):
    """The call with a bias, norms and a scale."""
    random = np.random.default_rng(seed)
    heads = call["num_qo_heads"], call["num_kv_heads"]
    weights = [random.uniform(0.5, 2, (count, call["head_dim"])).astype(dtype) for count in heads]
    return call | {
        "bias": random.standard_normal(call["qkv"].shape[1]).astype(dtype),
        "q_norm": Norm(weights[0], 1e-6),
        "k_norm": Norm(weights[1].reshape(-1), 1e-5, mean=True),
        "q_scale": 0.3,
    }


# ---- The same bits


@each_dtype
@each_order
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("head_dim", [2, 6, 64, 80, 96, 128, 192, 576])
def test_widths(head_dim, in_place, order, dtype):
    for num_qo_heads, num_kv_heads in ((4, 2), (6, 1), (3, 3)):
        call = packed_call(order, 5, head_dim, num_qo_heads, num_kv_heads, dtype, in_place=in_place)
        checked(call)
        checked(everything(packed_call(order, 5, head_dim, num_qo_heads, num_kv_heads, dtype, in_place=in_place)))


@each_order
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 17, 64, 300])
def test_token_counts(num_tokens, in_place, order):
    checked(everything(packed_call(order, num_tokens, 64, 8, 2, BF16, in_place=in_place)))


@pytest.mark.parametrize("in_place", [False, True])
def test_orders_are_those_of_the_models(in_place):
    """Heads that say where they stand: 3 groups of 2 query heads."""
    for order, q, k, v in (
        ("blocks", range(6), range(6, 9), range(9, 12)),
        ("groups", [0, 1, 4, 5, 8, 9], [2, 6, 10], [3, 7, 11]),
    ):
        call = packed_call(order, 1, 4, 6, 3, in_place=in_place, positions=np.array([0]), slots=np.array([1]))
        call["qkv"][:] = np.repeat(np.arange(12), 4) + 1
        q_rot, k_rot, k_pool, v_pool = ropepool.rope_pool_fused_qkv(**call)
        assert q_rot.reshape(6, 4)[:, 0].tolist() == [head + 1 for head in q]
        assert k_rot[0, :, 0].tolist() == k_pool[1, :, 0].tolist() == [head + 1 for head in k]
        assert v_pool[1, :, 0].tolist() == [head + 1 for head in v]


@each_dtype
@each_order
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shape", ["none", "lane", "head", "token"])
def test_norms_of_every_shape(shape, in_place, order, dtype):
    """Over all heads too, which stand apart in groups."""
    for num_qo_heads, num_kv_heads, head_dim in ((6, 2, 64), (9, 3, 80), (40, 2, 16), (5, 5, 6)):
        call = packed_call(order, 4, head_dim, num_qo_heads, num_kv_heads, dtype, in_place=in_place)
        for mean in (False, True):
            call["qkv"][:] = packed_call(order, 4, head_dim, num_qo_heads, num_kv_heads, dtype, seed=mean)["qkv"]
            norms = {
                "q_norm": Norm(weight_of(shape, num_qo_heads, head_dim), 1e-4, mean),
                "k_norm": Norm(weight_of(shape, num_kv_heads, head_dim, seed=1), 1e-5, not mean),
            }
            checked(everything(call) | norms)


def test_one_key_head_has_one_order():
    """As Falcon 7B's: with one key/value head both orders are the same."""
    for in_place in (False, True):
        results = [
            ropepool.rope_pool_fused_qkv(**packed_call(order, 5, 64, 7, 1, in_place=in_place)) for order in ("blocks", "groups")
        ]
        for one, other in zip(*results, strict=True):
            assert_same_bits(one.reshape(other.shape), other)


def test_blocks_are_the_default():
    call = packed_call()
    del call["order"]
    default, named = ropepool.rope_pool_fused_qkv(**call), ropepool.rope_pool_fused_qkv(**packed_call("blocks"))
    for one, other in zip(default, named, strict=True):
        assert_same_bits(one, other)


@each_order
@pytest.mark.parametrize("angles", ["exact", "float32"])
def test_every_rope(angles, order):
    table = np.random.default_rng(0).standard_normal((100_000, 32)).astype(np.float32)
    for rope in (
        Rope(10000.0, rotary_dim=32, rotary_offset=7),
        Rope(10000.0, rotary_dim=64, pairing="interleaved"),
        Rope(1e6, rotary_dim=64, scaling=ropepool.YarnScaling(factor=4.0, original_length=32768)),
        Rope(10000.0, rotary_dim=64, sections=[8, 12, 12]),
        Rope.join([Rope(10000.0, rotary_dim=64), Rope(500000.0, rotary_dim=64)]),
        Rope(rotary_dim=32, cos_sin=table),
    ):
        if rope.table_rows is not None and angles == "float32":
            continue
        others = {"rope": rope, "rope_base": None, "angles": angles}
        if rope.num_axes > 1:
            others["positions"] = np.random.default_rng(1).integers(0, 5000, (3, 9))[:, 2:7]
        if rope.num_sets > 1:
            others["rope_sets"] = np.array([0, 1, 1, 0, 1])
        for in_place in (False, True):
            checked(everything(packed_call(order, **others, in_place=in_place)))


@each_dtype
@each_order
def test_rows_that_lie_apart(order, dtype):
    """Columns of a wider projection, rows turned around, and rows that are one and the same."""
    call = packed_call(order, 7, 64, 6, 2, dtype)
    width = call["qkv"].shape[1]
    for in_place in (False, True):
        buffer = np.random.default_rng(2).standard_normal((14, width + 11), np.float32).astype(dtype)
        before = buffer.copy()
        for view in (buffer[::2, 5 : 5 + width], buffer[13::-2, 11:], buffer[:7, :width]):
            view[:] = call["qkv"]
            before[:] = buffer
            columns = view.copy()
            checked(packed_call(order, 7, 64, 6, 2, dtype, in_place=in_place) | {"qkv": view})
            view[:] = columns
            assert_same_bits(buffer, before, "beside qkv")
    repeated = np.broadcast_to(call["qkv"][:1], (7, width))
    checked(everything(call | {"qkv": repeated}))


@each_dtype
@each_order
def test_outputs_of_the_callers(order, dtype):
    call = everything(packed_call(order, 5, 64, 6, 2, dtype))
    wide = np.zeros((5, 9, 70), dtype)
    checked(call | {"q_out": wide[:, 1:7, 3:67], "k_out": np.zeros((5, 2, 64), dtype)})
    assert not wide[:, [0, 7, 8]].any() and not wide[..., :3].any() and not wide[..., 67:].any()
    checked(call | {"k_out": np.zeros((2, 5, 64), dtype).swapaxes(0, 1)})


@settings(max_examples=100, **SETTINGS)
@given(st.data())
def test_any_call(data):
    order, dtype = data.draw(st.sampled_from(["blocks", "groups"])), data.draw(st.sampled_from(FLOATS))
    num_kv_heads, group = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    num_qo_heads = num_kv_heads * group if order == "groups" else data.draw(st.integers(1, 9))
    tokens, head_dim, seed = data.draw(st.integers(0, 20)), 2 * data.draw(st.integers(1, 40)), data.draw(st.integers(0, 999))
    call = packed_call(order, tokens, head_dim, num_qo_heads, num_kv_heads, dtype, seed, in_place=data.draw(st.booleans()))
    call["slots"] = (
        np.random.default_rng(0).integers(-2, tokens + 2, tokens, endpoint=True).astype(data.draw(st.sampled_from(INDICES)))
    )
    every = everything(call, data.draw(st.sampled_from([np.float32, dtype])))
    names = data.draw(st.sets(st.sampled_from(["bias", "q_norm", "k_norm", "q_scale"])))
    checked(call | {name: every[name] for name in names})


@each_order
@pytest.mark.parametrize("with_ops", [False, True])
def test_f27_in_place_is_the_same_each_time(num_threads, order, with_ops):
    """The stated sample, for many widths of the pool of threads: what is written in place is never read again."""

    def one(tokens, in_place):
        call = packed_call(order, tokens, 128, 64, 8, BF16, in_place=in_place)
        return everything(call) if with_ops else call

    for tokens, repeats in ((8, 200), (300, 8)):
        call = one(tokens, False)
        order, *sizes = sizes_of(call)
        expected = call["qkv"].copy()
        q, k, _ = split(expected, order, *sizes)
        q_rot, k_rot, k_pool, v_pool = ropepool.rope_pool_fused_qkv(**made(call))
        q[...], k[...] = q_rot.reshape(q.shape), k_rot
        for width in (1, 2, 16):
            num_threads(width)
            for _ in range(repeats):
                again = one(tokens, True)
                ropepool.rope_pool_fused_qkv(**made(again))
                assert_same_bits(again["qkv"], expected)
                assert_same_bits(again["k_pool"], k_pool)
                assert_same_bits(again["v_pool"], v_pool)


@each_order
@pytest.mark.parametrize("in_place", [False, True])
def test_a_bias_of_v_goes_to_the_pool_alone(in_place, order):
    call = packed_call(order, 3, 8, 4, 2, BF16, in_place=in_place)
    bias = np.arange(8 * 8, dtype=np.float32)
    before = [part.copy() for part in split(call["qkv"].copy(), *sizes_of(call))]
    checked(call | {"bias": bias})
    _, _, v = split(call["qkv"], *sizes_of(call))
    assert_same_bits(v, before[2])
    of_v = split(bias[None], *sizes_of(call))[2]
    assert_same_bits(call["v_pool"][call["slots"]], (before[2].astype(np.float32) + of_v).astype(BF16))


def test_a_bias_may_lie_in_qkv():
    """It is read whole before the first write, in place too."""
    call = packed_call("groups", 6, 64, 4, 2)
    expected = ropepool.rope_pool_fused_qkv(**call | {"bias": call["qkv"][2].copy()})
    expected = [np.array(x) for x in expected]
    again = packed_call("groups", 6, 64, 4, 2, in_place=True)
    for one, other in zip(ropepool.rope_pool_fused_qkv(**again | {"bias": again["qkv"][2]}), expected, strict=True):
        assert_same_bits(one.reshape(other.shape), other)


# ---- What is refused


def refusal(call, **changes):
    call = call | changes
    before = {name: np.array(value) for name, value in call.items() if isinstance(value, np.ndarray)}
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope_pool_fused_qkv(**call)
    for name, array in before.items():
        assert_same_bits(call[name], array, f"{name} was written")
    error = caught.value
    assert error.summary == str(error).split("\n")[0] and error.expected and error.hint
    entry = ropepool.explain(error.summary)
    assert entry["code"] == error.code, error.summary
    assert error.argument in entry["argument"].split(", "), error.argument
    return error


@pytest.mark.parametrize("shape", [(5, 8, 64), (512,), (), (1, 5, 512)])
def test_qkv_of_other_axes(shape):
    error = refusal(packed_call(), qkv=np.zeros(shape, np.float32))
    assert (error.code, error.name, error.argument) == ("RP031", "qkv-not-2d", "qkv")
    assert error.summary == "rope_pool_fused_qkv expects qkv to be 2-D"


@pytest.mark.parametrize("width", [0, 1, 511, 513, 768, 256, 1024])
def test_qkv_of_other_lanes(width):
    error = refusal(packed_call(), qkv=np.zeros((5, width), np.float32))
    assert (error.code, error.name, error.argument) == ("RP032", "qkv-width-mismatch", "qkv")
    assert error.summary == f"qkv must have 512 lanes per token, got {width}"
    assert (error.expected, error.actual) == ("512", str(width))


@pytest.mark.parametrize("order", ["Blocks", "grouped", "", "blocks "])
def test_orders_of_other_names(order):
    error = refusal(packed_call(), order=order)
    assert (error.code, error.name, error.argument) == ("RP033", "qkv-order-unsuitable", "order")
    assert error.summary == f"order must be 'blocks' or 'groups', got {order!r}"


def test_groups_of_unequal_size():
    call = packed_call("groups", num_qo_heads=4, num_kv_heads=2)
    error = refusal(call, qkv=np.zeros((5, 11 * 64), np.float32), num_qo_heads=5, num_kv_heads=3)
    assert (error.code, error.argument) == ("RP033", "num_qo_heads")
    assert error.summary.startswith("num_qo_heads must be a multiple of num_kv_heads, got 5")
    checked(packed_call("blocks", num_qo_heads=5, num_kv_heads=3))


@pytest.mark.parametrize("name", ["q_out", "k_out"])
def test_in_place_has_no_other_outputs(name):
    heads = {"q_out": 4, "k_out": 2}[name]
    error = refusal(packed_call(), in_place=True, **{name: np.zeros((5, heads, 64), np.float32)})
    assert (error.code, error.argument) == ("RP033", name)
    assert error.summary.startswith(f"{name} must be left out with in_place, got ")


def test_the_order_of_its_own_refusals():
    """RP031, RP032, RP033, and only then what rope_pool_fused refuses."""
    wrong = {"order": "x", "positions": np.zeros((5, 1), np.int64), "k_pool": np.zeros((2, 2), np.float32)}
    assert refusal(packed_call(), **wrong, qkv=np.zeros(5, np.float32)).code == "RP031"
    assert refusal(packed_call(), **wrong, qkv=np.zeros((5, 5), np.float32)).code == "RP032"
    assert refusal(packed_call(), **wrong).code == "RP033"
    del wrong["order"]
    assert refusal(packed_call(), **wrong).code == "RP002"
    del wrong["positions"]
    assert refusal(packed_call(), **wrong).code == "RP003"


INHERITED = {
    "positions 2-D": ("RP002", "positions", {"positions": np.zeros((1, 5), np.int64)}),
    "slots 0-D": ("RP002", "slots", {"slots": np.array(3)}),
    "pool 2-D": ("RP003", "k_pool", {"k_pool": np.zeros((8, 128), np.float32)}),
    "positions too many": ("RP007", "positions", {"positions": np.arange(6)}),
    "slots too few": ("RP007", "slots", {"slots": np.arange(4)}),
    "k_pool of other heads": ("RP008", "k_pool", {"k_pool": np.zeros((8, 3, 64), np.float32)}),
    "v_pool of other slots": ("RP009", "v_pool", {"v_pool": np.zeros((7, 2, 64), np.float32)}),
    "pool dtype": ("RP011", "v_pool", {"v_pool": np.zeros((8, 2, 64), np.float16)}),
    "float64": (
        "RP012",
        "qkv",
        {"qkv": np.zeros((5, 512)), "k_pool": np.zeros((8, 2, 64)), "v_pool": np.zeros((8, 2, 64))},
    ),
    "positions in floats": ("RP013", "positions", {"positions": np.zeros(5, np.float32)}),
    "no key heads": (
        "RP014",
        "num_kv_heads",
        {"num_kv_heads": 0, "k_pool": np.zeros((8, 0, 64), np.float32), "v_pool": np.zeros((8, 0, 64), np.float32)},
    ),
    "no base": ("RP015", "rope_base", {"rope_base": None}),
    "both ropes": ("RP015", "rope_base", {"rope": Rope(10000.0, rotary_dim=64)}),
    "every second lane": ("RP016", "qkv", {"qkv": np.zeros((5, 1024), np.float32)[:, ::2]}),
    "q_out of other heads": ("RP017", "q_out", {"q_out": np.zeros((5, 5, 64), np.float32)}),
    "k_out of another dtype": ("RP017", "k_out", {"k_out": np.zeros((5, 2, 64), np.float16)}),
    "slot past the pool": ("RP020", "slots", {"slots": np.array([0, 1, 2, 8, 9])}),
    "position past all": ("RP021", "positions", {"positions": np.array([0, 2**31, 0, 0, 0])}),
    "rope too wide": ("RP023", "rope", {"rope": Rope(10000.0, rotary_dim=66), "rope_base": None}),
    "no sets": ("RP024", "rope_sets", {"rope": Rope.join([Rope(10000.0, rotary_dim=64)] * 2), "rope_base": None}),
    "bias too short": ("RP034", "bias", {"bias": np.zeros(511, np.float32)}),
    "bias of q alone": ("RP034", "bias", {"bias": np.zeros(256, np.float32)}),
    "bias by heads": ("RP034", "bias", {"bias": np.zeros((8, 64), np.float32)}),
    "bias in float64": ("RP034", "bias", {"bias": np.zeros(512)}),
    "every second of a bias": ("RP034", "bias", {"bias": np.zeros(1024, np.float32)[::2]}),
    "norm of k's heads": ("RP034", "q_norm", {"q_norm": ropepool.RMSNorm(np.ones((2, 64), np.float32), eps=1e-6)}),
    "scale": ("RP034", "q_scale", {"q_scale": np.nan}),
}


@each_order
@pytest.mark.parametrize("what", INHERITED)
def test_what_rope_pool_fused_refuses(what, order):
    code, argument, changes = INHERITED[what]
    error = refusal(packed_call(order), **changes)
    assert (error.code, error.argument) == (code, argument)
    for word in ("rope_pool_fused ", "q/k/v"):
        assert word not in error.summary


def test_words():
    lines = {
        "RP002": "rope_pool_fused_qkv expects positions/slots to be 1-D",
        "RP003": "rope_pool_fused_qkv expects pool tensors to be 3-D",
        "RP007": "positions/slots must have one entry per token",
        "RP011": "pool dtypes must match qkv dtype",
        "RP012": "qkv must be float32, float16 or bfloat16, got float64",
        "RP016": "qkv must have an innermost stride of 1, got 2",
    }
    found = {}
    for code, _, changes in INHERITED.values():
        if code in lines:
            found.setdefault(code, refusal(packed_call(), **changes).summary)
    assert found | {"RP013": 0} == lines | {"RP013": 0}


@each_order
def test_read_only(order):
    call = packed_call(order)
    call["qkv"].flags.writeable = False
    checked(call)
    error = refusal(call, in_place=True)
    assert (error.code, error.argument) == ("RP017", "qkv")
    assert error.summary == "qkv must be writable, got a read-only array"


def test_devices():
    call = packed_call()
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope_pool_fused_qkv(**call | {"qkv": Exporter(call["qkv"], device_type=2)})
    assert (caught.value.code, caught.value.argument) == ("RP018", "qkv")
    assert caught.value.summary == "qkv must be on cpu, got cuda:0"


@each_order
@pytest.mark.parametrize("in_place", [False, True])
def test_overlap(in_place, order):
    """With the pools always, with positions and slots where qkv is written; and of one row with another."""
    call = packed_call(order, 5, 64, 4, 2, in_place=in_place)
    rows = np.zeros((64, 512), np.float32)
    inside = {
        "k_pool": rows.reshape(-1, 2, 64)[40:48],
        "v_pool": rows.reshape(-1, 2, 64)[36:44],
    }
    for name, pool in inside.items():
        error = refusal(call, qkv=rows[8:13], **{name: pool})
        assert error.code == "RP019" and error.argument in (name, "qkv")
        assert {word for word in (name, "qkv") if word in error.summary.split()} == {name, "qkv"}
    for name in ("positions", "slots"):
        qkv = np.zeros((5, 512), np.float32)
        indices = qkv[2, 64:74].view(np.int64)
        if in_place:
            error = refusal(call, qkv=qkv, **{name: indices})
            assert error.code == "RP019" and {name, "qkv"} <= set(error.summary.split())
        else:
            checked(call | {"qkv": qkv, name: indices, "slots": np.arange(5) if name == "positions" else indices})
    if in_place:
        error = refusal(call, qkv=np.lib.stride_tricks.as_strided(rows, (5, 512), (0, 4)))
        assert (error.code, error.summary) == ("RP019", "qkv must share no memory with itself")
        error = refusal(call, qkv=np.lib.stride_tricks.as_strided(rows, (5, 512), (4 * 500, 4)))
        assert error.code == "RP019" and "qkv" in error.summary
    else:
        for first in (0, 4, 256):
            error = refusal(call, qkv=rows[8:13], q_out=rows[8:13, first : first + 256].reshape(5, 4, 64))
            assert (error.code, error.summary) == ("RP019", "q_out must share no memory with qkv")


def test_types():
    call = packed_call()
    for changes, words in (
        ({"qkv": [[0.0]]}, "qkv"),
        ({"order": 1}, "order"),
        ({"bias": "bias"}, "bias"),
        ({"q_norm": np.ones(64, np.float32)}, "q_norm"),
        ({"head_dim": 64.0}, "head_dim"),
        ({"v_head_dim": 64}, "v_head_dim"),
        ({"q_bias": np.zeros(256, np.float32)}, "q_bias"),
    ):
        with pytest.raises(TypeError, match=words):
            ropepool.rope_pool_fused_qkv(**call | changes)
    with pytest.raises(TypeError):
        ropepool.rope_pool_fused_qkv(*call.values())
