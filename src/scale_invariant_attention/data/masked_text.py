"""Masked text: tokens hidden at random, to be predicted from those on both sides.

Which tokens are hidden depends on their position in the corpus and not on the windows that it is cut
into: windows of several lengths ask for the same tokens, and differ in the context around them alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arguments import real_number
from .tasks import NOT_SCORED
from .tokens import TokenSource
from .windows import Windows

# Random numbers of 64 bits per step of the counter of numpy's Philox.
_PER_STEP = 4


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden.

    Args:
        share: probability that a token is hidden, BERT's by default; every hidden one is replaced by the
            mask.
    """

    share: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < real_number("share", self.share) < 1:
            raise ValueError(f"share must be above 0 and below 1, got {self.share}")


@dataclass(frozen=True, eq=False)
class MaskedTextTask:
    """Windows of a corpus with hidden tokens, for models that see both sides of a token.

    The mask is the token after those of the corpus. Windows of a length do not overlap; `order` is that
    of ``Windows``. Every epoch hides other tokens. A window in which none would be hidden, as short ones
    may be, hides one, though longer windows do not.

    >>> from scale_invariant_attention.data import standard_library
    >>> task = MaskedTextTask(standard_library("validation"))
    >>> inputs, targets = task.batch(1024, range(4))
    >>> inputs.shape, task.vocab_size
    (torch.Size([4, 1024]), 257)
    >>> bool(((inputs == task.mask) == (targets != NOT_SCORED)).all())
    True
    """

    source: TokenSource
    masking: Masking = field(default_factory=Masking)
    order: str = "sequential"
    seed: int = 0

    @property
    def mask(self) -> int:
        """The token that replaces hidden ones."""
        return self.source.vocab_size

    @property
    def vocab_size(self) -> int:
        """Tokens of the corpus and the mask."""
        return self.mask + 1

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs with hidden tokens and targets ``[len(numbers), length]``; hidden tokens are scored."""
        windows = Windows(
            self.source, length=length, batch_size=1, order=self.order, seed=self.seed
        )
        rows = []
        for number in numbers:
            [start] = windows.starts(number).tolist()
            tokens = self.source.read(start, start + length).astype(np.int64)
            hidden = self._hidden(start, length, epoch=number // windows.per_epoch)
            rows.append((np.where(hidden, self.mask, tokens), np.where(hidden, tokens, NOT_SCORED)))
        inputs, targets = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        return inputs, targets

    def _hidden(self, start: int, length: int, epoch: int) -> NDArray[np.bool_]:
        """Which tokens of a window are hidden."""
        counter = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        steps, before = divmod(start, _PER_STEP)
        drawn = np.random.Generator(counter.advance(steps)).random(before + length)[before:]
        hidden: NDArray[np.bool_] = drawn <= max(self.masking.share, drawn.min())
        return hidden
