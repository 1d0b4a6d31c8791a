"""The command line tool from end to end. ROPEPOOL_CLI names the program; else the one beside Python or on PATH is tested."""

import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

BESIDE_PYTHON = shutil.which("ropepool", path=str(pathlib.Path(sys.executable).parent))
TOOL = os.environ.get("ROPEPOOL_CLI") or BESIDE_PYTHON or shutil.which("ropepool")
if TOOL is None:
    pytest.skip("the command line tool is not built", allow_module_level=True)

OK, REFUSED, USAGE, FILE, DIFFERS, NOTHING_FITS, MACHINE = range(7)
FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
COMMANDS = ("run", "check", "errors", "explain", "rope", "bench", "doctor")


def tool(*arguments, **options):
    """Runs the tool, with text streams unless bytes are put in."""
    options.setdefault("text", not isinstance(options.get("input"), bytes))
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, timeout=120, check=False, **options)


def environment(**variables):
    return {name: value for name, value in os.environ.items() if not name.startswith("ROPEPOOL_")} | variables


def step(dtype=np.float32, index=np.int32, tokens=5, num_qo_heads=4, num_kv_heads=2, head_dim=64, num_slots=12, seed=0):
    """One step's tensors: a slot of two tokens, one that is skipped."""
    random = np.random.default_rng(seed)

    def values(*shape):
        return random.standard_normal(shape).astype(dtype)

    slots = np.array([3, -1, 0, 3, 9, *range(tokens)])[:tokens]
    return {
        "q": values(tokens, num_qo_heads, head_dim),
        "k": values(tokens, num_kv_heads, head_dim),
        "v": values(tokens, num_kv_heads, head_dim),
        "positions": (np.arange(tokens) * 7).astype(index),
        "slots": slots.astype(index),
        "k_pool": values(num_slots, num_kv_heads, head_dim),
        "v_pool": values(num_slots, num_kv_heads, head_dim),
    }


def results(tensors, rope_base=10000.0):
    """What the op must give, in float64 and rounded once."""

    def rotate(x):
        half = x.shape[-1] // 2
        angles = tensors["positions"][:, None, None] * rope_base ** (-np.arange(half) / half)
        low, high = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
        turned = (low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles))
        return np.concatenate(turned, axis=-1).astype(x.dtype)

    q_rot, k_rot = rotate(tensors["q"]), rotate(tensors["k"])
    k_pool, v_pool = tensors["k_pool"].copy(), tensors["v_pool"].copy()
    for token, slot in enumerate(tensors["slots"]):
        if slot >= 0:
            k_pool[slot], v_pool[slot] = k_rot[token], tensors["v"][token]
    return {"q_rot": q_rot, "k_rot": k_rot, "k_pool": k_pool, "v_pool": v_pool}


def expected(tensors, **options):
    return {f"expected.{name}": value for name, value in results(tensors, **options).items()}


BASE = {"rope_base": "10000.0"}


@pytest.fixture
def file(tmp_path):
    """Writes a step with its expected results, or the tensors given."""

    def write(tensors=None, metadata=BASE, name="step.safetensors"):
        path = tmp_path / name
        if tensors is None:
            tensors = step()
            tensors |= expected(tensors)
        save_file(tensors, path, metadata)
        return path

    return write


def raw_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ---- run


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_run_gives_the_expected_results_and_writes_them(file, tmp_path, dtype, index):
    tensors = step(dtype, index)
    right = results(tensors)
    path = file(tensors | expected(tensors))
    before = path.read_bytes()
    run = tool("run", path, "-o", tmp_path / "out.safetensors")
    assert (run.returncode, run.stderr) == (OK, "")
    assert path.read_bytes() == before
    written = load_file(tmp_path / "out.safetensors")
    assert written.keys() == right.keys()
    for name, value in right.items():
        assert written[name].dtype == dtype
        assert written[name].shape == value.shape
        scale = {np.float32: 2e-6, np.float16: 2e-3}.get(dtype, 2e-2)
        difference = written[name].astype(np.float64) - value.astype(np.float64)
        assert np.abs(difference).max() <= (0 if name == "v_pool" else scale * 3)
    skipped = [slot for slot in range(12) if slot not in (0, 3, 9)]
    assert written["k_pool"][skipped].tobytes() == tensors["k_pool"][skipped].tobytes()
    assert written["v_pool"].tobytes() == right["v_pool"].tobytes()
    with safe_open(tmp_path / "out.safetensors", "numpy") as out:
        metadata = out.metadata()
    assert (metadata["head_dim"], metadata["rope_base"], metadata["angles"]) == ("64", "10000", "exact")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out.safetensors", path]


def test_run_prints_shapes_time_traffic_and_threads(file):
    run = tool("run", file(), "--threads", 2, "--repeat", 3)
    for line in (
        r"q +\(5, 4, 64\) float32",
        r"slots +\(5,\) int32",
        r"v_pool +\(12, 2, 64\) float32",
        r"head_dim +64 \(shape of q\)",
        r"num_kv_heads +2 \(shape of k\)",
        r"rope_base +10000 \(metadata\)",
        r"angles +exact \(default\)",
        r"time +[\d.]+ us min, [\d.]+ us median of 3 runs",
        r"traffic +\d+ bytes read and written: [\d.]+ GB/s in the min time",
        r"SIMD target +\w+",
        r"threads +2 at most",
    ):
        assert re.search(f"^{line}$", run.stdout, re.M), line
    assert re.search(r"^v_pool +no error +ok$", run.stdout, re.M)


def test_run_as_json(file, tmp_path):
    path = file()
    run = tool("run", path, "--json", "--threads", 1, "--repeat", 4, "-o", tmp_path / "out.safetensors")
    report = json.loads(run.stdout)
    assert report["ok"] is True
    assert report["tensors"]["k_pool"] == {"shape": [12, 2, 64], "dtype": "float32"}
    assert report["parameters"]["rope_base"] == {"value": 10000.0, "source": "metadata"}
    assert report["parameters"]["num_qo_heads"] == {"value": 4, "source": "shape of q"}
    assert 0 < report["seconds"]["min"] <= report["seconds"]["median"]
    # q, k and v are read, q_rot and k_rot written, and rows 0, 3 and 9 of both pools; positions and slots are int32.
    assert report["bytes"] == 5 * 64 * 4 * (2 * 4 + 2 * 2 + 2) + 2 * 5 * 4 + 2 * 3 * 2 * 64 * 4
    assert report["gigabytes_per_second"] == pytest.approx(report["bytes"] / report["seconds"]["min"] / 1e9)
    assert report["threads"] == 1
    assert report["output"] == str(tmp_path / "out.safetensors")
    assert [comparison["name"] for comparison in report["comparisons"]] == ["q_rot", "k_rot", "k_pool", "v_pool"]
    assert report["comparisons"][3]["largest_error"] == 0


def test_flags_win_over_metadata_and_metadata_over_shapes(file):
    path = file(step(), {"rope_base": "10000.0", "num_qo_heads": "3", "angles": "float32"})
    found = json.loads(tool("check", path, "--json").stdout)["parameters"]
    assert found["num_qo_heads"] == {"value": 3, "source": "metadata"}
    assert found["angles"] == {"value": "float32", "source": "metadata"}
    arguments = ("--num-qo-heads", 4, "--rope-base", 5e5, "--angles", "exact", "--head-dim", 64, "--num-kv-heads", 2)
    report = json.loads(tool("run", path, "--json", *arguments).stdout)
    assert {parameter["source"] for parameter in report["parameters"].values()} == {"flag"}
    assert report["parameters"]["rope_base"]["value"] == 5e5


def test_rope_base_is_used(file):
    tensors = step()
    path = file(tensors | expected(tensors, rope_base=5e5), None)
    assert tool("run", path).returncode == REFUSED
    assert tool("run", path, "--rope-base", "1e4").returncode == DIFFERS
    assert tool("run", path, "--rope-base", "5e5").returncode == OK


# ---- run with a rope


def turned(tensors, frequencies, pairing="neox", axes=None):
    """What the op must give: frequencies are [pairs] or [tokens, pairs], axes say which row of positions a pair follows."""

    def rotate(x):
        pairs = np.shape(frequencies)[-1]
        positions = np.atleast_2d(tensors["positions"])[np.zeros(pairs, int) if axes is None else axes].T  # [tokens, pairs]
        angles = (positions * frequencies)[:, None, :]
        low = np.arange(pairs) if pairing == "neox" else 2 * np.arange(pairs)
        high = low + (pairs if pairing == "neox" else 1)
        out, wide = x.astype(np.float64), x.astype(np.float64)
        out[..., low] = wide[..., low] * np.cos(angles) - wide[..., high] * np.sin(angles)
        out[..., high] = wide[..., high] * np.cos(angles) + wide[..., low] * np.sin(angles)
        return out.astype(x.dtype)

    k_rot, k_pool, v_pool = rotate(tensors["k"]), tensors["k_pool"].copy(), tensors["v_pool"].copy()
    for token, slot in enumerate(tensors["slots"]):
        if slot >= 0:
            k_pool[slot], v_pool[slot] = k_rot[token], tensors["v"][token]
    right = {"q_rot": rotate(tensors["q"]), "k_rot": k_rot, "k_pool": k_pool, "v_pool": v_pool}
    return {f"expected.{name}": value for name, value in right.items()}


def powers(base, rotary_dim):
    return base ** (-np.arange(rotary_dim // 2) * 2 / rotary_dim)


def written(path, config):
    path.write_text(json.dumps(config))
    return path


LINEAR = {"head_dim": 64, "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
DYNAMIC = {"head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 16}
DYNAMIC |= {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
TWO_ROPES = {"model_type": "gemma3_text", "head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
PHI3 = {"model_type": "phi3", "head_dim": 64, "max_position_embeddings": 8, "original_max_position_embeddings": 8}
PHI3 |= {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [4.0] * 32}}


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_run_with_the_rope_of_a_config(file, tmp_path, dtype):
    tensors = step(dtype)
    right = turned(tensors, powers(5e5, 64) / 8)
    path, config = (
        file(tensors | right, {"rope_base": "10000.0", "source": "a test"}),
        written(tmp_path / "config.json", LINEAR),
    )
    for name in (config, tmp_path):  # the folder too
        run = tool("run", path, "--rope", name, "-o", tmp_path / "out.safetensors")
        assert (run.returncode, run.stderr) == (OK, "")
    assert re.search(rf"^rope +{re.escape(str(tmp_path))} \(flag\)$", run.stdout, re.M)
    assert "rope_base" not in run.stdout
    report = json.loads(tool("run", path, "--rope", config, "--json").stdout)
    assert report["parameters"]["rope"] == {"value": str(config), "source": "flag"}
    assert report["parameters"]["angles"] == {"value": "exact", "source": "default"}
    assert "rope_base" not in report["parameters"]
    with safe_open(tmp_path / "out.safetensors", "numpy") as out:
        assert "rope_base" not in out.metadata()
        assert (out.metadata()["rope"], out.metadata()["source"]) == (str(tmp_path), "a test")
    assert tool("run", path).returncode == DIFFERS


def test_run_with_the_rope_that_flags_pick(file, tmp_path):
    tensors = step()
    gemma, dynamic = written(tmp_path / "gemma.json", TWO_ROPES), written(tmp_path / "dynamic.json", DYNAMIC)
    full = file(tensors | turned(tensors, powers(1e6, 64) / 8), None, "full")
    sliding = file(tensors | turned(tensors, powers(1e4, 64)), None, "sliding")
    for path, layer_type in ((full, "full_attention"), (sliding, "sliding_attention")):
        run = tool("run", path, "--rope", gemma, "--layer-type", layer_type)
        assert run.returncode == OK, run.stderr
        assert re.search(rf"^rope +.*gemma\.json, {layer_type} \(flag\)$", run.stdout, re.M)
    assert tool("run", sliding, "--rope", gemma, "--layer-type", "full_attention").returncode == DIFFERS
    long = file(tensors | turned(tensors, powers(1e4 * 7 ** (64 / 62), 64)), None, "long")
    run = tool("run", long, "--rope", dynamic, "--length", 64)
    assert run.returncode == OK
    assert re.search(r"^rope +.*dynamic\.json, length 64 \(flag\)$", run.stdout, re.M)
    assert tool("run", long, "--rope", dynamic, "--length", 16).returncode == DIFFERS


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
def test_pairs_of_lanes_are_compared_as_the_rope_turns_them(file, tmp_path, pairing, dtype):
    """An error that is right beside one partner is wrong beside another."""
    config = {"head_dim": 64, "rope_theta": 1e4}
    config |= {"model_type": "gptj", "rotary_dim": 16} if pairing == "interleaved" else {"rotary_pct": 0.25}
    written(tmp_path / "config.json", config)
    tensors = step(dtype)
    right = turned(tensors, powers(1e4, 16), pairing)
    assert tool("run", file(tensors | right, None), "--rope", tmp_path).returncode == OK
    partner = 8 if pairing == "neox" else 1
    unit = {np.float32: 1e-6, np.float16: 2**-9}.get(dtype, 2**-6)
    for lane, large, returncode in ((0, partner, OK), (0, 32, DIFFERS), (40, 8, DIFFERS), (40, 41, DIFFERS)):
        wrong = {name: value.copy() for name, value in tensors.items()}
        wrong["positions"][:] = 0
        wrong["q"][:] = 1
        wrong["q"][1, 2, large] = 1000
        answer = turned(wrong, powers(1e4, 16), pairing)
        answer["expected.q_rot"][1, 2, lane] = dtype(1 + 100 * unit)
        run = tool("run", file(wrong | answer, None), "--rope", tmp_path)
        assert run.returncode == returncode, (lane, large, run.stdout)


def test_run_with_sections_and_with_sets(file, tmp_path):
    tensors = step()
    tensors["positions"] = np.array([[0, 1, 2, 3, 4], [50, 40, 30, 20, 10], [7, 7, 9, 9, 9]], np.int64)
    sections = {"model_type": "qwen2_vl", "head_dim": 64, "rope_scaling": {"type": "mrope", "mrope_section": [12, 10, 10]}}
    config = written(tmp_path / "config.json", sections)
    axes = np.repeat([0, 1, 2], [12, 10, 10])
    for angles in ("exact", "float32"):  # float32: the tolerance is of the largest position, whichever axis has it
        right = turned(tensors, powers(1e6, 64), axes=axes)
        run = tool("run", file(tensors | right, None), "--rope", config, "--angles", angles)
        assert run.returncode == OK, run.stdout + run.stderr
    tolerance = json.loads(tool("run", file(tensors | right, None), "--rope", config, "--angles", "float32", "--json").stdout)
    assert tolerance["comparisons"][0]["tolerance"].startswith(f"{1e-6 + 50 * 2**-23:.2g} ")

    phi3 = written(tmp_path / "phi3.json", PHI3)
    for index in (np.int32, np.int64):
        tensors = step() | {"rope_sets": np.array([0, 1, 1, 0, 1], index)}
        frequencies = powers(1e4, 64) / np.where(tensors["rope_sets"], 4, 1)[:, None]
        path = file(tensors | turned(tensors, frequencies), None)
        run = tool("run", path, "--rope", phi3)
        assert run.returncode == OK, run.stdout + run.stderr
        assert re.search(rf"^rope_sets +\(5,\) {np.dtype(index).name}$", run.stdout, re.M)
        assert json.loads(tool("check", path, "--rope", phi3, "--json").stdout)["ok"] is True
    # One set for all, of a length.
    path = file(step() | turned(step(), powers(1e4, 64) / 4), None)
    assert tool("run", path, "--rope", phi3, "--length", 9).returncode == OK


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_rope_that_does_not_fit_is_refused(file, tmp_path, command):
    def refusals(tensors, config, *flags):
        path = file(tensors, None)
        found = tool(command, path, "--json", "--rope", written(tmp_path / "config.json", config), *flags)
        assert found.returncode == REFUSED
        report = json.loads(found.stdout)
        assert report["ok"] is False
        return [error["code"] for error in (report["refusals"] if command == "check" else [report["error"]])]

    assert refusals(step(), TWO_ROPES) == ["RP028"]
    assert refusals(step(), LINEAR | {"head_dim": 64.5}) == ["RP030"]
    assert refusals(step(), LINEAR, "--layer-type", "full_attention") == ["RP030"]
    assert refusals(step(), DYNAMIC) == ["RP028"]
    assert refusals(step(), LINEAR | {"head_dim": 128}) == ["RP023"]
    assert refusals(step(), PHI3) == ["RP024"]
    assert refusals(step() | {"rope_sets": np.full(5, 2)}, PHI3) == ["RP025"]
    with_sets = file(step() | {"rope_sets": np.zeros(5, np.int32)})
    run = tool(command, with_sets)
    assert run.returncode == REFUSED
    assert "rope_sets must be left out where no rope is given" in run.stdout + run.stderr
    words = tool(command, file(), "--rope", written(tmp_path / "config.json", TWO_ROPES))
    assert (words.returncode, words.stdout) == (REFUSED, "")
    assert "RP028" in words.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_flags_of_a_rope_that_make_no_sense(file, tmp_path, command):
    path, config = file(), written(tmp_path / "config.json", LINEAR)
    for flags in (
        ("--rope", config, "--rope-base", "1e4"),
        ("--layer-type", "full_attention"),
        ("--length", 8),
        ("--rope", config, "--length", "8k"),
    ):
        assert tool(command, path, *flags).returncode == USAGE, flags
    missing = tool(command, path, "--rope", tmp_path / "missing.json")
    assert (missing.returncode, missing.stdout) == (FILE, "")
    assert "missing.json: No such file" in missing.stderr
    assert tool(command, "-", "--rope", "-", input=path.read_bytes()).returncode == USAGE
    piped = tool(command, path, "--rope", "-", input=json.dumps(LINEAR | {"rope_theta": 1e4, "rope_scaling": None}))
    assert piped.returncode == OK, piped.stderr


def test_a_config_is_not_overwritten(file, tmp_path):
    path, config = file(), written(tmp_path / "config.json", LINEAR)
    before = config.read_bytes()
    for name in (config, tmp_path):
        assert tool("run", path, "--rope", name, "-o", config).returncode == USAGE
    assert config.read_bytes() == before


def test_run_reads_standard_input(file, tmp_path):
    path = file()
    piped = tool("run", "-", "-o", tmp_path / "piped.safetensors", input=path.read_bytes())
    assert piped.returncode == OK
    with path.open("rb") as stream:
        assert tool("run", "-", stdin=stream).returncode == OK
    tool("run", path, "-o", tmp_path / "direct.safetensors")
    assert (tmp_path / "piped.safetensors").read_bytes() == (tmp_path / "direct.safetensors").read_bytes()


@pytest.mark.parametrize("padding", [1, 2, 3])
def test_tensors_may_lie_at_any_offset(tmp_path, padding):
    tensors = step(index=np.int64)
    tensors |= expected(tensors)
    header, data = (
        {"__metadata__": BASE, "padding": {"dtype": "U8", "shape": [padding], "data_offsets": [0, padding]}},
        b"x" * padding,
    )
    for name, value in tensors.items():
        dtype = "I64" if value.dtype == np.int64 else "F32"
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(raw_file(header, data))
    assert tool("run", path).returncode == OK
    assert tool("check", path).returncode == OK
    assert path.read_bytes() == raw_file(header, data)


def test_any_number_of_threads_gives_the_same_file(file, tmp_path):
    path = file(step(tokens=600, num_slots=1200))
    files = set()
    for threads in (1, 2, 3):
        assert tool("run", path, "--threads", threads, "-o", tmp_path / "out.safetensors").returncode == OK
        files.add((tmp_path / "out.safetensors").read_bytes())
    assert len(files) == 1


def test_no_tokens_and_no_slots(file, tmp_path):
    path = file(step(tokens=0, num_slots=0))
    run = tool("run", path, "-o", tmp_path / "out.safetensors")
    assert run.returncode == OK
    assert load_file(tmp_path / "out.safetensors")["q_rot"].shape == (0, 4, 64)


def test_a_refused_run_says_why_and_writes_nothing(file, tmp_path):
    tensors = step(num_qo_heads=8)
    tensors["v"] = np.zeros((5, 10, 64), np.float32)
    run = tool("run", file(tensors), "-o", tmp_path / "out.safetensors")
    assert (run.returncode, run.stdout) == (REFUSED, "")
    first, *rest = run.stderr.splitlines()
    assert first == "ropepool: v shape must match k shape, got (5, 10, 64) vs (5, 2, 64)"
    assert [line.split(":")[0] for line in rest] == ["cause", "mend", "RP006 v-shape-mismatch"]
    assert not (tmp_path / "out.safetensors").exists()
    report = json.loads(tool("run", file(tensors), "--json").stdout)
    assert report["ok"] is False
    assert report["error"]["code"] == "RP006"
    assert report["error"]["message"] == run.stderr.removeprefix("ropepool: ").rstrip("\n")
    assert {"name", "argument", "expected", "actual", "cause", "hint", "url"} <= report["error"].keys()


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F64", "I32", "BOOL", "U16", "C64", "F4"])
def test_types_that_the_op_does_not_take_are_refusals_not_faults(tmp_path, dtype):
    bits = {"F64": 64, "C64": 64, "I32": 32, "U16": 16, "F4": 4}.get(dtype, 8)
    header, data = {"__metadata__": BASE}, b""
    for name, value in step().items():
        if value.dtype == np.float32:
            kind, size = dtype, value.size * bits // 8
        else:
            kind, size = "I32", value.nbytes
        header[name] = {"dtype": kind, "shape": value.shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(size)
    path = tmp_path / "other.safetensors"
    path.write_bytes(raw_file(header, data))
    assert [refusal["code"] for refusal in json.loads(tool("check", path, "--json").stdout)["refusals"]] == ["RP012"]
    assert tool("run", path).returncode == REFUSED


# ---- Expected values


def test_the_largest_error_is_named_with_its_place(file):
    tensors = step()
    wrong = expected(tensors)
    wrong["expected.k_rot"][3, 1, 17] += 0.5
    wrong["expected.k_rot"][2, 0, 5] -= 0.25
    run = tool("run", file(tensors | wrong))
    assert run.returncode == DIFFERS
    assert re.search(r"^k_rot +largest error 0\.5 at \(3, 1, 17\): got [-\d.]+, expected [-\d.]+$", run.stdout, re.M)
    assert re.search(r"^ +2 of 640 elements are past the tolerance, 1e-06 of the rotated pair's length$", run.stdout, re.M)
    assert "the results differ" in run.stderr
    found = json.loads(tool("run", file(tensors | wrong), "--json").stdout)["comparisons"][1]
    assert (found["name"], found["index"], found["num_past_tolerance"]) == ("k_rot", [3, 1, 17], 2)
    assert found["expected"] - found["got"] == pytest.approx(0.5, abs=1e-5)
    assert tool("run", file(tensors | wrong), "--tolerance", 0.6).returncode == OK
    assert tool("run", file(tensors | wrong), "--tolerance", 0.4).returncode == DIFFERS


def test_v_is_copied_and_must_be_equal(file):
    tensors = step()
    wrong = expected(tensors)
    wrong["expected.v_pool"][3, 1, 17] = np.nextafter(wrong["expected.v_pool"][3, 1, 17], np.float32(9))
    assert tool("run", file(tensors | wrong)).returncode == DIFFERS


def test_nan_equals_nan_and_nothing_else(file):
    tensors = step()
    tensors["q"][1, 2, 3] = np.nan
    tensors["v"][4, 0, 0] = np.nan
    tensors["v"][4, 0, 1] = np.inf
    right = expected(tensors)
    assert tool("run", file(tensors | right)).returncode == OK
    for index, value in (((4, 1, 1), np.nan), ((1, 2, 3), 0.0), ((0, 0, 0), np.inf)):
        wrong = {name: array.copy() for name, array in right.items()}
        wrong["expected.q_rot"][index] = value
        for tolerance in ((), ("--tolerance", "1e30"), ("--tolerance", "inf")):
            run = tool("run", file(tensors | wrong), "--json", *tolerance)
            assert run.returncode == DIFFERS
            found = json.loads(run.stdout)["comparisons"][0]
            assert (found["largest_error"], found["index"]) == ("inf", list(index))


@pytest.mark.parametrize("prefix", ["", "expected."])
def test_expected_values_in_a_file_of_their_own(file, prefix):
    tensors = step(np.float16)
    right = {prefix + name: value.astype(np.float64) for name, value in results(tensors).items()}
    path = file(tensors)
    assert tool("run", path, "--expect", file(right, None, "right.safetensors")).returncode == OK
    some = file({prefix + "k_rot": right[prefix + "k_rot"]}, None, "some.safetensors")
    run = tool("run", path, "--expect", some, "--json")
    assert [comparison["name"] for comparison in json.loads(run.stdout)["comparisons"]] == ["k_rot"]
    right[prefix + "q_rot"][0, 0, 0] += 1
    assert tool("run", path, "--expect", file(right, None, "wrong.safetensors")).returncode == DIFFERS


def test_an_output_file_serves_as_expected_values(file, tmp_path):
    path = file()
    tool("run", path, "-o", tmp_path / "out.safetensors")
    run = tool("run", path, "--expect", tmp_path / "out.safetensors")
    assert run.returncode == OK
    assert run.stdout.count("no error") == 4


def test_expected_values_of_another_shape_or_type_differ(file):
    tensors = step()
    right = expected(tensors)
    run = tool("run", file(tensors | right | {"expected.q_rot": right["expected.q_rot"][:3]}))
    assert run.returncode == DIFFERS
    assert "its shape is (5, 4, 64), expected (3, 4, 64)" in run.stdout
    run = tool("run", file(tensors | right | {"expected.q_rot": np.zeros((5, 4, 64), np.int32)}))
    assert run.returncode == DIFFERS
    assert "the expected values are int32" in run.stdout


def test_a_misspelt_expected_tensor_is_an_error(file):
    tensors = step()
    run = tool("run", file(tensors | {"expected.qrot": np.zeros(3, np.float32)}))
    assert run.returncode == FILE
    assert "'expected.qrot' is the name of no result" in run.stderr


def test_float32_angles_are_proposed_where_they_can_be_the_reason(file):
    tensors = step()
    right = expected(tensors)
    for name, value, proposed in (
        ("expected.q_rot", right["expected.q_rot"] + 1e-2, True),
        ("expected.k_pool", np.full_like(right["expected.k_pool"], np.nan), False),
        ("expected.v_pool", right["expected.v_pool"] + 1e-2, False),
        ("expected.q_rot", right["expected.q_rot"][:3], False),
    ):
        run = tool("run", file(tensors | right | {name: value}))
        assert run.returncode == DIFFERS
        assert ("--angles float32" in run.stderr) == proposed


def test_an_expect_file_without_results_is_an_error(file):
    run = tool("run", file(step()), "--expect", file({"other": np.zeros(3)}, None, "other.safetensors"))
    assert run.returncode == FILE
    assert "none of the tensors q_rot" in run.stderr


# ---- Output files


def test_the_input_is_never_overwritten(file, tmp_path):
    path = file()
    before = path.read_bytes()
    (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "soft").symlink_to(path)
    for name in (path, tmp_path / "hard", tmp_path / "soft", tmp_path / "." / "step.safetensors"):
        run = tool("run", path, "-o", name)
        assert run.returncode == USAGE
        assert "would be overwritten" in run.stderr
    assert path.read_bytes() == before


def test_an_output_takes_its_name_only_when_complete(file, tmp_path):
    path, out = file(), tmp_path / "folder" / "out.safetensors"
    out.parent.mkdir()
    out.write_text("old")

    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    run = tool("run", path, "-o", out, preexec_fn=limit_file_size)
    assert run.returncode == FILE
    assert "cannot write" in run.stderr
    assert out.read_text() == "old"
    (tmp_path / "link").symlink_to(out)
    assert tool("run", path, "-o", tmp_path / "link").returncode == OK
    assert (tmp_path / "link").is_symlink()
    assert load_file(out).keys() == {"q_rot", "k_rot", "k_pool", "v_pool"}
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_an_output_keeps_the_mode_of_the_file_it_replaces(file, tmp_path, mode):
    out = tmp_path / "out.safetensors"
    out.touch()
    out.chmod(mode)
    assert tool("run", file(), "-o", out).returncode == OK
    assert out.stat().st_mode & 0o777 == mode and out.stat().st_size > 0


def test_an_output_that_cannot_be_written(file, tmp_path):
    path = file()
    for out, reason in (
        ("/dev/full", "No space left"),
        (tmp_path / "none" / "out", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        run = tool("run", path, "-o", out)
        assert run.returncode == FILE
        assert reason in run.stderr
    assert tool("run", path, "-o", "/dev/null").returncode == OK
    assert not pathlib.Path("/dev/null").is_file()
    assert tool("run", path, "-o", "-").returncode == USAGE


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_half_written_output(tmp_path, signal_number):
    path, folder = sparse_step(tmp_path / "large.safetensors", 1 << 17), tmp_path / "folder"
    folder.mkdir()
    command = [TOOL, "run", path, "-o", folder / "out.safetensors"]

    def heed():  # what a shell's background job ignores
        signal.signal(signal_number, signal.SIG_DFL)

    for _ in range(10):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=heed) as process:  # noqa: PLW1509
            while process.poll() is None and not any(folder.iterdir()):
                time.sleep(0.0005)
            process.send_signal(signal_number)
        if process.returncode != OK:
            assert process.returncode == -signal_number
            assert list(folder.iterdir()) == []
            return
        (folder / "out.safetensors").unlink()
    pytest.fail("the tool was always faster than the signal")


# ---- Large and hostile files


def sparse_step(path, num_slots, num_kv_heads=32, head_dim=128):
    """A file whose pools are holes: large, but next to nothing on disk."""
    pool = num_slots * num_kv_heads * head_dim * 2
    tensors = {
        "q": np.ones((1, num_kv_heads, head_dim), ml_dtypes.bfloat16),
        "k": np.ones((1, num_kv_heads, head_dim), ml_dtypes.bfloat16),
        "v": np.ones((1, num_kv_heads, head_dim), ml_dtypes.bfloat16),
        "positions": np.zeros(1, np.int64),
        "slots": np.array([num_slots - 1]),
    }
    header, data = {"__metadata__": BASE}, b""
    for name, value in tensors.items():
        dtype = "I64" if value.dtype == np.int64 else "BF16"
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    for i, name in enumerate(("k_pool", "v_pool")):
        offsets = [len(data) + i * pool, len(data) + (i + 1) * pool]
        header[name] = {"dtype": "BF16", "shape": [num_slots, num_kv_heads, head_dim], "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(raw_file(text, data))
        stream.truncate(8 + len(text) + len(data) + 2 * pool)
    return path


def test_pools_of_4_gib_are_neither_copied_nor_changed(tmp_path):
    path = sparse_step(tmp_path / "huge.safetensors", 524289)
    assert path.stat().st_size > 2**33

    def limit_memory():
        # The file is mapped and counts; what is allocated beside it is next to nothing.
        size = path.stat().st_size + 2**30
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    run = tool("run", path, "--threads", 1, "--repeat", 1, preexec_fn=limit_memory)
    assert (run.returncode, run.stderr) == (OK, "")
    assert path.stat().st_blocks * 512 < 2**20
    assert tool("check", path, preexec_fn=limit_memory).returncode == OK


def test_a_file_cut_short_under_the_run_is_an_error(file):
    path = file(step(tokens=2000, num_slots=4000))
    with subprocess.Popen(
        [TOOL, "run", path, "--repeat", "1000000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            time.sleep(0.5)
            os.truncate(path, 4096)
            assert "cut short" in process.communicate(timeout=60)[1].decode()
            assert process.returncode == FILE
        finally:
            process.kill()


TENSOR = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}


@pytest.mark.parametrize(
    ("content", "words"),
    {
        "empty": (b"", "0 bytes are too few"),
        "seven bytes": (b"1234567", "7 bytes are too few"),
        "length over the file": (struct.pack("<Q", 1000) + b"{}", "only 2 follow"),
        "length over the limit": (struct.pack("<Q", 2**63) + b"{}", "over the format's limit"),
        "text": (b"torch.save() would have been\n", "no safetensors file"),
        "no object": (raw_file([]), "does not begin with '{'"),
        "no json": (raw_file(b"{'q': 1}"), "the header is not JSON"),
        "not utf-8": (raw_file(b'{"\xff": 1}'), "the header is not JSON"),
        "nan": (raw_file(b'{"q": NaN}'), "the header is not JSON"),
        "zero byte": (raw_file(b"{} \0{}"), "the header is not JSON, at byte 4 of it: a zero byte"),
        "nested": (raw_file(b'{"q": ' + b"[" * 1_000_000), "tensor 'q' must be an object"),
        "nested objects": (raw_file(b'{"q": ' * 1_000_000), "tensor 'q' has the key 'q'"),
        "beyond the data": (raw_file({"q": TENSOR}, b"1"), "tensor 'q' ends at byte 2 of the data, which has 1"),
        "backwards": (raw_file({"q": TENSOR | {"data_offsets": [2, 0]}}, b"12"), "tensor 'q' begins at 2, after its end at 0"),
        "negative": (raw_file({"q": TENSOR | {"shape": [-2]}}, b"12"), "tensor 'q': shape must hold numbers from 0 on"),
        "fraction": (raw_file({"q": TENSOR | {"data_offsets": [0, 2.0]}}, b"12"), "tensor 'q': data_offsets must hold numbers"),
        "product": (raw_file({"q": TENSOR | {"shape": [2**62, 2**62]}}, b"12"), "tensor 'q': its shape has too many"),
        "size": (raw_file({"q": TENSOR | {"shape": [3]}}, b"12"), "tensor 'q' has 2 bytes, which 3 elements of U8 do not fill"),
        "dtype": (raw_file({"q": TENSOR | {"dtype": "F128"}}, b"12"), "tensor 'q': unknown dtype 'F128'"),
        "hole": (raw_file({"q": TENSOR | {"data_offsets": [1, 3]}}, b"123"), "no tensor covers the 1 byte before tensor 'q'"),
        "left over": (raw_file({"q": TENSOR}, b"123"), "no tensor covers the last 1 byte"),
        "overlap": (raw_file({"k": TENSOR, "q": TENSOR}, b"12"), "tensors 'k' and 'q' overlap"),
        "twice": (raw_file(b'{"q": %b, "q": %b}' % ((json.dumps(TENSOR).encode(),) * 2), b"12"), "two tensors are named 'q'"),
        "metadata": (raw_file({"__metadata__": {"a": [1]}}), "metadata must be strings, 'a' is a list"),
        "escape sequence": (raw_file({"\33[2J": 1}), r"tensor '\x1b[2J' must be an object"),
        "missing": (raw_file({"q": TENSOR}, b"12"), "it has no tensor k, v, positions, slots, k_pool, v_pool; it holds 'q'"),
    }.values(),
)
def test_a_malformed_file_is_an_error_that_names_the_tensor(tmp_path, content, words):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    for command in ("run", "check"):
        for run in (tool(command, path), tool(command, "-", input=content)):
            stderr = run.stderr if isinstance(run.stderr, str) else run.stderr.decode()
            assert run.returncode == FILE
            assert words in stderr
            assert len(run.stdout) == 0
            assert len(stderr) < 1000


def test_any_damage_to_a_file_is_an_error_or_a_result(tmp_path):
    tensors = step(tokens=2, num_qo_heads=1, num_kv_heads=1, head_dim=2, num_slots=4)
    good = save(tensors, {"rope_base": "10000.0", "num_kv_heads": "1"})
    random = np.random.default_rng(0)
    path = tmp_path / "damaged.safetensors"
    for _ in range(300):
        damaged = bytearray(good[: random.integers(len(good) + 1)] if random.random() < 0.2 else good)
        for _ in range(random.integers(4)):
            if damaged:
                damaged[random.integers(len(damaged))] = random.integers(256)
        path.write_bytes(damaged)
        run = tool("check", path, text=False)
        assert run.returncode in (OK, REFUSED, FILE), run.stderr
        if run.returncode == OK:
            assert tool("run", path, "--repeat", 1, text=False).returncode == OK


@pytest.mark.parametrize(("path", "reason"), [("/nowhere/at.all", "No such file"), ("/", "Is a directory|No such device")])
def test_a_file_that_cannot_be_read(path, reason):
    run = tool("run", path)
    assert run.returncode == FILE
    assert re.search(reason, run.stderr)


@pytest.mark.parametrize(
    ("key", "value"), [("head_dim", "64.0"), ("num_kv_heads", ""), ("num_qo_heads", "1e2"), ("rope_base", "ten")]
)
def test_metadata_that_is_no_number_is_named(file, key, value):
    run = tool("run", file(step(), {key: value}))
    assert run.returncode == FILE
    assert f"metadata {key} must be a" in run.stderr


# ---- check


def test_check_lists_all_refusals_in_order(file):
    tensors = step()
    tensors["slots"][2] = 12
    tensors["k_pool"] = tensors["k_pool"].astype(np.float16)
    tensors["v"] = tensors["v"][:4]
    path = file(tensors, {"rope_base": "0"})
    run = tool("check", path)
    assert run.returncode == REFUSED
    assert run.stderr == ""
    report = json.loads(tool("check", path, "--json").stdout)
    assert report["ok"] is False
    assert [refusal["code"] for refusal in report["refusals"]] == ["RP006", "RP011", "RP015", "RP020"]
    for refusal in report["refusals"]:
        assert refusal["message"] in run.stdout


def test_unknown_angles_are_named(file):
    path = file(step(), {"rope_base": "10000", "angles": "fast"})
    assert "angles must be 'exact' or 'float32', got 'fast'" in tool("check", path).stdout
    assert "angles must be 'exact' or 'float32', got 'fast'" in tool("run", path).stderr


def test_check_of_what_is_fine(file):
    run = tool("check", file())
    assert (run.returncode, run.stderr) == (OK, "")
    assert json.loads(tool("check", file(), "--json").stdout)["refusals"] == []


def test_check_of_shapes_that_say_nothing(file):
    tensors = step()
    tensors["q"] = tensors["q"].reshape(5, -1)
    report = json.loads(tool("check", file(tensors), "--json").stdout)
    assert report["refusals"][0]["code"] == "RP001"
    assert "RP014" not in [refusal["code"] for refusal in report["refusals"]]


# ---- errors and explain

ENTRY_KEYS = ["code", "name", "message", "argument", "meaning", "trigger", "situations", "solutions"]
ENTRY_KEYS += ["example", "guard", "related", "url", "where"]


def entries():
    return json.loads(tool("errors", "--json").stdout)


def test_errors_lists_every_refusal():
    table = tool("errors").stdout.splitlines()
    listed = entries()
    assert [entry["code"] for entry in listed] == [f"RP{number:03}" for number in range(1, len(listed) + 1)]
    assert len(listed) >= 21
    assert [line.split()[:2] for line in table] == [[entry["code"], entry["name"]] for entry in listed]
    for entry in listed:
        assert list(entry) == ENTRY_KEYS
        assert list(entry["example"]) == ["failing", "mended"]
        assert list(entry["where"]) == ["file", "function"]
        assert all(type(entry[key]) is list for key in ("situations", "solutions", "related"))
        assert all(entry.values())
        assert all((*entry["example"].values(), *entry["where"].values()))


@pytest.mark.parametrize(
    "what",
    [
        ["RP006"],
        ["rp6"],
        ["6"],
        ["v-shape-mismatch"],
        ["v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)"],
        [*["v", "shape", "must", "match", "k", "shape,", "got", "(4,", "10,", "64)", "vs", "(4,", "2,", "64)"]],
        ["[ValueError('v shape must match k shape, got (1,) vs (2, 3)'), None]"],
    ],
)
def test_explain_finds(what):
    run = tool("explain", *what)
    assert (run.returncode, run.stderr) == (OK, "")
    assert run.stdout.splitlines()[0] == "RP006 v-shape-mismatch"
    assert json.loads(tool("explain", "--json", *what).stdout) == entries()[5]


def test_explain_shows_the_whole_entry():
    for entry in entries():
        text = tool("explain", entry["code"]).stdout
        for key in ("message", "argument", "meaning", "trigger", "guard", "url"):
            assert entry[key] in text
        for key in ("situations", "solutions", "related"):
            for item in entry[key]:
                assert item in text
        for example in entry["example"].values():
            for line in example.splitlines():
                assert line in text


def test_explain_reads_a_traceback():
    log = """INFO step 4 took 3 ms
Traceback (most recent call last):
  File "serve.py", line 12, in <module>
    rope_pool_fused(q, k, v, positions, slots, k_pool, v_pool, **heads)
ValueError: rope_pool_fused expects positions/slots to be 1-D
"""
    run = tool("explain", "-", input=log)
    assert run.returncode == OK
    assert run.stdout.startswith("RP002 ")


@pytest.mark.parametrize("what", ["RP999", "0", "", " ", "something else\n  altogether", "\udcff\udcfe", "x" * 100_000])
def test_explain_of_what_fits_nothing(what):
    for run in (tool("explain", what, text=False), tool("explain", "-", input=os.fsencode(what))):
        assert run.returncode == NOTHING_FITS
        assert run.stdout == b""
        assert b"`ropepool errors` lists all there are" in run.stderr
        assert len(run.stderr) < 1000


# ---- bench

SMALL = ("--num-qo-heads", 3, "--num-kv-heads", 1, "--head-dim", 6, "--num-slots", 16, "--seconds", 0)


def test_bench_prints_a_line_for_each_number_of_tokens():
    run = tool("bench", *SMALL, "--dtype", "float16", "--tokens", "1,20", "--threads", 1)
    assert (run.returncode, run.stderr) == (OK, "")
    machine, shape, legend, empty, heading, *lines = run.stdout.splitlines()
    assert re.fullmatch(r"ropepool [\d.]+, SIMD target \w+, 1 threads at most, .+", machine)
    assert shape == "3 query and 1 key/value heads of 6, float16; pools of 16 slots, taken in random order"
    assert empty == ""
    assert heading.split() == ["tokens", "op", "floor", "its", "stores", "memcpy", "GB/s", "of", "floor", "of", "memcpy"]
    number = r" +[\d.]+"
    row = rf" +(\d+){number}{number} (regular|prefetched|mixed|streaming) +{number[2:]}{number}{number}{number}"
    assert [re.fullmatch(row, line)[1] for line in lines] == ["1", "20"]


def test_bench_says_as_json_what_it_measured():
    run = tool("bench", *SMALL, "--tokens", "2", "--json")
    result = json.loads(run.stdout)
    assert (result["ok"], result["dtype"], result["head_dim"], result["threads"] > 0) == (True, "bfloat16", 6, True)
    (line,) = result["lines"]
    assert (line["num_tokens"], line["num_slots"], line["rounds"]) == (2, 16, 7)
    assert line["bytes"] == 2 * 2 * 6 * (2 * 3 + 5 * 1)  # tokens, bytes a lane, lanes, heads
    assert all(0 < times["min"] <= times["median"] for times in line["seconds"].values())


def test_bench_refuses_what_the_op_refuses():
    run = tool("bench", "--head-dim", 5, "--num-slots", 16)
    assert (run.returncode, run.stdout) == (REFUSED, "")
    assert "RP014" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--tokens", "1,,2"], "--tokens must be integers with commas between, got '1,,2'"),
        (["--tokens", "0"], "--tokens must be from 1 to 16777216, got 0"),
        (["--num-slots", 1 << 31], "--num-slots must be from 1 to 2147483647, got 2147483648"),
        (["--head-dim", -2], "--head-dim must be from 1 to 65536, got -2"),
        (["--seconds", "nan"], "--seconds must be from 0 to 3600"),
        (["--threads", 0], "the number of threads must be from 1 to"),
        (["--dtype", "int8"], "int8"),
    ],
)
def test_bench_refuses_flags_that_make_no_sense(arguments, text):
    run = tool("bench", *arguments)
    assert (run.returncode, run.stdout) == (USAGE, "")
    assert text in run.stderr


# ---- doctor


def test_doctor():
    run = tool("doctor", env=environment(ROPEPOOL_NUM_THREADS="3"))
    assert (run.returncode, run.stderr) == (OK, "")
    for words in (
        "ropepool ",
        "SIMD target ",
        "CPU ",
        "threads                3",
        "ROPEPOOL_NUM_THREADS=3",
        "compiler ",
        "bug report",
    ):
        assert words in run.stdout
    report = json.loads(tool("doctor", "--json", env=environment()).stdout)
    assert report["ok"] is True
    assert report["simd_target"] == report["simd_targets"][0]
    assert set(report["simd_targets"]) <= set(report["compiled_simd_targets"])
    assert report["environment"] == []
    assert set(report["front_ends"]) == {"C++", "C", "command line", "Python"}
    assert 1 <= report["physical_cores"] <= report["logical_cpus"]
    assert report["threads"] == min(report["physical_cores"], 1024)


def test_doctor_obeys_and_tells_the_target():
    for target in json.loads(tool("doctor", "--json", env=environment()).stdout)["simd_targets"]:
        assert json.loads(tool("doctor", "--json", env=environment(ROPEPOOL_TARGET=target)).stdout)["simd_target"] == target


@pytest.mark.parametrize("variable", ["ROPEPOOL_TARGET", "ROPEPOOL_NUM_THREADS"])
def test_doctor_works_where_the_environment_makes_no_sense(file, variable):
    variables = environment(**{variable: "nonsense"})
    run = tool("doctor", env=variables)
    assert run.returncode == MACHINE
    assert "nonsense" in run.stderr
    assert f"{variable}=nonsense" in run.stdout
    report = json.loads(tool("doctor", "--json", env=variables).stdout)
    assert report["ok"] is False
    assert "nonsense" in report["problem"]
    run = tool("run", file(), env=variables)
    assert (run.returncode, run.stdout) == (MACHINE, "")
    assert "nonsense" in run.stderr
    assert tool("explain", "RP006", env=variables).returncode == OK


def test_doctor_without_python(tmp_path):
    copy = tmp_path / "ropepool"
    shutil.copy(TOOL, copy)
    run = subprocess.run([copy, "doctor"], capture_output=True, text=True, env=environment(PATH="/nowhere"), check=False)
    assert run.returncode == OK
    assert re.search(r"^front-end Python +not found", run.stdout, re.M)


def test_doctor_waits_ten_seconds_for_a_python_that_goes_on(tmp_path):
    shutil.copy(TOOL, tmp_path / "ropepool")
    (tmp_path / "python3").write_text("#!/bin/sh\nexec sleep 60 >&-\n")
    (tmp_path / "python3").chmod(0o755)
    run = subprocess.run([tmp_path / "ropepool", "doctor"], capture_output=True, text=True, timeout=40, check=False)
    assert run.returncode == OK
    assert re.search(r"^front-end Python +not found", run.stdout, re.M)


# ---- rope

LLAMA31 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
GEMMA3 = {"model_type": "gemma3_text", "head_dim": 8, "rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
PLAIN = {"head_dim": 8, "rope_theta": 10000.0}


def rope(config, *arguments):
    return tool("rope", "-", *arguments, input=json.dumps(config))


def test_rope_says_in_words_which_one_it_is():
    run = rope(LLAMA31)
    assert (run.returncode, run.stderr) == (OK, "")
    for line in (
        r"llama: rope type llama3",
        r"  base +500000",
        r"  lanes +0 to 127 of 128 turn, in 64 pairs of i and i \+ 64 \(neox\)",
        r"  scaling +wavelengths up to 2048 are kept .* those above 8192 .* are times 8, a ramp lies between",
        r"  original length +8192 tokens",
        r"  longest +131072 tokens .*",
        r"  note +factor times original_max_position_embeddings is 65536, .*: the factor rules\.",
        r"  attention factor +1",
        r"  bends +pairs 0 to 28 turn as without scaling; pairs 29 to 34 go from 0\.828168 to 0\.190211 of their unscaled "
        r"frequency; pairs 35 to 63 turn 8 times as slowly",
        r"  beside unscaled +35 of 64 pairs turn otherwise; the last one turns once in 20473565 positions, unscaled in "
        r"2559196; cos and sin are not stretched",
        r" +pair +wavelength +turned once at +unscaled +ratio",
        r" +0 +6\.283185 +7 +6\.283185 +1",
        r" +63 +2\.04\d+e\+07 +20473565 +2559196 +0\.125",
    ):
        assert re.search(f"^{line}$", run.stdout, re.M), line


def test_rope_tells_of_each_rope_and_of_the_one_asked_for(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3))
    both = tool("rope", tmp_path)
    assert both.stdout.startswith("gemma3_text, sliding_attention: plain RoPE\n")
    assert "\ngemma3_text, full_attention: rope type linear\n" in both.stdout
    one = tool("rope", tmp_path / "config.json", "--layer-type", "full_attention")
    assert one.returncode == OK and "sliding" not in one.stdout
    assert "all frequencies over 8" in one.stdout


def test_rope_as_json():
    report = json.loads(rope(LLAMA31, "--json").stdout)
    assert report["ok"] is True
    (found,) = report["ropes"]
    assert {
        key: found[key] for key in ("model_type", "rope_type", "base", "head_dim", "rotary_dim", "rotary_offset", "pairing")
    } == {
        "model_type": "llama",
        "rope_type": "llama3",
        "base": 500000.0,
        "head_dim": 128,
        "rotary_dim": 128,
        "rotary_offset": 0,
        "pairing": "neox",
    }
    assert found["scaling"] == {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 8192}
    assert (found["layer_type"], found["sections"], found["max_length"]) == (None, None, 131072)
    (chosen,) = found["sets"]
    assert chosen["attention_factor"] == 1
    for i, pair in enumerate(chosen["pairs"]):
        assert pair["pair"] == i
        assert pair["wavelength"] == pytest.approx(2 * np.pi / pair["frequency"])
        assert pair["turned_once_at"] == np.ceil(pair["wavelength"])
        assert pair["ratio"] == pytest.approx(pair["unscaled_wavelength"] / pair["wavelength"])
    assert chosen["pairs"][63]["ratio"] == pytest.approx(0.125)


def test_rope_as_json_has_sets_sections_and_pairs_that_stand_still():
    scaling = {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [4, 4, 4, 4]}
    long = PLAIN | {"max_position_embeddings": 32, "rope_scaling": scaling | {"original_max_position_embeddings": 8}}
    found = json.loads(rope(long, "--json").stdout)["ropes"][0]
    assert [pairs["pairs"][0]["ratio"] for pairs in found["sets"]] == [1, 0.25]
    found = json.loads(rope(long, "--json", "--length", "9").stdout)["ropes"][0]
    assert [pairs["pairs"][0]["ratio"] for pairs in found["sets"]] == [0.25]
    found = json.loads(rope(PLAIN | {"rope_parameters": {"mrope_section": [2, 1, 1]}}, "--json").stdout)["ropes"][0]
    assert (found["sections"], found["section_order"]) == ([2, 1, 1], "blocks")
    assert [pair["axis"] for pair in found["sets"][0]["pairs"]] == [0, 0, 1, 2]
    still = {"head_dim": 8, "rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    last = json.loads(rope(still, "--json").stdout)["ropes"][0]["sets"][0]["pairs"][3]
    assert (last["wavelength"], last["turned_once_at"], last["ratio"]) == ("inf", None, 0)


@pytest.mark.parametrize(
    "config, arguments, words",
    [
        (PLAIN, (), "powers of the base"),
        (PLAIN | {"rope_scaling": {"type": "linear", "factor": 2.0}}, (), "all frequencies over 2"),
        (
            PLAIN | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
            ("--length", 16),
            "43267.5 for a length of 16",
        ),
        (PLAIN | {"rope_scaling": {"type": "dynamic", "alpha": 8.0}}, (), "stretched by alpha 8, to 160000"),
        (
            PLAIN | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            (),
            "cos and sin are times 1.138629, so scores grow by 1.29648",
        ),
        (
            {"head_dim": 8, "rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            (),
            "pairs 0 to 1 turn as without scaling; pairs 2 to 3 stand still",
        ),
        ({"model_type": "gptj", "head_dim": 64, "rotary_dim": 32}, (), "in 16 pairs of 2i and 2i + 1 (interleaved)"),
        ({"model_type": "cohere2", "head_dim": 8}, (), "Layers of type 'full_attention' do not rotate"),
        (PLAIN | {"model_type": "mine"}, (), "model_type 'mine' is not in ropepool's table"),
    ],
)
def test_rope_words_of_each_form(config, arguments, words):
    run = rope(config, *arguments)
    assert (run.returncode, run.stderr) == (OK, "")
    assert words in run.stdout


def test_rope_draws_a_picture(tmp_path):
    picture = tmp_path / "rope.svg"
    assert rope(LLAMA31, "--plot", picture).returncode == OK
    drawing = ElementTree.parse(picture)
    words = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    for word in (
        "llama: rope type llama3",
        "without scaling",
        "scaled",
        "original length 8192",
        "max_position_embeddings 131072",
    ):
        assert word in words
    assert "scaled from pair 29 on" in words
    curves = list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len(curve.get("points").split()) for curve in curves] == [64, 64]
    assert rope(PLAIN | {"model_type": '<&"'}, "--plot", picture).returncode == OK
    ElementTree.parse(picture)


def test_rope_draws_one_rope_only(tmp_path):
    run = rope(GEMMA3, "--plot", tmp_path / "rope.svg")
    assert (run.returncode, run.stdout) == (USAGE, "")
    assert "--layer-type sliding_attention or full_attention" in run.stderr
    assert not list(tmp_path.iterdir())


def test_rope_refuses_what_the_library_refuses(tmp_path):
    run = rope(PLAIN | {"rope_scaling": {"rope_type": "deepseek_yarn"}}, "--plot", tmp_path / "rope.svg")
    assert (run.returncode, run.stdout) == (REFUSED, "")
    assert run.stderr.startswith("ropepool: Rope config: rope_scaling.rope_type names the unknown rope type 'deepseek_yarn'\n")
    assert "RP027 rope-type-unknown" in run.stderr
    assert not list(tmp_path.iterdir())
    report = json.loads(rope({}, "--json").stdout)
    assert (report["ok"], report["error"]["code"], report["error"]["argument"]) == (False, "RP028", "head_dim")
    assert tool("rope", "-", input="no json").returncode == REFUSED
    assert tool("rope", tmp_path / "none.json").returncode == FILE
    assert tool("rope", tmp_path).returncode == FILE


# ---- Flags, terminals, pipes


@pytest.mark.parametrize("arguments", [[], *([command] for command in COMMANDS)])
def test_help_needs_no_manual(arguments):
    run = tool(*arguments, "--help")
    assert (run.returncode, run.stderr) == (OK, "")
    assert " ".join(["Usage: ropepool", *arguments]) in run.stdout
    assert "Examples:" in run.stdout
    assert "Exit codes: 0 done; 1 the call is refused" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 128


def test_version():
    run = tool("--version")
    assert run.returncode == OK
    assert re.fullmatch(r"ropepool \d+\.\d+\.\d+\n", run.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["rum"],
        ["--nonsense"],
        ["run"],
        ["run", "a", "b"],
        ["run", "a", "--nonsense"],
        ["run", "a", "--rope-base"],
        ["run", "a", "--rope-base", "ten"],
        ["run", "a", "--head-dim", "64.5"],
        ["run", "a", "--head-dim", "99999999999999999999"],
        ["run", "a", "--head-dim", "0x40"],
        ["run", "a", "--angles", "fast"],
        ["run", "a", "--repeat", "0"],
        ["run", "a", "--repeat", "-1"],
        ["run", "a", "--tolerance", "-1"],
        ["run", "-", "--expect", "-"],
        ["check"],
        ["errors", "RP006"],
        ["explain"],
        ["explain", "RP006", "--nonsense"],
        ["doctor", "now"],
        ["rope"],
        ["rope", "a", "--length", "long"],
        ["rope", "a", "b"],
    ],
)
def test_flags_that_make_no_sense(arguments):
    run = tool(*arguments, stdin=subprocess.DEVNULL)
    assert (run.returncode, run.stdout) == (USAGE, "")
    assert run.stderr


@pytest.mark.parametrize("threads", ["0", "-1", "100000"])
def test_a_number_of_threads_that_makes_no_sense(file, threads):
    run = tool("run", file(), "--threads", threads)
    assert (run.returncode, run.stdout) == (USAGE, "")
    assert "threads" in run.stderr


def test_negative_numbers_are_no_flags(file):
    run = tool("check", file(step()), "--rope-base", "-1", "--num-qo-heads", "-4", "--json")
    assert [refusal["code"] for refusal in json.loads(run.stdout)["refusals"]] == ["RP004", "RP014", "RP015"]


def on_terminal(*arguments, columns=60, **variables):
    """What the tool prints on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | variables
    with subprocess.Popen([TOOL, *map(str, arguments)], stdin=its, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not piece:
                break
            text += piece
    os.close(ours)
    return process.returncode, text.decode().replace("\r\n", "\n")


def test_lines_are_wrapped_on_a_terminal_only():
    plain = tool("explain", "RP006").stdout
    assert max(map(len, plain.splitlines())) > 100
    code, wrapped = on_terminal("explain", "RP006", columns=60, NO_COLOR="1")
    assert code == OK
    assert wrapped.split() == plain.split()
    prose = wrapped[wrapped.index("Meaning") : wrapped.index("Solutions")]
    assert max(map(len, prose.splitlines())) <= 60


def test_colours_are_for_terminals_that_want_them(file):
    assert "\33" not in tool("explain", "RP006").stdout
    assert "\33[1m" in on_terminal("explain", "RP006")[1]
    assert "\33" not in on_terminal("explain", "RP006", NO_COLOR="1")[1]
    assert "\33" not in on_terminal("explain", "RP006", TERM="dumb")[1]
    assert "\33[32mok" in on_terminal("run", file())[1]
    assert "\33[1;31mropepool:" in on_terminal("run", "/nowhere")[1]
    assert "\33" not in on_terminal("run", "/nowhere", NO_COLOR="1")[1]


@pytest.mark.parametrize("arguments", [["errors"], ["errors", "--json"], ["explain", "RP006"], ["doctor"], ["run", "--help"]])
@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_reader_that_goes_away_is_no_error(arguments, inherited):
    ours, its = os.pipe()
    os.close(ours)
    run = subprocess.run(
        [TOOL, *arguments],
        stdout=its,
        stderr=subprocess.PIPE,
        check=False,
        restore_signals=False,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, inherited),
    )
    os.close(its)
    assert (run.returncode, run.stderr) == (OK, b"")


def test_a_full_disk_behind_standard_output_is_an_error():
    with open("/dev/full", "w") as full:
        run = subprocess.run([TOOL, "errors"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert run.returncode == FILE
    assert b"No space left" in run.stderr


# ---- A real model

REAL = sorted((pathlib.Path(__file__).parent.parent / "data" / "smollm2").glob("*.safetensors"))


@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_activations_of_a_real_model(path):
    run = tool("run", path)
    assert run.returncode == OK, run.stdout
    assert "float32 (metadata)" in run.stdout
    if ".f32" in path.name:
        exact = tool("run", path, "--angles", "exact")
        assert exact.returncode == DIFFERS
        assert "pass --angles float32" in exact.stderr
