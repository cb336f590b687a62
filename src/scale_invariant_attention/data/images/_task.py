"""The form of a task on images: numbered examples on a canvas of any size."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...arguments import integer

Reals = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Images ``[B, H, W]`` and what is asked of them: their classes, or the pixels of hidden patches.

    `hidden` is bool ``[B, N]``, None where the whole image is seen. `targets` are classes ``[B]``, or
    pixels of patches ``[B, N, P]``, of which the hidden ones count.
    """

    images: Tensor
    targets: Tensor
    hidden: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ImageTask(ABC):
    """A task whose examples are generated a batch at a time, from random numbers.

    An example is determined by split, seed, size and number, whichever others are in its batch.

    Args:
        split: "train" or "validation", which share no digit, no writer and no photograph.
        seed: selects other examples.
    """

    # The side of a patch in pixels, and the number of classes, None for pixels.
    patch: ClassVar[int]
    classes: ClassVar[int | None]

    split: str = "train"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in ("train", "validation"):
            raise ValueError(f"split must be 'train' or 'validation', got {self.split!r}")

    @abstractmethod
    def batch(self, size: int, numbers: Sequence[int]) -> ImageBatch:
        """Examples with these numbers, on canvases of `size` times `size` patches."""

    def fingerprint(self) -> str | None:
        """SHA-256 of the pictures that examples are made of; None if they are drawn at random."""
        pictures = self.pictures()
        if not pictures:
            return None
        digest = hashlib.sha256()
        for picture in pictures:
            digest.update(f"{picture.dtype} {picture.shape}".encode() + picture.tobytes())
        return digest.hexdigest()

    def pictures(self) -> Sequence[NDArray[Any]]:
        """The arrays of the split, as the package that ships them has them."""
        return ()

    def checked_size(self, size: int) -> int:
        """The size, if it is one."""
        return integer("size", size, at_least=1)

    def rng(self, size: int, number: int) -> np.random.Generator:
        """The random numbers of an example."""
        split = ("train", "validation").index(self.split)
        return np.random.default_rng([split, self.seed, size, number])


def missing_extra(module: str, what: str) -> ImportError:
    """The error for data that a package of the extra `images` ships."""
    return ImportError(
        f"{what} need {module}: pip install 'scale-invariant-attention[images]'", name=module
    )
