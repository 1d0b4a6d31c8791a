"""Every code block of README.md, as a newcomer would run it."""

import os
import pathlib
import re

import pytest
from doors import ROOT, run

README = ROOT / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def blocks(language):
    return [pytest.param(text, id=str(number)) for number, (name, text) in enumerate(BLOCKS) if name == language]


def test_every_block_is_of_a_kind_that_is_tested():
    kinds = {language for language, _ in BLOCKS}
    assert {"cpp", "c", "python", "cmake", "sh"} <= kinds
    assert kinds <= {"cpp", "c", "python", "cmake", "sh", "text"}


def build_and_run(shared, folder, language, source):
    """With README's own lines for CMakeLists.txt, behind what every project has."""
    (linking,) = (text for name, text in BLOCKS if name == "cmake")
    (folder / f"app.{language}").write_text(source)
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES {'CXX' if language == 'cpp' else 'C'})\n"
        f"add_executable(app app.{language})\ntarget_compile_options(app PRIVATE -Wall -Wextra -Werror)\n{linking}"
    )
    run("cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={shared.prefix}", cwd=folder)
    run("cmake", "--build", "build", cwd=folder)
    return run(folder / "build" / "app", cwd=folder)


@pytest.mark.parametrize("source", blocks("cpp"))
def test_cpp(shared, source, tmp_path):
    assert build_and_run(shared, tmp_path, "cpp", source).strip()


@pytest.mark.parametrize("source", blocks("c"))
def test_c(shared, source, tmp_path):
    assert build_and_run(shared, tmp_path, "c", source).strip()


@pytest.mark.parametrize("source", blocks("python"))
def test_python(from_source, source, tmp_path):
    (tmp_path / "app.py").write_text(source)
    assert run(from_source.python, "app.py", cwd=tmp_path).strip()


@pytest.mark.parametrize("text", blocks("sh"))
def test_sh(from_source, tree, text):
    """Lines that begin with `ropepool`; the others install things or are tested elsewhere."""
    for line in text.splitlines():
        if line.startswith("ropepool "):
            assert run("sh", "-c", line, cwd=tree, path=[from_source.bin]).strip(), line
        elif line.startswith("./"):
            name = line.split()[0]
            assert os.access(ROOT / name, os.X_OK), line


def test_links_lead_to_files():
    for document in (README, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"))):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            assert (document.parent / pathlib.PurePosixPath(target)).exists(), f"{document.name}: {target}"
