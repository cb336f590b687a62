"""The functions users call."""

from typing import Any

import torch  # noqa: F401  the examples use it
from torch import Tensor

from .affine import DistanceAffine
from .backends import choose
from .contract import AttentionCall, checked_call


def scale_invariant_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    tau: float | Tensor = 10.0,
    is_causal: bool = True,
    scale: float | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    key_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    window: int | None = None,
    sinks: int = 0,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention with the scale-invariant transform.

        L = sqrt(1 + 2 log1p(t / tau)) * scale * q . k  -  2 log1p(t / tau),   out = softmax(L) v

    with ``t`` the distance between query and key. It expects scores of about unit variance, as
    queries and keys normalised per head (QK-norm) give them.

    Args:
        query: ``[B, Hq, Lq, D]``.
        key: ``[B, Hk, Lk, D]``; Hq is a multiple of Hk (grouped heads).
        value: ``[B, Hk, Lk, Dv]``.
        tau: the distance up to which the local context is left almost alone: a number, or a tensor
            ``[]`` or ``[Hq]``, which may require grad.
        is_causal: hide keys at later positions. Without it the distance is ``|i - j|``.
        scale: the factor of ``q . k``; None is ``1 / sqrt(D)``.
        query_positions: integers ``[Lq]`` or ``[B, Lq]``; None: those of the last Lq keys.
        key_positions: integers ``[Lk]`` or ``[B, Lk]``; None is ``0 .. Lk - 1``.
        key_mask: bool ``[B, Lk]``; False hides a key, as for padding.
        query_documents: integers ``[Lq]`` or ``[B, Lq]``; None: those of the last Lq keys.
        key_documents: integers ``[Lk]`` or ``[B, Lk]``; attention stays inside a document.
        window: hide keys at this distance and beyond.
        sinks: keys at positions below this are not transformed, and a window does not hide them.
        return_lse: also return the log-sum-exp of the logits, ``[B, Hq, Lq]``, float32 (float64
            for float64 inputs); differentiable, and -inf for a query that sees no key.
        backend: "auto", or one of :func:`available_backends`, which then runs or raises.

    Returns:
        The output ``[B, Hq, Lq, Dv]`` in the dtype of the inputs, zeros for a query that sees no
        key; with `return_lse` the pair of output and log-sum-exp.

    >>> query, key, value = torch.randn(3, 1, 4, 100, 32).unbind()
    >>> scale_invariant_attention(query, key, value).shape
    torch.Size([1, 4, 100, 32])
    """
    call = checked_call(
        query,
        key,
        value,
        affine=None,
        tau=tau,
        is_causal=is_causal,
        scale=scale,
        query_positions=query_positions,
        key_positions=key_positions,
        key_mask=key_mask,
        query_documents=query_documents,
        key_documents=key_documents,
        window=window,
        sinks=sinks,
    )
    return _run(call, return_lse, backend)


def distance_affine_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    affine: DistanceAffine,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    key_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    window: int | None = None,
    sinks: int = 0,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention with any gain and bias by distance: ``L = gain(t) * scale * q . k + bias(t)``.

    `affine` holds the two tables, which may require grad; they must reach the largest distance of
    the call, or the window. Everything else is as in :func:`scale_invariant_attention`.

    >>> query, key, value = torch.randn(3, 1, 4, 100, 32).unbind()
    >>> plain = distance_affine_attention(query, key, value, DistanceAffine.identity(100))
    >>> sdpa = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> torch.allclose(plain, sdpa, atol=1e-5)
    True
    """
    if affine is None:
        raise TypeError("affine must be a DistanceAffine(gain, bias), got None")
    call = checked_call(
        query,
        key,
        value,
        affine=affine,
        tau=None,
        is_causal=is_causal,
        scale=scale,
        query_positions=query_positions,
        key_positions=key_positions,
        key_mask=key_mask,
        query_documents=query_documents,
        key_documents=key_documents,
        window=window,
        sinks=sinks,
    )
    return _run(call, return_lse, backend)


def backend_for(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    affine: DistanceAffine | None = None,
    *,
    tau: float | Tensor = 10.0,
    is_causal: bool = True,
    scale: float | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    key_mask: Tensor | None = None,
    query_documents: Tensor | None = None,
    key_documents: Tensor | None = None,
    window: int | None = None,
    sinks: int = 0,
    return_lse: bool = False,
    backend: str = "auto",
) -> str:
    """The name of the backend that runs this call, given as it would be to either function.

    >>> query = torch.randn(1, 4, 100, 32, requires_grad=True)
    >>> backend_for(query, query, query, backend="tiled")
    'tiled'
    """
    call = checked_call(
        query,
        key,
        value,
        affine=affine,
        tau=tau,
        is_causal=is_causal,
        scale=scale,
        query_positions=query_positions,
        key_positions=key_positions,
        key_mask=key_mask,
        query_documents=query_documents,
        key_documents=key_documents,
        window=window,
        sinks=sinks,
    )
    return choose(call, return_lse, backend).name


def _run(call: AttentionCall, return_lse: bool, backend: str) -> Any:
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse must be True or False, got {return_lse!r}")
    out, lse = choose(call, return_lse, backend).attention(call, return_lse)
    return (out, lse) if return_lse else out
