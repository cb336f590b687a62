"""Where the tokens of a call stand, which is all that a scheme may know about them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """The position of every token in its document, and how long that document is.

    A context length may be longer than what is there yet: of a text that is being generated it is the
    length that the text is going to have.
    """

    positions: Tensor  # integers [L] or [B, L], from 0 at the start of each document
    context_length: int | Tensor  # one for all, or integers [B, 1] or [B, L]

    def __post_init__(self) -> None:
        """A length per row without its second dimension would be taken for one per token."""
        _check("positions", self.positions, (1, 2), "[L] or [B, L]")
        if isinstance(self.context_length, Tensor):
            _check("context_length", self.context_length, (2,), "[B, 1] or [B, L]")


def _check(name: str, given: Tensor, dims: tuple[int, ...], shapes: str) -> None:
    if given.ndim not in dims or given.dtype.is_floating_point or given.dtype == torch.bool:
        raise ValueError(
            f"{name} must be integers {shapes}, got {given.dtype} of shape {tuple(given.shape)}"
        )
