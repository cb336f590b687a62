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

from ..arguments import positive_number, real_number
from ._positions import (
    TokenPositions,
    check_train_length,
    known_train_length,
    stretch_beyond,
)


class Rotary(Protocol):
    """The frequencies of the rotation for a context length."""

    @property
    def depends_on_context(self) -> bool:
        """Whether the frequencies change with the context length."""

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """float64 ``[head_dim / 2]``, or ``[..., head_dim / 2]`` for context lengths ``[...]``."""


@dataclass(frozen=True)
class RoPE:
    """All pairs rotate, at frequencies ``base ^ (-2k / head_dim)``.

    >>> RoPE(base=16.0).frequencies(8, context_length=100).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """

    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self.base)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        return rope_frequencies(head_dim, self.base)


@dataclass(frozen=True)
class TruncatedRoPE:
    """The paper's p-RoPE: some of the pairs rotate, at frequencies from 1 to ``1 / base``.

    With ``n = rotating * head_dim / 2`` rotating pairs, rounded down but at least one, these are
    ``base ^ (-k / (n - 1))``; the others are 0. In the paper half of the pairs rotate.

    >>> TruncatedRoPE(base=8.0).frequencies(16, context_length=100)
    tensor([1.0000, 0.5000, 0.2500, 0.1250, 0.0000, 0.0000, 0.0000, 0.0000],
           dtype=torch.float64)
    """

    base: float = 1024.0
    rotating: float = 0.5
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self.base)
        if not 0 < real_number("rotating", self.rotating) <= 1:
            raise ValueError(
                f"rotating must be above 0 and at most 1, got {self.rotating}; use NoPE for no rotation"
            )

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        rotating = max(1, int(self.rotating * _pairs(head_dim)))
        exponents = torch.linspace(0, 1, rotating, dtype=torch.float64)
        return _with_still_pairs(self.base**-exponents, head_dim)


@dataclass(frozen=True)
class ProportionalRoPE:
    """p-RoPE in its general form: the pairs with the highest `fraction` of RoPE's frequencies rotate.

    Their number is rounded down. A fraction of 0 is NoPE; any other that rounds down to no pair is
    refused.

    >>> ProportionalRoPE(fraction=0.5, base=16.0).frequencies(8, context_length=100).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """

    fraction: float = 0.5
    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self.base)
        if not 0 <= real_number("fraction", self.fraction) <= 1:
            raise ValueError(f"fraction must be between 0 and 1, got {self.fraction}")

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """The same for every context length."""
        pairs = _pairs(head_dim)
        rotating = int(self.fraction * head_dim // 2)
        if rotating == 0 and self.fraction > 0:
            raise ValueError(
                f"fraction must be large enough to rotate one of {pairs} pairs "
                f"(head_dim={head_dim}), got {self.fraction}; pass a larger one, or 0 for no rotation"
            )
        return _with_still_pairs(rope_frequencies(head_dim, self.base)[:rotating], head_dim)


@dataclass(frozen=True)
class NTK:
    """RoPE up to `train_length`; in longer contexts its base grows with the context length.

    In a context of `stretch` training lengths it is ``base * stretch ^ (head_dim / (head_dim - 2))``,
    which divides the lowest frequency by `stretch` and leaves the highest unchanged.

    >>> NTK(train_length=256, base=100.0).frequencies(4, context_length=768).tolist()
    [1.0, 0.0333...]
    """

    train_length: int | None = None
    base: float = 10_000.0
    depends_on_context: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_base(self.base)
        check_train_length(self.train_length)

    def frequencies(self, head_dim: int, context_length: int | Tensor) -> Tensor:
        """RoPE's frequencies, with the base for this context length."""
        stretch = stretch_beyond(self.train_length, context_length)
        # The frequency of a single pair is the highest.
        power = head_dim / (head_dim - 2) if _pairs(head_dim) > 1 else 0
        return rope_frequencies(head_dim, self.base * stretch**power)


@dataclass(frozen=True)
class YaRN:
    """RoPE up to `train_length`; in longer contexts its low frequencies decrease.

    A pair keeps its frequency if it rotates at least `fast_rotations` times within `train_length`; the
    frequency is divided by the stretch, the context length in training lengths, if it rotates at most
    `slow_rotations` times. In between the share is linear.

    >>> YaRN(train_length=64, base=16.0).frequencies(8, context_length=256).tolist()
    [1.0, 0.40625, 0.15625, 0.0546875]
    """

    train_length: int | None = None
    base: float = 10_000.0
    fast_rotations: float = 32.0
    slow_rotations: float = 1.0
    depends_on_context: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_base(self.base)
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
        frequencies = rope_frequencies(head_dim, self.base)
        first = max(math.floor(self._pair_with(self.fast_rotations, head_dim)), 0)
        last = min(math.ceil(self._pair_with(self.slow_rotations, head_dim)), head_dim - 1)
        pairs = torch.arange(_pairs(head_dim), dtype=torch.float64)
        # If both ends coincide, the ramp is a step.
        divided = ((pairs - first) / max(last - first, 1)).clamp(0, 1)
        if isinstance(stretch, Tensor):
            stretch = stretch.unsqueeze(-1)
            frequencies, divided = frequencies.to(stretch.device), divided.to(stretch.device)
        return frequencies * (divided / stretch + (1 - divided))

    def _pair_with(self, rotations: float, head_dim: int) -> float:
        """The pair, a real number, that rotates so many times within the training length."""
        turns = known_train_length(self.train_length) / (rotations * math.tau)
        return head_dim * math.log(turns) / (2 * math.log(self.base))


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
    return _rotation_by(positions.unsqueeze(-1).double() * frequencies, dtype)


def axial_rotation(
    rotary: Rotary, coordinates: Tensor, head_dim: int, dtype: torch.dtype
) -> Rotation:
    """The function that rotates queries or keys ``[B, H, L, head_dim]`` of tokens with coordinates.

    `coordinates` are integers ``[L, n]``. Each rotates an n-th of the pairs, one after the other, as a
    position rotates a head of ``head_dim / n`` dimensions; `rotary` must not depend on the context.

    >>> places = torch.tensor([[0, 0], [1, 0]])
    >>> rotate = axial_rotation(RoPE(), places, head_dim=4, dtype=torch.float32)
    >>> rotate(torch.tensor([[[[1.0, 1.0, 0.0, 0.0]] * 2]]))
    tensor([[[[1.0000, 1.0000, 0.0000, 0.0000],
              [0.5403, 1.0000, 0.8415, 0.0000]]]])
    """
    axes = coordinates.shape[-1]
    if head_dim % (2 * axes):
        raise ValueError(
            f"head_dim must be a multiple of {2 * axes} for {axes} coordinates per token, of which each "
            f"rotates pairs of dimensions, got {head_dim}"
        )
    frequencies = rotary.frequencies(head_dim // axes, 1).to(coordinates.device)
    angles = coordinates.unsqueeze(-1).double() * frequencies
    return _rotation_by(angles.flatten(-2), dtype)


def _rotation_by(angles: Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation of pairs by float64 angles ``[L, head_dim / 2]`` or ``[B, L, head_dim / 2]``."""
    if angles.ndim == 3:
        angles = angles.unsqueeze(1)  # one for all heads
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def rotate(heads: Tensor) -> Tensor:
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * cos, swapped, sin).to(heads.dtype)

    return rotate


def p_rope(x: Tensor, positions: Tensor, *, base: float, rotating: float = 0.5) -> Tensor:
    """Queries or keys ``[B, heads, L, head_dim]``, rotated by the paper's p-RoPE.

    `positions` are integers ``[L]`` or ``[B, L]``; `base` and `rotating` are those of
    :class:`TruncatedRoPE`. A sixteenth of the training length is a good base.

    >>> p_rope(torch.ones(1, 1, 2, 4), torch.tensor([0, 1]), base=16.0)
    tensor([[[[ 1.0000,  1.0000,  1.0000,  1.0000],
              [-0.3012,  1.0000,  1.3818,  1.0000]]]])
    """
    # The frequencies do not depend on the length of the context.
    tokens = TokenPositions(positions, context_length=1)
    rotary = TruncatedRoPE(base, rotating)
    return rotation(rotary, tokens, head_dim=x.shape[-1], dtype=x.dtype)(x)


def rope_frequencies(head_dim: int, base: float | Tensor) -> Tensor:
    """RoPE's frequencies; a tensor of bases ``[...]`` gives one row per base."""
    exponents = 2 * torch.arange(_pairs(head_dim), dtype=torch.float64) / head_dim
    if not isinstance(base, Tensor):
        return base**-exponents
    return base.unsqueeze(-1) ** -exponents.to(base.device)


def _check_base(base: float) -> None:
    if positive_number("base", base) <= 1:
        raise ValueError(f"base must be above 1, got {base}: frequencies are its negative powers")


def _pairs(head_dim: int) -> int:
    """The number of pairs of a head, whose size must be even."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(
            f"head_dim must be even and at least 2, got {head_dim}: pairs of dimensions rotate; "
            "use an even one, or a scheme without rotation"
        )
    return head_dim // 2


def _with_still_pairs(rotating: Tensor, head_dim: int) -> Tensor:
    return torch.cat([rotating, rotating.new_zeros(_pairs(head_dim) - len(rotating))])
