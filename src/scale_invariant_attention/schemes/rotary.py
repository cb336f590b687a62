"""The first slot of a scheme: the rotation of queries and keys by their positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..arguments import positive_number
from .frequencies import (
    ntk_frequencies,
    proportional_frequencies,
    rope_frequencies,
    truncated_frequencies,
    yarn_frequencies,
)
from .places import Places
from .train_length import optional_train_length, stretch_beyond


class Rotary(Protocol):
    """Frequencies by context length. `depends_on_context` says whether they change with it."""

    @property
    def depends_on_context(self) -> bool:
        """Whether the frequencies are others for another context length."""
        ...

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """float64 ``[head_dim / 2]``, or ``[..., head_dim / 2]`` for context lengths ``[...]``."""
        ...


@dataclass(frozen=True)
class RoPE:
    """All pairs turn, at frequencies ``base ^ (-2k / head_dim)``."""

    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        return rope_frequencies(head_dim, self.base)


@dataclass(frozen=True)
class TruncatedRoPE:
    """The paper's p-RoPE: half of the pairs turn, at frequencies from 1 to ``1 / base``."""

    base: float = 1024.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        return truncated_frequencies(head_dim, self.base)


@dataclass(frozen=True)
class ProportionalRoPE:
    """p-RoPE in its general form: the highest `fraction` of RoPE's frequencies turn."""

    fraction: float = 0.5
    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self)
        fraction = self.fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise TypeError(f"fraction must be a number between 0 and 1, got {fraction!r}")
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, got {fraction}")

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        return proportional_frequencies(head_dim, self.fraction, self.base)


@dataclass(frozen=True)
class NTK:
    """RoPE up to `train_length`; in longer contexts its base grows with the context length."""

    train_length: int | None = None
    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_base(self)
        optional_train_length(self.train_length)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """RoPE's, with the base for this context length."""
        stretch = stretch_beyond(self.train_length, context_length)
        return ntk_frequencies(head_dim, stretch, self.base)


@dataclass(frozen=True)
class YaRN:
    """RoPE up to `train_length`; in longer contexts its low frequencies fall with the length."""

    train_length: int | None = None
    base: float = 10_000.0
    fast_rotations: float = 32.0
    slow_rotations: float = 1.0
    depends_on_context: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_base(self)
        optional_train_length(self.train_length)
        fast = positive_number("fast_rotations", self.fast_rotations)
        slow = positive_number("slow_rotations", self.slow_rotations)
        if fast < slow:
            raise ValueError(
                f"fast_rotations must be at least slow_rotations, got {fast} and {slow}"
            )

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """RoPE's, divided as far as the ramp says."""
        stretch = stretch_beyond(self.train_length, context_length)
        assert self.train_length is not None
        return yarn_frequencies(
            head_dim,
            stretch,
            self.train_length,
            self.base,
            self.fast_rotations,
            self.slow_rotations,
        )


Rotation = Callable[[Tensor], Tensor]


def rotation(rotary: Rotary, places: Places, head_dim: int, dtype: torch.dtype) -> Rotation:
    """The function that rotates queries or keys ``[B, H, L, head_dim]`` that stand at `places`.

    Dimension `k` is paired with ``k + head_dim / 2``, as in Hugging Face's models. Angles are computed
    in float64, so that cosines and sines are right to the precision of float32 at positions up to a
    hundred million; the rotation itself runs in `dtype`.

    >>> places = Places(torch.tensor([0, 1]), context_length=2)
    >>> rotate = rotation(RoPE(), places, head_dim=2, dtype=torch.float32)
    >>> rotate(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))
    tensor([[[[1.0000, 0.0000],
              [0.5403, 0.8415]]]])
    """
    positions = places.positions
    frequencies = rotary.frequencies(head_dim, places.context_length).to(positions.device)
    angles = positions.unsqueeze(-1).double() * frequencies
    if angles.ndim == 3:
        angles = angles.unsqueeze(1)  # one for all heads
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def rotate(heads: Tensor) -> Tensor:
        swapped = heads.roll(head_dim // 2, -1)
        return torch.addcmul(heads * cos, swapped, sin).to(heads.dtype)

    return rotate


def _check_base(rotary: RoPE | TruncatedRoPE | ProportionalRoPE | NTK | YaRN) -> None:
    if positive_number("base", rotary.base) <= 1:
        raise ValueError(f"base must be above 1, got {rotary.base}: frequencies fall with it")
