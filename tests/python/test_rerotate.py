"""rerotate: keys in the pool turned on from one position to another, against the difference of two angles in mpmath."""

import itertools

import ml_dtypes
import mpmath
import numpy as np
import pytest
import rope_oracle
import ropepool
from head_oracle import UNIT, Turn
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ANGLE_ERROR, ARITHMETIC_ERROR, FLOATS, INDICES, MAX_POSITION, SMALLEST_FLOAT32, assert_same_bits, bits, ulp
from ropepool import Rope
from test_op_properties import SETTINGS
from test_rope import FORMS

BF16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", FLOATS)
each_pairing = pytest.mark.parametrize("pairing", ["neox", "interleaved"])
POSITIONS = (0, 1, -1, 5, 4095, 131071, 1000000, MAX_POSITION, -MAX_POSITION)
MOVES = list(itertools.product(POSITIONS, POSITIONS))  # from each to each, itself too
# A turn by the difference of two angles; the quotient of two scales, itself rounded, on top of what rope_pool_fused rounds.
TURN_ERROR = ANGLE_ERROR + ARITHMETIC_ERROR + 2 * UNIT


def difference(turn, old, new, old_set=0, new_set=0, scales=(1.0, 1.0)):
    """cos and sin of new minus old, [num_tokens, pairs]; positions are [num_tokens], or [axes, num_tokens] with M-RoPE."""
    inverses = [rope_oracle.frequencies(turn.base, turn.rotary_dim, turn.scaling, which) for which in (old_set, new_set)]
    rows = []
    for token in range(np.shape(old)[-1]):
        row = []
        for pair, (old_frequency, new_frequency) in enumerate(zip(*inverses, strict=True)):
            before, after = (int(p[turn.axes[pair], token] if np.ndim(p) == 2 else p[token]) for p in (old, new))
            row.append(float(mpmath.fmod(after * new_frequency - before * old_frequency, 2 * mpmath.pi)))
        rows.append(row)
    angles = np.array(rows).reshape(np.shape(old)[-1], turn.rotary_dim // 2)
    return np.cos(angles) * (scales[1] / scales[0]), np.sin(angles) * (scales[1] / scales[0])


def assert_moved(actual, x, cos, sin, turn):
    """Turned within the contract's error and one rounding; outside the rotated part the same bits."""
    first, second = rope_oracle.pairs_of(turn.rotary_dim, turn.rotary_offset, turn.pairing)
    untouched = np.setdiff1d(np.arange(x.shape[-1]), np.concatenate([first, second]))
    assert_same_bits(actual[..., untouched], x[..., untouched], "lanes that do not turn")
    expected = rope_oracle.rotate(x, cos, sin, turn.rotary_offset, turn.pairing)[..., np.concatenate([first, second])]
    size = np.abs(x.astype(np.float64))
    by = np.hypot(cos, sin)[:, None, :]
    allowed = TURN_ERROR * np.concatenate([by * (size[..., first] + size[..., second])] * 2, axis=-1) + 2 * SMALLEST_FLOAT32
    if x.dtype != np.float32:
        allowed = allowed + ulp(np.abs(expected) + allowed, x.dtype) / 2
    over = np.abs(actual[..., np.concatenate([first, second])].astype(np.float64) - expected) - allowed
    worst = np.unravel_index(np.argmax(over), over.shape) if over.size else None
    assert worst is None or over[worst] <= 0, f"(token, head, lane) {worst}: {over[worst]} beyond the tolerance"


def keys_of(num_slots, heads, head_dim, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((num_slots, heads, head_dim), np.float32).astype(dtype)


def moved(pool, slots, old, new, rope, **others):
    """rerotate in a copy of the pool."""
    pool = np.array(pool)
    given_rope = {"rope_base": rope} if isinstance(rope, float) else {"rope": rope}
    heads = {"head_dim": pool.shape[2], "num_kv_heads": pool.shape[1]}
    result = ropepool.rerotate(pool, np.asarray(slots), np.asarray(old), np.asarray(new), **heads, **given_rope, **others)
    assert result is pool
    return pool


def stored(keys, positions, rope, which=None, angles="exact"):
    """Keys turned and stored by rope_pool_fused, one a slot."""
    tokens, heads, head_dim = keys.shape
    pools = np.zeros((2, *keys.shape), keys.dtype)
    sets = {} if which is None else {"rope_sets": np.broadcast_to(which, tokens).astype(np.int32)}
    sizes = {"head_dim": head_dim, "num_qo_heads": heads, "num_kv_heads": heads}
    given_rope = {"rope_base": rope} if isinstance(rope, float) else {"rope": rope}
    arrays = (keys, keys, keys, np.asarray(positions), np.arange(tokens))
    return ropepool.rope_pool_fused(*arrays, *pools, **sizes, **given_rope, **sets, angles=angles)[2]


# ---- By the true difference, at any two positions


@each_dtype
@each_pairing
@pytest.mark.parametrize("name", FORMS)
def test_every_form_at_any_positions(name, pairing, dtype):
    base, rotary_dim, scaling = FORMS[name]
    turn = Turn(base, rotary_dim, scaling, pairing=pairing)
    old, new = np.array(MOVES).T.copy()
    pool = keys_of(len(MOVES), 2, rotary_dim, dtype)
    rope = turn.make()
    for which in range(rope.num_sets):
        sets = {f"{side}_sets": np.full(len(MOVES), which) for side in ("old", "new")} if rope.num_sets > 1 else {}
        cos, sin = difference(turn, old, new, which, which)
        actual = moved(pool, np.arange(len(MOVES)), old, new, rope, **sets)
        assert_moved(actual, pool, cos, sin, turn)
        # Where nothing moves nothing changes.
        assert_same_bits(actual[old == new], pool[old == new])


@each_dtype
@pytest.mark.parametrize(
    "head_dim, rotary_dim, rotary_offset, pairing",
    [
        (2, 2, 0, "neox"),
        (6, 6, 0, "neox"),
        (80, 80, 0, "interleaved"),
        (96, 96, 0, "neox"),
        (192, 192, 0, "neox"),
        (1024, 1024, 0, "neox"),
        (128, 64, 0, "neox"),
        (192, 64, 128, "interleaved"),
        (96, 26, 7, "neox"),
        (96, 26, 7, "interleaved"),
        (576, 64, 512, "interleaved"),
        (8, 2, 6, "neox"),
        (1200, 1026, 100, "neox"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's, of signaling NaN
def test_widths_and_parts_of_heads(head_dim, rotary_dim, rotary_offset, pairing, dtype):
    """NaN of any payload in lanes that do not turn is kept."""
    turn = Turn(10000.0, rotary_dim, None, rotary_offset, pairing)
    old, new = np.array([0, 7, 131071, -5]), np.array([100, 2, 0, MAX_POSITION])
    for heads in (1, 3):
        pool = keys_of(6, heads, head_dim, dtype)
        item = pool.dtype.itemsize
        lanes = np.r_[0:rotary_offset, rotary_offset + rotary_dim : head_dim]
        noise = np.random.default_rng(1).integers(0, 2 ** (8 * item), (6, heads, len(lanes)), f"u{item}")
        pool[..., lanes] = noise.view(dtype)
        slots = [4, 0, 5, 2]
        actual = moved(pool, slots, old, new, turn.make())
        assert_moved(actual[slots], pool[slots], *difference(turn, old, new), turn)
        assert_same_bits(actual[[1, 3]], pool[[1, 3]], "slots that are not named")


def test_a_base_is_a_plain_rope():
    pool = keys_of(5, 2, 80, np.float32)
    old, new = np.arange(5) * 1000, np.arange(5) * 17
    one, other = (moved(pool, np.arange(5), old, new, rope) for rope in (10000.0, Rope(10000.0, rotary_dim=80)))
    assert_same_bits(one, other)
    turn = Turn(10000.0, 80)
    assert_moved(one, pool, *difference(turn, old, new), turn)


@each_dtype
def test_index_types_and_no_tokens(dtype):
    pool = keys_of(5, 2, 64, dtype)
    slots, old, new = np.array([3, 0, -1]), np.array([7, 9, 11]), np.array([1, 2, 3])
    expected = moved(pool, slots, old, new, 10000.0)
    for types in itertools.product(INDICES, repeat=3):
        given_arrays = [array.astype(index) for array, index in zip((slots, old, new), types, strict=True)]
        assert_same_bits(moved(pool, *given_arrays, 10000.0), expected)
    none = np.zeros(0, np.int64)
    assert_same_bits(moved(pool, none, none, none, 10000.0), pool)
    assert moved(pool[:0], none, none, none, 10000.0).shape == (0, 2, 64)
    assert moved(pool[:0], -np.ones(3, int), old, new, 10000.0).shape == (0, 2, 64)


@each_dtype
def test_closed_form(dtype):
    """A key of ones from position 3 to 4, and from 5 to 4: by 1 and by -1, angles of 1 and 0.01."""
    pool = np.ones((2, 1, 4), dtype)
    c, s, c2, s2 = np.cos(1), np.sin(1), np.cos(0.01), np.sin(0.01)
    expected = np.array([[c - s, c2 - s2, c + s, c2 + s2], [c + s, c2 + s2, c - s, c2 - s2]])
    actual = moved(pool, [0, 1], [3, 5], [4, 4], 10000.0)[:, 0].astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-6)


# ---- As if it had been turned there at once


def allowed_apart(keys, direct, turn, scale, dtype):
    """How far a key that was turned twice may be from one that was turned once.

    Both have the error of their own turns, the former of two; and it was rounded in the pool between them, each lane of a pair
    by half a unit, which the second turn mixes, and once more at the end.
    """
    first, second = rope_oracle.pairs_of(turn.rotary_dim, turn.rotary_offset, turn.pairing)
    size = np.abs(keys.astype(np.float64))
    allowed = np.zeros(keys.shape)
    pair = 3 * TURN_ERROR * scale * (size[..., first] + size[..., second]) + 4 * SMALLEST_FLOAT32
    if dtype != np.float32:
        largest = scale * np.hypot(size[..., first], size[..., second]) + pair
        pair = pair + ulp(largest, dtype)  # half a unit of each lane of the pair, of a size that no turn exceeds
    allowed[..., first] = allowed[..., second] = pair
    if dtype != np.float32:
        allowed += ulp(np.abs(direct.astype(np.float64)) + allowed, dtype)  # half a unit of each side's last rounding
    return allowed


@each_dtype
@each_pairing
@pytest.mark.parametrize("angles", ["exact", "float32"])
@pytest.mark.parametrize("name", FORMS)
def test_stored_and_moved_is_as_stored_there(name, angles, pairing, dtype):
    base, rotary_dim, scaling = FORMS[name]
    turn = Turn(base, rotary_dim, scaling, pairing=pairing)
    old, new = np.array(MOVES).T.copy()
    rope, scale = turn.make(), rope_oracle.scale(scaling)
    keys = keys_of(len(MOVES), 2, rotary_dim, dtype, seed=3)
    for before, after in itertools.product(range(rope.num_sets), repeat=2):
        several = rope.num_sets > 1
        sets = {"old_sets": np.full(len(MOVES), before), "new_sets": np.full(len(MOVES), after)} if several else {}
        pool = stored(keys, old, rope, before if several else None, angles)
        direct = stored(keys, new, rope, after if several else None, angles)
        actual = moved(pool, np.arange(len(MOVES)), old, new, rope, angles=angles, **sets)
        apart = np.abs(actual.astype(np.float64) - direct.astype(np.float64))
        over = apart - allowed_apart(keys, direct, turn, max(scale, 1), keys.dtype)
        worst = np.unravel_index(np.argmax(over), over.shape)
        assert over[worst] <= 0, f"{MOVES[worst[0]]}, sets {before} and {after}: {actual[worst]} instead of {direct[worst]}"


def test_moving_by_the_wrong_way_is_seen():
    """What the test above would say of a turn by old minus new, or of none."""
    turn = Turn(10000.0, 64)
    keys = keys_of(4, 2, 64, np.float32)
    old, new = np.array([0, 5, 100, 7]), np.array([3, 1, 104, 6])
    direct, pool = stored(keys, new, turn.make()), stored(keys, old, turn.make())
    allowed = allowed_apart(keys, direct, turn, 1, np.float32)
    for wrong in (pool, moved(pool, np.arange(4), new, old, turn.make())):
        assert (np.abs(wrong - direct) > allowed).any(axis=(1, 2)).all()


@each_dtype
def test_there_and_back(dtype):
    pool = keys_of(len(MOVES), 2, 64, dtype)
    old, new = np.array(MOVES).T.copy()
    slots = np.arange(len(MOVES))
    there = moved(pool, slots, old, new, 10000.0)
    back = moved(there, slots, new, old, 10000.0)
    apart = np.abs(back.astype(np.float64) - pool.astype(np.float64))
    assert (apart <= allowed_apart(pool, pool, Turn(), 1, pool.dtype)).all()
    far = np.abs(old - new) > 0
    assert (bits(there)[far] != bits(pool)[far]).any(axis=(1, 2)).all()


def test_many_small_moves_drift_by_their_roundings_alone():
    """A chat that loses its oldest tokens 200 times: each move adds a rounding, and no move an angle's error that grows."""
    keys = keys_of(4, 2, 64, np.float32)
    positions = np.array([2000, 2001, 3000, 100_000])
    pool = stored(keys, positions, 10000.0)
    for step in range(200):
        pool = moved(pool, np.arange(4), positions - step * 7, positions - (step + 1) * 7, 10000.0)
    direct = stored(keys, positions - 1400, 10000.0)
    size = np.abs(keys)[..., :32] + np.abs(keys)[..., 32:]
    assert (np.abs(pool - direct) <= 202 * TURN_ERROR * np.concatenate([size] * 2, axis=-1)).all()


# ---- Axes


@each_dtype
@pytest.mark.parametrize("axes", [(0, 0, 1, 2), (0,) * 16 + (1,) * 24 + (2,) * 24, (0,) * 8 + (1,) * 8 + (2,) * 8 + (3,) * 8])
def test_each_axis_moves_on_its_own(axes, dtype):
    turn = Turn(10000.0, 2 * len(axes), axes=axes)
    random = np.random.default_rng(1)
    count = max(axes) + 1
    buffer = random.integers(0, 5000, (2, count, 32))
    old, new = buffer[0][:, 3:10], buffer[1][:, 20:27]  # views, as a batch has them
    new[:, 0] = old[:, 0]
    new[0, 1] = old[0, 1]
    pool = keys_of(9, 2, turn.rotary_dim, dtype)
    slots = random.permutation(9)[:7]
    actual = moved(pool, slots, old, new, turn.make())
    assert_moved(actual[slots], pool[slots], *difference(turn, old, new), turn)
    first, second = rope_oracle.pairs_of(turn.rotary_dim, 0, "neox")
    still = np.array(axes) == 0
    for lanes in (first[still], second[still]):
        assert_same_bits(actual[slots[1]][..., lanes], pool[slots[1]][..., lanes], "the axis that did not move")
    # Of text all axes are one.
    text = np.arange(7), np.arange(7) * 3
    stacked = [np.stack([positions] * count) for positions in text]
    expected = moved(pool, slots, *stacked, turn.make())
    assert_same_bits(moved(pool, slots, *text, turn.make()), expected)
    assert_same_bits(moved(pool, slots, stacked[0], text[1], turn.make()), expected)


def test_interleaved_sections():
    rope = Rope(10000.0, rotary_dim=64, sections=[12, 10, 10], section_order="interleaved")
    keys = keys_of(5, 2, 64, np.float32)
    old, new = np.random.default_rng(1).integers(0, 5000, (2, 3, 5))
    pools = np.zeros((2, 2, 5, 2, 64), np.float32)
    heads = {"head_dim": 64, "num_qo_heads": 2, "num_kv_heads": 2, "rope": rope}
    pool, direct = (
        ropepool.rope_pool_fused(keys, keys, keys, positions, np.arange(5), *pool, **heads)[2]
        for positions, pool in zip((old, new), pools, strict=True)
    )
    actual = moved(pool, np.arange(5), old, new, rope)
    assert (np.abs(actual - direct) <= allowed_apart(keys, direct, Turn(), 1, np.float32)).all()


# ---- Sets and scales

LONG = {
    "type": "longrope",
    "short_factor": [1.0 + i / 64 for i in range(32)],
    "long_factor": [1.0 + i for i in range(32)],
    "original_length": 4096,
    "factor": 32.0,
}


@each_dtype
@pytest.mark.parametrize("before, after", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_from_one_set_to_another(before, after, dtype):
    """Where only the set changes, a key still turns: by position times the difference of two frequencies."""
    turn = Turn(10000.0, 64, LONG)
    positions = np.array(POSITIONS)
    pool = keys_of(len(positions), 2, 64, dtype)
    sets = {"old_sets": np.full(len(positions), before), "new_sets": np.full(len(positions), after, np.int32)}
    for new in (positions, positions[::-1].copy()):
        actual = moved(pool, np.arange(len(positions)), positions, new, turn.make(), **sets)
        assert_moved(actual, pool, *difference(turn, positions, new, before, after), turn)


def test_each_token_has_its_own_sets():
    turn = Turn(10000.0, 64, LONG)
    pool = keys_of(4, 2, 64, np.float32)
    old, new = np.array([9, 900, 4000, 77]), np.array([9, 4, 5000, 78])
    sets = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    together = moved(pool, np.arange(4), old, new, turn.make(), old_sets=sets[0], new_sets=sets[1])
    for token in range(4):
        one = slice(token, token + 1)
        alone = moved(pool, [token], old[one], new[one], turn.make(), old_sets=sets[0][one], new_sets=sets[1][one])
        assert_same_bits(together[token], alone[token])
        cos, sin = difference(turn, old[one], new[one], int(sets[0][token]), int(sets[1][token]))
        assert_moved(alone[one], pool[one], cos, sin, turn)


def test_f08_a_sequence_that_outgrows_its_set():
    """A prefill with the short set, moved to the long one before the first token that needs it: scores know distances alone."""
    scaling = ropepool.LongRopeScaling(
        short_factor=[1.0] * 4, long_factor=[4.0] * 4, original_length=8, factor=4.0, attention_factor=1.0
    )
    rope = Rope(10000.0, rotary_dim=8, scaling=scaling)
    unit = np.full((10, 1, 8), 8**-0.5, np.float32)
    slots = np.random.default_rng(2).permutation(16)[:10]
    for grown in (6, 8):
        pool, v_pool = np.zeros((16, 1, 8), np.float32), np.zeros((16, 1, 8), np.float32)
        heads = {"head_dim": 8, "num_kv_heads": 1, "rope": rope}
        whole = {"positions": np.arange(10), "slots": slots, "k": unit, "v": unit, "q": unit}

        def store(begin, end, which, pools=(pool, v_pool), whole=whole, heads=heads):
            part = {name: array[begin:end] for name, array in whole.items()}
            names = dict(zip(("k_pool", "v_pool"), pools, strict=True))
            ropepool.rope_pool_fused(**part, **names, **heads, num_qo_heads=1, rope_sets=np.full(end - begin, which))

        store(0, 4, 0)
        store(4, grown, 0)
        mixed = pool.copy()
        old = np.arange(grown)
        sets = {"old_sets": np.zeros(grown, int), "new_sets": np.ones(grown, int)}
        ropepool.rerotate(pool, slots[:grown], old, old, **heads, **sets)
        store(grown, 10, 1)

        def spread(pool):
            keys = pool[slots][:, 0].astype(np.float64)
            scores = keys @ keys.T
            return max(np.ptp(np.diagonal(scores, distance)) for distance in range(10))

        assert spread(pool) <= 1e-5
        # Without the move the keys of the two sets do not fit each other: the fault that this is for.
        store(grown, 10, 1, (mixed, v_pool))
        assert spread(mixed) > 0.1


@each_dtype
def test_the_attention_scale_is_in_the_key_already(dtype):
    """One move or fifty: a key keeps its norm, which YaRN's scale stretched when it was stored."""
    scaling = {"type": "yarn", "factor": 32.0, "original_length": 4096}
    turn = Turn(10000.0, 64, scaling)
    scale = rope_oracle.scale(scaling)
    keys = keys_of(3, 2, 64, dtype)
    positions = np.array([0, 10, 5000])
    pool = stored(keys, positions, turn.make())
    for step in range(50):
        pool = moved(pool, np.arange(3), positions + step, positions + step + 1, turn.make())
    norms = np.linalg.norm(pool.astype(np.float64), axis=-1) / np.linalg.norm(keys.astype(np.float64), axis=-1)
    np.testing.assert_allclose(norms, scale, rtol=52 * float(ml_dtypes.finfo(dtype).eps))


def test_sets_of_different_scales():
    """The quotient of the two: a key that was stretched by one is then stretched by the other."""
    ropes = [Rope(10000.0, rotary_dim=64, attention_scale=scale) for scale in (1.0, 1.5, 0.5)]
    rope = Rope.join(ropes)
    keys = keys_of(6, 2, 64, np.float32)
    positions = np.array([0, 10, 5000, 3, 4, 9])
    for before, after in itertools.product(range(3), repeat=2):
        pool, direct = (stored(keys, positions, rope, which) for which in (before, after))
        sets = {"old_sets": np.full(6, before), "new_sets": np.full(6, after)}
        actual = moved(pool, np.arange(6), positions, positions, rope, **sets)
        assert (np.abs(actual - direct) <= allowed_apart(keys, direct, Turn(), 1.5, np.float32)).all()
        if before == after:
            assert_same_bits(actual, pool)


def test_lanes_that_do_not_turn_are_not_scaled():
    """The scale is of cos and sin, so the rest of a head has never had it."""
    rope = Rope.join([Rope(10000.0, rotary_dim=32, attention_scale=scale) for scale in (1.0, 3.0)])
    pool = keys_of(2, 2, 64, np.float32)
    actual = moved(pool, [0, 1], [5, 6], [5, 6], rope, old_sets=np.array([0, 1]), new_sets=np.array([1, 0]))
    assert_same_bits(actual[..., 32:], pool[..., 32:])
    np.testing.assert_allclose(actual[0, :, :32], 3 * pool[0, :, :32], rtol=1e-6)
    np.testing.assert_allclose(actual[1, :, :32], pool[1, :, :32] / 3, rtol=1e-6)


# ---- Slots


@each_dtype
@pytest.mark.parametrize("index", INDICES)
def test_negative_and_repeated_slots(index, dtype):
    """A slot is turned once, by its last entry, from what it held before the call."""
    pool = keys_of(6, 2, 64, dtype)
    slots = np.array([3, -1, 0, 3, -7, 5, 3], index)
    old, new = np.array([1, 2, 3, 4, 5, 6, 7]), np.array([100, 200, 300, 400, 500, 600, 700])
    actual = moved(pool, slots, old, new, 10000.0)
    expected = moved(pool, [0, 5, 3], [3, 6, 7], [300, 600, 700], 10000.0)
    assert_same_bits(actual, expected)
    assert_same_bits(actual[[1, 2, 4]], pool[[1, 2, 4]])
    assert_moved(actual[[3]], pool[[3]], *difference(Turn(), [7], [700]), Turn())
    assert_same_bits(moved(pool, -np.ones(7, index), old, new, 10000.0), pool)


@each_dtype
def test_any_number_of_threads_and_of_tokens(num_threads, dtype):
    """The same bits for a slot, alone or among many, whoever turns it."""
    pool = keys_of(700, 8, 80, dtype)
    random = np.random.default_rng(3)
    slots = random.integers(-1, 650, 900)
    old, new = random.integers(0, 100_000, (2, 900))
    expected = None
    for width in (1, 2, 3, 8):
        num_threads(width)
        for _ in range(3):
            actual = moved(pool, slots, old, new, 10000.0)
            expected = actual if expected is None else expected
            assert_same_bits(actual, expected, f"{width} threads")
    last = {slot: token for token, slot in enumerate(slots.tolist()) if slot >= 0}
    for slot in list(last)[::40]:
        token = last[slot]
        alone = moved(pool, [slot], old[token : token + 1], new[token : token + 1], 10000.0)
        assert_same_bits(alone[slot], expected[slot])
    untouched = sorted(set(range(700)) - set(last))
    assert_same_bits(expected[untouched], pool[untouched])


@settings(max_examples=100, **SETTINGS)
@given(st.data())
def test_any_layout(data):
    """Pools of any strides, with bytes around every row: the rows that slots name, and no byte else."""
    dtype = data.draw(st.sampled_from(FLOATS))
    heads, head_dim, num_slots = data.draw(st.integers(1, 4)), 2 * data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12))
    pairs = data.draw(st.integers(1, head_dim // 2))
    offset = data.draw(st.integers(0, head_dim - 2 * pairs))
    turn = Turn(data.draw(st.floats(1.5, 1e7)), 2 * pairs, None, offset, data.draw(st.sampled_from(["neox", "interleaved"])))
    gaps = [data.draw(st.integers(0, 3)) for _ in range(3)]
    buffer = keys_of(num_slots + gaps[0], heads + gaps[1], head_dim + gaps[2], dtype)
    if data.draw(st.booleans()):
        buffer = np.ascontiguousarray(buffer.swapaxes(0, 1)).swapaxes(0, 1)
    pool = buffer[gaps[0] :, : len(buffer[0]) - gaps[1], gaps[2] :]
    pool = pool[::-1] if data.draw(st.booleans()) else pool
    tokens = data.draw(st.integers(0, 20))
    slots = np.array(data.draw(st.lists(st.integers(-2, num_slots - 1), min_size=tokens, max_size=tokens)), np.int64)
    span = data.draw(st.sampled_from([10, 5000, MAX_POSITION]))
    old, new = np.random.default_rng(data.draw(st.integers(0, 999))).integers(-span, span, (2, tokens), endpoint=True)
    before, apart = buffer.copy(), np.array(pool)
    expected = moved(apart, slots, old, new, turn.make())
    ropepool.rerotate(pool, slots, old, new, head_dim=head_dim, num_kv_heads=heads, rope=turn.make())
    assert_same_bits(pool, expected)
    last = {slot: token for token, slot in enumerate(slots.tolist()) if slot >= 0}
    rows, tokens = list(last), list(last.values())
    assert_moved(expected[rows], apart[rows], *difference(turn, old[tokens], new[tokens]), turn)
    inside = np.zeros(buffer.shape, bool)
    inside[gaps[0] :, : len(buffer[0]) - gaps[1], gaps[2] :] = True
    np.testing.assert_array_equal(bits(buffer)[~inside], bits(before)[~inside])


@each_dtype
def test_the_turned_part_of_a_latent_row(dtype):
    pool = keys_of(9, 1, 576, dtype)
    before, keys = pool.copy(), pool[..., 512:]
    turn = Turn(10000.0, 64, pairing="interleaved")
    slots, old, new = np.array([8, 2, 3]), np.array([50, 60, 70]), np.array([10, 20, 30])
    ropepool.rerotate(keys, slots, old, new, head_dim=64, num_kv_heads=1, rope=turn.make())
    assert_moved(keys[slots], before[slots][..., 512:], *difference(turn, old, new), turn)
    assert_same_bits(pool[..., :512], before[..., :512])


def test_special_values():
    """NaN and infinity stay in their pair; denormals are kept."""
    for dtype in FLOATS:
        pool = keys_of(3, 1, 64, dtype)
        pool[0, 0, 5], pool[1, 0, 40] = np.nan, np.inf
        pool[2, 0] = (np.arange(64) * float(ml_dtypes.finfo(dtype).smallest_subnormal)).astype(dtype)
        actual = moved(pool, [0, 1, 2], [0, 7, 9], [1, 9, 10], 10000.0).astype(np.float64)
        assert np.flatnonzero(~np.isfinite(actual[0, 0])).tolist() == [5, 37]
        assert np.flatnonzero(~np.isfinite(actual[1, 0])).tolist() == [8, 40]
        assert np.count_nonzero(actual[2]) > 48


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_rounded_once(dtype):
    pool = keys_of(len(MOVES), 3, 96, dtype)
    old, new = np.array(MOVES).T.copy()
    slots = np.arange(len(MOVES))
    wide = moved(pool.astype(np.float32), slots, old, new, 10000.0)
    assert_same_bits(moved(pool, slots, old, new, 10000.0), wide.astype(dtype))


# ---- What is refused


def refusal(pool=None, slots=(0, 1, 2), old=(7, 8, 9), new=(0, 1, 2), **changes):
    pool = np.ones((5, 2, 64), np.float32) if pool is None else pool
    before = np.array(pool)
    arrays = (pool, np.asarray(slots), np.asarray(old), np.asarray(new))
    if "rope" not in changes:
        changes = {"rope_base": 10000.0} | changes
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rerotate(*arrays, **{"head_dim": 64, "num_kv_heads": 2} | changes)
    assert_same_bits(pool, before, "k_pool was written")
    error = caught.value
    assert ropepool.explain(error.summary)["code"] == error.code, error.summary
    assert "rope_pool_fused" not in str(error) and "v_pool" not in error.summary
    return error


TABLE = Rope(rotary_dim=64, cos_sin=np.ones((20, 64), np.float32))
AXES = Rope(10000.0, rotary_dim=64, sections=[8, 12, 12])
TWO = Rope.join([Rope(10000.0, rotary_dim=64), Rope(500000.0, rotary_dim=64)])
LIST = "old_positions/new_positions/slots"
REFUSALS = {
    "a table": ({"rope": TABLE}, "RP035", "rope", "rerotate needs frequencies, but the rope has a table of cos and sin"),
    "slots of 2 axes": ({"slots": [[0, 1, 2]]}, "RP002", "slots", f"rerotate expects {LIST} to be 1-D"),
    "old positions of 2 axes": ({"old": [[7, 8, 9]]}, "RP002", "old_positions", f"rerotate expects {LIST} to be 1-D"),
    "new positions of 0 axes": ({"new": 7}, "RP002", "new_positions", f"rerotate expects {LIST} to be 1-D"),
    "a pool of pages": (
        {"pool": np.ones((1, 5, 2, 64), np.float32)},
        "RP003",
        "k_pool",
        "rerotate expects pool tensors to be 3-D",
    ),
    "an old position too few": ({"old": [7, 8]}, "RP007", "old_positions", f"{LIST} must have one entry per token"),
    "a new position too many": ({"new": [7, 8, 9, 1]}, "RP007", "new_positions", f"{LIST} must have one entry per token"),
    "axes too few": (
        {"rope": AXES, "old": np.zeros((2, 3), int)},
        "RP007",
        "old_positions",
        f"{LIST} must have one entry per token",
    ),
    "other heads": ({"num_kv_heads": 3}, "RP008", "k_pool", "k_pool has incompatible shape (5, 2, 64)"),
    "other lanes": ({"head_dim": 32}, "RP008", "k_pool", "k_pool has incompatible shape (5, 2, 64)"),
    "float64": (
        {"pool": np.ones((5, 2, 64))},
        "RP012",
        "k_pool",
        "k_pool must be float32, float16 or bfloat16, got float64",
    ),
    "slots in floats": ({"slots": [0.0, 1.0, 2.0]}, "RP013", "slots", "slots must be int32 or int64, got float64"),
    "old positions in floats": (
        {"old": [0.0, 1.0, 2.0]},
        "RP013",
        "old_positions",
        "old_positions must be int32 or int64, got float64",
    ),
    "new positions unsigned": (
        {"new": np.zeros(3, np.uint32)},
        "RP013",
        "new_positions",
        "new_positions must be int32 or int64, got uint32",
    ),
    "odd lanes": (
        {"pool": np.ones((5, 2, 7), np.float32), "head_dim": 7},
        "RP014",
        "head_dim",
        "head_dim must be even, got 7",
    ),
    "no base": ({"rope_base": None}, "RP015", "rope_base", "rope_base must be finite and above 0, got nan"),
    "both ropes": (
        {"rope": AXES, "rope_base": 1e4},
        "RP015",
        "rope_base",
        "rope_base must be left out where rope is given, got 10000",
    ),
    "other angles": ({"angles": "float64"}, "RP015", "angles", "angles must be 'exact' or 'float32', got 'float64'"),
    "every second lane": (
        {"pool": np.ones((5, 2, 128), np.float32)[..., ::2]},
        "RP016",
        "k_pool",
        "k_pool must have an innermost stride of 1, got 2",
    ),
    "every second position": (
        {"new": np.arange(6)[::2]},
        "RP016",
        "new_positions",
        "new_positions must have an innermost stride of 1, got 2",
    ),
    "rows on one another": (
        {"pool": np.lib.stride_tricks.as_strided(np.ones((5, 2, 64), np.float32), (5, 2, 64), (0, 256, 4))},
        "RP019",
        "k_pool",
        "k_pool must share no memory with itself",
    ),
    "a slot too high": ({"slots": [0, 5, 6]}, "RP020", "slots", "slots[1] is 5, but the pools have 5 slots"),
    "an old position past all": (
        {"old": [0, 0, 2**31]},
        "RP021",
        "old_positions",
        "old_positions[2] is 2147483648, beyond +-2147483647",
    ),
    "a new position past all": (
        {"new": [0, -(2**31), 2**31]},
        "RP021",
        "new_positions",
        "new_positions[1] is -2147483648, beyond +-2147483647",
    ),
    "a rope too wide": (
        {"rope": Rope(10000.0, rotary_dim=66)},
        "RP023",
        "rope",
        "the rope turns lanes 0 to 65, but heads have 64",
    ),
    "no sets": ({"rope": TWO}, "RP024", "old_sets", "old_sets must be given where the rope has more sets than one"),
    "no new sets": (
        {"rope": TWO, "old_sets": np.zeros(3, int)},
        "RP024",
        "new_sets",
        "new_sets must be given where the rope has more sets than one",
    ),
    "sets of a base": (
        {"new_sets": np.zeros(3, int)},
        "RP024",
        "new_sets",
        "new_sets must be left out where no rope is given",
    ),
    "sets too few": (
        {"rope": TWO, "old_sets": np.zeros(3, int), "new_sets": np.zeros(2, int)},
        "RP024",
        "new_sets",
        "new_sets must be of one entry per token",
    ),
    "an old set too far": (
        {"rope": TWO, "old_sets": np.array([0, 2, 0]), "new_sets": np.zeros(3, int)},
        "RP025",
        "old_sets",
        "old_sets[1] is 2, but the rope has 2 sets",
    ),
    "a new set below 0": (
        {"rope": TWO, "old_sets": np.zeros(3, int), "new_sets": np.array([0, 0, -1])},
        "RP025",
        "new_sets",
        "new_sets[2] is -1, but the rope has 2 sets",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals(what):
    changes, code, argument, line = REFUSALS[what]
    error = refusal(**changes)
    assert (error.code, error.argument) == (code, argument)
    assert error.summary.startswith(line)
    assert error.argument in ropepool.explain(error)["argument"].split(", ")


def test_overlap_and_read_only():
    pool = np.zeros((5, 2, 64), np.float32)
    inside = pool[1, 0, :6].view(np.int64)
    for name, word in (("slots", "slots"), ("old", "old_positions"), ("new", "new_positions")):
        error = refusal(pool, **{name: inside})
        assert (error.code, error.summary) == ("RP019", f"k_pool must share no memory with {word}")
    pool.flags.writeable = False
    error = refusal(pool)
    assert (error.code, error.argument) == ("RP017", "k_pool")
    assert error.summary == "k_pool must be writable, got a read-only array"


def test_the_positions_may_be_one_array():
    """Old and new positions that share memory: only read."""
    pool, positions = keys_of(5, 2, 64, np.float32), np.arange(10)
    overlapping = moved(pool, np.arange(5), positions[5:], positions[:5], 10000.0)
    assert_same_bits(overlapping, moved(pool, np.arange(5), positions[5:].copy(), positions[:5].copy(), 10000.0))
    assert_same_bits(moved(pool, positions[:5], positions[:5], positions[:5], 10000.0), pool)


def test_types():
    pool, index = np.ones((5, 2, 64), np.float32), np.arange(3)
    heads = {"head_dim": 64, "num_kv_heads": 2, "rope_base": 1e4}
    for changes in ({"rope": "yarn"}, {"num_qo_heads": 2}, {"rope_sets": index}, {"head_dim": 64.0}, {"old_sets": "old"}):
        with pytest.raises(TypeError, match=next(iter(changes))):
            ropepool.rerotate(pool, index, index, index, **heads | changes)
    with pytest.raises(TypeError):
        ropepool.rerotate(pool, index, index, **heads)
