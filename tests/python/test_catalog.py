"""The error reference: generated files, codes that never change, and messages that are what is raised."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import ropepool
from test_contract import FAULTS, make, name_of, planned, refused

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Fixed for good: users search for these, and programs compare them.
CODES = {
    "RP001": "qkv-not-3d",
    "RP002": "positions-slots-not-1d",
    "RP003": "pools-not-3d",
    "RP004": "q-shape-mismatch",
    "RP005": "k-shape-mismatch",
    "RP006": "v-shape-mismatch",
    "RP007": "token-count-mismatch",
    "RP008": "k-pool-shape-mismatch",
    "RP009": "v-pool-shape-mismatch",
    "RP010": "qkv-dtype-mismatch",
    "RP011": "pool-dtype-mismatch",
    "RP012": "float-dtype-unsupported",
    "RP013": "index-dtype-unsupported",
    "RP014": "geometry-unsupported",
    "RP015": "rope-unsupported",
    "RP016": "layout-unsupported",
    "RP017": "output-unsuitable",
    "RP018": "device-unsupported",
    "RP019": "overlap",
    "RP020": "slot-out-of-range",
    "RP021": "position-out-of-range",
    "RP022": "rope-form-unsupported",
    "RP023": "rope-wider-than-heads",
    "RP024": "rope-sets-unsuitable",
    "RP025": "rope-set-out-of-range",
    "RP026": "position-outside-table",
    "RP027": "rope-type-unknown",
    "RP028": "rope-key-missing",
    "RP029": "rope-keys-contradict",
    "RP030": "rope-value-unsuitable",
    "RP031": "qkv-not-2d",
    "RP032": "qkv-width-mismatch",
    "RP033": "qkv-order-unsuitable",
    "RP034": "head-ops-unsuitable",
    "RP035": "rerotate-needs-frequencies",
}
# So are the first lines that people search for.
MESSAGES = [
    "rope_pool_fused expects q/k/v to be 3-D",
    "rope_pool_fused expects positions/slots to be 1-D",
    "rope_pool_fused expects pool tensors to be 3-D",
    "q shape must be [num_tokens, num_qo_heads, head_dim], got {q.shape}",
    "k shape must be [num_tokens, num_kv_heads, head_dim], got {k.shape}",
    "v shape must match k shape, got {v.shape} vs {k.shape}",
    "positions/slots must have one entry per token",
    "k_pool has incompatible shape {k_pool.shape}",
    "v_pool shape must match k_pool shape, got {v_pool.shape} vs {k_pool.shape}",
    "q/k/v dtypes must match",
    "pool dtypes must match q/k/v dtype",
]
KEYS = ["code", "name", "message", "argument", "meaning", "trigger", "situations", "solutions"]
KEYS += ["example", "guard", "related", "url", "where"]

each_entry = pytest.mark.parametrize("entry", ropepool.errors(), ids=lambda entry: entry["code"])
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=name_of)


def test_generated_files_are_current():
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_errors.py", "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_codes_and_names_never_change():
    assert {entry["code"]: entry["name"] for entry in ropepool.errors()} == CODES
    assert [entry["code"] for entry in ropepool.errors()] == sorted(CODES)


def test_the_originals_messages_never_change():
    assert [entry["message"] for entry in ropepool.errors()][: len(MESSAGES)] == MESSAGES


@each_entry
def test_every_entry_is_complete(entry):
    assert list(entry) == KEYS
    assert list(entry["example"]) == ["failing", "mended"] and list(entry["where"]) == ["file", "function"]

    def texts(value):
        match value:
            case str():
                return [value]
            case dict():
                return [text for part in value.values() for text in texts(part)] or [""]
        return [text for part in value for text in texts(part)] or [""]

    empty = [key for key, value in entry.items() if not all(text.strip() for text in texts(value))]
    assert empty == []
    assert entry["url"] == f"errors/{entry['code']}.html"
    assert set(entry["related"]) <= set(CODES) - {entry["code"]}


@each_entry
def test_every_entry_says_where_it_is_raised(entry):
    source = (ROOT / entry["where"]["file"]).read_text(encoding="utf-8")
    assert re.search(rf"\b{entry['where']['function']}\(", source)


def command_line():
    beside = pathlib.Path(sys.executable).with_name("ropepool")
    return str(beside) if beside.exists() else shutil.which("ropepool")


@pytest.mark.skipif(command_line() is None, reason="the command line is not installed")
def test_the_command_line_prints_the_same():
    run = subprocess.run([command_line(), "errors", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == ropepool.errors()


def pattern_of(message):
    """The message with anything on its line in place of the {placeholders}."""
    pieces = re.split(r"\{([^}]*)\}", message)
    for i in range(1, len(pieces), 2):
        pieces[i] = r"\((?:\d+(?:, \d+)*,?)?\)" if pieces[i].endswith(".shape") else r".+"
    return "".join(piece if i % 2 else re.escape(piece) for i, piece in enumerate(pieces))


@each_fault
def test_what_is_raised_is_the_catalogs_message(fault):
    error = refused(make(planned(fault)))
    entry = ropepool.explain(fault.code)
    assert re.fullmatch(pattern_of(entry["message"]), error.summary)


@each_fault
def test_what_is_raised_is_explained(fault):
    """By the error, its whole text, its first line in the midst of a log, and by code or name alone."""
    error = refused(make(planned(fault)))
    log = f'  File "model.py", line 7, in forward\nropepool.ContractError: {error.summary}\n'
    for what in (error, str(error), error.summary, log, error.code, error.code.lower(), error.name, int(error.code[2:])):
        assert ropepool.explain(what)["code"] == fault.code, what


def test_a_log_with_bytes_that_are_no_text_is_searched():
    message = "v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)"
    assert ropepool.explain(f"\udcff\udc9b {message}")["code"] == ropepool.explain(f"\ud800{message}")["code"] == "RP006"
    with pytest.raises(LookupError):
        ropepool.explain("\udcff")


def test_patterns_can_fail():
    assert re.fullmatch(pattern_of("got {v.shape} vs {k.shape}"), "got (4, 10, 64) vs ()")
    assert not re.fullmatch(pattern_of("got {v.shape} vs {k.shape}"), "got [4, 10, 64] vs (4,)")


def test_no_two_entries_share_a_paragraph():
    seen = {}
    for entry in ropepool.errors():
        for text in (entry["meaning"], entry["trigger"], *entry["situations"], *entry["solutions"]):
            assert seen.setdefault(text, entry["code"]) == entry["code"], text


SGLANG_LOG = """\
[2026-11-30 09:12:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/python/sglang/srt/managers/scheduler.py", line 2514, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/opt/sglang/python/sglang/srt/layers/radix_attention.py", line 101, in forward
    return forward_batch.attn_backend.forward(q, k, v, self, forward_batch, save_kv_cache)
  File "/opt/sgl_kernel/metal.py", line 88, in rope_pool_fused
    raise ValueError({raised})
ValueError: {message}

[2026-11-30 09:12:01] Received sigquit from a child process. It usually means the child failed.
"""


@pytest.mark.parametrize("entry", ropepool.errors()[:11], ids=lambda entry: entry["code"])
def test_the_originals_messages_are_found_in_a_log_of_sglang(entry):
    message = re.sub(r"\{[^}]*\}", "(37, 10, 64)", entry["message"])
    assert ropepool.explain(SGLANG_LOG.format(raised=f"f'{entry['message']}'", message=message))["code"] == entry["code"]
