"""What rope_pool_fused refuses: the words, the order, check(), the guards of the catalog, and that nothing is written."""

import dataclasses
import functools
import inspect
import itertools

import numpy as np
import oracle
import pytest
import ropepool
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ARRAYS, FLOATS, INDICES, WRITTEN, arguments, assert_same_bits, checked_call
from test_frontend import Exporter

CODES = [f"RP{number:03d}" for number in range(1, 22)]
FLOAT_ARRAYS = ("q", "k", "v", "k_pool", "v_pool")

# ---- A call to be, and what can be wrong with it


@dataclasses.dataclass
class Plan:
    """The arguments of a call before they are made, so that several things can be wrong with one of them."""

    numbers: dict
    shapes: dict  # name -> list
    dtypes: dict  # name -> dtype
    layouts: dict = dataclasses.field(default_factory=dict)  # name -> how it lies in its memory, see make()
    memory_of: dict = dataclasses.field(
        default_factory=dict
    )  # name -> (the array whose memory it uses, elements past its start)
    values: dict = dataclasses.field(default_factory=dict)  # name -> {token: value}
    devices: dict = dataclasses.field(default_factory=dict)  # name -> DLPack's number

    def output(self, name):
        """Give this output, as it should be unless it is there already."""
        like = name.removesuffix("_out")
        self.shapes.setdefault(name, list(self.shapes[like]))
        self.dtypes.setdefault(name, self.dtypes[like])


def plan(num_tokens=4, head_dim=8, num_qo_heads=3, num_kv_heads=2, num_slots=6, dtype=np.float32, index=np.int64):
    kv = [num_tokens, num_kv_heads, head_dim]
    pool = [num_slots, num_kv_heads, head_dim]
    shapes = {"q": [num_tokens, num_qo_heads, head_dim], "k": kv, "v": kv, "k_pool": pool, "v_pool": pool}
    shapes |= {"positions": [num_tokens], "slots": [num_tokens]}
    return Plan(
        {"head_dim": head_dim, "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "rope_base": 10000.0},
        {name: list(shape) for name, shape in shapes.items()},
        {name: np.dtype(index if name in ("positions", "slots") else dtype) for name in shapes},
    )


def place(memory, start, shape, dtype, layout):
    """An array in `memory` (bytes) from the element `start` on, in one of the ways that an array can lie there."""
    item = dtype.itemsize
    strides = [item] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    offset = start * item
    match layout:
        case "every second lane":
            strides = [2 * stride for stride in strides]
        case "between elements":
            offset += 1
        case "odd rows":
            strides = [stride + (1 if axis == 0 else 0) for axis, stride in enumerate(strides)]
        case "repeated":
            strides[0] = 0
        case "backwards" if len(shape) == 3 and all(shape):
            strides[:2] = [-stride for stride in strides[:2]]
            offset -= sum(stride * (length - 1) for stride, length in zip(strides[:2], shape[:2], strict=True))
    array = np.ndarray(tuple(shape), dtype, memory, offset, tuple(strides))
    array.flags.writeable = layout != "read-only"
    return array


def make(plan):
    """The arguments: NumPy arrays, and exporters of DLPack where they are to be on a device."""
    call, memories = dict(plan.numbers), {}
    for name in ("q", "k", "k_pool", *plan.shapes):  # those whose memory others use come first
        if name not in plan.shapes or name in call:
            continue
        source, start = plan.memory_of.get(name, (name, 0))
        memory = memories.setdefault(source, np.zeros(40960, np.uint8))
        array = place(memory, start, plan.shapes[name], plan.dtypes[name], plan.layouts.get(name, "plain"))
        if name == "slots" and array.flags.writeable:
            array[...] = np.arange(array.size).reshape(array.shape) % 3
        for token, value in plan.values.get(name, {}).items():
            if array.ndim == 1 and token < array.size and array.dtype in INDICES:
                array[token] = value
        call[name] = array
    for name, device in plan.devices.items():
        # DLPack has no words for the other byte order, nor for a fraction of an element.
        if plan.dtypes[name].isnative and plan.layouts.get(name) != "odd rows":
            call[name] = Exporter(call[name], device_type=device, flags=not call[name].flags.writeable)
    return call


@dataclasses.dataclass(frozen=True)
class Fault:
    code: str
    line: str  # the first line of the message, for a plan() with nothing else wrong
    change: object  # of a plan


FAULTS = []


def fault(code, line):
    def register(change):
        FAULTS.append(Fault(code, line, change))
        return change

    return register


def faults(code, line, names, change):
    """The same fault in each of several arguments."""
    for name in names:
        FAULTS.append(Fault(code, line.format(name=name), lambda plan, name=name: change(plan, name)))


def add_axis(plan, name):
    plan.shapes[name].insert(1, 1)


def drop_axis(plan, name):
    del plan.shapes[name][1:2]


def drop_all_axes(plan, name):
    plan.shapes[name].clear()


def set_length(plan, name, axis, length):
    plan.shapes[name][axis : axis + 1] = [length]


INDEX_NAMES, POOL_NAMES = ("positions", "slots"), ("k_pool", "v_pool")
for _change in (add_axis, drop_axis, drop_all_axes):
    faults("RP001", "rope_pool_fused expects q/k/v to be 3-D", "qkv", _change)
    faults("RP003", "rope_pool_fused expects pool tensors to be 3-D", POOL_NAMES, _change)
for _change in (add_axis, drop_all_axes):
    faults("RP002", "rope_pool_fused expects positions/slots to be 1-D", INDEX_NAMES, _change)


faults("RP004", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 5, 8)", "q", lambda p, x: set_length(p, x, 1, 5))
faults(
    "RP004", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 3, 24)", "q", lambda p, x: set_length(p, x, 2, 24)
)


@fault("RP004", "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 3, 8)")
def _(plan):
    plan.numbers["num_qo_heads"] += 1


faults("RP005", "k shape must be [num_tokens, num_kv_heads, head_dim], got (7, 2, 8)", "k", lambda p, x: set_length(p, x, 0, 7))


@fault("RP005", "k shape must be [num_tokens, num_kv_heads, head_dim], got (4, 6, 8)")
def _(plan):
    set_length(plan, "k", 1, 6)
    set_length(plan, "v", 1, 6)


@fault("RP005", "k shape must be [num_tokens, num_kv_heads, head_dim], got (4, 2, 8)")
def _(plan):
    plan.numbers["num_kv_heads"] += 1


faults("RP006", "v shape must match k shape, got (4, 7, 8) vs (4, 2, 8)", "v", lambda p, x: set_length(p, x, 1, 7))
faults("RP006", "v shape must match k shape, got (3, 2, 8) vs (4, 2, 8)", "v", lambda p, x: set_length(p, x, 0, 3))
for _length in (6, 0):
    faults(
        "RP007",
        "positions/slots must have one entry per token",
        INDEX_NAMES,
        lambda p, name, length=_length: set_length(p, name, 0, length),
    )


@fault("RP008", "k_pool has incompatible shape (6, 7, 8)")
def _(plan):
    for name in POOL_NAMES:
        set_length(plan, name, 1, 7)


faults("RP008", "k_pool has incompatible shape (6, 2, 6)", ["k_pool"], lambda p, x: set_length(p, x, 2, 6))
faults(
    "RP009", "v_pool shape must match k_pool shape, got (5, 2, 8) vs (6, 2, 8)", ["v_pool"], lambda p, x: set_length(p, x, 0, 5)
)
faults(
    "RP009", "v_pool shape must match k_pool shape, got (6, 9, 8) vs (6, 2, 8)", ["v_pool"], lambda p, x: set_length(p, x, 1, 9)
)


def set_dtype(plan, name, dtype):
    plan.dtypes[name] = np.dtype(dtype)


faults("RP010", "q/k/v dtypes must match", "qkv", lambda p, name: set_dtype(p, name, np.uint16))
faults("RP010", "q/k/v dtypes must match", "kv", lambda p, name: set_dtype(p, name, ">f2"))
faults("RP011", "pool dtypes must match q/k/v dtype", POOL_NAMES, lambda p, name: set_dtype(p, name, np.uint16))


def all_floats(plan, dtype):
    for name in FLOAT_ARRAYS:
        set_dtype(plan, name, dtype)


for _dtype, _text in (
    ("f8", "float64"),
    (">f4", "float32 (byte-swapped)"),
    ("i2", "int16"),
    ("?", "bool"),
    ("c8", "complex64"),
):
    FAULTS.append(
        Fault(
            "RP012",
            f"q must be float32, float16 or bfloat16, got {_text}",
            lambda plan, dtype=_dtype: all_floats(plan, dtype),
        )
    )
for _dtype, _text in (("u4", "uint32"), ("f8", "float64"), ("i2", "int16"), (">i8", "int64 (byte-swapped)")):
    faults(
        "RP013",
        f"{{name}} must be int32 or int64, got {_text}",
        INDEX_NAMES,
        lambda plan, name, dtype=_dtype: set_dtype(plan, name, dtype),
    )


@fault("RP014", "head_dim must be even, got 7")
def _(plan):
    plan.numbers["head_dim"] = 7
    for name in FLOAT_ARRAYS:
        set_length(plan, name, 2, 7)


@fault("RP014", "head_dim must be at least 2, got 0")
def _(plan):
    plan.numbers["head_dim"] = 0
    for name in FLOAT_ARRAYS:
        set_length(plan, name, 2, 0)


@fault("RP014", "num_qo_heads must be at least 1, got 0")
def _(plan):
    plan.numbers["num_qo_heads"] = 0
    set_length(plan, "q", 1, 0)


@fault("RP014", "num_kv_heads must be at least 1, got 0")
def _(plan):
    plan.numbers["num_kv_heads"] = 0
    for name in ("k", "v", "k_pool", "v_pool"):
        set_length(plan, name, 1, 0)


for _base, _text in ((0.0, "0"), (-1e4, "-10000"), (float("inf"), "inf"), (float("nan"), "nan"), (None, "nan")):
    FAULTS.append(
        Fault(
            "RP015",
            f"rope_base must be finite and above 0, got {_text}",
            lambda plan, base=_base: plan.numbers.__setitem__("rope_base", base),
        )
    )


@fault("RP015", "angles must be 'exact' or 'float32', got 'float64'")
def _(plan):
    plan.numbers["angles"] = "float64"


faults(
    "RP016",
    "{name} must have an innermost stride of 1, got 2",
    ("q", "k", "v", "positions", "slots", "k_pool", "v_pool"),
    lambda plan, name: plan.layouts.__setitem__(name, "every second lane"),
)
faults(
    "RP016",
    "{name} must have data and strides on whole elements, got an address 1 byte past one",
    ("q", "k", "v", "positions", "slots", "k_pool", "v_pool"),
    lambda plan, name: plan.layouts.__setitem__(name, "between elements"),
)
faults(
    "RP016",
    "{name} must have data and strides on whole elements, got an offset or stride between two elements",
    FLOAT_ARRAYS,
    lambda plan, name: plan.layouts.__setitem__(name, "odd rows"),
)


@fault("RP016", "q_out must have an innermost stride of 1, got 2")
def _(plan):
    plan.output("q_out")
    plan.layouts["q_out"] = "every second lane"


@fault("RP017", "q_out must be (4, 3, 8), got (3, 3, 8)")
def _(plan):
    plan.output("q_out")
    set_length(plan, "q_out", 0, 3)


@fault("RP017", "k_out must be float32, got uint8")
def _(plan):
    plan.output("k_out")
    plan.dtypes["k_out"] = np.dtype(np.uint8)


@fault("RP017", "k_out must be writable, got a read-only array")
def _(plan):
    plan.output("k_out")
    plan.layouts["k_out"] = "read-only"


faults(
    "RP017",
    "{name} must be writable, got a read-only array",
    POOL_NAMES,
    lambda plan, name: plan.layouts.__setitem__(name, "read-only"),
)
faults(
    "RP018",
    "{name} must be on cpu, got cuda:0",
    ("q", "k", "v", "positions", "slots", "k_pool", "v_pool"),
    lambda plan, name: plan.devices.__setitem__(name, 2),
)


@fault("RP019", "k_pool must share no memory with v_pool")
def _(plan):
    plan.memory_of["v_pool"] = ("k_pool", 0)


@fault("RP019", "q_out must share no memory with q")
def _(plan):
    plan.output("q_out")
    plan.memory_of["q_out"] = ("q", 8)


@fault("RP019", "q_out must share no memory with k")
def _(plan):
    """In place where q and k are one array."""
    plan.output("q_out")
    plan.memory_of |= {"q_out": ("q", 0), "k": ("q", 0)}


@fault("RP019", "k_out must share no memory with itself")
def _(plan):
    plan.output("k_out")
    plan.layouts["k_out"] = "repeated"


@fault("RP019", "v_pool must share no memory with v")
def _(plan):
    plan.memory_of["v_pool"] = ("v", 3)


@fault("RP020", "slots[2] is 6, but the pools have 6 slots")
def _(plan):
    plan.values["slots"] = {2: 6, 3: 7}


@fault("RP021", "positions[1] is 2147483648, beyond +-2147483647")
def _(plan):
    plan.dtypes["positions"] = np.dtype(np.int64)
    plan.values["positions"] = {1: 2**31, 3: -(2**31)}


@fault("RP021", "positions[3] is -2147483648, beyond +-2147483647")
def _(plan):
    plan.dtypes["positions"] = np.dtype(np.int32)
    plan.values["positions"] = {3: -(2**31)}


@fault("RP021", "positions[0] is -9223372036854775808, beyond +-2147483647")
def _(plan):
    plan.dtypes["positions"] = np.dtype(np.int64)
    plan.values["positions"] = {0: -(2**63)}


def planned(*faults, **sizes):
    """A plan with these faults. Those that come first in the contract change shapes, so they are applied last."""
    made = plan(**sizes)
    for one in sorted(faults, key=lambda fault: fault.code, reverse=True):
        one.change(made)
    return made


def name_of(fault):
    return f"{fault.code}: {fault.line}"


def values_of(call):
    return {name: value.array if isinstance(value, Exporter) else value for name, value in call.items()}


def refused(call):
    """The ContractError of a call, which must change nothing."""
    arrays = {name: value for name, value in values_of(call).items() if name in ARRAYS}
    memories = {name: array if array.base is None else array.base for name, array in arrays.items()}
    before = {name: memory.copy() for name, memory in memories.items()}
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope_pool_fused(**call)
    for name, memory in memories.items():
        assert_same_bits(memory, before[name], f"{name} was written")
    return caught.value


def codes(call):
    return [error.code for error in ropepool.check(**call)]


# ---- Words


def test_a_call_with_nothing_wrong():
    call = make(plan())
    assert ropepool.check(**call) == []
    checked_call(call)


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
def test_first_line_and_fields(fault):
    error = refused(make(planned(fault)))
    assert str(error).split("\n")[0] == error.summary == fault.line
    assert error.code == fault.code and isinstance(error, ValueError)
    entry = ropepool.explain(error)
    assert (error.name, error.url) == (entry["name"], entry["url"])
    assert error.argument in entry["argument"].split(", ")
    assert error.expected and error.hint
    lines = str(error).split("\n")
    assert lines[1:] == [
        *([f"cause: {error.cause}"] if error.cause else []),
        f"mend:  {error.hint}",
        f"{error.code} {error.name}: ropepool explain {error.code}",
    ]


def test_every_refusal_is_raised():
    # What a Rope brings is in test_rope.py.
    assert sorted({fault.code for fault in FAULTS}) == CODES == [entry["code"] for entry in ropepool.errors()][: len(CODES)]


def test_the_whole_message_of_the_contract():
    call = arguments(4, 64, 8, 2, v=np.zeros((4, 10, 64), np.float32))
    assert str(refused(call)) == (
        "v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)\n"
        "cause: v has 10 heads = num_qo_heads + num_kv_heads (8 + 2): it was sliced from kv_size of the packed QKV instead of "
        "q_size + kv_size, and k from 0, so k holds Q's data\n"
        "mend:  k = qkv[..., q_size : q_size + kv_size]; v = qkv[..., q_size + kv_size :]\n"
        "RP006 v-shape-mismatch: ropepool explain RP006"
    )


def test_shapes_are_printed_as_python_prints_tuples():
    for shape in [(), (4,), (4, 8), (1, 2, 3, 4), (0, 2, 8), (2**40 + 1, 2, 8)]:
        pool = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), shape, [0] * len(shape[1:]) + [4] * len(shape[:1]))
        lines = [error.summary for error in ropepool.check(**arguments(k_pool=pool))]
        assert f"k_pool has incompatible shape {shape}" in lines


def test_the_dtypes_of_the_seven_arrays_in_order():
    """10 and 11 come before 12 also where only some are byte-swapped."""
    swapped = np.dtype(np.float32).newbyteorder()
    for name, first in (("q", "RP010"), ("k", "RP010"), ("v", "RP010"), ("k_pool", "RP011"), ("v_pool", "RP011")):
        call = arguments()
        listed = codes(call | {name: call[name].astype(swapped)})
        assert listed[0] == first and "RP012" in listed


# ---- Order


@pytest.mark.parametrize("first", FAULTS, ids=name_of)
def test_the_earlier_refusal_is_raised(first):
    """Beside every fault that comes later in the contract; what is raised is the first that check lists."""
    for second in FAULTS:
        if second.code <= first.code:
            continue
        call = make(planned(first, second))
        error, listed = refused(call), ropepool.check(**call)
        assert error.code == first.code, f"beside {name_of(second)}"
        assert str(error) == str(listed[0])
        assert [entry.code for entry in listed] == sorted({entry.code for entry in listed})


# ---- The guards of the catalog


class OnDevice(np.ndarray):
    """Stands for an array of another device in guards."""

    def __dlpack_device__(self):
        return 2, 0


DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(ropepool.rope_pool_fused).parameters.items()
    if parameter.default is not parameter.empty
}


def names_of_guards(call):
    """What guards are expressions over: NumPy, and the arguments with their defaults."""
    arrays = {
        name: value.array.view(OnDevice) if isinstance(value, Exporter) else value
        for name, value in call.items()
        if name in ARRAYS
    }
    return {"np": np} | DEFAULTS | call | arrays


def disagreements(call):
    """The codes whose guard says another thing than check does, and what it says."""
    listed, names, found = codes(call), names_of_guards(call), {}
    for entry in ropepool.errors():
        code = entry["code"]
        try:
            holds = bool(eval(entry["guard"], dict(names)))
        except Exception as error:  # a guard must judge any call
            holds = repr(error)
        if holds is not (code not in listed):
            found[code] = f"the guard says {holds}, and check lists {listed}"
    return found


@st.composite
def random_plans(draw):
    """Any sizes, dtypes and layouts that are legal, and up to four things wrong."""
    made = planned(
        *draw(st.lists(st.sampled_from(FAULTS), max_size=4)),
        num_tokens=draw(st.sampled_from([4, 4, 5, 9])),
        head_dim=draw(st.sampled_from([8, 2, 16])),
        num_qo_heads=draw(st.integers(1, 4)),
        num_kv_heads=draw(st.integers(1, 3)),
        num_slots=draw(st.sampled_from([6, 3, 8, 40])),
        dtype=draw(st.sampled_from(FLOATS)),
        index=draw(st.sampled_from(INDICES)),
    )
    for name in ("q_out", "k_out"):
        if draw(st.booleans()):
            made.output(name)
            if name not in made.memory_of and draw(st.booleans()):
                made.memory_of[name] = (name.removesuffix("_out"), 0)  # in place
    for name in ARRAYS:
        if name in made.shapes and name not in made.layouts and draw(st.integers(0, 3)) == 0:
            made.layouts[name] = "backwards"
    return made


@functools.cache
def disagreements_of_planned_calls():
    """Code -> the first planned call that its guard judges wrongly: with nothing wrong, one thing, or two."""
    some = [(), *itertools.combinations(FAULTS, 1), *itertools.combinations(FAULTS[::3], 2)]
    calls = [([name_of(fault) for fault in faults], make(planned(*faults))) for faults in some]
    for sizes in itertools.product([0, 1, 4], [2, 8], [1, 3], [1, 2], [1, 6], FLOATS, INDICES):
        calls.append((sizes, make(plan(*sizes))))
    for name, dtype in itertools.product("qk", FLOATS):
        call = arguments(dtype=dtype)
        calls.append((f"{name} in place", call | {f"{name}_out": call[name]}))
    first = {}
    for what, call in calls:
        for code, found in disagreements(call).items():
            first.setdefault(code, f"{found}: {what}")
    return first


@pytest.mark.parametrize("code", CODES)
def test_guards(code):
    """A guard is true exactly when check does not list its entry, whatever else is wrong."""
    assert code not in disagreements_of_planned_calls(), disagreements_of_planned_calls()[code]


@settings(max_examples=400, deadline=None, database=None)
@given(random_plans())
def test_guards_of_random_calls(made):
    assert disagreements(make(made)) == {}


OTHER_DTYPES = ["?", "i1", "i2", "u1", "u2", "u4", "u8", "f8", "c8", "c16", ">f4", ">f2", ">f8", ">i4", ">i8"]


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
def test_guards_of_other_dtypes(dtype):
    """In any array, in both pools at once, in place, and between two elements."""
    for name in ("q", "k", "v", "k_pool", "v_pool", "positions", "slots"):
        call = arguments()
        other = np.zeros(call[name].shape, dtype)
        assert disagreements(call | {name: other}) == {}
        memory = np.zeros(other.nbytes + 16, np.uint8)
        between = np.ndarray(other.shape, dtype, memory, max(other.itemsize // 2, 1))
        assert disagreements(call | {name: between}) == {}
    call = arguments()
    pool = np.zeros(call["k_pool"].shape, dtype)
    assert disagreements(call | {"k_pool": pool, "v_pool": pool}) == {}
    q = np.zeros(call["q"].shape, dtype)
    assert disagreements(call | {"q": q, "q_out": q}) == {}


def test_a_guard_that_is_wrong_is_seen(monkeypatch):
    entry = {"code": "RP021", "guard": "positions.size == 0 or abs(positions).max() < 2**31"}
    monkeypatch.setattr(ropepool, "errors", lambda: [entry])
    assert disagreements(make(plan())) == {}
    lowest = [fault for fault in FAULTS if "-2147483648, beyond" in fault.line]
    assert "the guard says True" in disagreements(make(planned(*lowest)))["RP021"]


# ---- What check can tell although something else is wrong


def test_check_does_not_guess_what_a_shape_leaves_open():
    """Without 3 axes k_pool has no number of slots, and q none of tokens."""
    paged = np.zeros((10, 16, 2, 64), np.float32)
    call = arguments(4, 64, 8, 2, slots=np.array([5, 999, 1, 2]))
    assert codes(call | {"k_pool": paged, "v_pool": paged.copy()}) == ["RP003", "RP008"]
    call = arguments(4, 64, 8, 2)
    flat = call["q"].reshape(2, -1)
    assert codes(call | {"q": flat}) == ["RP001", "RP004"]
    assert codes(call | {"q": flat, "slots": np.arange(5)}) == ["RP001", "RP004", "RP007"]
    assert codes(call | {"q": flat, "k": call["k"][:, :1]}) == ["RP001", "RP004", "RP005", "RP006"]


@pytest.mark.parametrize("name, value, code", [("slots", 99, "RP020"), ("positions", 2**31, "RP021")])
def test_check_reads_the_values_of_an_array_with_gaps(name, value, code):
    values = np.zeros(8, np.int64)
    values[4] = value
    assert codes(arguments(**{name: values[::2]})) == ["RP016", code]


def test_addresses_of_two_devices_are_not_compared():
    made = plan()
    made.memory_of["v_pool"] = ("k_pool", 0)
    made.devices["v_pool"] = 2
    call = make(made)
    assert codes(call) == ["RP018"] and disagreements(call) == {}


def test_check_sees_an_overlap_of_arrays_with_gaps():
    pool = np.zeros((16, 2, 128), np.float32)[..., ::2]
    assert codes(arguments(k_pool=pool, v_pool=pool)) == ["RP016", "RP019"]


# ---- Overlap, against memory itself


@st.composite
def any_view(draw, memory, rows):
    """[rows, 2, 8] anywhere in `memory`, with any strides but for the innermost one."""
    strides = [draw(st.integers(-90, 90)), draw(st.integers(-40, 40))]
    reaches = [strides[0] * (rows - 1), strides[1]]
    low, high = -sum(min(reach, 0) for reach in reaches), sum(max(reach, 0) for reach in reaches) + 8
    start = draw(st.integers(low, len(memory) - high))
    return np.ndarray((rows, 2, 8), np.float32, memory, 4 * start, (4 * strides[0], 4 * strides[1], 4))


def elements(array):
    """How many different elements a view of 8 lanes has."""
    rows, heads = np.ogrid[: array.shape[0], : array.shape[1]]
    starts = (rows * array.strides[0] + heads * array.strides[1]) // 4
    return len(np.unique(starts[..., None] + np.arange(8)))


def nested(array):
    """Each step goes past all that lies inside it, as where views are made by slicing and transposing."""
    inner, outer = sorted(zip(np.abs(array.strides[:2]) // 4, array.shape[:2], strict=True))
    return inner[0] >= 8 and outer[0] >= 8 + inner[0] * (inner[1] - 1)


@settings(max_examples=400, deadline=None, database=None)
@given(st.data(), st.sampled_from([("q_out", "v"), ("q_out", "k_pool"), ("k_pool", "v")]))
def test_shared_memory_is_always_refused(data, names):
    memory = np.zeros(1200, np.float32)
    call = arguments(4, 8, 2, 2, 5)
    views = [data.draw(any_view(memory, 5 if name == "k_pool" else 4)) for name in names]
    call |= dict(zip(names, views, strict=True))
    listed = codes(call)
    written = [view for name, view in zip(names, views, strict=True) if name in WRITTEN]
    if np.shares_memory(*views) or any(elements(view) < view.size for view in written):
        assert listed == ["RP019"]
    elif not np.may_share_memory(*views) and all(map(nested, written)):
        assert listed == []
    else:
        assert listed in ([], ["RP019"])  # apart, but perhaps not seen so


# ---- What is fine


@pytest.mark.parametrize("name", ["q", "k", "v", "positions", "slots"])
def test_read_only_inputs_are_fine(name):
    call = arguments()
    call[name].flags.writeable = False
    checked_call(call)


def test_inputs_may_be_one_array():
    x = np.ones((4, 2, 64), np.float32)
    index = np.arange(4)
    checked_call(arguments(4, 64, 2, 2, q=x, k=x, v=x, positions=index, slots=index))


def test_heads_need_not_be_multiples():
    checked_call(arguments(3, 64, 5, 3))


def test_arrays_without_elements_may_have_any_strides():
    empty = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (0, 2, 64), (-12, 0, 8))
    index = np.lib.stride_tricks.as_strided(np.zeros(8, np.int64), (0,), (24,))
    call = arguments(0, 64, 2, 2, q=empty, k=empty, v=empty, positions=index, slots=index, k_pool=empty, v_pool=empty)
    assert ropepool.check(**call, q_out=empty, k_out=empty) == []
    checked_call(call)


def test_an_innermost_axis_of_one_may_have_any_stride():
    positions = np.arange(8)[3:5][:1:2]
    strange = np.lib.stride_tricks.as_strided(np.arange(3), (1,), (80,))
    for array in (positions, strange):
        checked_call(arguments(1, positions=array, slots=array))


def test_the_first_fault_of_several_is_named():
    call = arguments(5, slots=np.array([3, -9, 16, 2**40, 17]), positions=np.array([0, -(2**31) + 1, 2**31 - 1, 2**31, 2**62]))
    assert [error.summary for error in ropepool.check(**call)] == [
        "slots[2] is 16, but the pools have 16 slots",
        "positions[3] is 2147483648, beyond +-2147483647",
    ]
    assert refused(call).code == "RP020"


@pytest.mark.parametrize("name", [name for name in ARRAYS if name in oracle.WRITTEN])
def test_a_refused_call_leaves_its_outputs(name):
    """Also those that come before the refused argument."""
    call = arguments()
    call |= {"q_out": np.full_like(call["q"], 5), "k_out": np.full_like(call["k"], 5)}
    for changes in ({"slots": np.array([0, 1, 2, 16])}, {"positions": np.array([0, 1, 2, -(2**31)])}, {"rope_base": 0.0}):
        before = call[name].copy()
        refused(call | changes)
        assert_same_bits(call[name], before)
