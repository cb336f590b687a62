"""The backends by name: where they run, what they support, and which one "auto" picks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import cpu, flex, reference, tiled, triton
from .contract import AttentionCall


@dataclass(frozen=True)
class Backend:
    """One implementation of the op.

    `unavailable_reason` says why it cannot run on a device, `unsupported_reason` why it cannot take
    a call; both return None when it can.
    """

    name: str
    attention: Callable[[AttentionCall, bool], tuple[Tensor, Tensor | None]]
    unavailable_reason: Callable[[torch.device], str | None] = lambda device: None
    unsupported_reason: Callable[[AttentionCall, bool], str | None] = lambda call, return_lse: None

    def refusal(self, call: AttentionCall, return_lse: bool) -> str | None:
        """Why it cannot run a call on the call's device; None when it can."""
        unavailable = self.unavailable_reason(call.query.device)
        return self.unsupported_reason(call, return_lse) if unavailable is None else unavailable


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("reference", lambda call, _: reference.attention(call)),
        Backend("tiled", lambda call, _: tiled.attention(call)),
        Backend(
            "cpu",
            lambda call, _: cpu.attention(call),
            cpu.unavailable_reason,
            cpu.unsupported_reason,
        ),
        Backend("flex", flex.attention, flex.unavailable_reason, flex.unsupported_reason),
        Backend(
            "triton",
            lambda call, _: triton.attention(call),
            triton.unavailable_reason,
            triton.unsupported_reason,
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


# The fastest backend for each kind of device. On CPUs FlexAttention compiles for seconds and cannot
# train: there it runs only when requested by name.
FAST = {"cpu": "cpu", "cuda": "flex"}


def choose(call: AttentionCall, return_lse: bool, name: str) -> Backend:
    """The requested backend or, for "auto", the fastest that supports the call.

    A backend requested by name runs or raises; nothing else ever runs in its stead.
    """
    if not isinstance(name, str):
        raise TypeError(f"backend must be a name, got {name!r}")
    if name == "auto":
        fast = BACKENDS[FAST.get(call.query.device.type, "tiled")]
        return fast if fast.refusal(call, return_lse) is None else BACKENDS["tiled"]
    if name not in BACKENDS:
        known = ", ".join(repr(known) for known in ("auto", *BACKENDS))
        raise ValueError(f"backend must be one of {known}; got {name!r}")
    backend = BACKENDS[name]
    reason = backend.refusal(call, return_lse)
    if reason is not None:
        raise NotImplementedError(f"backend {name!r} cannot run this call: {reason}")
    return backend
