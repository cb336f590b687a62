"""Limits of this machine, measured with the compiled kernels; None without them."""

import ctypes

import torch

from .cpu_library import LIBRARY

RUNS = 5
ROUNDS = 4_000_000  # of multiply-adds: about 0.05 s
FLOATS = 2**26  # to read: 256 MiB, more than fits into caches


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
