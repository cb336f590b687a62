"""The second slot of a scheme: a factor for the logits of each query."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from ..arguments import integer, real_number
from ..theory.schedules import log_n_gain
from ._positions import TokenPositions, check_train_length, known_train_length

COUNTS = ("query", "context")


class QueryScale(Protocol):
    """A factor per query, and the parameters it takes in each layer."""

    @property
    def depends_on_context(self) -> bool:
        """Whether the factor changes with the context length."""

    def build(self, heads: int) -> nn.Module:
        """The module of one layer, from `TokenPositions` to factors of the queries.

        They are float64, ``[heads or 1, L or 1]`` or ``[B, heads or 1, L or 1]``.
        """


@dataclass(frozen=True)
class LogN:
    """Scalable softmax: logits times ``s log(N)``, with `s` learned per layer and head.

    With ``counts="query"`` N is the number of tokens of its document that a query sees: ``i + 1``, or
    without causality all. With ``counts="context"`` it is the context length, the same for all queries.
    `s` starts where the mean factor over the training length is 1 with causality.
    """

    train_length: int | None = None
    counts: str = "query"

    def __post_init__(self) -> None:
        check_train_length(self.train_length)
        if self.counts not in COUNTS:
            raise ValueError(f"counts must be one of {', '.join(COUNTS)}; got {self.counts!r}")

    @property
    def depends_on_context(self) -> bool:
        """True if N is the context length."""
        return self.counts == "context"

    @property
    def start(self) -> float:
        """The initial `s`: one over the mean of ``log(N)`` over the queries of the training length.

        >>> LogN(train_length=4096).start, LogN(train_length=4096, counts="context").start
        (0.1366..., 0.1202...)
        """
        length = known_train_length(self.train_length)
        if length == 1:
            raise ValueError("train_length must be above 1 for LogN, whose factor log(1) is 0")
        mean = math.lgamma(length + 1) / length if self.counts == "query" else math.log(length)
        return 1 / mean

    def build(self, heads: int) -> nn.Module:
        """A module with parameters `s`, ``[heads]``."""
        return LogNScale(heads, self.start, self.counts)


class LogNScale(nn.Module):
    """``s log(N)``, with one `s` per head."""

    def __init__(self, heads: int, start: float, counts: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((heads,), start))
        self.counts = counts

    def forward(self, tokens: TokenPositions) -> Tensor:
        """Factors ``[heads, 1 or L]`` or ``[B, heads, 1 or L]``."""
        by_query = self.counts == "query"
        counts = keys_seen(tokens) if by_query else tokens.context_lengths
        return log_n_gain(counts.unsqueeze(-2), self.scale.unsqueeze(-1))


@dataclass(frozen=True)
class YaRNTemperature:
    """YaRN's factor for contexts beyond the training length, ``(0.1 ln(stretch) + 1)^2``.

    It is squared because YaRN scales both queries and keys.
    """

    train_length: int | None = None
    depends_on_context: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_train_length(self.train_length)

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return YaRNFactor(known_train_length(self.train_length))


class YaRNFactor(nn.Module):
    """``(0.1 ln(stretch) + 1)^2``, the same for all heads."""

    def __init__(self, train_length: int) -> None:
        super().__init__()
        self.train_length = train_length

    def forward(self, tokens: TokenPositions) -> Tensor:
        """A factor ``[1, 1]``, or ``[B, 1, 1 or L]``."""
        stretch = (tokens.context_lengths.double() / self.train_length).clamp(min=1)
        return (0.1 * stretch.log() + 1).square().unsqueeze(-2)


@dataclass(frozen=True)
class SqrtLogN:
    """Logits times ``sqrt(2 log(n))``, about the largest of `n` normal numbers.

    `n` is the number of tokens of its document that a query sees: ``i + 1``, or without causality all.
    """

    depends_on_context: ClassVar[bool] = False

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        return SqrtLogNFactor()


class SqrtLogNFactor(nn.Module):
    """``sqrt(2 log(n))``, the same for all heads."""

    def forward(self, tokens: TokenPositions) -> Tensor:
        """Factors ``[1, L]`` or ``[B, 1, L]``."""
        return (2 * keys_seen(tokens).double().log()).sqrt().unsqueeze(-2)


@dataclass(frozen=True)
class Inkling:
    """Logits times ``1 + alpha log(max(1, n / n_floor))``, as in the open model Inkling.

    `n` is the number of tokens of its document that a query sees: ``i + 1``, or without causality all.
    `n_floor` is by default the training length.
    """

    train_length: int | None = None
    alpha: float = 0.1
    n_floor: int | None = None
    depends_on_context: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_train_length(self.train_length)
        real_number("alpha", self.alpha, at_least=0)
        if self.n_floor is not None:
            integer("n_floor", self.n_floor, at_least=1)

    def build(self, heads: int) -> nn.Module:
        """A module without parameters."""
        floor = known_train_length(self.train_length) if self.n_floor is None else self.n_floor
        return InklingFactor(self.alpha, floor)


class InklingFactor(nn.Module):
    """``1 + alpha log(max(1, n / n_floor))``, the same for all heads."""

    def __init__(self, alpha: float, n_floor: int) -> None:
        super().__init__()
        self.alpha = alpha
        self.n_floor = n_floor

    def forward(self, tokens: TokenPositions) -> Tensor:
        """Factors ``[1, L]`` or ``[B, 1, L]``."""
        ratio = (keys_seen(tokens).double() / self.n_floor).clamp(min=1)
        return (1 + self.alpha * ratio.log()).unsqueeze(-2)


def keys_seen(tokens: TokenPositions) -> Tensor:
    """The number of tokens of its document that each query sees, itself included.

    >>> keys_seen(TokenPositions(torch.arange(4), context_length=4))
    tensor([1, 2, 3, 4])
    >>> keys_seen(TokenPositions(torch.arange(4), context_length=4, is_causal=False))
    tensor([4])
    """
    return tokens.positions.clamp(min=0) + 1 if tokens.is_causal else tokens.context_lengths
