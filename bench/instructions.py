"""Instructions of a small call, by valgrind, compared with bench/instructions.json so that overhead can't creep back.

Counts are the same on a busy machine. They depend on the compiler and the C library, which the file names.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = ROOT / "bench" / "instructions.json"
SCENARIOS = {
    "one-head": "C++, one head, one token",
    "one-head-c": "C, one head, one token",
    "llama-3-8b": "C++, one token of 32 and 8 heads of 128",
    "head-ops": "C++, the same with biases and norms",
    "refused": "C++, a slot out of range, and its message",
}
TARGET = "AVX2"  # the best that valgrind knows
TOLERANCE = 0.03


def instructions_of(program, scenario, count):
    with tempfile.TemporaryDirectory() as folder:
        # Only within the scenario: Highway measures its timer at the start, which takes now more, now less.
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/out",
            "--toggle-collect=bench::run_scenario*",
        ]
        command.append(program)
        command += [f"--scenario={scenario}", f"--count={count}"]
        environment = os.environ | {"ROPEPOOL_TARGET": TARGET, "ROPEPOOL_NUM_THREADS": "1"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected *: *(\d+)", run.stderr)
    if run.returncode != 0 or not found:
        raise SystemExit(f"valgrind {program} --scenario={scenario} failed:\n{run.stderr}")
    return int(found[1])


def per_call(program, scenario):
    """The difference of two runs, so that making the arrays and the first call do not count."""
    few, many = 100, 1100
    return round((instructions_of(program, scenario, many) - instructions_of(program, scenario, few)) / (many - few))


def built_with(program):
    """As the compiler wrote it into the program, and the C library that this machine has."""
    found = set(re.findall(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", program.read_bytes()))
    compiler = ", ".join(sorted(text.decode() for text in found)) or "unknown"
    return {"compiler": compiler, "libc": " ".join(os.confstr("CS_GNU_LIBC_VERSION").split()), "target": TARGET}


def main():
    parser = argparse.ArgumentParser(prog="./dev bench --instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep these counts in bench/instructions.json")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "release" / "bench" / "ropepool_bench")
    options = parser.parse_args()
    built = built_with(options.program)
    counts = {what: per_call(options.program, scenario) for scenario, what in SCENARIOS.items()}
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"instructions": {}}
    more = []
    for what, count in counts.items():
        before = kept["instructions"].get(what)
        change = f"{count / before - 1:+7.1%} of {before:,}" if before else "new"
        print(f"{what:45} {count:7,}  {change}")
        if before is None or count > before * (1 + TOLERANCE):
            more.append(what)
    if options.write:
        FILE.write_text(json.dumps({**built, "instructions": counts}, indent=1) + "\n", encoding="utf-8")
        print(f"wrote: {FILE.relative_to(ROOT)}")
    elif any(kept.get(key) != value for key, value in built.items()):
        kept_with = ", ".join(kept.get(key, "?") for key in built)
        print(f"not compared: counted with {', '.join(built.values())}, kept with {kept_with}")
    elif more:
        sys.exit(
            f"more than {TOLERANCE:.0%} above what is kept: {'; '.join(more)}; where that is meant: "
            "./dev bench --instructions --write"
        )


if __name__ == "__main__":
    main()
