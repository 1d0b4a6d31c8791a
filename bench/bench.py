"""The op beside its floor, memcpy and other frameworks: one table, build/bench/results.json and plots.

The C++ program measures op and copies, bench/peers.py each framework in a process of its own. Within each, all take turns in
every round; shares and factors are medians over rounds of the quotient, so that noise that lasts longer than a round cancels.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import plots
import ropepool
from peers import at_line

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ("llama-3-8b", "smollm2-135m", "qwen2.5-0.5b", "gemma-2-9b", "phi-2")
DTYPES = ("bfloat16", "float16", "float32")
TOKENS = (1, 8, 64, 512, 4096)
SLOTS = 65536
CACHED_TOKENS = 7  # the most of which the op stores all through the caches
PARTS = ("lines", "cached", "forms", "threads", "growth", "calls", "peers")
PEERS = {  # as in bench/peers.py
    "torch-eager": "eager",
    "torch-compiled": "compiled",
    "vllm": "vLLM",
    "mlx": "MLX",
    "onnxruntime": "ORT",
    "openvino": "OpenVINO",
    "ggml": "ggml",
}
SHORT_SECONDS = 0.5  # a run of less a line only shows that all works


def tell(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---- Measuring


def program(options, *flags, **lists):
    """What the C++ program writes for all combinations of the lists."""
    output = options.out / "part.json"
    flags = [*flags, *(f"--{name}={','.join(map(str, values))}" for name, values in lists.items())]
    command = [options.program, *flags, f"--seconds={options.seconds}", f"--json={output}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text(encoding="utf-8"))


def measure_lines(options):
    return program(options, model=options.model, dtypes=options.dtypes, tokens=options.tokens, slots=[SLOTS])["lines"]


def measure_cached(options):
    """Few tokens into as many slots, so that all is in the caches and what is left is arithmetic."""
    return program(options, model=options.model, dtypes=options.dtypes, tokens=[CACHED_TOKENS], slots=[CACHED_TOKENS])["lines"]


def measure_threads(options):
    cores = os.cpu_count()
    threads = sorted({*(1 << n for n in range(cores.bit_length()) if 1 << n <= cores), cores})
    tokens = [n for n in options.tokens if n >= 64] or options.tokens
    return program(options, model=options.model[:1], dtypes=options.dtypes[:1], tokens=tokens, threads=threads)["lines"]


def measure_growth(options):
    """By tokens and by slots, in a small model's shape so that 4 million slots fit into memory."""
    lists = {"model": ["smollm2-135m"], "dtypes": options.dtypes[:1], "order": ["random", "sorted", "consecutive"]}
    most_tokens, most_slots = (17, 22) if options.seconds >= SHORT_SECONDS else (15, 18)
    by_tokens = program(options, tokens=[2**n for n in range(12, most_tokens + 1)], slots=[2**most_tokens], **lists)["lines"]
    lists |= {"tokens": [512], "slots": [2**n for n in range(10, most_slots + 1, 2)]}
    by_slots = program(options, **lists)["lines"]
    for line in program(options, "--huge-pages", **lists | {"order": ["random"]})["lines"]:
        by_slots.append(line | {"order": "random on huge pages"})
    return {"tokens": by_tokens, "slots": by_slots}


def one_token():
    q, k, v = (np.ones((1, 1, 64), np.float32) for _ in range(3))
    k_pool, v_pool = (np.zeros((16, 1, 64), np.float32) for _ in range(2))
    return q, k, v, np.array([7]), np.array([3]), k_pool, v_pool


def python_calls(options):
    """One head, one token from NumPy, beside the same nine arrays handed to an empty function."""
    arrays, outputs = one_token(), [np.empty((1, 1, 64), np.float32) for _ in range(2)]
    geometry = {"head_dim": 64, "num_qo_heads": 1, "num_kv_heads": 1, "rope_base": 10000.0}
    geometry |= {"q_out": outputs[0], "k_out": outputs[1]}
    runners = {"NumPy": lambda: ropepool.rope_pool_fused(*arrays, **geometry)}
    sys.path.append(str(options.empty))
    try:
        import ropepool_empty
    except ImportError:
        print(f"no ropepool_empty in {options.empty}: the cost of handing over arrays is not measured", file=sys.stderr)
    else:
        runners["empty function"] = lambda: ropepool_empty.nothing(*arrays, *outputs)
    calls = 1000
    times = {name: [] for name in runners}
    start = time.perf_counter()
    while time.perf_counter() - start < options.seconds or min(map(len, times.values())) < 8:
        for name, run in runners.items():
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            times[name].append((time.perf_counter() - begin) / calls)
    return {name: {"min": min(taken[1:]), "median": statistics.median(taken[1:])} for name, taken in times.items()}


def ropes():
    """The forms of a Rope that the kernel treats in another way than a plain one, for heads of 128."""
    angles = np.arange(8192)[:, None] * 500000.0 ** (-np.arange(64) / 64)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
    return {
        "plain": ropepool.Rope(500000.0, rotary_dim=128),
        "interleaved pairs": ropepool.Rope(500000.0, rotary_dim=128, pairing="interleaved"),
        "the first half of each head": ropepool.Rope(500000.0, rotary_dim=64),
        "the last half of each head, interleaved": ropepool.Rope(
            500000.0, rotary_dim=64, rotary_offset=64, pairing="interleaved"
        ),
        "M-RoPE": ropepool.Rope(500000.0, rotary_dim=128, sections=[16, 24, 24]),
        "a table": ropepool.Rope(rotary_dim=128, cos_sin=table),
        "two sets": ropepool.Rope.join([ropepool.Rope(base, rotary_dim=128) for base in (1e4, 5e5)]),
    }


def norms():
    """What models have between projection and rope, for 32 and 8 heads of 128."""
    weight = np.linspace(0.5, 1.5, 32 * 128, dtype=np.float32)
    rms = {count: ropepool.RMSNorm(weight[:count], eps=1e-6) for count in (128, 1024, 4096)}
    return {
        "QK-norm": {"q_norm": rms[128], "k_norm": rms[128]},
        "QK-norm over all heads": {"q_norm": rms[4096], "k_norm": rms[1024]},
        "biases": {"q_bias": weight, "k_bias": weight[:1024], "v_bias": weight[:1024]},
        "a scale": {"q_scale": 128**-0.5},
    }


def measure_forms(options):
    """4,096 tokens of 32 and 8 heads by each form, in bfloat16, called from Python in turns. Each call reads other arrays than
    the three before it, so that none finds them warmed, and each form reads all of them in turn: the plain one takes a tenth
    more time with some than with others."""
    tokens, slots, random = 4096, SLOTS, np.random.default_rng(0)
    copies = range(4)
    memory = itertools.cycle(copies)
    qkv = random.standard_normal((tokens, 48, 128), np.float32).astype(ml_dtypes.bfloat16)
    pools = [at_line(np.zeros((slots, 8, 128), ml_dtypes.bfloat16)) for _ in range(2)]
    outputs = {"q_out": at_line(qkv[:, :32]), "k_out": at_line(qkv[:, 32:40])}
    positions = np.arange(1000, 1000 + tokens)
    heads = {"head_dim": 128, "num_qo_heads": 32, "num_kv_heads": 8}

    def runner(op, arrays, place=positions, **mine):
        walk = itertools.cycle(random.permutation(slots).reshape(-1, tokens))
        return lambda: op(*arrays[next(memory)], place, next(walk), *pools, **heads, **outputs, **mine)

    split = [[at_line(part) for part in (qkv[:, :32], qkv[:, 32:40], qkv[:, 40:])] for _ in copies]
    packed = [[at_line(qkv.reshape(tokens, -1))] for _ in copies]
    runners = {}
    for name, rope in ropes().items():
        place = np.stack([positions] * 3) if rope.num_axes > 1 else positions
        sets = np.zeros(tokens, np.int32) if rope.num_sets > 1 else None
        runners[name] = runner(ropepool.rope_pool_fused, split, place, rope=rope, rope_sets=sets)
    for name, norm in norms().items():
        runners[name] = runner(ropepool.rope_pool_fused, split, rope=ropes()["plain"], **norm)
    for name, order in {"packed QKV": "blocks", "packed QKV by groups": "groups"}.items():
        runners[name] = runner(ropepool.rope_pool_fused_qkv, packed, rope=ropes()["plain"], order=order)
    threads = ropepool.get_num_threads()
    ropepool.set_num_threads(1)
    times, start = {name: [] for name in runners}, time.perf_counter()
    while time.perf_counter() - start < 4 * options.seconds or min(map(len, times.values())) < 8:
        for name in random.permutation(list(runners)):
            begin = time.perf_counter()
            runners[name]()
            times[name].append(time.perf_counter() - begin)
    ropepool.set_num_threads(threads)
    plain = np.array(times["plain"])
    return {
        name: {"median": statistics.median(taken), "times_plain": float(np.median(np.array(taken) / plain))}
        for name, taken in times.items()
    }


def measure_calls(options):
    output = options.out / "part.json"
    command = [options.program, "--calls", f"--seconds={options.seconds}", f"--json={output}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text(encoding="utf-8"))["calls"] | python_calls(options)


def measure_peers(options):
    shapes = program(options, model=options.model[:1], dtypes=options.dtypes[:1], tokens=[1])["lines"]
    keys = ("model", "num_qo_heads", "num_kv_heads", "head_dim")
    shape = {key: shapes[0][key] for key in keys}
    results = []
    for peer in options.only_peers:
        lines = [
            shape | {"dtype": dtype, "num_tokens": n, "num_slots": SLOTS} for dtype in options.dtypes for n in options.tokens
        ]
        command = [options.peers_python, ROOT / "bench" / "peers.py", "--peer", peer, "--floor", options.floor]
        command += ["--package", pathlib.Path(ropepool.__file__).parent.parent, "--seconds", str(options.seconds)]
        command.append(json.dumps(lines))
        log = options.out / f"peer-{peer}.log"
        tell(f"{peer}: 0 of {len(lines)}")
        with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            for count, text in enumerate(process.stdout, 1):
                results.append(json.loads(text))
                tell(f"{peer}: {count} of {len(lines)}")
        tell("")
        missing = lines[sum(result["peer"] == peer for result in results) :]
        reason = f"its process ended with {process.returncode}: {log}"
        results += [line | {"peer": peer, "label": PEERS[peer], "threads": 1, "without": reason} for line in missing]
    return results


def cpu_model():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def huge_pages():
    try:
        text = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    return text.split("[")[1].split("]")[0]


def machine():
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "transparent_huge_pages": huge_pages(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def measure(options):
    results = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "ropepool": ropepool.__version__,
        "target": ropepool.simd_target(),
        "seconds_per_line": options.seconds,
        "short": options.seconds < SHORT_SECONDS,
        "load_before": os.getloadavg()[0],
    }
    measures = {
        "lines": measure_lines,
        "cached": measure_cached,
        "forms": measure_forms,
        "threads": measure_threads,
        "growth": measure_growth,
    }
    measures |= {"calls": measure_calls, "peers": measure_peers}
    for part in PARTS:
        if part in options.parts:
            results[part] = measures[part](options)
    results["load_after"] = os.getloadavg()[0]
    return results


# ---- Showing


def microseconds(seconds):
    return f"{1e6 * seconds:.2f}" if seconds < 1e-4 else f"{1e6 * seconds:,.0f}"


def all_lines(results):
    growth = results.get("growth", {"tokens": [], "slots": []})
    return (
        results.get("lines", []) + results.get("cached", []) + results.get("threads", []) + growth["tokens"] + growth["slots"]
    )


def setting(line):
    """What is not as in most lines."""
    parts = [] if line["num_slots"] == max(SLOTS, line["num_tokens"]) else [f"{line['num_slots']} slots"]
    parts += [] if line["order"] == "random" else [line["order"]]
    parts += [] if line["threads"] == 1 else [f"{line['threads']} threads"]
    return ", ".join(parts)


def table(results):
    peers = {(p["peer"], p["model"], p["dtype"], p["num_tokens"]): p for p in results.get("peers", [])}
    names = [name for name in PEERS if any(key[0] == name for key in peers)]
    head = f"{'model':13} {'dtype':8} {'tokens':>7} {'op':>9} {'floor':>9} {'its stores':10} {'memcpy':>9} {'GB/s':>6}"
    head += f" {'of floor':>8} {'of memcpy':>9}" + "".join(f" {PEERS[name]:>9}" for name in names) + "  setting"
    rows, shown = [head], set()

    def add(key, columns, where, with_peers):
        row = f"{key[0]:13} {key[1]:8} {key[2]:7} {columns}"
        for name in names:
            peer = peers.get((name, *key), {}) if with_peers else {}
            row += f" {peer['times_op']:8.1f}x" if "times_op" in peer else f" {'-':>9}"
        rows.append(f"{row}  {where}".rstrip())

    for line in all_lines(results):
        op, floor, memcpy = (line["seconds"][name]["median"] for name in ("op", line["floor"], "memcpy"))
        columns = f"{microseconds(op):>9} {microseconds(floor):>9} {line['floor']:10} {microseconds(memcpy):>9}"
        columns += f" {line['bytes'] / op / 1e9:6.1f} {line['share_of_floor']['median']:8.2f}"
        columns += f" {line['share_of_memcpy']['median']:9.2f}"
        key = (line["model"], line["dtype"], line["num_tokens"])
        add(key, columns, setting(line), not setting(line))
        shown.add(key)
    for key in dict.fromkeys(key[1:] for key in peers):
        if key not in shown:  # peers were measured alone
            add(key, f"{'':>9} {'':>9} {'':10} {'':>9} {'':6} {'':8} {'':9}", "", True)
    return "\n".join(rows)


def show(results, options):
    here = results["machine"]
    print(f"ropepool {results['ropepool']}, SIMD target {results['target']}, {here['cpu']}, {here['cores']} cores")
    print(
        "medians in us; shares above 1.00: the op is faster than the copy; peers: their time in times of the op's, 1 thread\n"
    )
    print(table(results))
    for name, form in results.get("forms", {}).items():
        print(f"4,096 tokens, bfloat16, rope with {name}: {microseconds(form['median'])} us, {form['times_plain']:.2f} x plain")
    if "calls" in results:
        calls = ", ".join(f"{name} {1e9 * taken['median']:,.0f}" for name, taken in results["calls"].items())
        print(f"\na call of one head and one token, ns: {calls}")
    print()
    found = {}
    for peer in results.get("peers", []):
        if "without" in peer:
            found.setdefault((peer["label"], peer["without"]), []).append(f"{peer['dtype']} {peer['num_tokens']}")
    for (label, reason), where in found.items():
        print(f"{label}: - at {', '.join(where)}: {reason}")
    checked = [peer for peer in results.get("peers", []) if "largest_error" in peer]
    for label in dict.fromkeys(peer["label"] for peer in checked):
        mine = [peer for peer in checked if peer["label"] == label]
        errors = {dtype: max((p["largest_error"] for p in mine if p["dtype"] == dtype), default=None) for dtype in DTYPES}
        text = ", ".join(f"{dtype} {error:.1g}" for dtype, error in errors.items() if error is not None)
        print(f"{label} {mine[0]['version']} agrees with the op; largest error by the length of a pair: {text}")
    if "peers" not in results:
        print("no peers: ./dev bench --peers installs them into .venv-bench")
    print(f"written: {options.out}/results.json and " + ", ".join(sorted(path.name for path in options.out.glob("*.svg"))))


def main():
    def names(known):
        def parse(text):
            values = text.split(",")
            unknown = [value for value in values if known and value not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
            return values

        return parse

    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", action="store_true", help="install the other frameworks into .venv-bench first")
    parser.add_argument(
        "--instructions", action="store_true", help="only compare instruction counts; see bench/instructions.py"
    )
    parser.add_argument("--kernels", action="store_true", help="only the kernels by themselves, by Google Benchmark")
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--model", type=names(()), default=list(MODELS), help=f"of {','.join(MODELS)}, or a shape as 32/8x128")
    parser.add_argument("--dtypes", type=names(DTYPES), default=list(DTYPES), help=f"of {','.join(DTYPES)}")
    parser.add_argument("--tokens", type=numbers, default=list(TOKENS), help="tokens a call")
    parser.add_argument("--only-peers", type=names(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line; less than 0.5 cuts growth short")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench", help="folder of results and plots")
    parser.add_argument("--plot", type=pathlib.Path, help="draw these results again, measure nothing")
    release = ROOT / "build" / "release" / "bench"
    parser.add_argument("--program", type=pathlib.Path, default=release / "ropepool_bench", help=argparse.SUPPRESS)
    parser.add_argument("--floor", type=pathlib.Path, default=release / "ropepool_floor.so", help=argparse.SUPPRESS)
    parser.add_argument("--empty", type=pathlib.Path, default=ROOT / "build" / "bench" / "empty", help=argparse.SUPPRESS)
    peers_python = ROOT / ".venv-bench" / "bin" / "python"
    parser.add_argument("--peers-python", type=pathlib.Path, default=peers_python, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.plot:
        results = json.loads(options.plot.read_text(encoding="utf-8"))
    else:
        if not options.peers_python.exists():
            options.parts = [part for part in options.parts if part != "peers"]
        results = measure(options)
        (options.out / "part.json").unlink(missing_ok=True)
        (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    plots.draw(results, options.out)
    show(results, options)


if __name__ == "__main__":
    main()
