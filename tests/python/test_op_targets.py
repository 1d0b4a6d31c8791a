"""Every SIMD target that this build was made for: the same bits where there is fused multiply-add, right values everywhere."""

import functools
import hashlib
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import ropepool
from oracle import FLOATS, INDICES, MAX_POSITION, arguments, assert_rotated, assert_same_bits, copies, scatter

# A product and a sum round twice on these, so they may differ from the others by a unit in the last place.
WITHOUT_FMA = {"SCALAR", "EMU128", "SSE2", "SSE4"}


def cases():
    """Calls that go through all of a kernel: lanes that fill vectors or not, small and large, special values."""
    positions = np.array([0, 1, -1, 257, 4000, 131_071, 2**24 + 1, MAX_POSITION, -MAX_POSITION])
    for dtype in FLOATS:
        for head_dim in (2, 6, 14, 30, 34, 62, 64, 80, 96, 112, 128, 192, 576, 1030, 2050):
            for angles in ("exact", "float32"):
                call = arguments(len(positions), head_dim, 3, 2, 32, dtype, angles=angles, positions=positions)
                yield f"{np.dtype(dtype)} {head_dim} {angles}", call
        for base, index in zip((1.0, 1.0001, 10000.5, 1e6), INDICES * 2, strict=True):
            yield f"{np.dtype(dtype)} base {base}", arguments(40, 64, 2, 1, 40, dtype, index, base)
        # So large that it is split; pool rows are stored past the caches, outputs are not (tests/cpp has those).
        yield f"{np.dtype(dtype)} large", arguments(1100, 80, 24, 4, 1200, dtype)
        info = ml_dtypes.finfo(dtype)
        magnitudes = np.linspace(float(np.log2(info.smallest_subnormal)), float(np.log2(float(info.max))), 9 * 2 * 96)
        values = np.ldexp(1.0 + magnitudes % 1, magnitudes.astype(int)).clip(max=float(info.max)).astype(dtype)
        values = values.reshape(9, 2, 96) * np.where(np.arange(96) % 3, 1, -1).astype(dtype)
        call = arguments(9, 96, 2, 2, 32, dtype, positions=positions, q=values, k=values[::-1], v=values)
        yield f"{np.dtype(dtype)} all magnitudes", call
        call = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in call.items()}
        for place, special in enumerate((np.nan, np.inf, -np.inf, 0.0)):
            call["q"][:, place % 2, place::7] = call["k"][:, place % 2, place::5] = special
        yield f"{np.dtype(dtype)} special values", call


def other_calls():
    """Calls of the other ops, and of rope_pool_fused with all that it can do to heads before they turn: results by name."""
    positions = np.array([0, 1, -1, 257, 4000, 131_071, 2**24 + 1, MAX_POSITION, -MAX_POSITION])
    random = np.random.default_rng(0)

    def weight(*lengths):
        return random.uniform(0.5, 2, lengths).astype(np.float32)

    for dtype in FLOATS:
        for head_dim in (2, 6, 30, 64, 80, 96, 128, 192, 576, 1024, 1030):
            name = f"{np.dtype(dtype)} {head_dim}"
            part = max(2 * (head_dim // 6), 2)
            for turned, pairing in dict.fromkeys([(head_dim, "neox"), (head_dim, "interleaved"), (part, "neox")]):
                rope = ropepool.Rope(10000.0, rotary_dim=turned, pairing=pairing)
                call = arguments(len(positions), head_dim, 5, 2, 32, dtype, positions=positions)
                call |= {"rope": rope, "rope_base": None, "q_bias": weight(5, head_dim), "v_bias": weight(2, head_dim)}
                for shapes in (((head_dim,), (head_dim,)), ((5, head_dim), (2, head_dim)), ((5 * head_dim,), (2 * head_dim,))):
                    for norm in (ropepool.RMSNorm, ropepool.LayerNorm):
                        norms = {f"{x}_norm": norm(weight(*shape), eps=1e-6) for x, shape in zip("qk", shapes, strict=True)}
                        what = f"{name} {turned} {pairing} {norm.__name__} {shapes[0]}"
                        yield what, ropepool.rope_pool_fused(**copies(call), **norms, q_scale=0.3)
                pool, slots = copies(call)["k"], np.arange(len(positions))
                heads = {"head_dim": head_dim, "num_kv_heads": 2, "rope": rope}
                moved = ropepool.rerotate(pool, slots, positions, positions[::-1].copy(), **heads)
                yield f"{name} {turned} {pairing} rerotate", [moved]
            call = arguments(9, head_dim, 5, 2, 32, dtype)
            heads = {"head_dim": head_dim, "num_kv_heads": 2}
            v, v_pool = (np.concatenate([call[x], call[x][..., :1]], axis=-1) for x in ("v", "v_pool"))
            stored = ropepool.write_kv(call["k"], v, call["slots"], call["k_pool"], v_pool, **heads, v_head_dim=head_dim + 1)
            yield f"{name} write_kv", stored
        # So large that it is split.
        call = arguments(1100, 80, 24, 4, 1200, dtype)
        norms = {name: ropepool.RMSNorm(weight(80), eps=1e-6) for name in ("q_norm", "k_norm")}
        yield f"{np.dtype(dtype)} large", ropepool.rope_pool_fused(**call, **norms)


def digest(results):
    """Of all bits but those of NaN in q_rot and k_rot, whose sign and payload hardware chooses."""
    total = hashlib.sha256()
    for array in results:
        plain = np.ascontiguousarray(array)
        nan = np.isnan(plain.astype(np.float32))
        total.update(nan.tobytes())
        total.update(np.where(nan, 0, plain.view(f"u{plain.itemsize}")).tobytes())
    return total.hexdigest()


def print_digests():
    """What a process with a forced target runs."""
    assert ropepool.simd_target() == os.environ["ROPEPOOL_TARGET"]
    for name, call in cases():
        results = ropepool.rope_pool_fused(**call)
        if "special" not in name and "magnitudes" not in name and "large" not in name:
            check_values(call, results)
        assert_same_bits(results[3], scatter(np.full_like(call["v_pool"], 99), call["slots"], call["v"]))
        print(f"{name}: {digest(results)}")
    for name, results in other_calls():
        print(f"other, {name}: {digest(results)}")


def check_values(call, results):
    for rotated, x in zip(results, (call["q"], call["k"]), strict=False):
        assert_rotated(rotated, x, call["positions"], call["rope_base"], call.get("angles", "exact"))


def run_with(target, *command):
    environment = {**os.environ, "ROPEPOOL_TARGET": target, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


@functools.cache
def digests(target):
    run = run_with(target, __file__)
    assert run.returncode == 0, run.stderr
    return dict(line.split(": ") for line in run.stdout.splitlines())


@pytest.mark.parametrize("target", ropepool.simd_targets())
def test_forced_target(target):
    """It is the one in use, its values are the oracle's, and its bits are those of all others of its class."""
    found = digests(target)
    assert len(found) == len(list(cases())) + len(list(other_calls()))
    peers = [other for other in ropepool.simd_targets() if (other in WITHOUT_FMA) == (target in WITHOUT_FMA)]
    expected = digests(peers[0])
    assert [name for name in found if found[name] != expected[name]] == []


def test_classes_do_differ():
    """If not, the test above compares nothing."""
    fused = [target for target in ropepool.simd_targets() if target not in WITHOUT_FMA]
    others = [target for target in ropepool.simd_targets() if target in WITHOUT_FMA]
    if not fused or not others:
        pytest.skip("this CPU runs targets of one class only")
    assert digests(fused[0]) != digests(others[0])


def test_this_process_agrees_with_its_target():
    found = digests(ropepool.simd_target())
    for name, call in cases():
        assert digest(ropepool.rope_pool_fused(**call)) == found[name], name
    for name, results in other_calls():
        assert digest(results) == found[f"other, {name}"], name


@pytest.mark.parametrize(
    "target", [*sorted({*ropepool.compiled_simd_targets()} - {*ropepool.simd_targets()}), "NO_SUCH_TARGET", "avx2"]
)
def test_targets_that_cannot_run_fail_the_import(target):
    run = run_with(target, "-c", "import ropepool")
    assert run.returncode != 0 and f"RuntimeError: ROPEPOOL_TARGET is {target}" in run.stderr.replace("'", "")


if __name__ == "__main__":
    print_digests()
