"""The package as pip installs it from the clone, and as a wheel."""

import pathlib
import shutil
import zipfile

import pytest
from doors import make_environment, run

USE = """
import numpy as np, ropepool
q, k, v = np.float32([[[1, 2, 3, 4]]]), np.float32([[[1, 2, 3, 4]]]), np.float32([[[5, 6, 7, 8]]])
k_pool, v_pool = np.full((2, 1, 4), 99, np.float32), np.full((2, 1, 4), 99, np.float32)
call = dict(head_dim=4, num_qo_heads=1, num_kv_heads=1, rope_base=1e4)
q_rot, k_rot, *_ = ropepool.rope_pool_fused(q, k, v, np.array([1]), np.array([1]), k_pool, v_pool, **call)
assert np.allclose(q_rot, [-1.984111, 1.959901, 2.462378, 4.019800], atol=1e-6), q_rot
assert (k_pool[1] == k_rot[0]).all() and (v_pool[1] == v[0]).all() and (k_pool[0] == 99).all()
try:
    ropepool.rope_pool_fused(q, k, v.repeat(3, axis=1), np.array([1]), np.array([1]), k_pool, v_pool, **call)
except ropepool.ContractError as error:
    assert error.code == "RP006" and ropepool.explain(error)["name"] == "v-shape-mismatch"
else:
    raise SystemExit("not refused")
print("used", ropepool.__version__, ropepool.__file__)
"""


def use(environment, folder):
    """The package and the tool of an environment, from a folder that has nothing to do with the clone."""
    output = run(environment.python, "-c", USE, cwd=folder)
    assert output.startswith("used")
    assert str(environment.bin.parent) in output
    assert run("ropepool", "--version", cwd=folder, path=[environment.bin]).split()[1] == output.split()[1]
    assert "RP006" in run("ropepool", "explain", "6", cwd=folder, path=[environment.bin])


def test_pip_install_from_the_clone(from_source, tmp_path):
    use(from_source, tmp_path)


def test_wheel_in_another_environment(wheel, tmp_path):
    environment = make_environment(tmp_path)
    environment.pip("install", wheel, cwd=tmp_path)
    use(environment, tmp_path)


def test_wheel_carries_what_it_needs(wheel, tmp_path):
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("ropepool/_ext") for name in names)
    assert any(name.startswith("ropepool/libhwy") for name in names)
    assert "ropepool/py.typed" in names
    assert not any(name.startswith(("include/", "lib/")) or "tests" in name for name in names), names
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for library in (*tmp_path.glob("ropepool/*.so*"), *tmp_path.glob("*.data/scripts/ropepool")):
        for line in run("readelf", "-d", library, cwd=tmp_path).splitlines():
            if "RPATH" in line or "RUNPATH" in line:
                assert "[$ORIGIN" in line, line
            assert "libropepool" not in line, line


def newer_pythons():
    """Pythons from 3.12 on, where this machine has some beside the one that runs the tests."""
    found = {}
    for version in ("3.12", "3.13", "3.14"):
        candidates = [shutil.which(f"python{version}"), *pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for candidate in filter(None, candidates):
            if ".pyenv/shims" not in str(candidate):
                found[version] = str(candidate)
    return list(found.values())


def test_one_wheel_for_all_pythons_from_3_12(tree, tmp_path):
    pythons = newer_pythons()
    if len(pythons) < 2:
        pytest.skip("needs two Pythons of 3.12 or newer")
    (tmp_path / "oldest").mkdir()
    oldest = make_environment(tmp_path / "oldest", pythons[0])
    oldest.pip_build("wheel", "--no-deps", "-w", tmp_path / "dist", tree=tree)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "-cp312-abi3-" in wheel.name
    (tmp_path / "newest").mkdir()
    newest = make_environment(tmp_path / "newest", pythons[-1])
    newest.pip("install", wheel, cwd=tmp_path)
    use(newest, tmp_path)


def test_demo(from_source, tree, note):
    from_source.pip("install", "safetensors", cwd=tree)
    output = run(from_source.python, "tools/demo.py", cwd=tree)
    assert "All checks passed." in output
    assert str(tree) not in output
    lines = output.splitlines()
    first = next(i for i, line in enumerate(lines) if "GB/s" in line) - 1
    for line in lines[first : first + 3]:
        note(line)
