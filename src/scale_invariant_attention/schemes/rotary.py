"""The first slot of a scheme: the rotation of queries and keys by their positions.

A head of `head_dim` dimensions has ``head_dim / 2`` pairs; pair `k` of a token at position `i` is
rotated by the angle ``i * frequency[k]``. Frequencies are float64 ``[..., head_dim / 2]``, the highest
first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..arguments import positive_number
from ._positions import TokenPositions, check_train_length, stretch_beyond


class Rotary(Protocol):
    """The frequencies of the rotation for a context length."""

    @property
    def depends_on_context(self) -> bool:
        """Whether the frequencies change with the context length."""
        ...

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """float64 ``[head_dim / 2]``, or ``[..., head_dim / 2]`` for context lengths ``[...]``."""
        ...


@dataclass(frozen=True)
class RoPE:
    """All pairs rotate, at frequencies ``base ^ (-2k / head_dim)``."""

    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        return rope_frequencies(head_dim, self.base)


@dataclass(frozen=True)
class TruncatedRoPE:
    """The paper's p-RoPE: half of the pairs rotate, at frequencies from 1 to ``1 / base``."""

    base: float = 1024.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        return truncated_frequencies(head_dim, self.base)


@dataclass(frozen=True)
class ProportionalRoPE:
    """p-RoPE in its general form: the pairs with the highest `fraction` of RoPE's frequencies rotate."""

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
        check_train_length(self.train_length)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """RoPE's frequencies, with the base for this context length."""
        stretch = stretch_beyond(self.train_length, context_length)
        return ntk_frequencies(head_dim, stretch, self.base)


@dataclass(frozen=True)
class YaRN:
    """RoPE up to `train_length`; in longer contexts its low frequencies decrease."""

    train_length: int | None = None
    base: float = 10_000.0
    fast_rotations: float = 32.0
    slow_rotations: float = 1.0
    depends_on_context: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_base(self)
        check_train_length(self.train_length)
        fast = positive_number("fast_rotations", self.fast_rotations)
        slow = positive_number("slow_rotations", self.slow_rotations)
        if fast < slow:
            raise ValueError(
                f"fast_rotations must be at least slow_rotations, got {fast} and {slow}"
            )

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """RoPE's frequencies, the low ones divided by the stretch."""
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


def rotation(rotary: Rotary, tokens: TokenPositions, head_dim: int, dtype: torch.dtype) -> Rotation:
    """The function that rotates queries or keys ``[B, H, L, head_dim]`` of tokens at these positions.

    Dimension `k` is paired with ``k + head_dim / 2``, as in Hugging Face's models. Angles are computed
    in float64, which keeps cosines and sines accurate to float32 at positions up to a hundred million;
    the rotation itself runs in `dtype`.

    >>> tokens = TokenPositions(torch.tensor([0, 1]), context_length=2)
    >>> rotate = rotation(RoPE(), tokens, head_dim=2, dtype=torch.float32)
    >>> rotate(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))
    tensor([[[[1.0000, 0.0000],
              [0.5403, 0.8415]]]])
    """
    positions = tokens.positions
    frequencies = rotary.frequencies(head_dim, tokens.context_length).to(positions.device)
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
        raise ValueError(
            f"base must be above 1, got {rotary.base}: frequencies are its negative powers"
        )


def rope_frequencies(head_dim: int, base: float | Tensor = 10_000.0) -> Tensor:
    """RoPE: ``base ^ (-2k / head_dim)``; a tensor of bases ``[...]`` gives one row per base.

    >>> rope_frequencies(8, base=16.0).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    exponents = 2 * torch.arange(_pairs(head_dim), dtype=torch.float64) / head_dim
    if not isinstance(base, Tensor):
        return base**-exponents
    return base.unsqueeze(-1) ** -exponents.to(base.device)


def truncated_frequencies(head_dim: int, base: float = 1024.0) -> Tensor:
    """p-RoPE as in the paper: half of the pairs rotate, at frequencies from 1 down to ``1 / base``.

    With ``n = head_dim // 4`` rotating pairs these are ``base ^ (-k / (n - 1))``; the others are 0.
    A head of two dimensions has one pair, which cannot be halved, and is refused.

    >>> truncated_frequencies(16, base=8.0)
    tensor([1.0000, 0.5000, 0.2500, 0.1250, 0.0000, 0.0000, 0.0000, 0.0000],
           dtype=torch.float64)
    """
    rotating = _pairs(head_dim) // 2
    if rotating == 0:
        raise ValueError(
            "head_dim must be at least 4 for p-RoPE, which rotates half of the pairs, got 2; "
            "use another scheme, or fraction=1.0 for RoPE"
        )
    exponents = torch.linspace(0, 1, rotating, dtype=torch.float64)
    return _with_still_pairs(base**-exponents, head_dim)


def proportional_frequencies(head_dim: int, fraction: float, base: float = 10_000.0) -> Tensor:
    """p-RoPE in its general form: the highest `fraction` of RoPE's frequencies; the others are 0.

    The number of rotating pairs is rounded down. A fraction of 0 is NoPE; any other that rounds down
    to no pair is refused.

    >>> proportional_frequencies(8, fraction=0.5, base=16.0).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    pairs = _pairs(head_dim)
    rotating = int(fraction * head_dim // 2)
    if rotating == 0 and fraction > 0:
        raise ValueError(
            f"fraction must be large enough to rotate one of {pairs} pairs (head_dim={head_dim}), "
            f"got {fraction}; pass a larger one, or 0 for no rotation"
        )
    return _with_still_pairs(rope_frequencies(head_dim, base)[:rotating], head_dim)


def ntk_frequencies(head_dim: int, stretch: float | Tensor, base: float = 10_000.0) -> Tensor:
    """RoPE with a larger base: ``base * stretch ^ (head_dim / (head_dim - 2))``.

    The lowest frequency is divided by `stretch`; the highest is unchanged.

    >>> ntk_frequencies(4, stretch=3.0, base=100.0).tolist()
    [1.0, 0.0333...]
    """
    if _pairs(head_dim) == 1:
        # The only frequency is the highest.
        return rope_frequencies(head_dim, stretch * 0 + base)
    return rope_frequencies(head_dim, base * stretch ** (head_dim / (head_dim - 2)))


def yarn_frequencies(
    head_dim: int,
    stretch: float | Tensor,
    train_length: int,
    base: float = 10_000.0,
    fast_rotations: float = 32.0,
    slow_rotations: float = 1.0,
) -> Tensor:
    """RoPE with its low frequencies divided by `stretch`, and a linear ramp up to the high ones.

    A pair keeps its frequency if it rotates at least `fast_rotations` times within `train_length`; the
    frequency is divided if it rotates at most `slow_rotations` times. In between the share is linear.

    >>> yarn_frequencies(8, stretch=4.0, train_length=64, base=16.0).tolist()
    [1.0, 0.40625, 0.15625, 0.0546875]
    """
    frequencies = rope_frequencies(head_dim, base)

    def pair_with(rotations: float) -> float:
        return head_dim * math.log(train_length / (rotations * math.tau)) / (2 * math.log(base))

    first = max(math.floor(pair_with(fast_rotations)), 0)
    last = min(math.ceil(pair_with(slow_rotations)), head_dim - 1)
    pairs = torch.arange(_pairs(head_dim), dtype=torch.float64)
    # If both ends coincide, the ramp is a step.
    divided = ((pairs - first) / max(last - first, 1)).clamp(0, 1)
    if isinstance(stretch, Tensor):
        stretch = stretch.unsqueeze(-1)
        frequencies, divided = frequencies.to(stretch.device), divided.to(stretch.device)
    return frequencies * (divided / stretch + (1 - divided))


def _pairs(head_dim: int) -> int:
    """The number of pairs of a head, whose size must be even."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(
            f"head_dim must be even and at least 2, got {head_dim}: pairs of dimensions rotate; "
            "use an even one, or a scheme without rotation"
        )
    return head_dim // 2


def _with_still_pairs(rotating: Tensor, head_dim: int) -> Tensor:
    still = _pairs(head_dim) - rotating.shape[0]
    return torch.cat([rotating, rotating.new_zeros(still)])
