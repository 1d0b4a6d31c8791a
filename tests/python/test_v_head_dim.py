"""Values of another width than keys: other heads for V, and the rows of latent attention (MLA) in one pool."""

import head_oracle
import ml_dtypes
import numpy as np
import pytest
import ropepool
from head_oracle import Norm, Turn, call_for, checked_call, run
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import FLOATS, assert_same_bits, copies
from test_op_properties import SETTINGS

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
PLAIN = Turn(rotary_dim=64)


@each_dtype
@pytest.mark.parametrize("v_head_dim", [1, 2, 3, 7, 31, 32, 63, 64, 65, 96, 127, 512, 513, 1025])
def test_any_width(v_head_dim, dtype):
    for num_kv_heads in (1, 3):
        checked_call(call_for(PLAIN, 5, 64, 4, num_kv_heads, dtype, v_head_dim=v_head_dim))


def test_one_that_is_head_dim_changes_no_bit():
    for dtype in FLOATS:
        call = call_for(PLAIN, 5, 64, 4, 2, dtype)
        expected = run(copies(call))
        for given_dim in (None, 64, np.int64(64)):
            for one, other in zip(run(copies(call) | {"v_head_dim": given_dim}), expected, strict=True):
                assert_same_bits(one, other)


@each_dtype
@pytest.mark.parametrize("v_head_dim", [3, 48, 512])
def test_v_keeps_its_bits(v_head_dim, dtype):
    """NaN payloads and denormals too; and one that has a bias is rounded once."""
    item = np.dtype(dtype).itemsize
    for num_tokens in (1, 20, 100):
        call = call_for(PLAIN, num_tokens, 64, 1, 2, dtype, v_head_dim=v_head_dim)
        random = np.random.default_rng(4).integers(0, 2 ** (8 * item), call["v"].size, f"u{item}")
        random[::7] |= {2: 0x7C00 if dtype == np.float16 else 0x7F80, 4: 0x7F800000}[item]
        call["v"] = random.view(dtype).reshape(call["v"].shape)
        assert_same_bits(run(call)[3][call["slots"]], call["v"])
        for of_bias in (np.float32, dtype):
            bias = np.random.default_rng(5).standard_normal((2, v_head_dim)).astype(of_bias)
            checked_call(call_for(PLAIN, num_tokens, 64, 1, 2, dtype, v_head_dim=v_head_dim, v_bias=bias))
            checked_call(call_for(PLAIN, num_tokens, 64, 1, 2, dtype, v_head_dim=v_head_dim, v_bias=bias.reshape(-1)))


@each_dtype
@pytest.mark.parametrize("v_head_dim", [1, 65, 320])
def test_any_number_of_threads_and_the_last_token_wins(num_threads, v_head_dim, dtype):
    call = call_for(PLAIN, 900, 64, 8, 4, dtype, v_head_dim=v_head_dim)
    call["slots"] = np.random.default_rng(6).integers(-2, 200, 900)
    expected = None
    for width in (1, 2, 3, 8):
        num_threads(width)
        actual = [np.array(x) for x in checked_call(copies(call))]
        expected = expected or actual
        for one, other in zip(actual, expected, strict=True):
            assert_same_bits(one, other, f"{width} threads")


@settings(max_examples=100, **SETTINGS)
@given(st.data())
def test_not_a_byte_beside_the_rows_is_written(data):
    """K and V of any widths and any order in one row of a pool, and V in a packed projection beside K."""
    dtype = data.draw(st.sampled_from(FLOATS))
    tokens, heads = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 4))
    head_dim, v_head_dim = 2 * data.draw(st.integers(1, 40)), data.draw(st.integers(1, 90))
    gaps = [data.draw(st.integers(0, 3)) for _ in range(3)]
    v_first = data.draw(st.booleans())
    widths = [v_head_dim, head_dim] if v_first else [head_dim, v_head_dim]
    starts = [gaps[0], gaps[0] + widths[0] + gaps[1]]
    lanes = sum(widths) + sum(gaps)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    pool = random.standard_normal((tokens + 2, heads, lanes)).astype(dtype)
    source = random.standard_normal((tokens, heads, lanes)).astype(dtype)
    views = {}
    for name, rows in (("", source), ("_pool", pool)):
        parts = [rows[..., start : start + width] for start, width in zip(starts, widths, strict=True)]
        views[f"v{name}"], views[f"k{name}"] = parts if v_first else parts[::-1]
    call = call_for(Turn(rotary_dim=head_dim), tokens, head_dim, 2, heads, dtype, v_head_dim=v_head_dim)
    call |= views | {"slots": random.integers(-1, tokens + 1, tokens, endpoint=True)}
    expected = pool.copy()
    _, k_rot, *_ = checked_call(call)
    for token, slot in enumerate(call["slots"].tolist()):
        if slot >= 0:
            k_at, v_at = starts[v_first], starts[not v_first]
            expected[slot, :, k_at : k_at + head_dim] = k_rot[token]
            expected[slot, :, v_at : v_at + v_head_dim] = call["v"][token]
    assert_same_bits(pool, expected)


# ---- Latent attention


def mla(num_tokens, dtype, num_slots=40, num_heads=128, slots=None, seed=0):
    """DeepSeek V3's call: what is turned of q in the last 64 of 192 lanes, in place; latent and turned key in one row."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((num_tokens, num_heads, 192), np.float32).astype(dtype)
    latent = random.standard_normal((num_tokens, 1, 512 + 64), np.float32).astype(dtype)
    pool = random.standard_normal((num_slots, 1, 512 + 64), np.float32).astype(dtype)
    call = {
        "q": q[..., 128:],
        "k": latent[..., 512:],
        "v": latent[..., :512],
        "positions": random.integers(0, 100_000, num_tokens),
        "slots": random.permutation(num_slots)[:num_tokens] if slots is None else slots,
        "k_pool": pool[..., 512:],
        "v_pool": pool[..., :512],
        "head_dim": 64,
        "num_qo_heads": num_heads,
        "num_kv_heads": 1,
        "v_head_dim": 512,
        "rope": Turn(
            10000.0,
            64,
            {"type": "yarn", "factor": 40.0, "original_length": 4096, "mscale": 1.0, "mscale_all_dim": 1.0},
            pairing="interleaved",
        ),
    }
    return call, q, latent, pool


@each_dtype
@pytest.mark.parametrize("num_tokens", [1, 7, 33])
def test_rows_of_mla_in_one_pool(num_tokens, dtype):
    call, q, latent, pool = mla(num_tokens, dtype)
    call["slots"][num_tokens // 2] = -1
    before = [array.copy() for array in (q, latent, pool)]
    q_rot, k_rot, *_ = checked_call(call | {"q_out": call["q"]})
    assert_same_bits(q[..., :128], before[0][..., :128], "lanes of q beside the turned ones")
    assert_same_bits(q[..., 128:], q_rot)
    assert_same_bits(latent, before[1], "what is stored is only read")
    stored = call["slots"] >= 0
    expected = before[2]
    expected[call["slots"][stored]] = np.concatenate([latent[..., :512], k_rot], axis=-1)[stored]
    assert_same_bits(pool, expected)


def test_the_last_row_of_mla_wins(num_threads):
    """Latent and key come from one token, for any number of threads, whichever part of a row is written first."""
    slots = np.random.default_rng(1).integers(-1, 40, 600)
    expected = None
    for width in (1, 2, 8):
        num_threads(width)
        for _ in range(5):
            call, _, _, pool = mla(600, BF16, num_heads=4, slots=slots)
            checked_call(call)
            expected = pool.copy() if expected is None else expected
            assert_same_bits(pool, expected)


def test_keys_normed_beside_a_latent():
    """Norm and bias of k see its 64 lanes, not the row that they lie in."""
    call, _, _, _ = mla(5, np.float32)
    weight = np.random.default_rng(2).uniform(0.5, 2, 64).astype(np.float32)
    bias = np.random.default_rng(3).standard_normal((1, 512), np.float32)
    checked_call(call | {"k_norm": Norm(weight), "q_norm": Norm(weight), "v_bias": bias})


# ---- What is refused


def refusal(call):
    before = copies(call)
    with pytest.raises(ropepool.ContractError) as caught:
        run(call)
    for name in ("k_pool", "v_pool"):
        assert_same_bits(call[name], before[name])
    made = {name: value.make() if isinstance(value, Turn) else value for name, value in call.items()}
    assert ropepool.check(**made)[0].code == caught.value.code
    return caught.value


def wide(v=None, v_pool=None, **changes):
    """K of 192 lanes, and V of 96 unless it is said otherwise."""
    call = call_for(Turn(rotary_dim=192), 4, 192, 4, 2, v_head_dim=96)
    if v:
        call["v"] = np.zeros(v, np.float32)
    if v_pool:
        call["v_pool"] = np.zeros(v_pool, np.float32)
    return call | changes


@pytest.mark.parametrize("shape", [(4, 2, 128), (4, 2, 192), (3, 2, 96), (4, 1, 96), (4, 2, 0)])
def test_v_of_other_lanes(shape):
    error = refusal(wide(v=shape))
    assert (error.code, error.argument) == ("RP006", "v")
    assert error.summary == f"v shape must match k shape, got {shape} vs (4, 2, 96)"
    assert (error.expected, error.actual) == ("(4, 2, 96)", str(shape))
    assert ropepool.explain(error.summary)["code"] == "RP006"


@pytest.mark.parametrize("shape", [(7, 2, 128), (7, 2, 192), (6, 2, 96), (7, 3, 96)])
def test_a_v_pool_of_other_lanes(shape):
    error = refusal(wide(v_pool=shape))
    assert (error.code, error.argument) == ("RP009", "v_pool")
    assert error.summary == f"v_pool shape must match k_pool shape, got {shape} vs (7, 2, 96)"


def test_without_v_head_dim_v_is_as_wide_as_k():
    error = refusal(wide(v_head_dim=None))
    assert error.summary == "v shape must match k shape, got (4, 2, 96) vs (4, 2, 192)"
    error = refusal(wide(v=(4, 2, 192), v_head_dim=None))
    assert error.summary == "v_pool shape must match k_pool shape, got (7, 2, 96) vs (7, 2, 192)"


@pytest.mark.parametrize("v_head_dim", [0, -1, -(2**63)])
def test_geometry(v_head_dim):
    width = max(v_head_dim, 0)
    call = wide(v=(4, 2, width), v_pool=(7, 2, width), v_head_dim=v_head_dim)
    made = call | {"rope": call["rope"].make()}
    (error,) = (error for error in ropepool.check(**made) if error.code == "RP014")
    assert error.argument == "v_head_dim"
    assert error.summary == f"v_head_dim must be at least 1, got {v_head_dim}"
    if v_head_dim == 0:
        assert refusal(call).code == "RP014"


def test_what_is_no_integer_is_a_type_error():
    for value in (96.0, "96", np.zeros(2)):
        with pytest.raises(TypeError, match="v_head_dim"):
            run(wide(v_head_dim=value))


def test_a_row_may_not_hold_both_in_one_lane():
    pool = np.zeros((7, 2, 192 + 96 - 1), np.float32)
    error = refusal(wide() | {"k_pool": pool[..., :192], "v_pool": pool[..., 191:]})
    assert (error.code, error.summary) == ("RP019", "k_pool must share no memory with v_pool")
    pool = np.zeros((7, 2, 192 + 96), np.float32)
    checked_call(wide() | {"k_pool": pool[..., :192], "v_pool": pool[..., 192:]})


def test_v_head_dim_is_what_v_bias_is_judged_by():
    for shape, right in (((2, 96), True), ((192,), True), ((2, 192), False), ((384,), False)):
        call = wide(v_bias=np.zeros(shape, np.float32))
        if right:
            checked_call(call)
        else:
            error = refusal(call)
            assert (error.code, error.argument) == ("RP034", "v_bias")


def test_the_oracle_knows_other_widths():
    v = np.ones((2, 3, 5), np.float32)
    np.testing.assert_array_equal(head_oracle.sum_of(v, np.arange(15, dtype=np.float32))[1], 1 + np.arange(15).reshape(3, 5))
