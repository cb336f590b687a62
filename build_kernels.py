"""Compile the CPU kernels: one shared library with a C interface, the same for any Python and torch.

`setup.py` does so when the package is installed. By hand, with nothing but Python and a compiler:

    python build_kernels.py                                  # in place, for an editable install
    python build_kernels.py --output build/debug.so --flags "-O1 -g"
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = Path(__file__).parent.resolve() / "src" / "scale_invariant_attention" / "attention"
SOURCES = PACKAGE / "csrc"
LIBRARY = "_kernels.so"
MISSING = "_kernels_missing.txt"  # holds the reason; the package reads it to tell the user

COMPILERS = ("c++", "g++", "clang++")
# The library runs on machines other than this one: no -march=native. NaN and infinity have a meaning
# in the contract: no -ffast-math.
FLAGS = [
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-pthread",
    "-Wall",
    "-Wextra",
]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "-mprefer-vector-width=512",
]
# These are called only where the processor has the instructions. For other architectures they
# are compiled without the flags, and are empty.
X86_64_FLAGS = {
    "isa_avx2.cpp": AVX2,
    "isa_avx512.cpp": AVX512,
    "isa_avx512bf16.cpp": [*AVX512, "-mavx512bf16"],
}
PROCESSES = 2


class KernelsNotBuiltError(Exception):
    """The library could not be built; the message is for the user."""


def build_or_leave_reason(folder: Path) -> str | None:
    """Put the library into a folder, or the reason why it is missing, and return the reason.

    With SIA_REQUIRE_KERNELS=1 in the environment a library that cannot be built is an error.
    """
    (folder / LIBRARY).unlink(missing_ok=True)
    (folder / MISSING).unlink(missing_ok=True)
    try:
        build(folder / LIBRARY)
    except KernelsNotBuiltError as failure:
        if os.environ.get("SIA_REQUIRE_KERNELS", "0") not in ("", "0"):
            raise
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MISSING).write_text(f"{failure}\n", encoding="utf-8")
        return str(failure)
    return None


def build(library: Path, extra_flags: Sequence[str] = ()) -> None:
    """Compile all sources and link them; the extra flags, given last, win over the usual ones."""
    compiler = find_compiler()
    library = library.resolve()
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        objects = compile_sources(compiler, Path(scratch), extra_flags)
        linked = Path(scratch) / LIBRARY
        run([*compiler, "-shared", *FLAGS, *extra_flags, *map(str, objects), "-o", str(linked)])
        # A new file in place of the old one: a process that has the old one loaded keeps it.
        fresh = library.with_name(f"{library.name}.new")
        shutil.copyfile(linked, fresh)
        fresh.replace(library)


def find_compiler() -> list[str]:
    """The command of the C++ compiler: the variable CXX, or else the first that is installed."""
    if sys.platform == "win32":
        raise KernelsNotBuiltError("the kernels are not built on Windows")
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    for candidate in candidates:
        command = shlex.split(candidate)
        if shutil.which(command[0]):
            return command
    raise KernelsNotBuiltError(
        "no C++ compiler was found when the package was installed "
        f"(tried: {', '.join(candidates)}); install one and reinstall"
    )


def compile_sources(
    compiler: list[str], folder: Path, extra_flags: Sequence[str] = ()
) -> list[Path]:
    """Compile every source, some at a time, to an object file in a folder."""
    is_x86_64 = run([*compiler, "-dumpmachine"]).startswith("x86_64")

    def compile_source(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        own_flags = X86_64_FLAGS.get(source.name, []) if is_x86_64 else []
        flags = [*FLAGS, *own_flags, *extra_flags]
        run([*compiler, *flags, "-c", source.name, "-o", str(target)])
        return target

    with ThreadPoolExecutor(PROCESSES) as pool:
        return list(pool.map(compile_source, sorted(SOURCES.glob("*.cpp"))))


def run(command: list[str]) -> str:
    """What a command prints; its warnings and errors are passed on."""
    # In the folder of the sources, so that messages name files without the way to them, and in
    # English, so that the first error can be found.
    result = subprocess.run(
        command,
        cwd=SOURCES,
        env=os.environ | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        lines = result.stderr.splitlines() or [f"exit code {result.returncode}"]
        first_error = next((line for line in lines if "error:" in line), lines[0])
        raise KernelsNotBuiltError(
            "the kernels could not be compiled when the package was installed: "
            f"{command[0]} said {first_error.strip()!r}"
        )
    return result.stdout


def main() -> str | None:
    """The command line; returns the error, if there is one."""
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument("--output", type=Path, help="the library to write; in place unless given")
    parser.add_argument("--flags", default="", help="more flags for the compiler, in one string")
    options = parser.parse_args()
    if options.flags and not options.output:
        parser.error("--flags needs --output: what is in place has the usual flags")
    try:
        if options.output:
            build(options.output, shlex.split(options.flags))
        elif reason := build_or_leave_reason(PACKAGE):
            print(f"No CPU kernels: {reason}")
    except KernelsNotBuiltError as failure:
        return str(failure)
    return None


if __name__ == "__main__":
    sys.exit(main())
