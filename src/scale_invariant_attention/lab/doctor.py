"""A check-up of an installation: versions, hardware, and whether every backend computes the formula."""

import math
import os
import platform
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..attention import (
    available_backends,
    cpu_library,
    run_self_checks,
    scale_invariant_attention,
    unavailable_backends,
)
from ..attention.numerics import float32_precision
from ..attention.self_check import Outcome
from ..provenance import cpu_information, installed_version, triton_version
from ..theory import ScaleInvariantTransform

# Instruction sets by the names that Linux gives them.
_X86 = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512F",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX BF16",
}
_ARM = {"asimd": "NEON", "sve": "SVE", "bf16": "BF16"}

# Optional packages, and what installs each.
OPTIONAL = {
    "transformers": "scale-invariant-attention[huggingface]",
    "accelerate": "scale-invariant-attention[huggingface]",
    "peft": "peft",
    "lm-eval": "scale-invariant-attention[lm-eval]",
    "tokenizers": "scale-invariant-attention[tokenizers]",
    "tiktoken": "scale-invariant-attention[tokenizers]",
    "datasets": "scale-invariant-attention[datasets]",
    "matplotlib": "scale-invariant-attention[plots]",
    "tensorboard": "scale-invariant-attention[tensorboard]",
}

# FlexAttention is compiled when first called, which takes seconds.
COMPILED = ("flex", "flex_flash")


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch can use."""

    name: str
    memory_bytes: int
    compute_capability: str


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels, if there are any.

    `uses` is the instruction set in use; `compiled` says for each that they were compiled for whether
    the processor has it.
    """

    uses: str | None
    compiled: dict[str, bool]


@dataclass(frozen=True)
class Machine:
    """Versions and hardware; None where the platform reports nothing or a package is not installed."""

    versions: dict[str, str]
    optional: dict[str, str | None]
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
    description = cpu_information()
    return Machine(
        versions={
            "scale-invariant-attention": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "triton": triton_version() or "none",
        },
        optional={name: installed_version(name) for name in OPTIONAL},
        platform=platform.platform(),
        cpu=description.get("model name") or platform.processor() or "unknown",
        cores=_cores(),
        torch_threads=torch.get_num_threads(),
        torch_cpu_capability=torch.backends.cpu.get_cpu_capability(),
        instruction_sets=instruction_sets(description),
        kernels=Kernels(cpu_library.instruction_set(), cpu_library.instruction_sets()),
        memory_bytes=_memory_bytes(),
        gpus=_gpus(),
    )


def instruction_sets(cpuinfo: dict[str, str]) -> dict[str, bool] | None:
    """Whether the processor has each instruction set, or None if it does not report them.

    >>> instruction_sets({"Features": "fp asimd bf16"})
    {'NEON': True, 'SVE': False, 'BF16': True}
    """
    for field, known in (("flags", _X86), ("Features", _ARM)):
        if field in cpuinfo:
            present = set(cpuinfo[field].split())
            return {name: flag in present for flag, name in known.items()}
    return None


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


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


@dataclass(frozen=True)
class Check:
    """The self-check of a backend on a device.

    `unavailable_reason` is why the backend does not run there; `passed` is None if the check was not
    run; `problem` is the exception that it raised.
    """

    device: str
    backend: str
    unavailable_reason: str | None = None
    passed: bool | None = None
    error: float | None = None
    allowed: float | None = None
    problem: str | None = None


def check_backends(device: str, *, compiled: bool = False) -> list[Check]:
    """Check every backend on a device; those that compile first only if `compiled`.

    >>> [check.passed for check in check_backends("cpu") if check.backend == "tiled"]
    [True]
    """
    unavailable = [Check(device, name, why) for name, why in unavailable_backends(device).items()]
    checked = [
        _check_backend(device, name) if compiled or name not in COMPILED else Check(device, name)
        for name in available_backends(device)
    ]
    return checked + unavailable


@dataclass(frozen=True)
class SelfCheck:
    """The self-check of a backend that "auto" relies on only if it passes.

    It counts for one precision of float32 products, "ieee" or "tf32", as torch is set.
    """

    device: str
    outcome: Outcome
    float32_precision: str

    def as_json(self) -> dict[str, Any]:
        """The outcome in the types of JSON, which has no NaN and no infinity."""
        flat = _json({"device": self.device, **self.outcome.as_json()})
        assert isinstance(flat, dict)
        return flat | {
            "float32_precision": self.float32_precision,
            "passed": self.outcome.passed,
        }


def self_checks(device: str) -> list[SelfCheck]:
    """Run the self-checks of a device again, and record their outcomes for "auto".

    >>> all(check.outcome.passed for check in self_checks("cpu"))
    True
    """
    with warnings.catch_warnings():
        # The outcome is the report.
        warnings.simplefilter("ignore", RuntimeWarning)
        outcomes = run_self_checks(device, fresh=True)
    precision = float32_precision()
    return [SelfCheck(device, outcome, precision) for outcome in outcomes.values()]


def _json(value: object) -> object:
    if isinstance(value, dict):
        return {name: _json(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _check_backend(device: str, backend: str) -> Check:
    generator = torch.Generator().manual_seed(0)
    exact_inputs = torch.randn(3, 1, 2, 200, 32, generator=generator).to(device).double()
    inputs = exact_inputs.float()
    exact = _formula(*exact_inputs)
    # Twice the error of plain eager code in the same precision, plus rounding.
    rounding = torch.finfo(inputs.dtype).eps * exact.abs().max().item()
    allowed = 2 * _largest_difference(_formula(*inputs), exact) + rounding
    try:
        with torch.no_grad():
            out = scale_invariant_attention(*inputs, backend=backend)
        if not out.isfinite().all():
            raise FloatingPointError("the output is not finite")
        difference = _largest_difference(out, exact)
    except NotImplementedError as error:
        return Check(device, backend, str(error))
    except Exception as error:  # whatever a broken installation raises is the finding
        problem = f"{type(error).__name__}: {error}"
        return Check(device, backend, passed=False, allowed=allowed, problem=problem)
    return Check(device, backend, passed=difference <= allowed, error=difference, allowed=allowed)


def _formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`softmax(a_t q.k / sqrt(D) + m_t) v` straight from the theory, in the dtype of the inputs."""
    transform = ScaleInvariantTransform()
    position = torch.arange(query.shape[-2], device=query.device)
    distance = position.unsqueeze(-1) - position
    scores = query @ key.mT / query.shape[-1] ** 0.5
    logits = transform.gain(distance).to(scores) * scores + transform.bias(distance).to(scores)
    weights = logits.masked_fill(distance < 0, -torch.inf).softmax(-1)
    return torch.matmul(weights, value)


def _largest_difference(out: Tensor, exact: Tensor) -> float:
    return (out.double() - exact).abs().max().item()
