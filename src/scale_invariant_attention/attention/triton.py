"""Triton kernels for GPUs: forward, backward with the gradients of tables and tau, and decoding.

Inputs are in float32 or half precision; sums are in float32. Triton is optional and imported when
the backend is used. With TRITON_INTERPRET=1 set before that, the kernels run on CPU tensors, slowly, in
Triton's interpreter: this is how they are tested.
"""

import os
import sys
from importlib.util import find_spec

import torch
from torch import Tensor

from ._opaque import Gradients, no_gradients, register_opaque
from .contract import AttentionCall

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
# The limit of CUDA for the second dimension of a grid.
MOST_PROBLEMS = 65_535
# Offsets within a call are 32-bit integers.
LONGEST = 2**30
INSTALLED = find_spec("triton") is not None


def unavailable_reason(device: torch.device) -> str | None:
    """Why the backend cannot run on a device."""
    if device.type not in ("cuda", "cpu"):
        return f"Triton compiles for cuda devices, not for {device.type}"
    if not INSTALLED:
        return "Triton is not installed: pip install 'scale-invariant-attention[triton]'"
    reason: str | None = _interpreter_reason() if device.type == "cpu" else _compiler_reason()
    return reason


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _compiler_reason() -> str | None:
    """Why Triton does not compile for GPUs in this process."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return (
            "with TRITON_INTERPRET=1, Triton interprets kernels instead of compiling them; unset it"
        )
    return None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _interpreter_reason() -> str | None:
    """Why Triton's interpreter, which takes CPU tensors, does not run."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "Triton runs on cuda devices; on CPUs only its interpreter does, with TRITON_INTERPRET=1"
    if "triton" in sys.modules:
        from triton.language import standard
        from triton.runtime import JITFunction

        if isinstance(standard.cdiv, JITFunction):
            return "TRITON_INTERPRET=1 was set after Triton was imported; set it before"
    return None


def unsupported_reason(call: AttentionCall, return_lse: bool) -> str | None:
    """Why the backend does not support a call."""
    if call.visibility.coordinates is not None:
        return "it has no coordinates; use 'tiled'"
    if call.query.dtype not in DTYPES:
        return f"it computes in float32, not in {call.query.dtype}"
    largest = max(call.query.shape[3], call.value.shape[3])
    if largest > LARGEST_HEAD:
        return f"its kernels take head sizes up to {LARGEST_HEAD}, not {largest}; use 'tiled'"
    problems = call.query.shape[0] * call.query.shape[1]
    if problems > MOST_PROBLEMS:
        return (
            f"its kernels take up to {MOST_PROBLEMS} heads over the whole batch, not {problems}; "
            "cut the batch, or use 'tiled'"
        )
    longest = max(call.query.shape[2], call.key.shape[2])
    if longest >= LONGEST:
        return f"its kernels take lengths below {LONGEST}, not {longest}; use 'tiled'"
    return None


def forward(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Output ``[B, Hq, Lq, Dv]`` and log-sum-exp ``[B, Hq, Lq]``, both float32."""
    if call.is_empty:
        return call.nothing_seen()
    from ._triton_launch import forward as launch

    return launch(call)


def backward(
    call: AttentionCall,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    affine_grads: bool,
    *,
    unrounded: bool = False,
) -> Gradients:
    """Gradients of all inputs; those of the affine only if `affine_grads`."""
    if call.is_empty:
        return no_gradients(call, affine_grads, unrounded=unrounded)
    from ._triton_launch import backward as launch

    return launch(call, out, lse, grad_out, grad_lse, affine_grads, unrounded=unrounded)


attention = register_opaque("triton", forward, backward)
