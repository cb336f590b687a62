"""Theoretical counterpart of the measurements: attention with independent N(0, 1) scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..theory import (
    Estimate,
    LogitSchedule,
    LogN,
    Plain,
    ScaleInvariantTransform,
    sample_range_entropy,
    sample_recent_share,
)

# Schedules by name; LogN's depends on the context length.
SCHEDULES: Mapping[str, Callable[[int], LogitSchedule]] = MappingProxyType(
    {
        "plain": lambda length: Plain(),
        "logn": LogN,
        "scale-invariant": lambda length: ScaleInvariantTransform(),
    }
)


@dataclass(frozen=True)
class GaussianAttention:
    """Entropies in nats, and the share of the nearest tokens, in a context of `length` tokens.

    `range_entropy` has an entry for each range inside the context.
    """

    schedule: str
    length: int
    global_entropy: Estimate
    recent_share: Estimate
    range_entropy: Mapping[tuple[int, int], Estimate]


def gaussian_attention(
    schedule: str,
    length: int,
    ranges: Sequence[tuple[int, int]] = ((10, 100), (100, 1000)),
    *,
    recent: int = 100,
    samples: int = 256,
    seed: int = 0,
) -> GaussianAttention:
    """Monte-Carlo estimates for one of `SCHEDULES`.

    >>> plain = gaussian_attention("plain", 1000)
    >>> round(plain.recent_share.mean, 2)
    0.1
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; got {schedule!r}")
    logits = SCHEDULES[schedule](length)
    inside = {
        (start, stop): sample_range_entropy(logits, start, stop, samples=samples, seed=seed)
        for start, stop in ranges
        if stop <= length
    }
    return GaussianAttention(
        schedule,
        length,
        sample_range_entropy(logits, 0, length, samples=samples, seed=seed),
        sample_recent_share(logits, min(recent, length), length, samples=samples, seed=seed),
        inside,
    )
