"""How often the named cause is the mistake that was made, counted over mistakes.py.

Run as a script it prints the score by kind.
"""

import collections
import re

import mistakes
import ml_dtypes
import numpy as np
import pytest
import ropepool

# Words by which a cause says that it is not sure.
HEDGES = re.compile(r"\bor\b|\beither\b|\bmay\b|\bperhaps\b|\bif\b", re.IGNORECASE)


def refusal_of(arguments):
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope_pool_fused(**arguments)
    return caught.value


def is_named(kind, model, cause):
    return any(all(re.search(p, cause, re.IGNORECASE) for p in group) for group in mistakes.patterns_of(kind, model))


def score():
    """Kind -> [seeded, named, said nothing, (model, cause) of what was wrong]."""
    table = collections.defaultdict(lambda: [0, 0, 0, []])
    for kind, model, arguments in mistakes.seeded():
        error = refusal_of(arguments)
        row = table[kind.name]
        row[0] += 1
        if error.code == kind.code and is_named(kind, model, error.cause):
            row[1] += 1
        elif not error.cause:
            row[2] += 1
        else:
            row[3].append((model.name, error.code, error.cause))
    return table


def print_score(table):
    for name, (seeded, named, silent, wrong) in table.items():
        print(f"{name:42} {named:2} of {seeded:2} named, {silent} without a cause, {len(wrong)} otherwise")
        for model, code, cause in wrong:
            print(f"    {model}: {code} {cause}")
    seeded, named = (sum(row[i] for row in table.values()) for i in (0, 1))
    print(f"{len(table)} kinds, {seeded} mistakes, {named} named: {100 * named / seeded:.1f} %")


def test_there_are_enough_mistakes():
    assert len(mistakes.KINDS) >= 30
    assert len(mistakes.seeded()) >= 200


@pytest.mark.parametrize("kind", mistakes.KINDS, ids=lambda kind: kind.name)
def test_a_mistake_raises_its_code(kind):
    for k, model, arguments in mistakes.seeded():
        if k is kind:
            assert refusal_of(arguments).code == kind.code, model.name


def test_the_seeded_mistake_is_named(capsys):
    table = score()
    with capsys.disabled():
        print()
        print_score(table)
    seeded, named = (sum(row[i] for row in table.values()) for i in (0, 1))
    assert named >= 0.95 * seeded
    assert [kind for kind, row in table.items() if not row[1]] == []  # each at least once


def test_no_other_mistake_is_named_with_certainty():
    for kind, row in score().items():
        for model, _, cause in row[3]:
            assert HEDGES.search(cause), f"{kind}, {model}: {cause}"


# ---- Mends that are code: what follows them must help

ARRAYS = ("q", "k", "v", "positions", "slots", "k_pool", "v_pool", "q_out", "k_out")
POOLS = ("k_pool", "v_pool")


def assignments(hint, names):
    """The longest beginning of a mend that is code over these names, as statements, or None."""
    ends = [len(hint), *(found.start() for found in re.finditer("[,;]", hint))]
    for end in sorted(ends, reverse=True):
        for text in (hint[:end].strip(), f"(lambda **given: globals().update(given))({hint[:end].strip()})"):
            try:
                code = compile(text, "mend", "exec")
            except SyntaxError:
                continue
            changes = "=" in text and "==" not in text
            if changes and set(code.co_names) - {"globals", "update"} <= names | set(ARRAYS) | {"qkv", "kv", "pool"}:
                return code
    return None


def attributes(*types):
    return {name for each in types for name in dir(each)}


def followed(hint, model, arguments):
    """The arguments after the mend, or None where the mend is not code."""
    # What a mend may speak of beside the arguments: names of the user's own that the arguments come from.
    context = {"numpy": np, "ml_dtypes": ml_dtypes, "qkv": model.qkv, "layer": 0, "pool": arguments["k_pool"]}
    context |= {"q_size": model.q_size, "kv_size": model.kv_size}
    names = set(context) | set(arguments) | attributes(np, ml_dtypes, np.ndarray, np.dtype)
    code = assignments(hint, names)
    if code is None:
        return None
    scope = context | dict(arguments)
    exec(code, scope)
    result = {name: scope[name] for name in (*arguments, "q_out", "k_out") if name in scope}
    if "qkv[..., " in hint:  # what is cut from the projection is split into heads as before
        for name in "qkv":
            if result[name].ndim == 2:
                result[name] = model.heads(result[name])
    return result


@pytest.mark.parametrize("kind", mistakes.KINDS, ids=lambda kind: kind.name)
def test_a_mend_that_is_code_helps_and_keeps_the_callers_pools(kind):
    for k, model, arguments in mistakes.seeded():
        if k is not kind:
            continue
        seen = set()
        while True:
            try:
                ropepool.rope_pool_fused(**arguments)
                break
            except ropepool.ContractError as error:
                refusal = error
            fault = (refusal.code, refusal.argument)
            assert fault not in seen, f"{model.name}: {refusal.hint} did not help: {refusal}"
            seen.add(fault)
            mended = followed(refusal.hint, model, arguments)
            if mended is None:
                break
            for name in POOLS:
                mine = arguments[name]
                assert np.shares_memory(mended[name], mine) or not mine.size, f"{model.name}: {refusal.hint}"
            arguments = mended


FOLLOWED_AT_LEAST = 60  # kinds whose first mend is code, so that the test above tests something


def test_most_mends_are_code():
    first = {kind.name: (model, arguments) for kind, model, arguments in reversed(mistakes.seeded())}
    code = [name for name, (m, a) in first.items() if followed(refusal_of(a).hint, m, a) is not None]
    assert len(code) >= FOLLOWED_AT_LEAST, code


@pytest.mark.parametrize("name", ["k_pool", "v_pool", "q_out", "k_out"])
def test_no_mend_copies_what_is_written(name):
    for kind, model, arguments in mistakes.seeded():
        hint = refusal_of(arguments).hint
        assert not re.search(rf"{name} = [^;]*(\.copy\(|ascontiguousarray|\.astype\()", hint), (
            f"{kind.name}, {model.name}: {hint}"
        )


@pytest.mark.parametrize("dtype", [np.int32, "complex64", np.longdouble, object, "V4"], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_the_odd_dtype_of_qkv_is_the_one_to_convert(name, dtype):
    model = mistakes.MODELS[0]
    error = refusal_of(model.call(**{name: np.zeros(model.call()[name].shape, dtype)}))
    assert error.code == "RP010"
    assert re.findall(r"(\w+) = ", error.hint) == [name]
    assert "float32" in error.cause


@pytest.mark.parametrize("dtype", [bool, "datetime64[s]", "U3", object, "V4", "complex64", np.longdouble], ids=str)
@pytest.mark.parametrize(("name", "other"), [("positions", "slots"), ("slots", "positions")])
def test_the_mend_of_an_index_dtype_names_its_array(name, other, dtype):
    model = mistakes.MODELS[0]
    error = refusal_of(model.call(**{name: np.zeros(model.tokens, dtype)}))
    assert (error.code, error.argument) == ("RP013", name)
    assert name in error.hint and other not in error.hint


@pytest.mark.parametrize("name", ["positions", "slots"])
def test_a_single_number_is_an_entry_of_one_token_alone(name):
    model = mistakes.Model("one token", 4, 2, 64, 1)
    assert "one token" in refusal_of(model.call(**{name: np.array(3)})).cause
    model = mistakes.Model("four tokens", 4, 2, 64, 4)
    error = refusal_of(model.call(**{name: np.array(3)}))
    assert "each of the 4 tokens" in error.cause and "reshape" not in error.hint
    assert ("numpy.full(4, positions)" in error.hint) == (name == "positions")


@pytest.mark.parametrize("shape", [(4, 8, 2, 64), (1, 2, 300, 64), (160, 128), (3, 4, 8, 2, 64)], ids=str)
def test_pools_that_are_wrong_in_the_same_way_are_mended_together(shape):
    model = mistakes.Model("pools", 4, 2, 64, 4)
    wrong = {name: np.zeros(shape, np.float32) for name in POOLS}
    both = refusal_of(model.call(**wrong))
    assert both.code == "RP003" and "k_pool = k_pool" in both.hint and "v_pool = v_pool" in both.hint
    one = refusal_of(model.call(v_pool=wrong["v_pool"]))
    assert one.code == "RP003" and "k_pool = " not in one.hint and "v_pool = v_pool" in one.hint


# ---- No cause where none fits


def test_v_as_the_call_says_is_not_blamed_for_k():
    model = mistakes.MODELS[0]
    wrong = model.call(k=model.call()["k"][:, :, : model.d // 2], k_pool=np.zeros((64, 3, 5), model.dtype))
    causes = {error.code: error.cause for error in ropepool.check(**wrong)}
    assert "k is not" in causes["RP006"] and "k_pool is not" in causes["RP009"]


@pytest.mark.parametrize("name", ["head_dim", "num_qo_heads", "num_kv_heads"])
def test_a_negative_count_is_no_missing_key(name):
    model = mistakes.MODELS[0]
    causes = {error.code: error.cause for error in ropepool.check(**model.call(**{name: -64}))}
    assert causes["RP014"] == ""
    assert not any("layer" in cause for cause in causes.values())


def test_two_pools_are_not_called_one():
    for kind, model, arguments in mistakes.seeded():
        if kind.code == "RP003" and not np.shares_memory(arguments["k_pool"], arguments["v_pool"]):
            cause = refusal_of(arguments).cause
            assert "K and V" not in cause or HEDGES.search(cause), f"{kind.name}, {model.name}: {cause}"


def test_right_calls_are_not_refused():
    for model in mistakes.MODELS:
        ropepool.rope_pool_fused(**model.call())
        assert ropepool.check(**model.call()) == []


@pytest.mark.parametrize("dtype", [object, "U1", "V4", "datetime64[s]", "complex64", np.longdouble, [("lane", "f4")]], ids=str)
def test_types_of_which_nothing_is_known_are_not_called_quantised(dtype):
    model = mistakes.MODELS[0]
    q = np.empty((model.tokens, model.hq, model.d), dtype)
    assert "quantised" not in refusal_of(model.call(q=q)).cause


def test_shapes_without_sense_get_no_certain_cause():
    """Lengths that have nothing to do with the call's: no mistake of ours fits."""
    random = np.random.default_rng(5)
    strange = [n for n in range(211, 400) if all(n % p for p in range(2, n))]  # primes: no multiple of anything here
    for model in mistakes.MODELS:
        for name in ("q", "k", "v", "k_pool", "v_pool"):
            for rank in (2, 3, 4):
                if rank * len(name) == 0:
                    continue
                array = np.zeros(tuple(random.choice(strange, rank).tolist())[:2] + (1,) * (rank - 2), model.dtype)
                cause = refusal_of(model.call(**{name: array})).cause
                assert cause == "" or HEDGES.search(cause), cause


if __name__ == "__main__":
    print_score(score())
