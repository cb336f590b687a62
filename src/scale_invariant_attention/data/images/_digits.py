"""Handwritten digits among distractors: one digit to find and read, and pieces of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...arguments import integer, real_number
from ._task import ImageBatch, ImageTask, Reals, missing_extra

SIDE = 8
# Of 1,797 digits the last ones are for validation. They come writer by writer, and here one begins.
TRAINED = 1287


@dataclass(frozen=True, kw_only=True)
class DigitsTask(ImageTask):
    """Which digit is on the canvas? Pieces of other digits surround it, as dense on every canvas.

    The digits are scikit-learn's, of 8 x 8 pixels, with values from 0 to 1. The digit is anywhere on the
    canvas, on an empty square; the pieces are anywhere else.

    Args:
        piece: side of the pieces in pixels.
        density: number of pieces for as many pixels as a digit has.
    """

    patch: ClassVar[int] = 4
    classes: ClassVar[int | None] = 10

    piece: int = 4
    density: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if integer("piece", self.piece, at_least=1) > SIDE:
            raise ValueError(f"piece must be at most {SIDE}, the side of a digit, got {self.piece}")
        real_number("density", self.density, at_least=0)

    def batch(self, size: int, numbers: Sequence[int]) -> ImageBatch:
        """See :class:`ImageTask`."""
        side = self.checked_size(size) * self.patch
        if side < SIDE:
            raise ValueError(f"size must be at least {SIDE // self.patch}, a digit's, got {size}")
        digits, labels = split_digits(self.split)
        pieces = round(self.density * side**2 / SIDE**2)
        uniform = np.stack([self.rng(size, it).random(3 + 5 * pieces) for it in numbers])
        which, row, column = np.split(uniform[:, :3], 3, axis=1)
        canvas = np.zeros((len(numbers), side, side), np.float32)
        others = uniform[:, 3:].reshape(len(numbers), 5, pieces).transpose(1, 0, 2)
        cut = squares(digits, others[0], others[1], others[2], self.piece)
        put(canvas, cut, others[3], others[4])
        chosen = below(which, len(digits))
        whole = digits[chosen]
        put(canvas, whole, row, column)
        return ImageBatch(torch.from_numpy(canvas), torch.from_numpy(labels[chosen[:, 0]]))

    def pictures(self) -> Sequence[NDArray[Any]]:
        """See :class:`ImageTask`."""
        return split_digits(self.split)


def below(uniform: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Integers from 0 to below a count, from random numbers that are uniform from 0 to below 1."""
    return (uniform * count).astype(np.int64)


def squares(
    digits: Reals,
    which: NDArray[np.float64],
    row: NDArray[np.float64],
    column: NDArray[np.float64],
    piece: int,
) -> Reals:
    """Squares cut from digits ``[count, 8, 8]``: ``[*which.shape, piece, piece]``."""
    offsets = np.arange(piece)
    rows = below(row, SIDE - piece + 1)[..., np.newaxis, np.newaxis] + offsets[:, np.newaxis]
    columns = below(column, SIDE - piece + 1)[..., np.newaxis, np.newaxis] + offsets
    cut: Reals = digits[below(which, len(digits))[..., np.newaxis, np.newaxis], rows, columns]
    return cut


def put(canvas: Reals, parts: Reals, row: NDArray[np.float64], column: NDArray[np.float64]) -> None:
    """Write squares ``[B, count, side, side]`` on canvases ``[B, H, W]``, the last ones uppermost."""
    side, room = parts.shape[-1], canvas.shape[-1] - parts.shape[-1] + 1
    offsets = np.arange(side)
    images = np.arange(len(canvas))[:, np.newaxis, np.newaxis]
    for index in range(parts.shape[1]):
        rows = below(row[:, index], room)[:, np.newaxis, np.newaxis] + offsets[:, np.newaxis]
        columns = below(column[:, index], room)[:, np.newaxis, np.newaxis] + offsets
        canvas[images, rows, columns] = parts[:, index]


@lru_cache
def split_digits(split: str) -> tuple[Reals, NDArray[np.int64]]:
    """Digits ``[count, 8, 8]`` from 0 to 1 and their labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise missing_extra("scikit-learn", "digits") from error
    found = load_digits()
    part = slice(None, TRAINED) if split == "train" else slice(TRAINED, None)
    return (found.images[part] / 16).astype(np.float32), found.target[part].astype(np.int64)
