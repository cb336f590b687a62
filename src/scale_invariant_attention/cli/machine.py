"""What the machine and its software are, as far as attention is concerned."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .. import __version__
from ..attention import cpu_library

UNKNOWN = "unknown"

# The names that Linux gives to instruction sets, with those that readers know.
_X86 = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512F",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX BF16",
}
_ARM = {"asimd": "NEON", "sve": "SVE", "bf16": "BF16"}


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch can use."""

    name: str
    memory_bytes: int
    compute_capability: str


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels: the instruction set that they use, and all that they were compiled for.

    Of each it says whether the processor has it. Without a library there is none.
    """

    uses: str | None
    compiled: dict[str, bool]


@dataclass(frozen=True)
class Machine:
    """Versions and hardware. None stands for what this platform does not tell."""

    versions: dict[str, str]
    platform: str
    cpu: str
    cores: int | None
    torch_threads: int
    torch_cpu_capability: str
    instruction_sets: dict[str, bool] | None
    kernels: Kernels
    memory_bytes: int | None
    gpus: list[Gpu]


def inspect_machine() -> Machine:
    """The machine this process runs on.

    >>> inspect_machine().torch_threads >= 1
    True
    """
    description = _cpuinfo()
    return Machine(
        versions={
            "scale-invariant-attention": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        platform=platform.platform(),
        cpu=description.get("model name") or platform.processor() or UNKNOWN,
        cores=_cores(),
        torch_threads=torch.get_num_threads(),
        torch_cpu_capability=torch.backends.cpu.get_cpu_capability(),
        instruction_sets=instruction_sets(description),
        kernels=Kernels(cpu_library.instruction_set(), cpu_library.instruction_sets()),
        memory_bytes=_memory_bytes(),
        gpus=_gpus(),
    )


def instruction_sets(cpuinfo: dict[str, str]) -> dict[str, bool] | None:
    """Which instruction sets the processor has, or None where it does not say.

    >>> instruction_sets({"Features": "fp asimd bf16"})
    {'NEON': True, 'SVE': False, 'BF16': True}
    """
    for field, known in (("flags", _X86), ("Features", _ARM)):
        if field in cpuinfo:
            present = set(cpuinfo[field].split())
            return {name: flag in present for flag, name in known.items()}
    return None


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor that Linux lists; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first, *_ = text.split("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _cores() -> int | None:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _gpus() -> list[Gpu]:
    if not torch.cuda.is_available():
        return []
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [Gpu(gpu.name, gpu.total_memory, f"{gpu.major}.{gpu.minor}") for gpu in found]
