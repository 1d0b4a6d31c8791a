"""Commands as a stranger would run them, installed trees and virtual environments.

What ./dev test compiled before, ccache knows again in the copy of the repository: CCACHE_BASEDIR is the copy, and builds lie in
build/NAME of it, where sources have the same relative paths as from build/PRESET and the folder of ./dev setup. The order of a
compiler's arguments depends on CMake's version, so what one CMake had compiled serves that one alone.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What pip brought for ./dev setup, where the system's CMake is older than the package needs.
NEWEST_CMAKE = shutil.which("cmake", path=pathlib.Path(sys.executable).parent) or "cmake"
JOBS = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)


def run(*command, cwd, path=(), **options):
    """A command in a stranger's environment, without this Python and without settings of ropepool. Returns its output."""
    private = ("ROPEPOOL_", "PYTHON", "VIRTUAL_ENV", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH")
    env = {name: value for name, value in os.environ.items() if not name.startswith(private)}
    env["PATH"] = os.pathsep.join([*map(str, path), env["PATH"]])
    env["CMAKE_BUILD_PARALLEL_LEVEL"] = JOBS
    command = [str(word) for word in command]
    # The tool is looked up in our PATH, where Popen looks in this process's.
    command[0] = shutil.which(command[0], path=env["PATH"]) or command[0]
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout}"
    return done.stdout


class Installed(typing.NamedTuple):
    prefix: pathlib.Path
    shared: bool

    @property
    def library(self):
        return next(self.prefix.glob(f"lib*/**/libropepool.{'so' if self.shared else 'a'}"))

    @property
    def bin(self):
        return self.prefix / "bin"


def install(tree, prefix, *options, cmake="cmake"):
    """Builds with the defaults of ropepool, no preset, and installs into prefix."""
    build = f"build/{prefix.name}"
    run(cmake, "-S", ".", "-B", build, f"-DCMAKE_INSTALL_PREFIX={prefix}", *options, cwd=tree)
    run(cmake, "--build", build, cwd=tree)
    run(cmake, "--install", build, cwd=tree)
    return prefix


class Environment(typing.NamedTuple):
    """A virtual environment that nothing else uses."""

    python: pathlib.Path

    @property
    def bin(self):
        return self.python.parent

    def pip(self, *arguments, cwd):
        return run(self.python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments, cwd=cwd)

    def pip_build(self, command, *arguments, tree):
        """`pip COMMAND ... .` in the clone. The folder of the build is named, since pip's own has another name each time."""
        return self.pip(command, f"--config-settings=build-dir=build/{command}-{{cache_tag}}", *arguments, ".", cwd=tree)


def make_environment(folder, python=sys._base_executable):
    run(python, "-m", "venv", folder / "env", cwd=folder)
    return Environment(folder / "env" / "bin" / "python")
