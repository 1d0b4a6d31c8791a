#!/usr/bin/env python3
"""Run rope_pool_fused on what a real model fed it: check the results, time the call, break it and mend it (./dev demo).

The data are SmolLM2-135M-Instruct's own Q, K and V and what Hugging Face transformers made of them;
tests/data/smollm2/README.md says how they were captured. Ends with a status other than 0 where a check fails.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import ml_dtypes  # noqa: F401  # registers bfloat16, in which safetensors then reads
import numpy as np
import ropepool
from safetensors import safe_open

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path("tests/data/smollm2")  # seen from ROOT, so that what is printed can be typed
# How far a lane may be from the exact value, as a part of the length of the two lanes that turn together.
TOLERANCE = {"f32": 1e-6, "bf16": 2**-8 + 1e-6}
NUM_TOKENS, ROUNDS = 4096, 10

faults = []


def paint(text, code):
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def heading(text):
    print("\n" + paint(text, "1"))


def verdict(good, what, width=0):
    """'ok', or 'WRONG', which also fails the demo."""
    if not good:
        faults.append(what)
    return paint("ok".ljust(width), "32") if good else paint("WRONG".ljust(width), "1;31")


def load(name):
    """The tensors and the metadata of a file."""
    with safe_open(ROOT / DATA / name, framework="numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118  # it is no dict


def parameters(metadata):
    names = ("head_dim", "num_qo_heads", "num_kv_heads")
    return {name: int(metadata[name]) for name in names} | {"rope_base": float(metadata["rope_base"])}


def run(t, options):
    """The op on copies of the pools, so that t's own stay as they are."""
    arrays = (t[name] for name in ("q", "k", "v", "positions", "slots"))
    return ropepool.rope_pool_fused(*arrays, t["k_pool"].copy(), t["v_pool"].copy(), **options)


# ---- Values


def exact(x, positions, base):
    """The rotation in float64, apart from the library. At these positions a float64 angle is off by some 1e-14."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None].astype(np.float64) * base ** (-np.arange(half) / half)
    low, high = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def difference(a, b):
    return np.abs(a.astype(np.float64) - b.astype(np.float64))


def from_exact(result, truth):
    """The largest difference, and how many lanes are the exact value rounded to the dtype."""
    return f"{difference(result, truth).max():.1e} {np.mean(result == truth.astype(result.dtype)):7.2%}"


def check_file(name):
    """Runs the op on a file and prints a line. Returns how many pool rows are written and not, and the padding tokens."""
    t, metadata = load(name)
    options, dtype = parameters(metadata), metadata["dtype"]
    q_rot, k_rot, k_pool, v_pool = run(t, options)

    ours = np.concatenate([q_rot, k_rot], axis=1)
    theirs = np.concatenate([t["expected.q_rot"], t["expected.k_rot"]], axis=1)
    truth = exact(np.concatenate([t["q"], t["k"]], axis=1), t["positions"], options["rope_base"])
    length = np.tile(np.hypot(*np.split(truth, 2, axis=-1)), 2)
    rotated_right = (difference(ours, truth) <= TOLERANCE[dtype] * length).all()

    tokens = np.flatnonzero(t["slots"] >= 0)
    rows = t["slots"][tokens]
    others = np.setdiff1d(np.arange(len(k_pool)), rows)
    bits = {4: np.uint32, 2: np.uint16}[t["q"].itemsize]
    stored_right = all(
        np.array_equal(pool[rows].view(bits), source[tokens].view(bits))
        and np.array_equal(pool[others].view(bits), before[others].view(bits))
        for pool, source, before in ((k_pool, k_rot, t["k_pool"]), (v_pool, t["v"], t["v_pool"]))
    )
    print(
        f"  {metadata['layer']:>5}  {dtype:5}  {from_exact(ours, truth):18}{from_exact(theirs, truth):20}"
        f"{difference(ours, theirs).max():<20.1e}{verdict(rotated_right, f'rotation, {name}', width=10)}"
        f"{verdict(stored_right, f'pools, {name}')}"
    )
    return len(rows), len(others), len(t["slots"]) - len(rows)


def show_values():
    print("                ropepool          transformers        ropepool")
    print("  layer  dtype  from exact        from exact          from transformers   rotation  pools")
    names = sorted(
        (path.name for path in (ROOT / DATA).glob("*.safetensors")), key=lambda name: name.split(".")[1:], reverse=True
    )
    for name in names:
        written, untouched, padding = check_file(name)
    print(
        "\n  Largest difference of any lane of q and k, and the share of lanes that are the exact value, rounded to the dtype."
    )
    print(
        "  f32: transformers multiplies position and frequency in float32, so its angles are a little off. ropepool's are not."
    )
    print("  bf16: transformers also rounds cos, sin, both products and their sum to bf16. ropepool rounds once, at the end.")
    print(
        f"  pools: {written} rows hold rotated K and V's bits, {untouched} are untouched, {padding} padding tokens wrote none."
    )


# ---- Speed


def least_seconds(work, slots):
    """The least time of some rounds, each into pool rows that no round before has touched."""
    times = []
    for round_slots in slots:
        start = time.perf_counter()
        work(round_slots)
        times.append(time.perf_counter() - start)
    return min(times)


def measure(dtype, thread_counts):
    """Seconds of the op with each number of threads, then of the copy; and the bytes of one round."""
    t, metadata = load(f"layer17.{dtype}.safetensors")
    options = parameters(metadata)
    repeats = -(-NUM_TOKENS // len(t["q"]))
    q, k, v = (np.tile(t[name], (repeats, 1, 1))[:NUM_TOKENS] for name in ("q", "k", "v"))
    q_out, k_out = np.zeros_like(q), np.zeros_like(k)
    positions = np.arange(NUM_TOKENS)
    num_slots = NUM_TOKENS * ROUNDS * (len(thread_counts) + 1)
    k_pool, v_pool = (np.ones((num_slots, *k.shape[1:]), k.dtype) for _ in range(2))
    slots = iter(np.random.default_rng(0).permutation(num_slots).reshape(-1, ROUNDS, NUM_TOKENS))

    def op(slots):
        ropepool.rope_pool_fused(q, k, v, positions, slots, k_pool, v_pool, **options, q_out=q_out, k_out=k_out)

    def copy(slots):
        q_out[...] = q
        k_out[...] = k
        k_pool[slots] = k
        v_pool[slots] = v

    seconds = []
    for count in thread_counts:
        ropepool.set_num_threads(count)
        seconds.append(least_seconds(op, next(slots)))
    seconds.append(least_seconds(copy, next(slots)))
    return seconds, 2 * q.nbytes + 3 * k.nbytes + 2 * v.nbytes


def show_speed():
    thread_counts = sorted({1, ropepool.get_num_threads()})
    names = [f"ropepool, {n} thread{'s' * (n > 1)}" for n in thread_counts] + ["NumPy copy, 1 thread"]
    print("  dtype" + "".join(f"{name:>26}" for name in names))
    for dtype in ("f32", "bf16"):
        seconds, traffic = measure(dtype, thread_counts)
        print(f"  {dtype:5}" + "".join(f"{s * 1e3:12.2f} ms {traffic / s / 1e9:5.1f} GB/s" for s in seconds))
    print(
        f"  Least of {ROUNDS} rounds, each into random pool rows that no cache holds. The copy moves the same, turning nothing."
    )


# ---- A refusal


def show_refusal():
    t, metadata = load("layer17.f32.safetensors")
    options = parameters(metadata)
    num_tokens, head_dim = len(t["q"]), options["head_dim"]
    q_size, kv_size = (options[name] * head_dim for name in ("num_qo_heads", "num_kv_heads"))
    qkv = np.concatenate([t[name].reshape(num_tokens, -1) for name in ("q", "k", "v")], axis=1)  # as a packed projection has it

    def call(k, v):
        q, k, v = (part.reshape(num_tokens, -1, head_dim) for part in (qkv[:, :q_size], k, v))
        return run(t | {"q": q, "k": k, "v": v}, options)

    print(f"  qkv is {qkv.shape}, q_size {q_size}, kv_size {kv_size}\n  k = qkv[:, :kv_size]; v = qkv[:, kv_size:]")
    try:
        call(qkv[:, :kv_size], qkv[:, kv_size:])
        print(f"    goes through: {verdict(False, 'the wrong cut was not refused')}")
    except ropepool.ContractError as error:
        print("\n".join("    " + line for line in f"ropepool.ContractError: {error}".splitlines()))
        verdict(error.code == "RP006", "the wrong cut has another code")
    print("  k = qkv[:, q_size : q_size + kv_size]; v = qkv[:, q_size + kv_size :]")
    mended = call(qkv[:, q_size : q_size + kv_size], qkv[:, q_size + kv_size :])
    same = all(np.array_equal(a, b) for a, b in zip(mended, run(t, options), strict=True))
    print(f"    goes through, on views of qkv, and gives what separate q, k and v give: {verdict(same, 'the mended cut')}")


# ---- The command line


def shell(command, pipe="", lines=slice(None)):
    """Prints a command and what it says, as a shell would; `lines` are those that `pipe` lets through."""
    print(paint(f"  $ {command}{pipe}", "1"))
    tool = shutil.which("ropepool", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("ropepool")
    if tool is None:
        return print(f"  {verdict(False, 'the command line tool is not installed')}")
    done = subprocess.run([tool, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines()[lines] + done.stderr.splitlines():
        print(f"  {line}".rstrip())
    verdict(done.returncode == 0, f"`{command}` ends with status {done.returncode}")


def main():
    t, metadata = load("layer17.f32.safetensors")
    model, options = metadata["model"].partition(".")[0], parameters(metadata)
    print(f"ropepool {ropepool.__version__} on what {model} computed from a prompt of {sum(t['slots'] >= 0)} tokens:")
    print("  " + re.search(r"user\n(.*?)<", metadata["prompt"])[1])
    print("  " + ", ".join(f"{name} {value:g}" for name, value in options.items()))
    heading("Rotated and stored, against exact angles and against transformers' own output")
    show_values()
    heading(f"The same activations, tiled to {NUM_TOKENS:,} tokens")
    show_speed()
    heading("A packed QKV, cut at the wrong places")
    show_refusal()
    heading("From the command line")
    shell(f"ropepool run {DATA}/layer17.f32.safetensors --angles float32", " | tail -n 8", slice(-8, None))
    shell("ropepool explain RP006", " | head -n 15", slice(15))
    print()
    for fault in faults:
        print(paint(f"WRONG: {fault}", "1;31"))
    print(paint("All checks passed.", "32") if not faults else f"{len(faults)} of the checks failed.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
