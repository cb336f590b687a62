"""Hybrids of local and global layers: patterns of layers with RoPE and a window, and a global one."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..arguments import integer, positive_number, real_number
from ._entries import PURPLE, WINE, LineStyle, NamedScheme
from ._positions import TokenPositions, check_train_length
from .distance import ScaleInvariant
from .query_scale import keys_seen
from .rotary import RoPE, TruncatedRoPE
from .scheme import LayeredScheme, Scheme

# The paper's training length, for schemes built without one.
TRAIN_LENGTH = 4096


@dataclass(frozen=True)
class Llama4Temperature:
    """Logits times ``1 + strength log(1 + floor((i + 1) / floor_scale))`` for a query at position `i`.

    In Llama 4 `floor_scale` is 8192, the size of its chunks, and `strength` is 0.1. Without causality
    all queries have the factor of the last.
    """

    floor_scale: int = 8192
    strength: float = 0.1
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        integer("floor_scale", self.floor_scale, at_least=1)
        real_number("strength", self.strength, at_least=0)

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return Llama4Factor(self.floor_scale, self.strength)


class Llama4Factor(nn.Module):
    """``1 + strength log(1 + floor((i + 1) / floor_scale))``, the same for all heads."""

    def __init__(self, floor_scale: int, strength: float) -> None:
        super().__init__()
        self.floor_scale = floor_scale
        self.strength = strength

    def forward(self, tokens: TokenPositions) -> Tensor:
        """Factors ``[1, L]`` or ``[B, 1, L]``."""
        whole = keys_seen(tokens).div(self.floor_scale, rounding_mode="floor")
        return (1 + self.strength * whole.double().log1p()).unsqueeze(-2)


@dataclass(frozen=True)
class SWANTemperature:
    """Logits times ``log(offset + i) / log(offset)`` for a query at position `i`.

    SWAN fits the offset, which is also the base of its logarithm, to a model, and does not publish it.
    Without causality all queries have the factor of the last.
    """

    offset: float = TRAIN_LENGTH
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if positive_number("offset", self.offset) <= 1:
            raise ValueError(f"offset must be above 1, whose logarithm is 0, got {self.offset}")

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return SWANFactor(self.offset)


class SWANFactor(nn.Module):
    """``log(offset + i) / log(offset)``, the same for all heads."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, tokens: TokenPositions) -> Tensor:
        """Factors ``[1, L]`` or ``[B, 1, L]``."""
        before = (keys_seen(tokens) - 1).double()
        return (torch.log(self.offset + before) / math.log(self.offset)).unsqueeze(-2)


def _local(
    train_length: int | None, window: int | None, local_layers: int, local_base: float
) -> list[Scheme]:
    """The local layers of a pattern: RoPE with a window, by default a quarter of the training length."""
    check_train_length(train_length)
    if window is None:
        window = max(1, (train_length or TRAIN_LENGTH) // 4)
    count = integer("local_layers", local_layers, at_least=1)
    base = positive_number("local_base", local_base)
    return [Scheme(RoPE(base), window=window)] * count


def _llama4(
    train_length: int | None = None,
    window: int | None = None,
    local_layers: int = 3,
    local_base: float = 10_000.0,
    floor_scale: int | None = None,
    strength: float = 0.1,
) -> LayeredScheme:
    """`floor_scale` is by default the window, as in Llama 4."""
    local = _local(train_length, window, local_layers, local_base)
    floor_scale = local[0].window if floor_scale is None else floor_scale
    assert floor_scale is not None
    return LayeredScheme([*local, Scheme(query_scale=Llama4Temperature(floor_scale, strength))])


def _swan(
    train_length: int | None = None,
    window: int | None = None,
    local_layers: int = 3,
    local_base: float = 10_000.0,
    offset: float | None = None,
) -> LayeredScheme:
    """`offset` is by default the training length."""
    local = _local(train_length, window, local_layers, local_base)
    offset = (train_length or TRAIN_LENGTH) if offset is None else offset
    return LayeredScheme([Scheme(query_scale=SWANTemperature(offset)), *local])


def _scale_invariant_global(
    train_length: int | None = None,
    window: int | None = None,
    local_layers: int = 3,
    local_base: float = 10_000.0,
    base: float = 1024.0,
    rotating: float = 0.25,
    tau: float = 1.0,
    highest_tau: float | None = 30.0,
    learn_tau: bool = False,
) -> LayeredScheme:
    """`base`, `rotating` and the taus are those of the global layers."""
    local = _local(train_length, window, local_layers, local_base)
    transform = ScaleInvariant(tau, highest_tau, learn_tau)
    return LayeredScheme([*local, Scheme(TruncatedRoPE(base, rotating), distance=transform)])


LOCAL = "RoPE, t < window = T/4"

HYBRIDS = (
    NamedScheme(
        "llama4",
        _llama4,
        "Llama 4",
        "Three of four layers have RoPE and see the nearest tokens, every fourth has no rotation, sees "
        "all tokens, and sharpens its logits as the text grows.",
        "Meta AI, 2025, Llama 4",
        LineStyle(*WINE, "-.", "$4$"),
        formula=f"3 layers with {LOCAL}; then 1 without rotation, query scale "
        "1 + 0.1 log(1 + floor(n / window))",
    ),
    NamedScheme(
        "swan",
        _swan,
        "SWAN",
        "One layer without rotation that sees all tokens, with logits that sharpen as the text grows, "
        "then three with RoPE that see the nearest tokens.",
        "Puvvada et al., 2025, arXiv:2504.08719",
        LineStyle(*WINE, ":", "$W$"),
        formula=f"1 layer without rotation, query scale log(T + n - 1) / log(T); then 3 with {LOCAL}",
    ),
    NamedScheme(
        "scale-invariant-global",
        _scale_invariant_global,
        "Scale-inv. global",
        "Three of four layers have RoPE and see the nearest tokens, every fourth has the recommended "
        "scheme and sees all tokens.",
        "this package",
        LineStyle(*PURPLE, "-", "$G$"),
        formula=f"3 layers with {LOCAL}; then 1 with p-RoPE in a quarter of the pairs, gain "
        "sqrt(1 + 2 log(1 + t/tau)), bias -2 log(1 + t/tau), tau from 1 to 30 over the heads",
    ),
)
