"""The backends by name: where they run, what they support, and which one "auto" picks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import cpu, flex, flex_flash, reference, tiled, triton, trust
from ._opaque import Backward, Forward
from .contract import AttentionCall
from .self_check import Outcome


@dataclass(frozen=True)
class Backend:
    """One implementation of the op.

    `unavailable_reason` says why it cannot run on a device, `unsupported_reason` why it cannot take
    a call; both return None when it can. "auto" considers it on devices of the types `auto_on`; with
    `needs_self_check` it relies on it only after a self-check on that device. `forward` and `backward`,
    if it has them, are its passes below autograd, for callers that own the gradients, such as
    context parallelism.
    """

    name: str
    attention: Callable[[AttentionCall, bool], tuple[Tensor, Tensor | None]]
    unavailable_reason: Callable[[torch.device], str | None] = lambda device: None
    unsupported_reason: Callable[[AttentionCall, bool], str | None] = lambda call, return_lse: None
    auto_on: tuple[str, ...] = ()
    needs_self_check: bool = False
    forward: Forward | None = None
    backward: Backward | None = None

    def refusal(self, call: AttentionCall, return_lse: bool) -> str | None:
        """Why it cannot run a call on the call's device; None when it can."""
        unavailable = self.unavailable_reason(call.query.device)
        return self.unsupported_reason(call, return_lse) if unavailable is None else unavailable


# In the order in which "auto" prefers them. On CPUs FlexAttention compiles for seconds and cannot train:
# there it runs only when requested by name.
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "reference",
            lambda call, _: reference.attention(call),
            forward=reference.forward,
            backward=reference.backward,
        ),
        Backend(
            "tiled",
            lambda call, _: tiled.attention(call),
            forward=tiled.forward,
            backward=tiled.backward,
        ),
        Backend(
            "cpu",
            lambda call, _: cpu.attention(call),
            cpu.unavailable_reason,
            cpu.unsupported_reason,
            auto_on=("cpu",),
            forward=cpu.forward,
            backward=cpu.backward,
        ),
        Backend(
            "triton",
            lambda call, _: triton.attention(call),
            triton.unavailable_reason,
            triton.unsupported_reason,
            auto_on=("cuda",),
            needs_self_check=True,
            forward=triton.forward,
            backward=triton.backward,
        ),
        Backend(
            "flex",
            flex.attention,
            flex.unavailable_reason,
            flex.unsupported_reason,
            auto_on=("cuda",),
        ),
        Backend(
            "flex_flash",
            flex_flash.attention,
            flex_flash.unavailable_reason,
            flex_flash.unsupported_reason,
        ),
    )
}


def available_backends(device: torch.device | str = "cpu") -> list[str]:
    """The names of the backends that can run on a device.

    >>> {"reference", "tiled"} <= set(available_backends("cpu"))
    True
    """
    unavailable = unavailable_backends(device)
    return [name for name in BACKENDS if name not in unavailable]


def unavailable_backends(device: torch.device | str = "cpu") -> dict[str, str]:
    """The names of the backends that cannot run on a device, each with the reason."""
    device = torch.device(device)
    reasons = {name: backend.unavailable_reason(device) for name, backend in BACKENDS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def choose(
    call: AttentionCall, return_lse: bool, name: str, *, below_autograd: bool = False
) -> Backend:
    """The requested backend or, for "auto", the fastest that supports the call.

    A backend requested by name runs or raises; nothing else ever runs in its stead. With
    `below_autograd` it must have passes of its own, `forward` and `backward`.
    """
    if not isinstance(name, str):
        raise TypeError(f"backend must be a name, got {name!r}")
    if name == "auto":
        kind = call.query.device.type
        backends = [it for it in BACKENDS.values() if kind in it.auto_on]
        if below_autograd:
            backends = [it for it in backends if it.backward]
        return _fastest(backends, call, return_lse) or BACKENDS["tiled"]
    if name not in BACKENDS:
        known = ", ".join(repr(known) for known in ("auto", *BACKENDS))
        raise ValueError(f"backend must be one of {known}; got {name!r}")
    backend = BACKENDS[name]
    reason = backend.refusal(call, return_lse)
    if below_autograd and backend.backward is None:
        able = ", ".join(repr(it.name) for it in BACKENDS.values() if it.backward)
        reason = f"it has no passes below autograd; use one of {able}"
    if reason is not None:
        raise NotImplementedError(f"backend {name!r} cannot run this call: {reason}")
    return backend


def run_self_checks(device: torch.device | str, *, fresh: bool = False) -> dict[str, Outcome]:
    """Check the backends that need it before "auto" relies on them on a device; the outcomes by name.

    "auto" does this itself at the first call, but not while torch.compile traces: there it relies on
    earlier outcomes alone. `fresh` checks again even if an outcome is known.

    >>> all(outcome.passed for outcome in run_self_checks("cpu").values())
    True
    """
    device = torch.device(device)
    outcome_of = trust.OUTCOMES.renewed if fresh else trust.OUTCOMES.of
    return {
        name: outcome_of(backend, device)
        for name, backend in BACKENDS.items()
        if backend.needs_self_check and backend.unavailable_reason(device) is None
    }


def _fastest(backends: Iterable[Backend], call: AttentionCall, return_lse: bool) -> Backend | None:
    """The first of the backends that supports the call and is trusted on its device."""
    for backend in backends:
        if backend.refusal(call, return_lse) is None and (
            not backend.needs_self_check or _is_trusted(backend, call.query)
        ):
            return backend
    return None


def _is_trusted(backend: Backend, query: Tensor) -> bool:
    if torch.compiler.is_compiling():
        passed: bool = _passed_before(backend.name, query.device)
        return passed
    return trust.trusted(backend, query)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _passed_before(name: str, device: torch.device) -> bool:
    """Whether a self-check is known to have passed; a constant while a function is traced."""
    outcome = trust.OUTCOMES.known(BACKENDS[name], device)
    return outcome is not None and outcome.passed
