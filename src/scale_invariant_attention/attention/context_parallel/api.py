"""The public function of context parallelism: checks, agreement of the ranks, and autograd."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never, Protocol, Unpack

import torch
from torch import Tensor

from .._affine import DistanceAffine
from .._opaque import AFFINE, TENSORS, Gradients
from ..api import visibility_from, with_visibility_keywords
from ..backends import choose
from ..contract import AttentionCall, check_reach, checked_call
from ..numerics import without_autocast
from ..visibility import Visibility, VisibilityKeywords
from . import _gather, _heads, _ring
from ._agreement import agree
from ._messages import gather, sum_over_ranks
from ._parts import Parts, Result, Rows
from ._ranks import Ranks
from .layout import SequenceLayout

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class _Method(Protocol):
    """How ranks exchange keys, values and gradients."""

    def refusal(self, call: AttentionCall, ranks: Ranks) -> str | None: ...

    def forward(self, call: AttentionCall, parts: Parts) -> Result: ...

    def backward(
        self, call: AttentionCall, parts: Parts, rows: Rows, affine_grads: bool
    ) -> Gradients: ...


METHODS: dict[str, _Method] = {"ring": _ring, "gather": _gather, "heads": _heads}


@with_visibility_keywords
@torch.compiler.disable  # type: ignore[untyped-decorator]  # it communicates
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *misplaced: Never,
    tau: float | Tensor = 10.0,
    affine: DistanceAffine | None = None,
    scale: float | None = None,
    key_bias: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    layout: SequenceLayout | None = None,
    method: str = "ring",
    group: "ProcessGroup | None" = None,
    **visibility: Unpack[VisibilityKeywords],
) -> Any:
    """Attention over a sequence of which each rank of a process group holds a part.

    Called by all ranks of the group, each with its own queries, keys and values, whose number may
    differ between ranks, and be zero. Results and gradients are those of
    :func:`scale_invariant_attention`, or of :func:`distance_affine_attention` if `affine` is given, on
    the whole sequence, up to rounding. Before they communicate, ranks compare their arguments: if they
    disagree, or if those of one are wrong, all of them raise.

    Args:
        query: this rank's part, ``[B, Hq, local Lq, D]``.
        key: this rank's part, ``[B, Hk, local Lk, D]``.
        value: this rank's part, ``[B, Hk, local Lk, Dv]``.
        tau: as in the op; the same on all ranks. The gradient of a tensor is summed over the group:
            every rank gets the whole of it.
        affine: tables by distance instead of tau; the same on all ranks, with gradients like tau.
        scale: as in the op.
        key_bias: as in the op, of this rank's keys.
        return_lse: as in the op.
        backend: "auto", or a backend with passes below autograd: reference, tiled, cpu or triton.
        layout: how the sequence is cut over the ranks. Gives the default positions.
        method: "ring", "gather" or "heads".
        group: the process group; None is the default group.

    The keywords of visibility are as in the op, for this rank's queries and keys, but for coordinates,
    which are refused. By default positions are those of `layout`, positions of queries those of `layout`
    or of the keys, and documents of queries those of the keys.

    Returns:
        The output of this rank's queries, ``[B, Hq, local Lq, Dv]``; with `return_lse` the pair of
        output and log-sum-exp.
    """
    ranks = Ranks.of_group(group)
    with agree(ranks, "context_parallel_attention") as agreement:
        seen = visibility_from("context_parallel_attention", 3, misplaced, visibility)
        _refuse_coordinates(seen)
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
        if not isinstance(return_lse, bool):
            raise TypeError(f"return_lse must be True or False, got {return_lse!r}")
        if layout is not None:
            _check_layout(layout, ranks, query, key)
        seen = _with_positions(seen, layout, query, key)
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
        chosen = choose(call, return_lse, backend, below_autograd=True)
        reason = METHODS[method].refusal(call, ranks)
        if reason is not None:
            raise ValueError(f"method {method!r} cannot run this call: {reason}")
        agreement.fields = _fields(call, method, layout)
        agreement.lengths = (call.query.shape[2], call.key.shape[2])
    _check_tables(call, ranks)
    query_lengths, key_lengths = zip(*agreement.lengths_by_rank, strict=True)
    parts = Parts(
        backend=chosen,
        ranks=ranks,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        key_heads=call.key.shape[1],
        layout=layout,
        has_positions=visibility.get("key_positions", visibility.get("query_positions"))
        is not None,
    )
    out, lse = _Attention.apply(*call.arguments(), parts, METHODS[method])  # type: ignore[no-untyped-call]
    out = out.to(call.query.dtype)
    return (out, lse) if return_lse else out


class _Attention(torch.autograd.Function):
    """The passes of a method: out and log-sum-exp in the compute dtype."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *arguments, parts, method = given
        call = AttentionCall.from_arguments(*arguments)
        with parts.ranks.reporting(), without_autocast(call.query.device):
            result = method.forward(call, parts)
        kept = result.kept.arguments()
        ctx.parts, ctx.method, ctx.settings = parts, method, kept[TENSORS:]
        ctx.save_for_backward(*kept[:TENSORS], result.kept_out, result.kept_lse)
        ctx.dtypes = [None if t is None else t.dtype for t in arguments[: AFFINE.stop]]
        return result.out, result.lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
        *tensors, out, lse = ctx.saved_tensors
        call, ranks = AttentionCall.from_arguments(*tensors, *ctx.settings), ctx.parts.ranks
        wanted = any(ctx.needs_input_grad[AFFINE])
        with ranks.reporting(), without_autocast(call.query.device):
            grads = ctx.method.backward(call, ctx.parts, Rows(out, lse, grad_out, grad_lse), wanted)
            if wanted:
                affine = (None if t is None else sum_over_ranks(t, ranks) for t in grads[AFFINE])
                grads = Gradients(*grads[: AFFINE.start], *affine)
        rounded = [
            None if grad is None or not needed else grad.to(dtype)
            for grad, dtype, needed in zip(grads, ctx.dtypes, ctx.needs_input_grad, strict=False)
        ]
        return (*rounded, *[None] * (len(ctx.needs_input_grad) - len(rounded)))


def _refuse_coordinates(visibility: Visibility) -> None:
    for name in ("key_coordinates", "query_coordinates"):
        if getattr(visibility, name) is not None:
            raise ValueError(
                f"{name} must be None: context_parallel_attention cuts a sequence, whose tokens have "
                "positions; for tokens with coordinates, use scale_invariant_attention on all of them"
            )


def _check_layout(layout: object, ranks: Ranks, query: Tensor, key: Tensor) -> None:
    if not isinstance(layout, SequenceLayout):
        raise TypeError(f"layout must be a SequenceLayout, got {type(layout).__name__}")
    layout.check_group(ranks)
    for name, tensor in (("query", query), ("key", key)):
        if tensor.shape[2] != layout.local_length:
            raise ValueError(
                f"{name} must have length {layout.local_length}, as {layout} gives it, "
                f"got shape {tuple(tensor.shape)}; without a layout, give positions"
            )


def _with_positions(
    visibility: Visibility, layout: SequenceLayout | None, query: Tensor, key: Tensor
) -> Visibility:
    """Fill in the positions of the layout, and for queries what is given of the keys."""
    if layout is not None and visibility.key_positions is None:
        visibility = replace(visibility, key_positions=layout.positions(key.device))
    if visibility.key_positions is None:
        raise ValueError("key_positions must be given, or the layout of the sequence")
    for of_queries, of_keys in (
        ("query_positions", "key_positions"),
        ("query_documents", "key_documents"),
    ):
        given = getattr(visibility, of_keys)
        # Otherwise wrong shapes are found by the check that names the argument.
        fits = isinstance(given, Tensor) and given.shape[-1:] == key.shape[2:3]
        if getattr(visibility, of_queries) is None and fits:
            if query.shape[2] != key.shape[2]:
                raise ValueError(
                    f"{of_queries} must be given: this rank has {query.shape[2]} queries, "
                    f"and {key.shape[2]} keys"
                )
            visibility = replace(visibility, **{of_queries: given})
    return visibility


def _fields(call: AttentionCall, method: str, layout: SequenceLayout | None) -> dict[str, object]:
    """Everything about a call that must be the same on all ranks."""
    visibility = call.visibility
    rows = {
        name: None if tensor is None else f"{tensor.shape[0]} rows"
        for name in ("key_positions", "key_mask", "key_documents")
        for tensor in [getattr(visibility, name)]
    }
    return {
        "method": method,
        "layout": layout and f"{layout.kind}, {layout.length} tokens",
        "query (batch, heads, head_dim)": [*call.query.shape[:2], call.query.shape[3]],
        "key (batch, heads, head_dim)": [*call.key.shape[:2], call.key.shape[3]],
        "value (batch, heads, head_dim)": [*call.value.shape[:2], call.value.shape[3]],
        "key_bias": "given" if call.key_bias is not None else None,
        "dtype": call.query.dtype,
        "device": call.query.device.type,
        "tau": None if call.tau is None else (call.tau.dtype, call.tau.tolist()),
        "affine.gain": _summary(call.gain),
        "affine.bias": _summary(call.bias),
        "scale": call.scale,
        "is_causal": visibility.is_causal,
        "window": visibility.window,
        "sinks": visibility.sinks,
        **rows,
        "gradients": call.requires_grad,
        "gradients of tau or affine": call.affine_requires_grad,
    }


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _summary(table: Tensor | None) -> str | None:
    """Shape, dtype and a checksum of all bits of a table."""
    if table is None:
        return None
    bits = table.detach().contiguous().view(_BITS[table.dtype.itemsize]).flatten().long()
    weights = torch.arange(1, bits.numel() + 1, device=bits.device)
    return f"{table.dtype} {list(table.shape)}, checksum {int((bits * weights).sum())}"


def _check_tables(call: AttentionCall, ranks: Ranks) -> None:
    """Raise on all ranks if the tables do not reach the largest distance between any two of them."""
    window = call.visibility.window
    if call.gain is None or (window is not None and window <= call.gain.shape[1]):
        return
    queries, keys = call.visibility.positions
    batch, far = call.query.shape[0], torch.iinfo(torch.int64).max // 4
    extremes = torch.empty(batch, 4, dtype=torch.int64, device=ranks.control_device)
    for column, (positions, sign) in enumerate(
        ((queries, 1), (queries, -1), (keys, 1), (keys, -1))
    ):
        outside = torch.full((positions.shape[0], 1), -far, device=positions.device)
        extremes[:, column] = torch.cat([sign * positions, outside], 1).amax(1)
    message = extremes.view(-1).view(torch.uint8)
    found = gather(message, ranks, [message.numel()] * ranks.size)
    high = torch.stack([it.view(torch.int64).view(batch, 4) for it in found]).amax(0)
    query_high, query_low, key_high, key_low = high.unbind(1)
    largest = query_high + key_low
    if not call.visibility.is_causal:
        largest = largest.maximum(key_high + query_low)
    if largest.numel():
        check_reach(call.gain.shape[1], int(largest.amax()), window)
