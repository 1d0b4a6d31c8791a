"""The tool as CMake installs it, fed by pipes."""

import json

from doors import run

CAPTURE = "tests/data/smollm2/layer00.f32.safetensors"


def test_run_reads_standard_input(shared, tree):
    with (tree / CAPTURE).open("rb") as file:
        output = run("ropepool", "run", "-", "--angles", "float32", cwd=tree, path=[shared.bin], stdin=file)
    assert "q_rot" in output
    assert " ok" in output


def test_run_gives_json_on_standard_output(shared, tree):
    output = run("ropepool", "run", CAPTURE, "--angles", "float32", "--json", cwd=tree, path=[shared.bin])
    assert json.loads(output)["ok"] is True


def test_explain_finds_the_refusal_in_a_log(shared, tree):
    log = (
        'Traceback (most recent call last):\n  File "serve.py", line 9, in forward\n'
        "ValueError: v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)\nshutting down\n"
    )
    assert "RP006 v-shape-mismatch" in run("ropepool", "explain", "-", cwd=tree, path=[shared.bin], input=log)


def test_errors_lists_all(shared, tree):
    entries = json.loads(run("ropepool", "errors", "--json", cwd=tree, path=[shared.bin]))
    assert [entry["code"] for entry in entries] == [f"RP{number:03d}" for number in range(1, len(entries) + 1)]
