"""The compiled kernels as a library: whether it loads, whose instructions and threads it uses."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backend_names import needs_kernels
from contract_checks import hidden_nan_leaks
from error_budgets import Judge, public_call, run
from kernel_builds import BUILDER, needs_compiler
from random_contracts import draw

from scale_invariant_attention.attention import cpu_library
from scale_invariant_attention.attention._coordinates import MOST_DIMENSIONS
from scale_invariant_attention.attention.cpu_library import (
    instruction_set,
    instruction_sets,
    using_instruction_set,
)

ROOT = Path(__file__).parents[2]
RUNNABLE = [name for name, runs in instruction_sets().items() if runs]
# Odd lengths, masks, documents, windows and sinks are all among these.
CONTRACTS = range(7000, 7100)
STORED = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def child(script, *options, **variables):
    """Output of Python in a new process."""
    command = [sys.executable, *(("-c", script) if isinstance(script, str) else (script,))]
    done = subprocess.run(
        [*command, *options],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@needs_compiler
def test_python_packs_the_members_of_the_c_struct_where_they_are():
    offset, checks = 0, ['#include "call.h"']
    for name, kind in cpu_library.LAYOUT.items():
        checks.append(f'static_assert(offsetof(Call, {name}) == {offset}, "{name}");')
        offset += struct.calcsize(f"={kind}")
    dimensions = f"MOST_DIMENSIONS == {MOST_DIMENSIONS}"
    checks.append(f'static_assert({dimensions}, "the dimensions");')
    checks.append(f'static_assert(sizeof(Call) == {cpu_library.CALL.size}, "the size");')
    done = subprocess.run(
        [
            *BUILDER["find_compiler"](),
            "-std=c++17",
            "-fsyntax-only",
            "-Wno-invalid-offsetof",
            "-x",
            "c++",
            "-",
        ],
        input="\n".join(checks),
        cwd=Path(cpu_library.__file__).parent / "csrc",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_kernels
@pytest.mark.parametrize("name", RUNNABLE)
def test_every_instruction_set_keeps_the_contract(name):
    found = []
    with using_instruction_set(name):
        for seed in CONTRACTS:
            contract = draw(seed, dtypes=STORED)
            found += [
                f"{contract}\n    {failure}"
                for failure in (
                    *Judge(contract).violations(run(contract, public_call("cpu"))),
                    *(f"hidden NaN: {leak}" for leak in hidden_nan_leaks(contract, "cpu")),
                )
            ]
    assert not found, "\n".join(found)


@needs_kernels
def test_the_best_that_runs_is_used_and_another_only_inside_the_block():
    best = RUNNABLE[0]
    assert instruction_set() == best
    assert RUNNABLE[-1] == "portable"
    with using_instruction_set("portable"):
        assert instruction_set() == "portable"
        with pytest.raises(ZeroDivisionError), using_instruction_set(best):
            assert instruction_set() == best
            raise ZeroDivisionError
        assert instruction_set() == "portable"
    assert instruction_set() == best


@needs_kernels
@pytest.mark.parametrize("name", ["sse9", *(set(instruction_sets()) - set(RUNNABLE))])
def test_an_instruction_set_that_cannot_run_is_refused_with_those_that_can(name):
    with pytest.raises(ValueError, match=f"got '{name}'") as refusal, using_instruction_set(name):
        pass
    assert all(repr(runnable) in str(refusal.value) for runnable in RUNNABLE)
    assert instruction_set() == RUNNABLE[0]


def test_without_a_library_there_is_no_instruction_set(monkeypatch):
    monkeypatch.setattr(cpu_library, "LIBRARY", None)
    monkeypatch.setattr(cpu_library, "UNAVAILABLE_REASON", "no compiler was found")
    assert instruction_set() is None
    assert instruction_sets() == {}
    with pytest.raises(RuntimeError, match="no compiler was found"), using_instruction_set("avx2"):
        pass


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiles", "dtype"), [("AVX512", ()), ("AVX512BF16", ("--dtype", "bfloat16"))]
)
def test_the_tiles_of_avx512_keep_the_contract_on_any_machine(tmp_path, tiles, dtype):
    """Vectors of 16 floats in whatever instructions this machine has: slow to compile."""
    library = tmp_path / "_kernels.so"
    BUILDER["build"](library, [f"-DSIA_PORTABLE_AS_{tiles}", "-O1"])
    options = ("--cases", "500", "--seed", "8000", "--instruction-set", "portable", *dtype)
    child(ROOT / "tests" / "fuzz_contracts.py", *options, SIA_KERNELS=str(library))


def other_version(folder, interface, call_size):
    """A library whose functions mean something else, or that reads a call of another size."""
    source = folder / "other.c"
    functions = {"sia_interface": interface, "sia_call_size": call_size}
    source.write_text(
        "".join(f"long long {name}(void) {{ return {n}; }}\n" for name, n in functions.items())
    )
    library = folder / "other.so"
    compiler = next(filter(None, map(shutil.which, ("cc", "c++", "g++", "clang++"))))
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return library


def text(folder):
    file = folder / "text.so"
    file.write_text("no library at all")
    return file


UNUSABLE = {
    "no file": (
        lambda folder: folder / "nothing.so",
        "are not at {}: correct or unset SIA_KERNELS",
    ),
    "no library": (text, "at {} do not load: "),
    "another library": (lambda folder: Path(torch._C.__file__), "at {} do not load: "),
    "another version": (
        lambda folder: other_version(folder, 999, cpu_library.CALL.size),
        "at {} are of another version: correct or unset SIA_KERNELS",
    ),
    "another layout of a call": (
        lambda folder: other_version(folder, cpu_library.INTERFACE, cpu_library.CALL.size - 8),
        "at {} are of another version: correct or unset SIA_KERNELS",
    ),
}


@needs_compiler
@pytest.mark.parametrize(("library", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_with_an_unusable_library_the_package_works_and_tells_why(tmp_path, library, reason):
    path = library(tmp_path)
    said = child(
        "import torch, scale_invariant_attention as sia\n"
        "print(sia.backend_for(*torch.randn(3, 1, 2, 8, 4)))\n"
        "print(sia.unavailable_backends()['cpu'])",
        SIA_KERNELS=str(path),
    )
    backend, unavailable_reason = said.split("\n", 1)
    assert backend == "tiled"
    assert reason.format(path) in unavailable_reason


COUNT_THREADS = """
import os, sys, threading
import torch
import scale_invariant_attention as sia
from scale_invariant_attention.attention.cpu_library import LIBRARY

threads, whose = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(threads)
if whose == "own":
    LIBRARY.sia_set_parallel(None)
tau = torch.full((5,), 10.0, requires_grad=True)
inputs = [torch.randn(1, 5, 1500, 64, requires_grad=True) for _ in range(3)]
# Torch and autograd start all the threads that they use.
(torch.rand(2_000_000, requires_grad=True) * 2).sum().backward()
most, done = 0, threading.Event()

def watch():
    global most
    while not done.is_set():
        most = max(most, len(os.listdir("/proc/self/task")))

watcher = threading.Thread(target=watch)
watcher.start()
before = len(os.listdir("/proc/self/task"))
sia.scale_invariant_attention(*inputs, tau=tau, backend="cpu").sum().backward()
sia.scale_invariant_attention(inputs[0][:, :, :1], *inputs[1:], backend="cpu")
done.set()
watcher.join()
print(most - before)
"""


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(
    ("threads", "whose", "started"), [(1, "torch's", 0), (3, "torch's", 0), (3, "own", 2)]
)
def test_the_kernels_run_on_torchs_threads_and_start_none(threads, whose, started):
    """Counted while they run. Without OpenMP the kernels do start threads, and the count shows it."""
    assert int(child(COUNT_THREADS, str(threads), whose)) == started
