"""Biases, norms and a scale fused with the rope, against an oracle in float64; and what must hold whatever they are."""

import itertools

import head_oracle
import ml_dtypes
import mpmath
import numpy as np
import pytest
import ropepool
from head_oracle import Norm, Turn, assert_near, call_for, checked_call, exactly, heads_of, normed, run
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLOATS, assert_same_bits, bits, copies
from ropepool import Rope
from test_contract import DEFAULTS
from test_op_properties import SETTINGS, calls

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
WIDTHS = [2, 6, 80, 96, 128, 192, 576, 1024]
KINDS = list(itertools.product([False, True], ["none", "lane", "head", "token"]))  # LayerNorm?, and the shape of its weight


def weight_of(shape, heads, head_dim, dtype=np.float32, seed=0):
    """Around 1 with either sign, and no two alike."""
    lengths = {"none": None, "lane": (head_dim,), "head": (heads, head_dim), "token": (heads * head_dim,)}[shape]
    if lengths is None:
        return None
    random = np.random.default_rng(seed)
    return (random.uniform(0.5, 2, lengths) * random.choice([-1, 1], lengths)).astype(dtype)


def bias_of(heads, head_dim, dtype=np.float32, flat=False, seed=1):
    bias = np.random.default_rng(seed).standard_normal((heads, head_dim)).astype(dtype)
    return bias.reshape(-1) if flat else bias


def with_norms(call, mean, shape, dtype=np.float32, eps=1e-5, **others):
    """The call with a norm on q and another on k."""
    head_dim = call["head_dim"]
    return call | {
        f"{name}_norm": Norm(weight_of(shape, call[heads], head_dim, dtype, seed), eps, mean, **others)
        for seed, (name, heads) in enumerate((("q", "num_qo_heads"), ("k", "num_kv_heads")))
    }


def with_biases(call, dtype=np.float32, flat=False):
    widths = {"q": call["q"].shape[1:], "k": call["k"].shape[1:], "v": call["v"].shape[1:]}
    return call | {f"{name}_bias": bias_of(*width, dtype, flat, seed) for seed, (name, width) in enumerate(widths.items())}


def plain(call):
    """Every array on its own, without gaps, and the outputs to be made."""
    return copies({name: value for name, value in call.items() if name not in ("q_out", "k_out")})


def apart(options):
    """Biases and norms with weights in memory of their own."""
    copied = {name: Norm(x.weight.copy(), x.eps, x.mean, x.unit_offset) for name, x in options.items() if isinstance(x, Norm)}
    return copies(options) | copied


def arrays_of(results):
    return [np.array(result) for result in results]


def assert_same_results(actual, expected, what=""):
    for name, one, other in zip(("q_rot", "k_rot", "k_pool", "v_pool"), actual, expected, strict=True):
        assert_same_bits(one, other, f"{name} {what}")


# ---- The oracle itself


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("shape", ["lane", "head", "token"])
def test_the_oracle_agrees_with_mpmath(shape, mean):
    x = np.random.default_rng(3).standard_normal((2, 3, 6))
    weight, eps = weight_of(shape, 3, 6), 1e-3
    got = normed(exactly(x), Norm(weight, eps, mean, unit_offset=True)).value
    for token in range(2):
        groups = [x[token].reshape(-1)] if shape == "token" else list(x[token])
        expected = []
        for group in groups:
            lanes = [mpmath.mpf(value) for value in group]
            middle = mpmath.fsum(lanes) / len(lanes) if mean else 0
            squares = mpmath.fsum((lane - middle) ** 2 for lane in lanes) / len(lanes)
            expected += [(lane - middle) / mpmath.sqrt(squares + eps) for lane in lanes]
        factors = np.broadcast_to(weight.reshape(-1, 6) if shape != "lane" else weight, (3, 6)).reshape(-1)
        expected = [float(value * (1 + mpmath.mpf(float(factor)))) for value, factor in zip(expected, factors, strict=True)]
        np.testing.assert_allclose(got[token].reshape(-1), expected, rtol=1e-12, atol=1e-14)


@each_dtype
def test_the_tolerance_is_one_rounding(dtype):
    """A float16 or bfloat16 result next to the right one is refused, one of float32 some units further on."""
    call = with_biases(with_norms(call_for(Turn(), dtype=dtype), False, "lane"))
    expected = heads_of(call["q"], call["positions"], call["rope"], call["q_bias"], call["q_norm"])
    right = expected.value.astype(dtype)
    assert_near(right, expected, dtype)
    step = 1 if dtype != np.float32 else 512
    with pytest.raises(AssertionError, match="times the tolerance"):
        assert_near((bits(right) + bits(right).dtype.type(step)).view(dtype), expected, dtype)


@pytest.mark.parametrize(
    "wrong",
    [{"eps": 0.0}, {"mean": True}, {"unit_offset": True}, {"weight": None}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_the_oracle_tells_norms_apart(wrong):
    x = np.random.default_rng(3).standard_normal((2, 3, 64), np.float32)
    right = {"weight": weight_of("lane", 3, 64), "eps": 1e-5}
    expected = normed(exactly(x), Norm(**right))
    with pytest.raises(AssertionError, match="times the tolerance"):
        assert_near(normed(exactly(x), Norm(**right | wrong)).value.astype(np.float32), expected, np.float32)


# ---- Values


@each_dtype
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_every_norm_at_every_width(head_dim, pairing, dtype):
    turn = Turn(rotary_dim=head_dim, pairing=pairing)
    for mean, shape in KINDS:
        call = call_for(turn, 3, head_dim, 3, 2, dtype)
        checked_call(with_biases(with_norms(call, mean, shape)) | {"q_scale": 0.125 * 1.1})


@each_dtype
@pytest.mark.parametrize("mean, shape", KINDS)
def test_weights_and_biases_of_either_dtype(mean, shape, dtype):
    for of_weights, of_biases, flat in ((np.float32, dtype, True), (dtype, np.float32, False), (dtype, dtype, True)):
        call = call_for(Turn(), 5, 64, 5, 3, dtype)
        checked_call(with_biases(with_norms(call, mean, shape, of_weights), of_biases, flat))


@each_dtype
@pytest.mark.parametrize("shape", ["none", "lane", "head", "token"])
def test_unit_offset(shape, dtype):
    call = call_for(Turn(), 5, 64, 5, 3, dtype)
    checked_call(with_norms(call, False, shape, dtype, unit_offset=True))  # without a weight there is nothing to add to


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize(
    "given", list(itertools.product([False, True], repeat=6)), ids=lambda given: "".join("01"[x] for x in given)
)
def test_each_by_itself_and_in_any_company(given, dtype):
    call = call_for(Turn(rotary_dim=32), 6, 80, 3, 2, dtype)
    every = with_biases(with_norms(call, False, "lane")) | {"q_scale": 3.7}
    names = ("q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "q_scale")
    checked_call(call | {name: every[name] for name, wanted in zip(names, given, strict=True) if wanted})


@each_dtype
@pytest.mark.parametrize(
    "head_dim, rotary_dim, rotary_offset, pairing",
    [
        (128, 64, 0, "neox"),
        (80, 32, 0, "neox"),
        (192, 64, 128, "interleaved"),
        (96, 26, 7, "neox"),
        (96, 26, 7, "interleaved"),
        (128, 64, 64, "neox"),
        (10, 2, 3, "interleaved"),
        (8, 2, 6, "neox"),
        (576, 64, 512, "interleaved"),
        (1200, 1026, 100, "neox"),
    ],
)
def test_lanes_that_do_not_turn_get_bias_norm_and_scale(head_dim, rotary_dim, rotary_offset, pairing, dtype):
    turn = Turn(rotary_dim=rotary_dim, rotary_offset=rotary_offset, pairing=pairing)
    for mean, shape in [(False, "lane"), (True, "head"), (False, "token"), (None, None)]:
        call = with_biases(call_for(turn, 3, head_dim, 3, 2, dtype)) | {"q_scale": -0.3}
        checked_call(call if mean is None else with_norms(call, mean, shape))


@each_dtype
@pytest.mark.parametrize("num_qo_heads, num_kv_heads", [(1, 1), (1, 3), (2, 1), (7, 5), (32, 8), (64, 64), (128, 1)])
def test_head_counts(num_qo_heads, num_kv_heads, dtype):
    for mean, shape in [(False, "lane"), (True, "head"), (False, "token")]:
        call = call_for(Turn(rotary_dim=32), 3, 32, num_qo_heads, num_kv_heads, dtype)
        checked_call(with_biases(with_norms(call, mean, shape)))


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 15, 16, 17, 63, 64, 65, 300])
def test_token_counts(num_tokens):
    checked_call(with_biases(with_norms(call_for(Turn(rotary_dim=16), num_tokens, 16, 2, 1, BF16), False, "lane")))


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-6, 1e-5, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("mean", [False, True])
@each_dtype
def test_eps_counts(mean, eps, dtype):
    """Of heads whose lanes are about as large as the root of eps, and far smaller and larger."""
    for size in (1e-3, 1.0, 100.0):
        call = call_for(Turn(), 3, 64, 2, 2, dtype)
        for name in "qk":
            call[name] = (call[name].astype(np.float32) * np.float32(size)).astype(dtype)
        checked_call(with_norms(call, mean, "lane", eps=eps))


@pytest.mark.parametrize("head_dim", [64, 80, 1024])
def test_a_large_mean_costs_no_precision(head_dim):
    """LayerNorm of lanes around 1,000: a variance as the difference of two large numbers would be off in the third digit."""
    call = call_for(Turn(rotary_dim=head_dim), 4, head_dim, 3, 2)
    for name in "qk":
        call[name] += 1000
    q_rot = checked_call(with_norms(call, True, "none", eps=1e-6))[0]
    np.testing.assert_allclose(np.sqrt((q_rot.astype(np.float64) ** 2).mean(axis=-1)), 1, rtol=1e-4)


# ---- Closed forms


@each_dtype
def test_the_bias_comes_first_the_scale_last(dtype):
    """Heads that are nothing but their bias have the norm of 1 a lane, whatever the bias, and are scaled after that."""
    call = call_for(Turn(), 3, 64, 2, 2, dtype, positions=np.array([0, 1, 4000]))
    call["q"][:] = call["k"][:] = 0
    bias = np.full((2, 64), 0.25, np.float32)
    norm = Norm(eps=0.0)
    q_rot, k_rot, *_ = checked_call(call | {"q_bias": bias, "k_bias": bias, "q_norm": norm, "k_norm": norm, "q_scale": 4.0})
    np.testing.assert_array_equal(q_rot[0].astype(np.float32), 4)
    np.testing.assert_array_equal(k_rot[0].astype(np.float32), 1)
    size = np.linalg.norm(q_rot.astype(np.float64), axis=-1)
    np.testing.assert_allclose(size, 4 * 8, rtol=float(ml_dtypes.finfo(dtype).eps))


def test_weights_stand_at_their_lanes():
    """Ones keep their weights at position 0, and each head its own."""
    call = call_for(Turn(rotary_dim=16), 1, 16, 3, 2, positions=np.array([0]))
    call["q"][:] = call["k"][:] = 1
    for shape in ("lane", "head", "token"):
        q_rot, k_rot, *_ = run(with_norms(call, False, shape, eps=0.0))
        for rotated, heads, seed in ((q_rot, 3, 0), (k_rot, 2, 1)):
            expected = np.broadcast_to(weight_of(shape, heads, 16, seed=seed).reshape(-1, 16), (heads, 16))
            np.testing.assert_array_equal(rotated[0], expected)


@each_dtype
def test_a_norm_of_all_heads_sees_them_all(dtype):
    """One head of twos beside three of zeros: over all heads the mean square is 1, over each it is 4 and 0."""
    call = call_for(Turn(rotary_dim=32), 1, 32, 4, 4, dtype, positions=np.array([0]))
    call["q"][:] = call["k"][:] = 0
    call["q"][:, 1] = call["k"][:, 1] = 2
    for shape, expected in ((4 * 32, 2), ((4, 32), 1), (32, 1)):
        norm = Norm(np.ones(shape, np.float32), eps=1e-20)
        q_rot, k_rot, *_ = run(call | {"q_norm": norm, "k_norm": norm})
        for rotated in (q_rot, k_rot):
            np.testing.assert_array_equal(rotated[0, 1].astype(np.float32), expected)
            np.testing.assert_array_equal(rotated[0, [0, 2, 3]].astype(np.float32), 0)


def test_neutral_options_change_no_bit():
    for dtype in FLOATS:
        call = call_for(Turn(rotary_dim=48), 5, 64, 3, 2, dtype)
        nothing = {"q_bias": None, "k_bias": None, "v_bias": None, "q_norm": None, "k_norm": None, "q_scale": 1.0}
        zero = {"q_bias": np.zeros((3, 64), np.float32), "k_bias": np.zeros(128, dtype), "v_bias": np.zeros((2, 64), dtype)}
        expected = arrays_of(run(plain(call)))
        for options in (nothing, zero, zero | {"q_scale": 1}):
            assert_same_results(run(plain(call) | options), expected)


@pytest.mark.parametrize("mean", [False, True])
def test_what_says_the_same_gives_the_same_bits(mean):
    for dtype in FLOATS:
        call = call_for(Turn(), 5, 64, 3, 1, dtype)
        for head_weight in (None, np.ones(64, np.float32), np.ones((3, 64), dtype)):
            one, other = Norm(head_weight, 1e-6, mean), Norm(None, 1e-6, mean)
            assert_same_results(run(plain(call) | {"q_norm": one}), run(plain(call) | {"q_norm": other}))
        weight = weight_of("lane", 1, 64)
        several = {"q_norm": Norm(np.stack([weight] * 3), 1e-6, mean), "k_norm": Norm(weight[None], 1e-6, mean)}
        single = {name: Norm(weight, 1e-6, mean) for name in several}
        checked_call(plain(call) | several)  # a weight for every head is multiplied in another order
        checked_call(plain(call) | single)
        if not mean:  # 1 + weight, of weights that leave it exact
            offset = np.linspace(-1, 1, 64, dtype=np.float32).astype(np.float16).astype(np.float32)
            shifted = Norm(offset, 1e-6, unit_offset=True)
            assert_same_results(run(plain(call) | {"q_norm": shifted}), run(plain(call) | {"q_norm": Norm(1 + offset, 1e-6)}))


# ---- Special values


@each_dtype
@pytest.mark.parametrize("mean", [False, True])
def test_zero_rows(mean, dtype):
    """With an eps they stay zeros; without one they are 0/0, and that is NaN. Neighbours are not touched by it."""
    call = call_for(Turn(), 3, 64, 2, 2, dtype)
    call["q"][1, 0] = call["k"][1, 0] = 3 if mean else 0
    with_eps = arrays_of(run(plain(with_norms(call, mean, "lane"))))
    without = arrays_of(run(plain(with_norms(call, mean, "lane", eps=0.0))))
    for rotated in with_eps[:2]:
        assert not rotated[1, 0].astype(np.float32).any()
        assert np.isfinite(rotated.astype(np.float32)).all()
    for rotated in without[:2]:
        nan = np.isnan(rotated.astype(np.float32))
        assert nan[1, 0].all() and np.count_nonzero(nan) == 64
    slot = call["slots"][1]
    assert np.isnan(without[2][slot, 0].astype(np.float32)).all() and not with_eps[2][slot, 0].astype(np.float32).any()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_squares_that_overflow_float32(dtype):
    """The sums are float32's: from 1.9e19 on a square is infinite, and by its root a finite lane becomes 0."""
    call = call_for(Turn(), 2, 64, 2, 2, dtype)
    call["q"][0, 0] = 1e30
    q_rot = run(plain(with_norms(call, False, "lane")))[0]
    assert not q_rot[0, 0].astype(np.float32).any()
    assert np.isfinite(q_rot.astype(np.float32)).all() and q_rot[0, 1].astype(np.float32).any()


@each_dtype
def test_denormals_are_kept(dtype):
    """The least numbers of each dtype, normalized by an eps alone, or just added to."""
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    call = call_for(Turn(), 3, 64, 2, 2, dtype, positions=np.array([0, 1, 4000]))
    for name in "qk":
        call[name][:] = (np.arange(-20, 44) * tiny).astype(dtype)
    for eps in (1e-12, 1e-6):
        q_rot = checked_call(with_norms(call, False, "lane", eps=eps))[0]
        assert np.count_nonzero(q_rot[0]) == 2 * 63
    bias = np.full((2, 64), tiny, dtype)
    bias[:, 5] = -bias[:, 5]
    q_rot = checked_call(call | {"q_bias": bias, "k_bias": bias, "v_bias": bias})[0]
    expected = call["q"][0].astype(np.float32) + bias.astype(np.float32)
    assert_same_bits(q_rot[0] + np.zeros((), dtype), expected.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_the_least_numbers_have_a_norm(dtype):
    """Squares of float16's and of many of bfloat16's denormals are numbers of float32, so that eps is not needed."""
    size = 2.0**-24 if dtype == np.float16 else 2.0**-60
    call = call_for(Turn(), 3, 64, 2, 2, dtype)
    for name in "qk":
        call[name][:] = (np.arange(-20, 44) * size).astype(dtype)
    checked_call(with_norms(call, False, "lane", eps=0.0))
    checked_call(with_norms(call, True, "lane", eps=0.0))


@each_dtype
@pytest.mark.parametrize("mean, shape", KINDS)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_pass_through_the_arithmetic(special, mean, shape, dtype):
    """One lane of one head: what it makes of the others is what float32 says, and heads beside it keep their bits."""
    call = with_norms(call_for(Turn(rotary_dim=32), 3, 64, 3, 2, dtype), mean, shape)
    clean = arrays_of(run(plain(call)))
    call["q"][1, 2, 5] = special
    with np.errstate(invalid="ignore"):
        group = call["q"][1].astype(np.float32) if shape == "token" else call["q"][1, 2:].astype(np.float32)
        middle = group.mean() if mean else np.float32(0)
        away = group - middle
        factor = 1 / np.sqrt((away * away).mean())
        of_float32 = away * factor
    expected = np.isnan(of_float32)[..., :]
    partner = 5 + 16  # of lane 5 in 32 turned lanes
    expected[..., partner] |= expected[..., 5]
    expected[..., 5] |= expected[..., partner]
    actual = run(plain(call))[0]
    group = actual[1] if shape == "token" else actual[1, 2:]
    np.testing.assert_array_equal(np.isnan(group.astype(np.float32)), expected)
    if not np.isnan(special) and not mean:  # the others are divided by infinity
        assert not group.astype(np.float32)[~expected].any()
    beside = np.ones((3, 3), bool)
    beside[1, slice(None) if shape == "token" else 2] = False
    assert_same_bits(actual[beside], clean[0][beside])


@each_dtype
def test_nan_in_a_weight_bias_or_scale_stays_at_its_lane(dtype):
    """They are data, and not looked at; eps and q_scale alone must be finite."""
    call = with_biases(with_norms(call_for(Turn(rotary_dim=32), 2, 64, 3, 2, dtype), False, "head"))
    call["q_norm"].weight[1, 40] = np.nan
    call["v_bias"][1, 3] = np.inf
    q_rot, _, _, v_pool = run(call)
    nan = np.isnan(q_rot.astype(np.float32))
    assert nan[:, 1, 40].all() and np.count_nonzero(nan) == 2
    infinite = np.isinf(v_pool[call["slots"]].astype(np.float32))
    assert infinite[:, 1, 3].all() and np.count_nonzero(infinite) == 2


@pytest.mark.parametrize("of_the_data", [False, True])
@pytest.mark.parametrize("pattern", ["ones", "ones but the sign", "one in the lowest bit"])
@each_dtype
def test_a_nan_stays_one_whatever_its_bits(dtype, pattern, of_the_data):
    """Memory set to 0xFF is NaN of all ones: the carry of rounding it to bfloat16 would make it 0."""
    weights = np.dtype(dtype if of_the_data else np.float32)
    integer = np.dtype(f"i{weights.itemsize}").type
    infinity = np.array(np.inf, weights).view(integer)
    nan = {"ones": integer(-1), "ones but the sign": np.iinfo(integer).max, "one in the lowest bit": infinity + integer(1)}[
        pattern
    ]
    call = with_biases(with_norms(call_for(Turn(rotary_dim=64), 2, 128, 3, 2, dtype), False, "head", weights), weights)
    call["q_norm"].weight.view(integer)[1, 70] = nan
    call["k_norm"].weight.view(integer)[0, 3] = nan  # in lanes that turn, so their partner's too
    call["v_bias"].view(integer)[1, 3] = nan
    q_rot, k_rot, k_pool, v_pool = run(call)
    for array, lanes in ((q_rot, {(1, 70)}), (k_rot, {(0, 3), (0, 35)}), (v_pool[call["slots"]], {(1, 3)})):
        token, head, lane = np.nonzero(np.isnan(array.astype(np.float32)))
        assert len(token) == 2 * len(lanes) and set(zip(head.tolist(), lane.tolist(), strict=True)) == lanes


# ---- Rounding


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("mean, shape", KINDS)
def test_rounded_once(mean, shape, dtype):
    """The arithmetic is float32's, whatever the dtype: its results, rounded once to nearest even, are the same bits."""
    call = with_biases(with_norms(call_for(Turn(rotary_dim=64), 40, 96, 16, 4, dtype), mean, shape, dtype), dtype)
    call |= {"q_scale": 0.7}
    wide = {name: x.astype(np.float32) for name, x in call.items() if getattr(x, "dtype", None) == dtype}
    wide |= {
        name: Norm(None if call[name].weight is None else call[name].weight.astype(np.float32), 1e-5, mean)
        for name in ("q_norm", "k_norm")
    }
    expected = run(plain(call | wide))
    for narrow, other in zip(run(plain(call)), expected, strict=True):
        assert_same_bits(narrow, other.astype(dtype))


FORMS = {
    "plain": Rope(10000.0, rotary_dim=64),
    "interleaved": Rope(10000.0, rotary_dim=48, rotary_offset=9, pairing="interleaved"),
    "yarn": Rope(1e6, rotary_dim=64, scaling=ropepool.YarnScaling(factor=4.0, original_length=32768)),
    "llama3": Rope(
        5e5,
        rotary_dim=64,
        scaling=ropepool.Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192),
    ),
    "proportional": Rope(1e6, rotary_dim=64, scaling=ropepool.ProportionalScaling(proportion=0.25)),
    "sections": Rope(10000.0, rotary_dim=64, sections=[8, 12, 12]),
    "interleaved sections": Rope(10000.0, rotary_dim=64, sections=[12, 10, 10], section_order="interleaved"),
    "sets": Rope.join([Rope(10000.0, rotary_dim=64), Rope(500000.0, rotary_dim=64)]),
    "table": Rope(rotary_dim=64, cos_sin=np.random.default_rng(0).standard_normal((5000, 64)).astype(np.float16)),
}


@pytest.mark.parametrize("angles", ["exact", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_rope(form, angles):
    """In float32, biases and norms with a rope that stands still, and then the rope alone, are near to both at once."""
    rope = FORMS[form]
    if rope.table_rows is not None and angles == "float32":
        pytest.skip("a table has no angles")
    for mean, shape in KINDS:
        call = with_biases(with_norms(call_for(rope, 7, 80, 3, 2), mean, shape)) | {"angles": angles}
        if rope.num_axes > 1:
            call["positions"] = np.random.default_rng(5).integers(0, 5000, (3, 7))
        if rope.num_sets > 1:
            call["rope_sets"] = np.arange(7) % 2
        still = Rope(rotary_dim=2, frequencies=[0.0])
        first = run(plain(call) | {"rope": still, "positions": np.zeros(7, np.int64), "rope_sets": None})
        second = {"q": first[0], "k": first[1], "k_pool": call["k_pool"].copy(), "v_pool": call["v_pool"].copy()}
        bare = {name: value for name, value in call.items() if not name.endswith(("_bias", "_norm"))}
        in_two = run(bare | second)
        at_once = run(plain(call))
        stretch = 5 if rope.table_rows is not None else 2  # what cos and sin may be as large as
        for one, other, heads in zip(at_once[:2], in_two[:2], first[:2], strict=True):
            allowed = 8 * head_oracle.UNIT * stretch * 2 * np.abs(heads).max(axis=-1, keepdims=True)
            assert (np.abs(one.astype(np.float64) - other) <= allowed).all(), f"{form}, {mean}, {shape}"
        assert_same_bits(at_once[2][call["slots"]], at_once[1])


def test_f10_rows_of_all_axes_are_read():
    """M-RoPE under a norm, from a slice of a wider buffer."""
    buffer = np.zeros((3, 16), np.int64)
    buffer[:, 0] = 5, 7, 11
    call = call_for(Turn(rotary_dim=8, axes=(0, 0, 1, 2)), 1, 8, 1, 1, positions=buffer[:, :1])
    for name in "qk":
        call[name][:] = 3
    call |= {"q_norm": Norm(eps=0.0), "k_norm": Norm(np.full(8, 2, np.float32), eps=0.0)}
    q_rot, k_rot, *_ = checked_call(call)
    expected = [1.242586, 0.398157, 0.927608, 0.988940, -0.675262, 1.357008, 1.067494, 1.010939]
    np.testing.assert_allclose(q_rot[0, 0], expected, atol=1e-6)
    np.testing.assert_allclose(k_rot[0, 0], 2 * np.array(expected), atol=2e-6)


# ---- F18: the same numbers for a token in any company


@each_dtype
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
def test_f18_norm_and_partial_rope_at_every_batch_size(pairing, dtype):
    """The stated sample, and its kind: every head and token is right, and has the same bits alone and among many."""
    turn = Turn(rotary_dim=64, pairing=pairing)
    for of_weights in (np.float32, dtype):
        whole = with_norms(call_for(turn, 512, 128, 16, 4, dtype), False, "lane", of_weights, 1e-6)
        expected = arrays_of(checked_call(plain(whole)))
        for begin, end in [(0, 1), (511, 512), (0, 2), (0, 511), (1, 512), (100, 117), (255, 257)]:
            part = {name: whole[name][begin:end] for name in ("q", "k", "v", "positions", "slots")}
            q_rot, k_rot, k_pool, _ = run(plain(whole | part))
            assert_same_bits(q_rot, expected[0][begin:end])
            assert_same_bits(k_rot, expected[1][begin:end])
            assert_same_bits(k_pool[part["slots"]], expected[1][begin:end])


@pytest.mark.parametrize("num_qo_heads, num_kv_heads", [(1, 1), (3, 1), (5, 5), (7, 2), (9, 3), (16, 4), (33, 11), (64, 8)])
@pytest.mark.parametrize("mean, shape", [(False, "lane"), (True, "head"), (False, "token")])
def test_f18_any_number_of_heads(mean, shape, num_qo_heads, num_kv_heads):
    """A head's bits do not depend on how many stand beside it, unless the norm is over all of them."""
    turn = Turn(rotary_dim=64)
    whole = with_biases(with_norms(call_for(turn, 33, 128, num_qo_heads, num_kv_heads, BF16), mean, shape))
    expected = arrays_of(checked_call(plain(whole)))
    one = {name: whole[name][17:18] for name in ("q", "k", "v", "positions", "slots")}
    for rotated, other in zip(run(plain(whole | one))[:2], expected[:2], strict=True):
        assert_same_bits(rotated[0], other[17])
    if shape == "token":
        return
    for head in range(0, num_qo_heads, 4):
        weight = whole["q_norm"].weight
        alone = {
            "q": whole["q"][:, head : head + 1],
            "q_bias": whole["q_bias"][head : head + 1],
            "q_norm": Norm(weight[head] if weight.ndim == 2 else weight, 1e-5, mean),
            "num_qo_heads": 1,
        }
        assert_same_bits(run(plain(whole | alone))[0][:, 0], expected[0][:, head])


# ---- Layouts, places, threads


@each_dtype
@pytest.mark.parametrize("mean, shape", [(False, "lane"), (False, "token"), (True, "head")])
def test_in_place_and_views_give_the_same_bits(mean, shape, dtype):
    num_tokens, head_dim, num_qo_heads, num_kv_heads = 9, 80, 5, 2
    turn = Turn(rotary_dim=32, rotary_offset=16)
    call = with_biases(with_norms(call_for(turn, num_tokens, head_dim, num_qo_heads, num_kv_heads, dtype), mean, shape))
    expected = arrays_of(checked_call(plain(call)))
    packed = np.concatenate([call[name].reshape(num_tokens, -1) for name in "qkv"], axis=-1)
    cuts = np.cumsum([num_qo_heads * head_dim, num_kv_heads * head_dim])
    q, k, v = (part.reshape(num_tokens, -1, head_dim) for part in np.split(packed, cuts, axis=-1))
    assert all(part.base is not None for part in (q, k, v))
    for in_place in ((), ("q",), ("k",), ("q", "k")):
        packed[:] = np.concatenate([call[name].reshape(num_tokens, -1) for name in "qkv"], axis=-1)
        views = {"q": q, "k": k, "v": v}
        again = plain(call) | views | {f"{name}_out": views[name] for name in in_place}
        assert_same_results(checked_call(again), expected, f"in place: {in_place}")
    # Heads before tokens, every array.
    first = {name: np.ascontiguousarray(call[name].swapaxes(0, 1)).swapaxes(0, 1) for name in ("q", "k", "v")}
    pools = {name: np.ascontiguousarray(call[name].swapaxes(0, 1)).swapaxes(0, 1) for name in ("k_pool", "v_pool")}
    assert_same_results(checked_call(call | first | pools), expected, "heads first")


def test_weights_and_biases_may_be_views():
    call = call_for(Turn(), 5, 64, 3, 2)
    wide = np.random.default_rng(8).standard_normal((2, 9, 200), np.float32)
    views = {
        "q_bias": wide[0, ::3, 100:164],
        "k_bias": wide[1, 5:3:-1, 7:71],
        "v_bias": np.broadcast_to(wide[1, 0, :64], (2, 64)),
        "q_norm": Norm(wide[0, 8:2:-2, 20:84], 1e-6),
        "k_norm": Norm(wide[1, 7, 1:129], 1e-6),
    }
    assert_same_results(checked_call(plain(call) | views), run(plain(call) | apart(views)))
    read_only = plain(call) | apart(views)
    for name in ("q_bias", "k_bias", "v_bias"):
        read_only[name].flags.writeable = False
    assert_same_results(run(read_only), run(plain(call) | views))


@each_dtype
def test_weights_and_biases_may_lie_in_what_is_written(dtype):
    """They are read whole before the first write."""
    call = call_for(Turn(), 6, 64, 2, 2, dtype)
    call["v_pool"][:] = call["k_pool"][:] = np.random.default_rng(1).standard_normal(call["k_pool"].shape).astype(dtype)
    inside = {
        "q_bias": call["q"][2],
        "k_bias": call["k_pool"][call["slots"][0]],
        "v_bias": call["v_pool"][call["slots"][5]],
        "q_norm": Norm(call["k"][1].reshape(-1), 1e-6),
        "k_norm": Norm(call["q"][0, 1], 1e-6),
    }
    apart = {
        name: Norm(value.weight.copy(), 1e-6) if isinstance(value, Norm) else value.copy() for name, value in inside.items()
    }
    expected = arrays_of(run(plain(call) | apart))
    assert_same_results(run(call | inside | {"q_out": call["q"], "k_out": call["k"]}), expected)


@each_dtype
@pytest.mark.parametrize("mean, shape", [(False, "lane"), (True, "head"), (False, "token")])
def test_any_number_of_threads(num_threads, mean, shape, dtype):
    call = with_biases(with_norms(call_for(Turn(rotary_dim=32), 700, 80, 8, 4, dtype), mean, shape)) | {"q_scale": 0.3}
    call["slots"][::3] = call["slots"][0]
    expected = None
    for width in (1, 2, 3, 8):
        num_threads(width)
        for _ in range(3):
            actual = arrays_of(run(plain(call)))
            expected = expected or actual
            assert_same_results(actual, expected, f"{width} threads")
    in_place = plain(call)
    assert_same_results(run(in_place | {"q_out": in_place["q"], "k_out": in_place["k"]}), expected, "in place")


@st.composite
def options(draw, call):
    """Biases, norms and a scale for a call, in any dtype and layout that it allows."""
    dtype, random = call["q"].dtype, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = {}
    for name, heads in (("q", call["num_qo_heads"]), ("k", call["num_kv_heads"]), ("v", call["num_kv_heads"])):
        lanes = call["head_dim"]
        if draw(st.booleans()):
            lengths = draw(st.sampled_from([(heads, lanes), (heads * lanes,)]))
            found[f"{name}_bias"] = random.standard_normal(lengths).astype(draw(st.sampled_from([np.float32, dtype])))
        if name != "v" and draw(st.booleans()):
            shape = draw(st.sampled_from(["none", "lane", "head", "token"]))
            of_weight = draw(st.sampled_from([np.float32, dtype]))
            weight = weight_of(shape, heads, lanes, of_weight, draw(st.integers(0, 99)))
            mean = (
                draw(st.booleans()) and lanes > 2
            )  # two lanes and their mean: both as far from it, and a sign is all that is left
            offset = not mean and weight is not None and draw(st.booleans())
            found[f"{name}_norm"] = Norm(weight, draw(st.sampled_from([1e-6, 1e-2])), mean, offset)
    if draw(st.booleans()):
        found["q_scale"] = draw(st.floats(-10, 10, width=32))
    return found


@settings(max_examples=150, **SETTINGS)
@given(calls(), st.data())
def test_any_call(case, data):
    """Any view, in place or not: the oracle's values, the bits of arrays of their own, and not a byte beside them written."""
    buffers, call = case.prepare()
    before = {name: buffer.copy() for name, buffer in buffers.items()}
    found = data.draw(options(call))
    made = {name: value.make() if isinstance(value, Norm) else value for name, value in found.items()}
    call |= {"angles": "exact"}
    assert ropepool.check(**call, **made) == []
    base = call["rope_base"]
    turn = {"rope": Turn(base, call["head_dim"]), "rope_base": None}
    expected = arrays_of(ropepool.rope_pool_fused(**plain(call) | made))
    actual = checked_call(call | found | turn)
    assert_same_results(actual, expected)
    written = {name.removesuffix("_out"): name for name in ("q_out", "k_out", "k_pool", "v_pool") if name in call}
    for short, name in written.items():
        place = case.places[short if short in case.in_place else name]
        place.on(before)[...] = call[name]
    for name, buffer in buffers.items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=f"wrote beside the arrays in {name}")


def test_f35_the_callers_k_is_the_pools_k():
    for pairing in ("neox", "interleaved"):
        call = with_biases(with_norms(call_for(Turn(rotary_dim=128, pairing=pairing), 22, 128, 32, 4, BF16), False, "lane"))
        expected = arrays_of(checked_call(plain(call)))
        call["slots"][7] = -1
        q_rot, k_rot, k_pool, _ = checked_call(call | {"q_out": call["q"], "k_out": call["k"]})
        assert k_rot is call["k"] and q_rot is call["q"]
        assert_same_bits(k_rot, expected[1])
        stored = call["slots"] >= 0
        assert_same_bits(k_pool[call["slots"][stored]], k_rot[stored])


# ---- What is refused


def refusal(**changes):
    """Of a call with this wrong, which must write nothing; and what check says of it."""
    call = call_for(Turn().make(), 4, 64, 3, 2) | changes
    call.setdefault("q_out", np.full((4, 3, 64), 7, np.float32))
    before = copies(call)
    with pytest.raises(ropepool.ContractError) as caught:
        run(call)
    for name, array in before.items():
        if isinstance(array, np.ndarray):
            assert_same_bits(call[name], array, f"{name} was written")
    return caught.value, [error.code for error in ropepool.check(**call)]


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def rms(*shape, dtype=np.float32, eps=1e-6):
    return ropepool.RMSNorm(zeros(*shape, dtype=dtype), eps=eps)


def layer(*shape, dtype=np.float32, eps=1e-6):
    return ropepool.LayerNorm(zeros(*shape, dtype=dtype), eps=eps)


UNSUITABLE = {
    "a bias of one head": ("q_bias", lambda: zeros(64), "(64,)"),
    "a bias of other heads": ("q_bias", lambda: zeros(2, 64), "(2, 64)"),
    "a bias with heads last": ("q_bias", lambda: zeros(64, 3), "(64, 3)"),
    "a bias with three axes": ("q_bias", lambda: zeros(1, 3, 64), "(1, 3, 64)"),
    "a bias without axes": ("q_bias", lambda: zeros(), "()"),
    "q's bias for k": ("k_bias", lambda: zeros(3, 64), "(3, 64)"),
    "q's flat bias for k": ("k_bias", lambda: zeros(192), "(192,)"),
    "q's bias for v": ("v_bias", lambda: zeros(3, 64), "(3, 64)"),
    "a bias of other lanes": ("v_bias", lambda: zeros(2, 66), "(2, 66)"),
    "a bias in float64": ("q_bias", lambda: zeros(3, 64, dtype=np.float64), "float64"),
    "a bias in float16 beside float32": ("k_bias", lambda: zeros(2, 64, dtype=np.float16), "float16"),
    "a bias in integers": ("v_bias", lambda: zeros(2, 64, dtype=np.int32), "int32"),
    "a byte-swapped bias": ("q_bias", lambda: zeros(3, 64, dtype=">f4"), "float32 (byte-swapped)"),
    "every second lane of a bias": ("q_bias", lambda: zeros(3, 128)[:, ::2], None),
    "a weight of other lanes": ("q_norm", lambda: rms(32), "(32,)"),
    "a weight of other heads": ("q_norm", lambda: rms(2, 64), "(2, 64)"),
    "a weight of q's heads for k": ("k_norm", lambda: rms(3, 64), "(3, 64)"),
    "a flat weight of q's heads for k": ("k_norm", lambda: layer(192), "(192,)"),
    "a weight of all heads in three axes": ("k_norm", lambda: layer(1, 2, 64), "(1, 2, 64)"),
    "an empty weight": ("q_norm", lambda: rms(0), "(0,)"),
    "a weight in float64": ("q_norm", lambda: rms(64, dtype=np.float64), "float64"),
    "a weight in float16 beside float32": ("k_norm", lambda: layer(64, dtype=np.float16), "float16"),
    "every second lane of a weight": ("k_norm", lambda: ropepool.RMSNorm(zeros(128)[::2], eps=1e-6), None),
}


@pytest.mark.parametrize("what", UNSUITABLE)
def test_an_unsuitable_bias_or_weight_is_refused(what):
    argument, make, actual = UNSUITABLE[what]
    error, listed = refusal(**{argument: make()})
    assert (error.code, error.argument) == ("RP034", argument)
    assert listed == ["RP034"]
    assert error.summary.startswith(f"{argument} must ") and error.summary.endswith(f"{error.expected}, got {error.actual}")
    assert error.expected and (actual is None or error.actual == actual)
    entry = ropepool.explain(error.summary)
    assert entry["code"] == "RP034" and argument in entry["argument"].split(", ")


def test_the_guard_says_what_check_says():
    (entry,) = (entry for entry in ropepool.errors() if entry["code"] == "RP034")
    base = call_for(Turn().make(), 4, 64, 3, 2)
    changes = [{argument: make()} for argument, make, _ in UNSUITABLE.values()]
    changes += [{"q_scale": scale} for scale in (np.inf, np.nan, 0.0, 3)]
    changes += [
        {name: make(64, eps=eps)} for name in ("q_norm", "k_norm") for make in (rms, layer) for eps in (-1.0, np.nan, 0.0)
    ]
    changes += [
        {"q_bias": zeros(192), "k_norm": rms(2, 64), "q_norm": layer(192)},
        {"v_bias": zeros(2, 96), "v_head_dim": 96},
        {},
    ]
    said = []
    for change in changes:
        call = base | change
        if call.get("v_head_dim"):
            call |= {"v": zeros(4, 2, 96), "v_pool": zeros(7, 2, 96)}
        holds = eval(entry["guard"], {"np": np, **DEFAULTS, **call})
        assert holds == ("RP034" not in [error.code for error in ropepool.check(**call)]), change
        said.append(bool(holds))
    assert said.count(True) == 9


@pytest.mark.parametrize("eps", [-1e-6, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
@pytest.mark.parametrize("make", [rms, layer])
def test_an_eps_that_makes_no_sense_is_refused(make, norm, eps):
    with pytest.raises(ropepool.ContractError) as caught:
        run(call_for(Turn().make(), 4, 64, 3, 2) | {norm: make(64, eps=eps)})
    assert (caught.value.code, caught.value.argument) == ("RP034", "eps")
    assert caught.value.expected == "finite and at least 0" and f"got {eps:g}" in caught.value.summary
    assert f"eps of {norm}" in caught.value.cause


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_a_scale_that_is_not_finite_is_refused(scale):
    error, listed = refusal(q_scale=scale)
    assert (error.code, error.argument, listed) == ("RP034", "q_scale", ["RP034"])
    assert error.summary == f"q_scale must be finite, got {scale:g}"


def test_scales_of_any_sign_are_fine():
    for scale in (0.0, -1.0, 1e-30, 1e30, 2, np.float32(0.5)):
        checked_call(call_for(Turn(), 2, 64, 2, 2, q_scale=scale))


def test_eps_has_no_default():
    for norm in (ropepool.RMSNorm, ropepool.LayerNorm):
        with pytest.raises(TypeError, match="eps"):
            norm()
        with pytest.raises(TypeError):
            norm(zeros(64), 1e-6)  # by its name alone
    with pytest.raises(TypeError, match="unit_offset"):
        ropepool.LayerNorm(zeros(64), eps=1e-6, unit_offset=True)


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
@pytest.mark.parametrize(
    "value", [np.ones(64, np.float32), 1e-6, "rms", (np.ones(64), 1e-6)], ids=lambda value: type(value).__name__
)
def test_what_is_no_norm_is_a_type_error(name, value):
    with pytest.raises(TypeError, match=name):
        run(call_for(Turn().make(), 2, 64, 2, 2) | {name: value})


@pytest.mark.parametrize("name", ["q_bias", "k_bias", "v_bias"])
def test_what_is_no_array_is_a_type_error(name):
    for value in ("bias", 0.5, [0.0] * 128):
        with pytest.raises(TypeError, match=name):
            run(call_for(Turn().make(), 2, 64, 2, 2) | {name: value})


def test_the_refusal_comes_after_those_of_the_rope():
    """In the order of the contract: what q, k and v are, memory and values first."""
    table = Rope(rotary_dim=64, cos_sin=zeros(2, 64))
    wrong = {"q_bias": zeros(7), "rope": table, "positions": np.array([0, 1, 2, 0])}
    error, listed = refusal(**wrong)
    assert error.code == "RP026" and listed == ["RP026", "RP034"]
    pool = zeros(7, 2, 64)
    error, listed = refusal(q_scale=np.nan, k_pool=pool, v_pool=pool, slots=np.array([0, 1, 2, 9]))
    assert error.code == "RP019" and listed == ["RP019", "RP020", "RP034"]


def test_every_part_of_a_bias_is_looked_at_before_the_next():
    """Which of several is named: they come in the order of the arguments."""
    assert refusal(q_bias=zeros(1), k_bias=zeros(1), v_bias=zeros(1))[0].argument == "q_bias"
    assert refusal(k_bias=zeros(1), v_bias=zeros(1), q_norm=rms(1))[0].argument == "k_bias"
    assert refusal(v_bias=zeros(1), q_norm=rms(1), k_norm=rms(1))[0].argument == "v_bias"
    assert refusal(q_norm=rms(1), k_norm=rms(1))[0].argument == "q_norm"


def test_norms_are_kept_by_who_made_them():
    """A weight lives as long as its norm, and is read anew by each call."""

    def made():
        return ropepool.RMSNorm(np.full(64, 2, np.float32), eps=0.0)

    norm = made()
    junk = [np.full(64, 7, np.float32) for _ in range(100)]
    call = call_for(Turn().make(), 1, 64, 2, 2, positions=np.array([0]))
    call["q"][:] = 1
    np.testing.assert_array_equal(run(call | {"q_norm": norm})[0], 2)
    assert junk
    weight = np.full(64, 3, np.float32)
    norm = ropepool.RMSNorm(weight, eps=0.0)
    np.testing.assert_array_equal(run(call | {"q_norm": norm})[0], 3)
    weight[:] = 5
    np.testing.assert_array_equal(run(call | {"q_norm": norm})[0], 5)
