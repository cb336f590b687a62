"""Why attention needs scale invariance, in seconds on a CPU: two facts of theory and one run.

Without trained weights, scores are independent N(0, 1), which is what queries and keys normalised
per head give for unrelated tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention import backend_for, scale_invariant_attention
from ..theory import (
    ALiBi,
    Estimate,
    LogitSchedule,
    LogN,
    Plain,
    ScaleInvariantTransform,
    expected_range_mass,
    sample_recent_share,
)

PLAIN, LOGN, ALIBI, SCALE_INVARIANT = "plain", "LogN", "ALiBi", "scale-invariant"

# Of the published ALiBi slopes the gentlest: the head that sees farthest.
ALIBI_SLOPE = 2.0**-8


@dataclass(frozen=True)
class RecentShares:
    """The share of attention on the nearest `recent` tokens, for each scheme at each length."""

    recent: int
    samples: int
    lengths: tuple[int, ...]
    shares: dict[str, tuple[Estimate, ...]]


@dataclass(frozen=True)
class DecadeMasses:
    """The expected weight on the distances `[start, 10 * start)`, for each scheme and start.

    `limit` is what the scale-invariant mass of a decade tends to.
    """

    starts: tuple[int, ...]
    masses: dict[str, tuple[float, ...]]
    limit: float


@dataclass(frozen=True)
class OpRun:
    """One forward and backward pass of the op: its shape, its time, and how right it is.

    The errors are the largest differences from the reference over the last `checked` queries.
    """

    shape: tuple[int, int, int, int]
    backend: str
    forward_seconds: float
    backward_seconds: float
    checked: int
    output_error: float
    gradient_error: float

    @property
    def score_matrix_bytes(self) -> int:
        """What the float32 scores of all heads would take, had they been stored at once."""
        batch, heads, length, _ = self.shape
        return batch * heads * length * length * 4


def recent_shares(
    lengths: Sequence[int] = (1024, 4096, 16384, 65536),
    *,
    recent: int = 100,
    samples: int = 256,
    seed: int = 0,
) -> RecentShares:
    """Sample the share of attention that the nearest tokens keep as the context grows.

    >>> found = recent_shares([1024, 4096], samples=64)
    >>> [round(share.mean, 2) for share in found.shares["plain"]]
    [0.1, 0.02]
    """
    schedules: dict[str, Callable[[int], LogitSchedule]] = {
        PLAIN: lambda _: Plain(),
        LOGN: LogN,
        SCALE_INVARIANT: lambda _: ScaleInvariantTransform(),
    }
    shares = {
        scheme: tuple(
            sample_recent_share(schedule(length), recent, length, samples=samples, seed=seed)
            for length in lengths
        )
        for scheme, schedule in schedules.items()
    }
    return RecentShares(recent, samples, tuple(lengths), shares)


def decade_masses(starts: Sequence[int] = (1, 10, 100, 1000, 10_000)) -> DecadeMasses:
    """The expected weight, before the softmax divides by the sum, on each decade of distances.

    >>> [round(mass, 1) for mass in decade_masses([100, 1000]).masses["scale-invariant"]]
    [36.6, 37.8]
    """
    transform = ScaleInvariantTransform()
    schedules: dict[str, LogitSchedule] = {
        PLAIN: Plain(),
        ALIBI: ALiBi(ALIBI_SLOPE),
        SCALE_INVARIANT: transform,
    }
    masses = {
        scheme: tuple(expected_range_mass(schedule, start, 10 * start) for start in starts)
        for scheme, schedule in schedules.items()
    }
    return DecadeMasses(tuple(starts), masses, transform.range_mass_limit(10))


def op_run(
    batch: int = 1,
    heads: int = 4,
    length: int = 4096,
    head_dim: int = 64,
    *,
    checked: int = 16,
    seed: int = 0,
) -> OpRun:
    """Run the op forward and backward on a CPU, and compare the last queries with the reference.

    A query's output and gradient depend on the keys alone, not on the other queries: the reference
    can answer for the last few without the whole score matrix.

    >>> op_run(length=256, head_dim=32).backend in ("cpu", "tiled")
    True
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, length, head_dim)
    query, key, value = (
        torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3)
    )
    upstream = torch.randn(shape, generator=generator)

    def forward(*, last: int, backend: str) -> Tensor:
        out: Tensor = scale_invariant_attention(query[:, :, -last:], key, value, backend=backend)
        return out

    def backward(out: Tensor) -> Tensor:
        inputs = (query, key, value)
        gradient, *_ = torch.autograd.grad(out, inputs, upstream[:, :, -out.shape[2] :])
        return gradient

    # The first call pays for loading libraries: a small one does.
    backward(forward(last=checked, backend="auto"))
    start = time.perf_counter()
    out = forward(last=length, backend="auto")
    middle = time.perf_counter()
    gradient = backward(out)
    end = time.perf_counter()

    exact = forward(last=checked, backend="reference")
    exact_gradient = backward(exact)
    return OpRun(
        shape=shape,
        backend=backend_for(query, key, value),
        forward_seconds=middle - start,
        backward_seconds=end - middle,
        checked=checked,
        output_error=_largest_difference(out, exact, checked),
        gradient_error=_largest_difference(gradient, exact_gradient, checked),
    )


def _largest_difference(rows: Tensor, exact: Tensor, last: int) -> float:
    return (rows[:, :, -last:] - exact[:, :, -last:]).abs().max().item()
