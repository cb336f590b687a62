"""Does each backend compute what the formula says, on this machine?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import available_backends, scale_invariant_attention, unavailable_backends
from ..theory import ScaleInvariantTransform

# FlexAttention is compiled when first called, which takes seconds.
COMPILED = ("flex",)


@dataclass(frozen=True)
class Check:
    """A backend on a device.

    `absence` is why it does not run there; `passed` is None if it was not asked to compute;
    `problem` is what it raised.
    """

    device: str
    backend: str
    absence: str | None = None
    passed: bool | None = None
    error: float | None = None
    allowed: float | None = None
    problem: str | None = None


def check_backends(device: str, *, compiled: bool = False) -> list[Check]:
    """Every backend on a device; those that compile compute only if `compiled`.

    >>> [check.passed for check in check_backends("cpu") if check.backend == "tiled"]
    [True]
    """
    absent = [Check(device, name, why) for name, why in unavailable_backends(device).items()]
    present = [
        _check(device, name) if compiled or name not in COMPILED else Check(device, name)
        for name in available_backends(device)
    ]
    return present + absent


def _check(device: str, backend: str) -> Check:
    generator = torch.Generator().manual_seed(0)
    exact_inputs = torch.randn(3, 1, 2, 200, 32, generator=generator).to(device).double()
    inputs = exact_inputs.float()
    exact = _formula(*exact_inputs)
    # Twice the error of plain eager code in the same precision, and a rounding on top.
    rounding = torch.finfo(inputs.dtype).eps * exact.abs().max().item()
    allowed = 2 * _largest_difference(_formula(*inputs), exact) + rounding
    try:
        with torch.no_grad():
            out = scale_invariant_attention(*inputs, backend=backend)
        if not out.isfinite().all():
            raise FloatingPointError("the output is not finite")
        error = _largest_difference(out, exact)
    except Exception as problem:  # whatever a broken installation raises is the finding
        described = f"{type(problem).__name__}: {problem}"
        return Check(device, backend, passed=False, allowed=allowed, problem=described)
    return Check(device, backend, passed=error <= allowed, error=error, allowed=allowed)


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
