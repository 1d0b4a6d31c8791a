"""Whether refusals of ropes and configs name the mistake that was made, over rope_mistakes.py."""

import re

import numpy as np
import pytest
import rope_mistakes
from ropepool import ContractError, Rope

CODES = [f"RP{number:03}" for number in range(22, 31)]


def refusal_of(kind, variant):
    with pytest.raises(ContractError) as caught:
        kind.make(variant)
    return caught.value


def test_there_are_enough_mistakes():
    assert len(rope_mistakes.KINDS) >= 90
    assert len(rope_mistakes.seeded()) >= 150
    for code in CODES:
        assert sum(kind.code == code for kind in rope_mistakes.KINDS) >= 3, code
    names = [kind.name for kind in rope_mistakes.KINDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", rope_mistakes.KINDS, ids=lambda kind: kind.name)
def test_the_mistake_is_named(kind):
    for variant in kind.variants:
        error = refusal_of(kind, variant)
        assert error.code == kind.code, f"{variant}: {error}"
        for pattern in kind.patterns:
            assert re.search(pattern, error.cause), f"{variant}: {pattern} in {error}"
        assert error.hint, f"{variant}: {error}"


@pytest.mark.parametrize("words", rope_mistakes.TABLES)
def test_the_mend_of_a_table_helps(words):
    table = rope_mistakes.TABLES[words]
    with pytest.raises(ContractError) as caught:
        Rope(rotary_dim=64, cos_sin=table)
    halves = rope_mistakes.TWICE if "as wide" in words else {"cos": rope_mistakes.COS, "sin": rope_mistakes.SIN}
    scope = {"numpy": np, "cos_sin": table} | halves
    exec(caught.value.hint, scope)
    np.testing.assert_array_equal(scope["cos_sin"], rope_mistakes.TABLE)
    assert Rope(rotary_dim=64, cos_sin=scope["cos_sin"]).table_rows == 20


def test_values_without_sense_get_no_cause():
    """Numbers that no mistake of ours fits."""
    for make in (
        lambda: Rope(-3.5, rotary_dim=64),
        lambda: Rope(1e4, rotary_dim=-64),
        lambda: Rope(1e4, rotary_dim=64, sections=[-1, 2, 3]),
        lambda: Rope(1e4, rotary_dim=64, sections=[2**62, 2**62, 2**62]),
        lambda: Rope(rotary_dim=8, frequencies=[]),
        lambda: Rope(rotary_dim=64, cos_sin=np.zeros((3, 5, 7, 9), np.float32)),
        lambda: Rope.from_config({"head_dim": 64, "rope_theta": [1]}),
        lambda: Rope.from_config({"head_dim": 64, "rope_theta": "a lot"}),
    ):
        with pytest.raises(ContractError) as caught:
            make()
        assert caught.value.cause == "", str(caught.value)
