"""The length a model was trained at, from which on some schemes change, and at which LogN starts."""

import torch
from torch import Tensor

from ..arguments import integer


def optional_train_length(train_length: int | None) -> None:
    """Refuse what is neither None nor a positive integer."""
    if train_length is not None:
        integer("train_length", train_length, at_least=1)


def known_train_length(train_length: int | None) -> int:
    """The trained length, which a scheme that uses it must have been told."""
    if train_length is None:
        raise ValueError(
            "train_length is not set, and this scheme depends on the trained length: "
            "pass train_length=..., the context length the model is or was trained at"
        )
    return train_length


def stretch_beyond(train_length: int | None, context_length: int | Tensor) -> float | Tensor:
    """How many trained lengths long a context is, and 1 for those that are shorter.

    >>> stretch_beyond(256, 1024), stretch_beyond(256, 100)
    (4.0, 1.0)
    """
    trained = known_train_length(train_length)
    if isinstance(context_length, Tensor):
        return (context_length.to(torch.float64) / trained).clamp(min=1.0)
    return max(context_length / trained, 1.0)
