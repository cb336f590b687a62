"""Building the kernels at installation, or recording why they could not be built."""

import ctypes
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OP = Path("src/scale_invariant_attention/attention")
WIDE = ("isa_avx2", "isa_avx512", "isa_avx512bf16")
SOURCE = """
#include "answer.h"
extern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }
"""
HEADER = "#ifndef ANSWER\n#define ANSWER 42\n#endif\n"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


@pytest.fixture
def project(tmp_path):
    """A copy of the project's build files, with kernels that compile quickly."""
    root = tmp_path / "project"
    sources = root / OP / "csrc"
    sources.mkdir(parents=True)
    for name in ("build_kernels.py", "setup.py", "pyproject.toml", "MANIFEST.in"):
        shutil.copy(ROOT / name, root)
    for name in ("README.md", "LICENSE"):
        (root / name).touch()
    (root / OP.parent / "__init__.py").touch()
    (root / OP / "__init__.py").touch()
    (sources / "answer.h").write_text(HEADER)
    (sources / "answer.cpp").write_text(SOURCE)
    for name in WIDE:
        (sources / f"{name}.cpp").touch()
    return root


def run(project, *command, **variables):
    """Run Python in the project, with only the given build variables set."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "SIA_REQUIRE_KERNELS")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def hook(project, name, **variables):
    """Call a build hook as pip does: `build_wheel`, `build_sdist` or `build_editable`."""
    script = f"from setuptools import build_meta; build_meta.{name}('dist')"
    return run(project, "-c", script, **variables)


def built(project, pattern):
    """The only file in dist that matches a pattern."""
    (file,) = (project / "dist").glob(pattern)
    return file


def kernel_files(wheel):
    """Contents of the wheel's kernel files, by name."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if "kernels" in n or "csrc" in n]
        return {Path(name).name: archive.read(name) for name in names}


def answer(library):
    return ctypes.CDLL(str(library)).answer()


def fake_compiler(tmp_path, machine="x86_64-linux-gnu", error=""):
    """A compiler that logs its calls, and fails with `error` if one is given."""
    script = tmp_path / "fake-c++"
    log = tmp_path / "calls.txt"
    script.write_text(f"""#!/bin/sh
case "$*" in *-dumpmachine) echo {machine}; exit;; esac
echo "$@" >> {log}
if [ -n "{error}" ]; then echo "In a file:" >&2; echo "{error}" >&2; exit 1; fi
for last; do :; done
touch "$last"
""")
    script.chmod(0o755)
    return script, log


@needs_compiler
def test_one_wheel_serves_every_python(project, tmp_path):
    assert hook(project, "build_wheel").returncode == 0
    wheel = built(project, "*.whl")
    python, abi, platform = wheel.stem.split("-")[2:]
    assert (python, abi) == ("py3", "none")
    assert platform != "any"
    files = kernel_files(wheel)
    assert set(files) == {"_kernels.so"}
    (tmp_path / "_kernels.so").write_bytes(files["_kernels.so"])
    assert answer(tmp_path / "_kernels.so") == 42


@needs_compiler
def test_source_distribution_contains_all_kernel_sources(project, tmp_path):
    assert hook(project, "build_sdist").returncode == 0
    with tarfile.open(built(project, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("scale_invariant_attention-*")
    assert hook(unpacked, "build_wheel").returncode == 0
    assert set(kernel_files(built(unpacked, "*.whl"))) == {"_kernels.so"}


def test_pages_and_their_templates_are_installed_with_the_package(project, tmp_path):
    lab = Path("src/scale_invariant_attention/lab")
    folders = lab / "templates", lab / "reporting/web_page/assets"
    for folder in folders:
        shutil.copytree(ROOT / folder, project / folder)
    for package in (lab, lab / "reporting", lab / "reporting/web_page"):
        (project / package / "__init__.py").touch()
    compiler, _ = fake_compiler(tmp_path)
    assert hook(project, "build_sdist", CXX=str(compiler)).returncode == 0
    with tarfile.open(built(project, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("scale_invariant_attention-*")
    assert hook(unpacked, "build_wheel", CXX=str(compiler)).returncode == 0
    with zipfile.ZipFile(built(unpacked, "*.whl")) as archive:
        found = {name for name in archive.namelist() if "/lab/" in name and name[-3:] != ".py"}
    files = (it for folder in folders for it in (ROOT / folder).rglob("*") if it.is_file())
    assert found == {it.relative_to(ROOT / "src").as_posix() for it in files}


@needs_compiler
def test_editable_install_has_the_library_beside_the_source(project):
    assert hook(project, "build_editable").returncode == 0
    assert answer(project / OP / "_kernels.so") == 42


@needs_compiler
def test_build_with_custom_output_and_flags(project):
    other = project / "build" / "other.so"
    built = run(project, "build_kernels.py", "--output", str(other), "--flags", "-O0 -DANSWER=7")
    assert built.returncode == 0, built.stderr
    assert answer(other) == 7
    assert not (project / OP / "_kernels.so").exists()


def test_without_a_compiler_the_wheel_records_the_reason(project, tmp_path):
    # The library of an earlier build must not end up in this wheel.
    compiler, _ = fake_compiler(tmp_path)
    assert hook(project, "build_wheel", CXX=str(compiler)).returncode == 0
    built(project, "*.whl").unlink()
    result = hook(project, "build_wheel", CXX="/nonexistent/c++")
    assert result.returncode == 0
    assert "Traceback" not in result.stdout + result.stderr
    wheel = built(project, "*.whl")
    assert wheel.stem.endswith("-py3-none-any")
    files = kernel_files(wheel)
    assert set(files) == {"_kernels_missing.txt"}
    assert files["_kernels_missing.txt"].decode() == (
        "no C++ compiler was found when the package was installed "
        "(tried: /nonexistent/c++); install one and reinstall\n"
    )


def test_in_place_build_leaves_either_library_or_reason(project, tmp_path):
    library, reason = project / OP / "_kernels.so", project / OP / "_kernels_missing.txt"
    for compiler in (fake_compiler(tmp_path)[0], "/nonexistent/c++", fake_compiler(tmp_path)[0]):
        assert run(project, "build_kernels.py", CXX=str(compiler)).returncode == 0
        found = compiler != "/nonexistent/c++"
        assert (library.exists(), reason.exists()) == (found, not found)


def test_first_compiler_error_is_recorded(project, tmp_path):
    compiler, _ = fake_compiler(tmp_path, error="answer.cpp:1:2: error: nothing works")
    result = hook(project, "build_wheel", CXX=str(compiler))
    assert result.returncode == 0
    assert "Traceback" not in result.stdout + result.stderr
    files = kernel_files(built(project, "*.whl"))
    assert set(files) == {"_kernels_missing.txt"}
    assert files["_kernels_missing.txt"].decode() == (
        "the kernels could not be compiled when the package was installed: "
        f"{compiler} said 'answer.cpp:1:2: error: nothing works'\n"
    )


@pytest.mark.parametrize("error", ["missing", "failing"])
def test_kernels_can_be_required(project, tmp_path, error):
    compiler = "/nonexistent/c++"
    if error == "failing":
        compiler = str(fake_compiler(tmp_path, error="error: nothing works")[0])
    result = hook(project, "build_wheel", CXX=compiler, SIA_REQUIRE_KERNELS="1")
    assert result.returncode != 0
    assert compiler in result.stderr
    assert not list((project / "dist").glob("*.whl"))
    result = run(project, "build_kernels.py", CXX=compiler, SIA_REQUIRE_KERNELS="1")
    assert result.returncode != 0
    assert compiler in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("machine", ["x86_64-linux-gnu", "aarch64-linux-gnu"])
def test_only_three_files_are_compiled_for_newer_processors(project, tmp_path, machine):
    compiler, log = fake_compiler(tmp_path, machine=machine)
    assert run(project, "build_kernels.py", CXX=f"{compiler} -first").returncode == 0
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(calls) == 5
    wide = {call[call.index("-c") + 1]: "-mfma" in call for call in calls if "-c" in call}
    on_x86 = machine.startswith("x86_64")
    assert wide == {"answer.cpp": False, **{f"{name}.cpp": on_x86 for name in WIDE}}
    dotting = [call for call in calls if "-mavx512bf16" in call]
    assert [call[call.index("-c") + 1] for call in dotting] == ["isa_avx512bf16.cpp"] * on_x86
    for call in calls:
        assert call[0] == "-first"
        assert not {"-march=native", "-ffast-math", "-fopenmp"} & set(call)


@needs_compiler
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the tables of ELF files")
def test_code_for_newer_processors_is_shared_with_no_other_file(tmp_path):
    # If several files define the same inline function, the linker keeps one, perhaps the one with
    # instructions that the processor lacks. -O0, because what is inlined today may not be tomorrow.
    builder = runpy.run_path(str(ROOT / "build_kernels.py"))
    nm = shutil.which("nm")
    shared = {}
    for file in builder["compile_sources"](builder["find_compiler"](), tmp_path, ["-O0"]):
        table = subprocess.check_output([nm, "--demangle", "--defined-only", file], text=True)
        symbols = (line.split(maxsplit=2) for line in table.splitlines())
        shared[file.stem] = {name for _, kind, name in symbols if kind == "W"}
    for wide in WIDE:
        for other in shared.keys() - {wide}:
            assert not shared[wide] & shared[other], (wide, other)
