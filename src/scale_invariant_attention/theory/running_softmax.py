"""Softmax statistics of logits that arrive piece by piece, in memory that does not grow."""

from collections.abc import Iterable

import torch
from torch import Tensor

# Stands in for -inf, whose difference with itself and product with zero are undefined.
_LOWEST = torch.finfo(torch.float64).min


class RunningSoftmax:
    """Log-mass and entropy of the softmax over the last dimension of all `pieces` together.

    With `p` the largest logit so far, it holds `sum e^(L-p)` and `sum (L-p) e^(L-p)`, and rescales
    both whenever `p` moves. No term overflows, and both parts of the entropy are non-negative.
    All arithmetic is in float64.

    >>> halves = torch.zeros(8).chunk(2)
    >>> RunningSoftmax(halves).entropy.exp()
    tensor(8.0000, dtype=torch.float64)
    """

    def __init__(self, pieces: Iterable[Tensor] = ()) -> None:
        self._peak = torch.tensor(_LOWEST, dtype=torch.float64)
        self._mass = torch.zeros((), dtype=torch.float64)
        self._moment = torch.zeros((), dtype=torch.float64)
        for logits in pieces:
            self.add(logits)

    def add(self, logits: Tensor) -> None:
        """One more piece, ``[..., n]``; -inf is a zero weight."""
        logits = logits.to(torch.float64)
        previous = self._peak.to(logits.device)
        peak = torch.maximum(previous, logits.amax(-1))
        drop = (previous - peak).clamp(min=_LOWEST)
        decay = drop.exp()
        weights = (logits - peak.unsqueeze(-1)).exp()
        moment = -torch.special.entr(weights).sum(-1)
        self._moment = decay * (self._moment + drop * self._mass) + moment
        self._mass = decay * self._mass + weights.sum(-1)
        self._peak = peak

    @property
    def log_mass(self) -> Tensor:
        """`log sum e^L`; -inf where there is no weight at all."""
        return self._peak + self._mass.log()

    @property
    def entropy(self) -> Tensor:
        """`log Z - N/Z` in nats; 0 where there is no weight at all."""
        mass = self._mass.where(self._mass > 0, 1.0)
        return mass.log() - self._moment / mass
