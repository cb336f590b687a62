"""The positions of tokens and the length of their context: all that a scheme may know about tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import integer


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """The position of every token in its document, and the length of that document.

    The context length may exceed the tokens that exist: while a text is being generated it is the
    length that the text will have. `is_causal` says whether a token sees those before it alone, or the
    whole document.
    """

    positions: Tensor  # integers [L] or [B, L], from 0 at the start of each document
    context_length: int | Tensor  # one for all, or integers [B, 1] or [B, L]
    is_causal: bool = True

    def __post_init__(self) -> None:
        """A length per row without its second dimension would be taken for one per token."""
        _check("positions", self.positions, (1, 2), "[L] or [B, L]")
        if isinstance(self.context_length, Tensor):
            _check("context_length", self.context_length, (2,), "[B, 1] or [B, L]")

    @property
    def context_lengths(self) -> Tensor:
        """The context lengths as a tensor, ``[1]`` where there is one for all."""
        length = self.context_length
        if isinstance(length, Tensor):
            return length
        return torch.full((1,), length, dtype=torch.long, device=self.positions.device)


def _check(name: str, given: Tensor, dims: tuple[int, ...], shapes: str) -> None:
    if given.ndim not in dims or given.dtype.is_floating_point or given.dtype == torch.bool:
        raise ValueError(
            f"{name} must be integers {shapes}, got {given.dtype} of shape {tuple(given.shape)}"
        )


def check_train_length(train_length: int | None) -> None:
    """Refuse a training length that is neither None nor a positive integer."""
    if train_length is not None:
        integer("train_length", train_length, at_least=1)


def known_train_length(train_length: int | None) -> int:
    """The training length, which a scheme that depends on it must have."""
    if train_length is None:
        raise ValueError(
            "train_length is not set, and this scheme depends on the training length: "
            "pass train_length=..., the context length the model is or was trained at"
        )
    return train_length


def stretch_beyond(train_length: int | None, context_length: int | Tensor) -> float | Tensor:
    """The context length in training lengths, at least 1.

    >>> stretch_beyond(256, 1024), stretch_beyond(256, 100)
    (4.0, 1.0)
    """
    known = known_train_length(train_length)
    if isinstance(context_length, Tensor):
        return (context_length.to(torch.float64) / known).clamp(min=1.0)
    return max(context_length / known, 1.0)
