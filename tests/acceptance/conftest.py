"""The doors that a stranger uses, from a copy of the repository, in folders that are thrown away."""

import shutil
import subprocess

import pytest
from doors import NEWEST_CMAKE, ROOT, Installed, install, make_environment


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """What a clone would hold: all files but the ignored ones."""
    copy = tmp_path_factory.mktemp("clone") / "ropepool"
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=False
    )
    if listed.returncode != 0:  # no repository: an unpacked archive
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "build", "dist", ".venv*", "__pycache__", ".*_cache"))
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CCACHE_BASEDIR", str(copy))
        yield copy


@pytest.fixture(scope="session")
def shared(tree, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix") / "shared"
    return Installed(install(tree, prefix, "-G", "Ninja", cmake=NEWEST_CMAKE), True)


@pytest.fixture(scope="session")
def static(tree, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix") / "static"
    return Installed(install(tree, prefix, "-DBUILD_SHARED_LIBS=OFF", "-DROPEPOOL_CLI=OFF", cmake=NEWEST_CMAKE), False)


@pytest.fixture(scope="session")
def static_with_fmt(tree, tmp_path_factory):
    """By the system's CMake; what links it has to link fmt too."""
    prefix = tmp_path_factory.mktemp("prefix") / "static_with_fmt"
    options = ["-DBUILD_SHARED_LIBS=OFF", "-DROPEPOOL_CLI=OFF", "-DROPEPOOL_FMT=fmt::fmt"]
    return Installed(install(tree, prefix, *options), False)


@pytest.fixture(params=["shared", "static", "static_with_fmt"])
def installed(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def from_source(tree, tmp_path_factory):
    """`pip install .` in the clone, where only the folder of the build has a name, see doors.py."""
    environment = make_environment(tmp_path_factory.mktemp("from_source"))
    environment.pip_build("install", tree=tree)
    return environment


@pytest.fixture(scope="session")
def wheel(tree, tmp_path_factory):
    """`pip wheel .` in the clone."""
    folder = tmp_path_factory.mktemp("wheel")
    make_environment(folder).pip_build("wheel", "--no-deps", "-w", folder / "dist", tree=tree)
    (path,) = (folder / "dist").iterdir()
    return path


# ---- What tests want to tell, whether they pass or fail

_notes: list[str] = []


@pytest.fixture
def note():
    return _notes.append


def pytest_terminal_summary(terminalreporter):
    if _notes:
        terminalreporter.section("measured, not judged")
        for line in _notes:
            terminalreporter.write_line(line)
