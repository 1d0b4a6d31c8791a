"""How often the named cause is the mistake that was made, counted over mistakes.py.

Run as a script it prints the score by kind.
"""

import collections
import re

import mistakes
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


def test_no_other_mistake_is_named_with_certainty():
    for kind, row in score().items():
        for model, _, cause in row[3]:
            assert HEDGES.search(cause), f"{kind}, {model}: {cause}"


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
