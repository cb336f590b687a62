"""The conditions of scale invariance, and the quantities that show whether they hold.

With `L_t ~ N(m_t, a_t^2)`, where `m_t` is the bias and `a_t` the gain times the standard deviation sigma
of the scores, the Gaussian identities give

    E[e^L_t]     = exp(m_t + a_t^2 / 2)
    E[L_t e^L_t] = (m_t + a_t^2) * exp(m_t + a_t^2 / 2)

Total attention is scale-invariant if the first, summed over `[t, ratio * t)`, neither vanishes nor
grows with `t`; unnormalised sparsity is if the second does the same.

In n dimensions shells take the place of ranges. A query at the origin sees a key at every point with
integer coordinates, and the shell `[start, stop)` holds the keys whose Euclidean distance `r` is in that
range. Those at one distance are counted together:

    E[Z] = sum over m of count(m) * E[e^L_r],   r = sqrt(m),   m = start^2 ... stop^2 - 1
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import distance_range, integer
from ._distance import at_distance, distance_chunks, in_float64
from .running_softmax import RunningSoftmax
from .schedules import LogitSchedule

# Terms summed at a time: two megabytes per intermediate tensor.
_CHUNK = 2**18


def expected_weight(schedule: LogitSchedule, distance: Tensor, *, sigma: float = 1.0) -> Tensor:
    """`E[e^L_t] = exp(m_t + a_t^2/2)`, of the shape of `distance`.

    `sigma` is the standard deviation of the scores. Computed in float64. A floating `distance` gives
    its own dtype, an integer one float64.

    >>> import torch
    >>> from scale_invariant_attention.theory import Plain
    >>> expected_weight(Plain(), torch.tensor([0, 10]))
    tensor([1.6487, 1.6487], dtype=torch.float64)
    """

    def formula(t: Tensor) -> Tensor:
        return (schedule.bias(t) + (sigma * schedule.gain(t)).square() / 2).exp()

    return at_distance(distance, formula)


def expected_weight_log_weight(
    schedule: LogitSchedule, distance: Tensor, *, sigma: float = 1.0
) -> Tensor:
    """`E[L_t e^L_t] = (m_t + a_t^2) exp(m_t + a_t^2/2)`; shape and dtype as in `expected_weight`.

    >>> import torch
    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> expected_weight_log_weight(ScaleInvariantTransform(), torch.tensor([0, 10]))
    tensor([1.6487, 0.8244], dtype=torch.float64)
    """

    def formula(t: Tensor) -> Tensor:
        mean, variance = schedule.bias(t), (sigma * schedule.gain(t)).square()
        return (mean + variance) * (mean + variance / 2).exp()

    return at_distance(distance, formula)


def expected_range_mass(
    schedule: LogitSchedule, start: int, stop: int, *, sigma: float = 1.0
) -> float:
    """`E[Z[start, stop)]`: the expected weight summed over the integers of `[start, stop)`.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> round(expected_range_mass(ScaleInvariantTransform(), 1000, 10_000), 4)
    37.823
    """
    return _sum_over_range(lambda t: expected_weight(schedule, t, sigma=sigma), start, stop)


def expected_range_negentropy(
    schedule: LogitSchedule, start: int, stop: int, *, sigma: float = 1.0
) -> float:
    """`E[N[start, stop)]`: the expected weight times log-weight summed over `[start, stop)`.

    >>> from scale_invariant_attention.theory import Plain
    >>> round(expected_range_negentropy(Plain(), 0, 1000), 1)
    1648.7
    """
    return _sum_over_range(
        lambda t: expected_weight_log_weight(schedule, t, sigma=sigma), start, stop
    )


def _sum_over_range(formula: Callable[[Tensor], Tensor], start: int, stop: int) -> float:
    chunks = distance_chunks(*distance_range(start, stop), _CHUNK)
    return math.fsum(formula(chunk).sum().item() for chunk in chunks)


def expected_shell_mass(
    schedule: LogitSchedule, start: int, stop: int, dimensions: int, *, sigma: float = 1.0
) -> float:
    """`E[Z[start, stop)]`: the expected weight summed over a shell of the lattice.

    `sigma` is the standard deviation of the scores.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> transform = ScaleInvariantTransform(tau=1.0, dimensions=2)
    >>> [round(expected_shell_mass(transform, r, 2 * r, 2), 2) for r in (10, 100)], (
    ...     round(transform.shell_mass_limit(2), 2))
    ([6.33, 7.08], 7.18)
    """
    return _sum_over_shell(
        lambda r: expected_weight(schedule, r, sigma=sigma), start, stop, dimensions
    )


def expected_shell_negentropy(
    schedule: LogitSchedule, start: int, stop: int, dimensions: int, *, sigma: float = 1.0
) -> float:
    """`E[N[start, stop)]`: the expected weight times log-weight summed over a shell of the lattice.

    >>> from scale_invariant_attention.theory import ScaleInvariantTransform
    >>> transform = ScaleInvariantTransform(tau=1.0, dimensions=2)
    >>> [round(expected_shell_negentropy(transform, r, 2 * r, 2), 2) for r in (10, 100)]
    [6.33, 7.08]
    """
    return _sum_over_shell(
        lambda r: expected_weight_log_weight(schedule, r, sigma=sigma), start, stop, dimensions
    )


def _sum_over_shell(
    formula: Callable[[Tensor], Tensor], start: int, stop: int, dimensions: int
) -> float:
    first, end = distance_range(start, stop)
    counts = lattice_points(end**2, integer("dimensions", dimensions, at_least=1))
    squared = counts.nonzero().squeeze(1)
    squared = squared[squared >= first**2]
    return math.fsum((counts[squared] * formula(squared.double().sqrt())).tolist())


def lattice_points(below: int, dimensions: int) -> Tensor:
    """How many points of the lattice have each squared distance ``0 .. below - 1`` from the origin.

    >>> lattice_points(6, dimensions=2).tolist()
    [1.0, 4.0, 4.0, 0.0, 4.0, 8.0]
    """
    squares = torch.arange(math.isqrt(max(0, below - 1)) + 1).square()[:below]
    counts = torch.zeros(below, dtype=torch.float64)
    # On a line, 0 and one point on either side.
    counts[squares] = 2
    counts[:1] = 1
    for _ in range(dimensions - 1):
        more = counts.clone()
        for square in squares[1:].tolist():
            more[square:] += 2 * counts[: below - square]
        counts = more
    return counts


def range_entropy(weights: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """Entropy in nats of `weights` `[..., n]` renormalised inside `[start, stop)` of dimension `n`.

    `H = log Z - N/Z` with `Z = sum w` and `N = sum w log w`. The weights need not sum to one; zeros
    contribute nothing, and a range of zeros alone has entropy 0: nothing is spread over nothing.
    Returns `[...]`, computed in float64; floating weights give their own dtype, integers float64.

    >>> import torch
    >>> range_entropy(torch.tensor([9.0, 1.0, 1.0, 0.0]), start=1).exp()
    tensor(2.)
    """

    def formula(exact: Tensor) -> Tensor:
        valid, hint = (exact >= 0) & (exact < math.inf), "; range_entropy_from_logits takes logits"
        _require("weights", exact, valid, "finite and non-negative", hint)
        return _entropy_inside("weights", exact.log(), start, stop)

    return in_float64("weights", weights, formula)


def range_entropy_from_logits(logits: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """`range_entropy` of `exp(logits)`, for logits `[..., n]` of any size; -inf is a zero weight.

    >>> import torch
    >>> range_entropy_from_logits(torch.tensor([1e4, 1e4, -torch.inf])).exp()
    tensor(2.)
    """

    def formula(exact: Tensor) -> Tensor:
        _require("logits", exact, exact < math.inf, "finite or -inf, without NaN or +inf")
        return _entropy_inside("logits", exact, start, stop)

    return in_float64("logits", logits, formula)


def _require(name: str, values: Tensor, valid: Tensor, rule: str, hint: str = "") -> None:
    if not bool(valid.all()):
        raise ValueError(f"{name} must be {rule}, got {values[~valid][0].item()}{hint}")


def _entropy_inside(name: str, logits: Tensor, start: int, stop: int | None) -> Tensor:
    if logits.dim() == 0:
        raise ValueError(f"{name} must have at least one dimension, [..., n], got a scalar")
    size = logits.shape[-1]
    first, end = distance_range(start, size if stop is None else stop)
    if end > size:
        raise ValueError(f"stop must be at most {size}, the last dimension of {name}, got {end}")
    return RunningSoftmax([logits[..., first:end]]).entropy
