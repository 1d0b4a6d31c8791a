"""A C++ and a C project that find an installed ropepool, and what the shared library shows to the world."""

import pathlib
import re
import shutil

import pytest
from doors import run

HERE = pathlib.Path(__file__).parent
PUBLIC_HEADERS = sorted(path.name for path in (HERE.parents[1] / "include" / "ropepool").glob("*.h"))


@pytest.mark.parametrize("language", ["cpp", "c"])
def test_consumer(installed, language, tmp_path):
    shutil.copytree(HERE / f"consumer_{language}", tmp_path / "source")
    configure = ["cmake", "-S", "source", "-B", "build", f"-DCMAKE_PREFIX_PATH={installed.prefix}"]
    if not installed.shared:
        configure.append("-DCONSUMER_LINKS_STATIC=ON")
    run(*configure, cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    output = run(tmp_path / "build" / "consumer", cwd=tmp_path)
    assert "v shape must match k shape" in output
    assert "ropepool explain RP006" in output
    needed = run("readelf", "-d", tmp_path / "build" / "consumer", cwd=tmp_path)
    assert ("libropepool.so" in needed) == installed.shared


def test_consumer_adds_the_source_tree(tree, tmp_path):
    """Configured only: building it would compile everything once more."""
    (tmp_path / "main.cpp").write_text("#include <ropepool/ropepool.h>\nint main() {}\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(host LANGUAGES C CXX)\n"
        f"set(ROPEPOOL_CLI OFF)\nadd_subdirectory({tree} ropepool)\n"
        "add_executable(host main.cpp)\ntarget_link_libraries(host PRIVATE ropepool::ropepool)\n"
    )
    run("cmake", "-S", ".", "-B", "build", cwd=tmp_path)


@pytest.mark.parametrize("fmt", ["fmt::fmt", "fmt::fmt-header-only"])
def test_what_a_static_library_links_is_found(tree, tmp_path, fmt):
    """Configured only; what an installed library would be has a stand-in that knows what it links."""
    options = ["-DBUILD_SHARED_LIBS=OFF", f"-DROPEPOOL_FMT={fmt}", "-DROPEPOOL_CLI=OFF"]
    run("cmake", "-S", tree, "-B", "library", *options, cwd=tmp_path)
    (tmp_path / "library" / "ropepoolTargets.cmake").write_text(
        "foreach(target hwy::hwy dlpack::dlpack Threads::Threads @)\n  if(NOT TARGET ${target})\n"
        '    message(FATAL_ERROR "no ${target}")\n  endif()\nendforeach()\n'.replace(
            "@", fmt.replace("fmt::fmt-header-only", "")
        )
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(host LANGUAGES C CXX)\nfind_package(ropepool REQUIRED)\n"
    )
    run("cmake", "-S", ".", "-B", "build", f"-Dropepool_DIR={tmp_path / 'library'}", cwd=tmp_path)


@pytest.mark.parametrize("header", PUBLIC_HEADERS)
def test_header_stands_alone(shared, header, tmp_path):
    (tmp_path / "alone.cpp").write_text(f"#include <ropepool/{header}>\n#include <ropepool/{header}>\n")
    run(
        "c++",
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        f"-I{shared.prefix / 'include'}",
        "alone.cpp",
        cwd=tmp_path,
    )


def test_shared_library_has_a_versioned_name(shared, tree):
    version = re.search(r"project\(ropepool VERSION ([0-9.]+)", (tree / "CMakeLists.txt").read_text())[1]
    soname = f"libropepool.so.{version.rpartition('.')[0]}"
    assert shared.library.resolve().name == f"libropepool.so.{version}"
    assert f"[{soname}]" in run("readelf", "-d", shared.library, cwd=tree)
    assert (shared.library.parent / soname).resolve() == shared.library.resolve()


def test_shared_library_exports_the_public_interface_only(shared, tree):
    """Every exported symbol is named in an installed header."""
    lines = run("nm", "-D", "--defined-only", "--demangle", shared.library, cwd=tree).splitlines()
    symbols = {line.split(maxsplit=2)[2] for line in lines}
    headers = "\n".join(path.read_text() for path in (shared.prefix / "include" / "ropepool").iterdir())
    foreign = []
    for symbol in symbols:
        name = re.match(r"(?:(?:vtable|typeinfo|typeinfo name) for )?ropepool::(.*)", symbol)
        words = re.findall(r"\w+", re.sub(r"\[abi:\w+\]|\(.*", "", name[1])) if name else [symbol]
        if not all(re.search(rf"\b{word}\b", headers) for word in words):
            foreign.append(symbol)
    assert foreign == []
    assert {"ropepool_rope_pool_fused", "ropepool_rope_pool_fused_with", "ropepool_last_error_message"} <= symbols
    assert any(symbol.startswith("ropepool::rope_pool_fused(") for symbol in symbols)


def test_installed_files_hold_no_path_of_the_build(installed, tree):
    files = [path for path in installed.prefix.rglob("*") if path.is_file() and path.suffix in (".h", ".cmake")]
    assert files
    for path in files:
        assert str(tree.parent) not in path.read_text(), path
