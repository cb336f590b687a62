"""The kernels that the self-check compiles, and how long that takes here.

    python tests/support/self_check_kernels.py [sm_80|sm_90|...] [THREADS]

Kernels are cross-compiled without Triton's cache, THREADS at a time; without a target they are counted.
"""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))

import torch
from compiled_kernels import Launch, binary_of, recorded_launches

from scale_invariant_attention.attention import _triton_launch
from scale_invariant_attention.attention._self_check_contracts import CONTRACTS, Contract
from scale_invariant_attention.attention.self_check import Problem, dtype_of


def launches(contract: Contract, precision: str, target: str) -> list[Launch]:
    """All launches of one contract, recorded and not run."""
    dtype = dtype_of(precision, torch.device("cpu"))
    problem = Problem.draw(contract, torch.device("cpu"), dtype)
    call = problem.call(problem.leaves(dtype))
    with torch.no_grad(), recorded_launches(target) as recorded:
        out, lse = _triton_launch.forward(call)
        if contract.gradients:
            zeros = torch.zeros_like(out), torch.zeros_like(lse)
            _triton_launch.backward(call, out, lse, *zeros, contract.learned is not None)
    return recorded


def kernels(target: str) -> dict[tuple, tuple[Launch, str]]:
    """The different kernels of all contracts, each with the first contract that needs it."""
    found: dict[tuple, tuple[Launch, str]] = {}
    for contract in CONTRACTS:
        for precision in contract.precisions:
            for launch in launches(contract, precision, target):
                found.setdefault(_key(launch), (launch, f"{contract.name}, {precision}"))
    return found


def _key(launch: Launch) -> tuple:
    """The properties that a kernel is compiled for: dtypes, constants, which arguments are given."""
    names = {parameter.name for parameter in launch.kernel.params if parameter.is_constexpr}

    def kind(name: str, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.dtype
        constant = value is None or name in names or name in ("num_warps", "num_stages")
        return value if constant else type(value).__name__

    given = sorted(launch.arguments.items())
    return launch.name, tuple((name, kind(name, value)) for name, value in given)


def compile_all(found: dict[tuple, tuple[Launch, str]], target: str, threads: int) -> float:
    """Seconds that all kernels take, several at a time."""
    start = perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda entry: binary_of(entry[0], target), found.values()))
    return perf_counter() - start


def main() -> None:
    """Print the kernels, and the time of compilation if a target is given."""
    target = sys.argv[1] if len(sys.argv) > 1 else "sm_80"
    found = kernels(target)
    for (name, _), (_, contract) in found.items():
        print(f"{name}: {contract}")
    print(len(found), "kernels")
    if len(sys.argv) > 1:
        threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            wall = compile_all(found, target, threads)
        used = os.times()
        cpu = used.user + used.system + used.children_user + used.children_system
        print(f"{target}, {threads} threads: {wall:.0f} s, {cpu:.0f} s of CPU time in all")


if __name__ == "__main__":
    main()
