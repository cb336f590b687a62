"""The arguments of a call of the model, checked before anything runs."""

import torch
from torch import Tensor

from ..arguments import integer
from ..attention.numerics import holds_values
from .cache import KeyValueCache

FARTHEST = 2**53


def check_inputs(
    vocab_size: int,
    tokens: Tensor,
    *,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
    token_mask: Tensor | None = None,
    context_length: int | Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> None:
    """Refuse what a model cannot take, with the argument, the value and the remedy."""
    _check_integers("tokens", tokens)
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ValueError(
            "tokens must be [batch, length] with at least one token a row, "
            f"got shape {tuple(tokens.shape)}"
        )
    # A device would have to be waited for; it refuses bad tokens when it looks them up.
    if tokens.numel() and tokens.device.type == "cpu" and holds_values(tokens):
        least, most = (int(extreme) for extreme in tokens.long().aminmax())
        if least < 0 or most >= vocab_size:
            wrong = least if least < 0 else most
            raise ValueError(f"tokens must be in 0 .. {vocab_size - 1}, got {wrong}")
    if isinstance(positions, Tensor) and positions.numel() and positions.device.type == "cpu":
        _check_positions(positions)
    for name, rows in (("positions", positions), ("documents", documents)):
        if rows is None:
            continue
        _check_integers(name, rows)
        if rows.shape not in (tokens.shape, tokens.shape[1:]):
            raise ValueError(
                f"{name} must be [{tokens.shape[1]}] or {list(tokens.shape)} like tokens, "
                f"got shape {tuple(rows.shape)}"
            )
    if token_mask is not None:
        if not isinstance(token_mask, Tensor) or token_mask.dtype != torch.bool:
            kind = token_mask.dtype if isinstance(token_mask, Tensor) else type(token_mask).__name__
            raise TypeError(f"token_mask must be a bool tensor, False for padding; got {kind}")
        if token_mask.shape != tokens.shape:
            raise ValueError(
                f"token_mask must be {list(tokens.shape)} like tokens, "
                f"got shape {tuple(token_mask.shape)}"
            )
    if cache is not None and not isinstance(cache, KeyValueCache):
        raise TypeError(f"cache must be one that new_cache() made, got {type(cache).__name__}")
    check_context_length(context_length, tokens.shape[0])
    if cache is not None and documents is not None:
        raise ValueError("documents cannot be given with a cache, which holds one document a row")
    if cache is not None and context_length is not None:
        raise ValueError(
            "context_length is set where a cache is made: new_cache(context_length=...)"
        )


def _check_positions(positions: Tensor) -> None:
    """Refuse positions that float64, in which angles are computed, does not tell apart."""
    if holds_values(positions) and not positions.is_floating_point():
        farthest = int(positions.long().abs().amax())
        if not 0 <= farthest <= FARTHEST:
            raise ValueError(f"positions must be at most {FARTHEST} from 0, got {farthest}")


def check_context_length(context_length: int | Tensor | None, batch: int | None = None) -> None:
    """Refuse what is no positive number, nor one a row; without `batch` any number of rows."""
    if isinstance(context_length, Tensor):
        _check_integers("context_length", context_length)
        rows = "batch" if batch is None else batch
        if context_length.ndim != 1 or (batch is not None and len(context_length) != batch):
            raise ValueError(
                f"context_length must be a number or [{rows}], one a row, "
                f"got shape {tuple(context_length.shape)}"
            )
        on_cpu = context_length.device.type == "cpu" and holds_values(context_length)
        if on_cpu and bool((context_length < 1).any()):
            raise ValueError(f"context_length must be at least 1, got {context_length.tolist()}")
    elif context_length is not None:
        integer("context_length", context_length, at_least=1)


def _check_integers(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got {type(tensor).__name__}")
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise TypeError(f"{name} must be an integer tensor, got {tensor.dtype}")
