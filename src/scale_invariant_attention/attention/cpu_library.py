"""The compiled kernels as a library: loading it, its layout of a call, and measuring the machine."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import torch

from .visibility import TENSORS, Visibility

# The fields of a Visibility: tensors, then numbers.
NUMBERS = tuple(field.name for field in fields(Visibility) if field.name not in TENSORS)
RESULTS = (
    *("out", "lse", "grad_out", "grad_lse", "grad_query", "grad_key", "grad_value"),
    *("grad_key_bias", "grad_affine", "grad_far_tau"),
)
# The members of `Call` in csrc/call.h and their formats; a test compares the two.
LAYOUT = {
    **dict.fromkeys(("storage", "threads", "batch", "query_heads", "key_heads"), "q"),
    **dict.fromkeys(("query_length", "key_length", "head_size", "value_size"), "q"),
    **dict.fromkeys(("query", "key", "value"), "4q"),
    "key_bias": "3q",
    **dict.fromkeys((f"visibility.{name}" for name in TENSORS), "2q"),
    **dict.fromkeys((f"visibility.{name}" for name in NUMBERS), "q"),
    "dimensions": "q",
    "scale": "d",
    **dict.fromkeys(("gain", "bias"), "2q"),
    **dict.fromkeys(("table_length", "tau", "tau_head"), "q"),
    **dict.fromkeys((*RESULTS, "affine_length"), "q"),
}
CALL = struct.Struct("=" + "".join(LAYOUT.values()))
# Must equal INTERFACE in csrc/entry.cpp.
INTERFACE = 4
INSTALLED = Path(__file__).with_name("_kernels.so")
MISSING = Path(__file__).with_name("_kernels_missing.txt")
# The variable that names another library, such as one built with sanitizers.
OVERRIDE = "SIA_KERNELS"
# Measurements of the machine: the best of these runs, each of this many multiply-adds (about 0.05 s)
# or reading this many floats (256 MiB, more than fits into caches).
RUNS = 5
ROUNDS = 4_000_000
FLOATS = 2**26


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or the reason why it is missing."""
    override = os.environ.get(OVERRIDE)
    path = Path(override or INSTALLED)
    remedy = f"correct or unset {OVERRIDE}" if override else "run build_kernels.py or reinstall"
    if not path.exists():
        if not override and MISSING.exists():
            return None, MISSING.read_text(encoding="utf-8").strip()
        return None, f"the compiled kernels are not at {path}: {remedy}"
    try:
        library = ctypes.CDLL(str(path))
        usable = library.sia_interface() == INTERFACE and library.sia_call_size() == CALL.size
    except (OSError, AttributeError) as error:
        return None, f"the compiled kernels at {path} do not load: {error}"
    if not usable:
        return None, f"the compiled kernels at {path} are of another version: {remedy}"
    library.sia_instruction_set.restype = ctypes.c_char_p
    library.sia_compiled.restype = ctypes.c_char_p
    library.sia_affine_length.restype = ctypes.c_int64
    library.sia_multiply_add_rate.restype = ctypes.c_double
    library.sia_read_rate.restype = ctypes.c_double
    library.sia_set_parallel(_torch_parallel())
    return library, None


def _torch_parallel() -> ctypes.c_void_p:
    """The function with which torch's OpenMP starts its threads; null if torch uses another runtime."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            try:
                # The search includes the libraries that it was linked with.
                function = ctypes.CDLL(str(path)).GOMP_parallel
            except (OSError, AttributeError):
                continue
            return ctypes.cast(function, ctypes.c_void_p)
    return ctypes.c_void_p()


# Loaded with the package, because a call that is being traced must not load it.
LIBRARY, UNAVAILABLE_REASON = _load()


def instruction_set() -> str | None:
    """The instruction set that the kernels use; None where they are not built."""
    return None if LIBRARY is None else LIBRARY.sia_instruction_set().decode()


def instruction_sets() -> dict[str, bool]:
    """The instruction sets that the kernels were compiled for, and whether this machine has each."""
    names: dict[str, bool] = {}
    runs = ctypes.c_int()
    while LIBRARY is not None:
        name = LIBRARY.sia_compiled(ctypes.c_int64(len(names)), ctypes.byref(runs))
        if name is None:
            break
        names[name.decode()] = bool(runs.value)
    return names


@contextmanager
def using_instruction_set(name: str) -> Iterator[None]:
    """Use another instruction set than the best in the whole process, inside a `with` block."""
    before = instruction_set()
    if LIBRARY is None or before is None:
        raise RuntimeError(f"there are no compiled kernels: {UNAVAILABLE_REASON}")
    if LIBRARY.sia_choose(name.encode()) != 0:
        runnable = [known for known, runs in instruction_sets().items() if runs]
        raise ValueError(f"instruction set must be one of {runnable} on this machine; got {name!r}")
    try:
        yield
    finally:
        LIBRARY.sia_choose(before.encode())


def fma_gflops() -> float | None:
    """Peak rate of float32 multiply-adds in registers, on torch's number of threads."""
    if LIBRARY is None:
        return None
    threads = ctypes.c_int64(torch.get_num_threads())
    rounds = ctypes.c_int64(ROUNDS)
    return float(max(LIBRARY.sia_multiply_add_rate(threads, rounds) for _ in range(RUNS))) / 1e9


def read_gigabytes_per_second() -> float | None:
    """Peak rate of reading memory, on torch's number of threads."""
    if LIBRARY is None:
        return None
    memory = torch.ones(FLOATS)
    threads, address = ctypes.c_int64(torch.get_num_threads()), ctypes.c_void_p(memory.data_ptr())
    rates = (LIBRARY.sia_read_rate(threads, address, ctypes.c_int64(FLOATS)) for _ in range(RUNS))
    return float(max(rates)) / 1e9
