"""The public functions of the op, and the one that layers call."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Never, TypeVar, Unpack

import torch  # noqa: F401  the examples use it
from torch import Tensor

from ._affine import DistanceAffine
from .backends import choose
from .contract import checked_call
from .visibility import Visibility, VisibilityKeywords

DEFAULT = Visibility()
# What to use instead of keywords that other attention functions have.
INSTEAD = {
    "attn_mask": "use key_mask, key_documents or window; masks by pair are not supported",
    "dropout_p": "leave it out, the op has no dropout",
    "enable_gqa": "leave it out, key may always have fewer heads than query",
    "documents": "use key_documents",
    "positions": "use key_positions and query_positions",
    "coordinates": "use key_coordinates and query_coordinates",
    "affine": "use distance_affine_attention",
    "tau": "use scale_invariant_attention, or DistanceAffine.scale_invariant(length, tau)",
}
Function = TypeVar("Function", bound=Callable[..., Any])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    affine: DistanceAffine | None = None,
    tau: float | Tensor | None = None,
    visibility: Visibility,
    scale: float | None = None,
    key_bias: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention with a gain and a bias from `affine` or, without it, the transform with `tau`.

    Layers call this with the visibility that their model has built once.
    """
    call = checked_call(
        query,
        key,
        value,
        affine=affine,
        tau=tau,
        visibility=visibility,
        scale=scale,
        key_bias=key_bias,
    )
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse must be True or False, got {return_lse!r}")
    out, lse = choose(call, return_lse, backend).attention(call, return_lse)
    return (out, lse) if return_lse else out


def visibility_from(
    function: str, by_position: int, misplaced: tuple[object, ...], keywords: VisibilityKeywords
) -> Visibility:
    """The visibility that keywords of a function give; raises for other or misplaced arguments."""
    if misplaced:
        raise TypeError(
            f"{function}() takes {by_position} arguments by position, got "
            f"{by_position + len(misplaced)}; pass the others by name. In place of SDPA's attn_mask, "
            f"{INSTEAD['attn_mask']}; in place of its dropout_p, {INSTEAD['dropout_p']}"
        )
    for name in keywords:
        if name not in Visibility.__slots__:
            hint = f": {INSTEAD[name]}" if name in INSTEAD else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
    return Visibility(**keywords) if keywords else DEFAULT


def with_visibility_keywords(function: Function) -> Function:
    """Show the fields of a Visibility in the signature, where help() and editors look."""
    signature = inspect.signature(function)
    named = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    keywords = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in fields(Visibility)
    ]
    function.__signature__ = signature.replace(parameters=named + keywords)  # type: ignore[attr-defined]
    return function


@with_visibility_keywords
def scale_invariant_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *misplaced: Never,
    tau: float | Tensor = 10.0,
    scale: float | None = None,
    key_bias: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    **visibility: Unpack[VisibilityKeywords],
) -> Any:
    """Attention with the scale-invariant transform.

        L = sqrt(1 + 2 log1p(t / tau)) * scale * q . k  -  2 log1p(t / tau),   out = softmax(L) v

    with ``t`` the distance between query and key. Where tokens have n coordinates, both logarithms are
    multiplied by n. It expects scores of about unit variance, as
    queries and keys normalised per head (QK-norm) give them.

    Args:
        query: ``[B, Hq, Lq, D]``.
        key: ``[B, Hk, Lk, D]``; Hq is a multiple of Hk (grouped heads).
        value: ``[B, Hk, Lk, Dv]``.
        tau: the distance up to which context counts as local and barely changes: a number, or a tensor
            ``[]`` or ``[Hq]``, which may require grad.
        scale: the factor of ``q . k``; None is ``1 / sqrt(D)``.
        key_bias: a number per key, added to its logits after the transform, sinks included:
            ``[B, Hk, Lk]`` or ``[B, Hq, Lk]``, where B and the heads may be 1; of any floating dtype.
            It may require grad. -inf hides a key.
        return_lse: also return the log-sum-exp of the logits, ``[B, Hq, Lq]``, float32 (float64
            for float64 inputs); differentiable, and -inf for a query that sees no key.
        backend: "auto", or one of :func:`available_backends`, which then runs or raises.

    Keyword Args:
        is_causal: hide keys at later positions. Without it the distance is ``|i - j|``.
        query_positions: integers ``[Lq]`` or ``[B, Lq]``; None: the positions of the last Lq keys.
        key_positions: integers ``[Lk]`` or ``[B, Lk]``; None is ``0 .. Lk - 1``.
        key_mask: bool ``[B, Lk]``; False hides a key, as for padding.
        query_documents: integers ``[Lq]`` or ``[B, Lq]``; None: the documents of the last Lq keys.
        key_documents: integers ``[Lk]`` or ``[B, Lk]``; attention stays inside a document.
        query_coordinates: integers ``[Lq, n]`` or ``[B, Lq, n]``; None: those of the last Lq keys.
        key_coordinates: integers ``[Lk, n]`` or ``[B, Lk, n]`` in place of positions: tokens in n
            dimensions, ``t`` their Euclidean distance; needs ``is_causal=False``, without sinks.
        window: hide keys at this distance and beyond.
        sinks: keys at positions below this are not transformed, and a window does not hide them.

    Returns:
        The output ``[B, Hq, Lq, Dv]`` in the dtype of the inputs, zeros for a query that sees no
        key; with `return_lse` the pair of output and log-sum-exp.

    >>> query, key, value = torch.randn(3, 1, 4, 100, 32).unbind()
    >>> scale_invariant_attention(query, key, value).shape
    torch.Size([1, 4, 100, 32])
    """
    return attend(
        query,
        key,
        value,
        tau=tau,
        visibility=visibility_from("scale_invariant_attention", 3, misplaced, visibility),
        scale=scale,
        key_bias=key_bias,
        return_lse=return_lse,
        backend=backend,
    )


@with_visibility_keywords
def distance_affine_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    affine: DistanceAffine,
    *misplaced: Never,
    scale: float | None = None,
    key_bias: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    **visibility: Unpack[VisibilityKeywords],
) -> Any:
    """Attention with any gain and bias by distance: ``L = gain(t) * scale * q . k + bias(t)``,
    plus the key's `key_bias`, if it is given.

    `affine` holds the two tables, which may require grad; they must reach the largest distance of
    the call, or the window. Between tokens with coordinates they are interpolated linearly. Everything
    else is as in :func:`scale_invariant_attention`.

    >>> query, key, value = torch.randn(3, 1, 4, 100, 32).unbind()
    >>> plain = distance_affine_attention(query, key, value, DistanceAffine.identity(100))
    >>> sdpa = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> torch.allclose(plain, sdpa, atol=1e-5)
    True
    """
    seen = visibility_from("distance_affine_attention", 4, misplaced, visibility)
    if affine is None:
        raise TypeError("affine must be a DistanceAffine(gain, bias), got None")
    return attend(
        query,
        key,
        value,
        affine=affine,
        visibility=seen,
        scale=scale,
        key_bias=key_bias,
        return_lse=return_lse,
        backend=backend,
    )


@with_visibility_keywords
def backend_for(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    affine: DistanceAffine | None = None,
    *misplaced: Never,
    tau: float | Tensor = 10.0,
    scale: float | None = None,
    key_bias: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    **visibility: Unpack[VisibilityKeywords],
) -> str:
    """The name of the backend that would run a call with these arguments.

    >>> query = torch.randn(1, 4, 100, 32, requires_grad=True)
    >>> backend_for(query, query, query, backend="tiled")
    'tiled'
    """
    seen = visibility_from("backend_for", 4, misplaced, visibility)
    call = checked_call(
        query,
        key,
        value,
        affine=affine,
        tau=tau,
        visibility=seen,
        scale=scale,
        key_bias=key_bias,
    )
    return choose(call, return_lse, backend).name
