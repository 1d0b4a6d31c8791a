"""The examples and guards of the error reference, taken from its JSON as a stranger would take them."""

import inspect
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import ropepool

ENTRIES = json.loads(json.dumps(ropepool.errors()))
GUARDS = {entry["code"]: entry["guard"] for entry in ENTRIES}
OPS = ("rope_pool_fused", "rope_pool_fused_qkv", "rope", "write_kv", "rerotate")
GENERATOR = pathlib.Path(__file__).resolve().parents[2] / "tools" / "generate_errors.py"

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=GUARDS)
each_example = pytest.mark.parametrize("which", ["failing", "mended"])


def run(script, monkeypatch):
    """Runs an example: its one call of an op, as (op, arguments by name and with defaults), and what was raised or None.

    Where a Rope is refused, the call is not reached, and is None.
    """
    calls = []

    def record(name):
        genuine = getattr(ropepool, name)
        signature = inspect.signature(genuine)

        def recorded(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            calls.append((name, bound.arguments))
            return genuine(*args, **kwargs)

        monkeypatch.setattr(ropepool, name, recorded)

    for name in OPS:
        record(name)
    raised = None
    try:
        exec(compile(script, "example", "exec"), {"__name__": "__main__"})
    except ropepool.ContractError as error:
        raised = error
    assert len(calls) == 1 or (raised and not calls)
    return (calls[0] if calls else None), raised


def holds(code, arguments):
    """What the guard of an entry says of a call."""
    if code != "RP018":  # what lies behind an array that only says that it is elsewhere
        arguments = {name: getattr(value, "array", value) for name, value in arguments.items()}
    said = eval(GUARDS[code], {"np": np, **arguments})
    assert isinstance(said, bool | np.bool_)
    return bool(said)


@each_entry
def test_the_failing_example_raises_its_code(entry, monkeypatch):
    _, raised = run(entry["example"]["failing"], monkeypatch)
    assert raised is not None and raised.code == entry["code"]


@each_entry
def test_the_mended_example_passes(entry, monkeypatch):
    (op, arguments), raised = run(entry["example"]["mended"], monkeypatch)
    assert raised is None
    # It does what it was called for: some token's K and V are in the pools.
    assert np.any(arguments["k_pool"]) or not np.any(arguments["k"])
    if op != "rerotate":
        assert np.any(arguments["v_pool"]) or not np.any(arguments["v"])


@each_entry
@each_example
def test_guards_say_what_check_says(entry, which, monkeypatch):
    call, _ = run(entry["example"][which], monkeypatch)
    if call is None:
        assert entry["guard"] == "True  # told when the Rope is made, before any call"
        return
    op, arguments = call
    if op != "rope_pool_fused":  # check is about that op alone
        assert entry["guard"].startswith("True  # ") and op in entry["guard"]
        return
    listed = [error.code for error in ropepool.check(**arguments)]
    if entry["guard"].startswith("True"):
        assert listed == []
        return
    assert (listed[:1] == [entry["code"]]) == (which == "failing")
    assert [code for code in GUARDS if not holds(code, arguments)] == listed


@each_entry
def test_examples_are_alike_but_for_the_mistake(entry):
    failing, mended = (entry["example"][which].splitlines() for which in ("failing", "mended"))
    assert failing[0] == mended[0] == "import numpy as np"
    assert 1 <= len(set(failing) ^ set(mended)) <= 6


@pytest.mark.parametrize("entry", ENTRIES[:1], ids=["RP001"])
def test_examples_are_whole_scripts(entry):
    mended = subprocess.run([sys.executable, "-c", entry["example"]["mended"]], capture_output=True, text=True)
    assert (mended.returncode, mended.stdout, mended.stderr) == (0, "", "")
    failing = subprocess.run([sys.executable, "-c", entry["example"]["failing"]], capture_output=True, text=True)
    assert failing.returncode != 0 and f"ropepool.ContractError: {entry['message']}\n" in failing.stderr


@each_entry
def test_entries_are_whole(entry):
    for key in ("code", "name", "message", "argument", "meaning", "trigger", "guard", "url"):
        assert entry[key].strip() == entry[key] != ""
    for key in ("situations", "solutions", "related"):
        assert entry[key] and all(text.strip() == text != "" for text in entry[key])
    assert entry["where"]["file"] and entry["where"]["function"]
    assert "\n" not in entry["guard"]


def test_the_generated_files_are_current():
    if not GENERATOR.exists():
        pytest.skip("not in a source tree")
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
