"""Backends of another device under CPU tensors: a call is moved there, results and gradients come back.

So every test of the op that takes a backend by name also tests those of a GPU: `pytest --on cuda`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.attention.backends import BACKENDS, Backend
from scale_invariant_attention.attention.contract import AttentionCall

# Backends that support every contract, in float32 at least; and the others that a GPU has.
WHOLE = ("triton", "tiled")
PARTLY = ("flex", "flex_flash")
ON = " on "


def install(device: str) -> None:
    """Register the backends of a device, as in "triton on cuda"; raise if it does not exist."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"torch {torch.__version__} finds no GPU here, so nothing was tested. On a machine with "
            "a GPU, install a build of torch for it; docs/gpu.md says how"
        )
    for name in (*WHOLE, *PARTLY):
        if BACKENDS[name].unavailable_reason(torch.device(device)) is None:
            backend = moved(BACKENDS[name], torch.device(device))
            BACKENDS[backend.name] = backend


def installed() -> list[str]:
    """The names of the registered backends that support every contract."""
    return [name for name in BACKENDS if ON in name and name.partition(ON)[0] in WHOLE]


def moved(backend: Backend, device: torch.device) -> Backend:
    """A backend that takes calls on any device and runs them on one."""

    def there(call: AttentionCall) -> AttentionCall:
        tensors = ("query", "key", "value", "key_bias", "gain", "bias", "tau")
        changes = {name: _to(device, getattr(call, name)) for name in tensors}
        seen = {name: getattr(call.visibility, name) for name in Visibility.__slots__}
        visibility = Visibility(**{name: _to(device, value) for name, value in seen.items()})
        return replace(call, **changes, visibility=visibility)

    def attention(call: AttentionCall, return_lse: bool) -> tuple[Tensor, Tensor | None]:
        home = call.query.device
        out, lse = backend.attention(there(call), return_lse)
        return out.to(home), None if lse is None else lse.to(home)

    return Backend(
        f"{backend.name}{ON}{device}",
        attention,
        unsupported_reason=lambda call, lse: backend.unsupported_reason(there(call), lse),
    )


def _to(device: torch.device, value: object) -> object:
    return value.to(device) if isinstance(value, Tensor) else value
