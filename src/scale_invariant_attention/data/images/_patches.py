"""Hidden patches of textures and of photographs, to be predicted from the others."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...arguments import positive_number, real_number
from ._task import ImageBatch, ImageTask, Reals, missing_extra

# Photographs that the packages themselves contain, by the function of `skimage.data` that returns them,
# or by their file among the sample images of scikit-learn.
PHOTOGRAPHS = {
    "train": ("china.jpg", "chelsea", "coffee", "rocket", "grass", "gravel", "moon", "coins"),
    "validation": ("flower.jpg", "astronaut", "camera", "brick"),
}
# The weights of red, green and blue in what the eye sees as brightness.
LUMINANCE = (0.2125, 0.7154, 0.0721)


@dataclass(frozen=True, kw_only=True)
class PatchTask(ImageTask):
    """Prediction of hidden patches, which are chosen at random, the same share of every canvas.

    Args:
        share: of the patches that is hidden; rounded down to a number, but at least one.
    """

    patch: ClassVar[int] = 8
    classes: ClassVar[int | None] = None

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < real_number("share", self.share) < 1:
            raise ValueError(f"share must be above 0 and below 1, got {self.share}")

    def batch(self, size: int, numbers: Sequence[int]) -> ImageBatch:
        """See :class:`ImageTask`."""
        side, rngs = self.checked_size(size) * self.patch, [self.rng(size, it) for it in numbers]
        order = np.stack([rng.random(size**2) for rng in rngs]).argsort(axis=1)
        hidden = order < max(1, int(self.share * size**2))
        images = self.canvases(side, rngs)
        pixels = images.view(-1, size, self.patch, size, self.patch).transpose(2, 3)
        targets = pixels.reshape(len(images), size**2, self.patch**2)
        return ImageBatch(images, targets, torch.from_numpy(hidden))

    @abstractmethod
    def canvases(self, side: int, rngs: Sequence[np.random.Generator]) -> Tensor:
        """Images ``[B, side, side]``, float32, one for each source of random numbers."""


@dataclass(frozen=True, kw_only=True)
class TextureTask(PatchTask):
    """Hidden patches of random textures with the spectrum of nature: amplitudes of one over frequency.

    So every octave of frequencies has the same variance, and none is special. Amplitudes are constant
    below one period in `coarsest` pixels, so that canvases of all sizes look alike. Pixels are normal
    numbers of variance 1, without a period.

    Args:
        coarsest: pixels of the longest period, at least 2.
    """

    coarsest: float = 64.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if positive_number("coarsest", self.coarsest) < 2:
            raise ValueError(f"coarsest must be at least 2 pixels, got {self.coarsest}")

    def canvases(self, side: int, rngs: Sequence[np.random.Generator]) -> Tensor:
        """See :class:`PatchTask`."""
        # The texture of the whole square is periodic: the part beyond the canvas hides it.
        whole = side + ceil(self.coarsest)
        frequency = torch.hypot(torch.fft.fftfreq(whole)[:, None], torch.fft.rfftfreq(whole))
        amplitude = 1 / frequency.clamp(min=1 / self.coarsest)
        amplitude[0, 0] = 0
        # Half of the spectrum stands for all of it but the columns that are their own mirror image.
        twice = torch.full((frequency.shape[1],), 2.0)
        twice[0] = 1
        if whole % 2 == 0:
            twice[-1] = 1
        amplitude *= whole / (amplitude.square() * twice).sum().sqrt()
        noise = np.stack([rng.standard_normal((whole, whole), np.float32) for rng in rngs])
        spectrum = torch.fft.rfft2(torch.from_numpy(noise)) * amplitude
        texture = torch.fft.irfft2(spectrum, s=(whole, whole))
        canvases: Tensor = texture[:, :side, :side].contiguous()
        return canvases


@dataclass(frozen=True, kw_only=True)
class PhotographTask(PatchTask):
    """Hidden patches of photographs that scikit-learn and scikit-image ship, grey, at random positions.

    Pixels have mean 0 and variance 1 over each photograph. Canvases are mirrored half of the time.
    """

    def canvases(self, side: int, rngs: Sequence[np.random.Generator]) -> Tensor:
        """See :class:`PatchTask`."""
        found = [it for it in photographs(self.split) if min(it.shape) >= side]
        if not found:
            largest = max(min(it.shape) for it in photographs(self.split))
            raise ValueError(
                f"size must be at most {largest // self.patch}, as the photographs for "
                f"{self.split} have, got {side // self.patch}"
            )
        canvases = np.empty((len(rngs), side, side), np.float32)
        for canvas, rng in zip(canvases, rngs, strict=True):
            whole = found[rng.integers(len(found))]
            row, column = (rng.integers(length - side + 1) for length in whole.shape)
            part = whole[row : row + side, column : column + side]
            canvas[:] = part[:, ::-1] if rng.integers(2) else part
        return torch.from_numpy(canvases)

    def pictures(self) -> Sequence[NDArray[Any]]:
        """See :class:`ImageTask`."""
        return shipped_photographs(self.split)


@lru_cache
def photographs(split: str) -> tuple[Reals, ...]:
    """The photographs of a split, grey, with mean 0 and variance 1 each."""
    found = []
    for pixels in shipped_photographs(split):
        grey = pixels.astype(np.float64)
        if grey.ndim == 3:
            grey = grey[..., :3] @ np.array(LUMINANCE)
        found.append(((grey - grey.mean()) / grey.std()).astype(np.float32))
    return tuple(found)


def shipped_photographs(split: str) -> tuple[NDArray[np.uint8], ...]:
    """The photographs of a split as they are shipped, ``[height, width]`` or with colours."""
    try:
        from skimage import data
        from sklearn.datasets import load_sample_image
    except ImportError as error:
        raise missing_extra("scikit-learn and scikit-image", "photographs") from error
    return tuple(
        load_sample_image(name) if "." in name else getattr(data, name)()
        for name in PHOTOGRAPHS[split]
    )
