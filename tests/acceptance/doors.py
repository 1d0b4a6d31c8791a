"""Commands as a stranger would run them, installed trees and virtual environments."""

import os
import pathlib
import shutil
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


def install(tree, folder, *options):
    """Builds with CMake's defaults, no preset, and installs into folder/prefix."""
    run("cmake", "-S", tree, "-B", folder / "build", f"-DCMAKE_INSTALL_PREFIX={folder / 'prefix'}", *options, cwd=folder)
    run("cmake", "--build", folder / "build", cwd=folder)
    run("cmake", "--install", folder / "build", cwd=folder)
    return folder / "prefix"


class Environment(typing.NamedTuple):
    """A virtual environment that nothing else uses."""

    python: pathlib.Path

    @property
    def bin(self):
        return self.python.parent

    def pip(self, *arguments, cwd):
        return run(self.python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments, cwd=cwd)


def make_environment(folder, python=sys._base_executable):
    run(python, "-m", "venv", folder / "env", cwd=folder)
    return Environment(folder / "env" / "bin" / "python")
