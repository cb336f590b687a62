"""Mean, variance, skewness and kurtosis of values that arrive piece by piece."""

import torch
from torch import Tensor

POWERS = (1, 2, 3, 4)


class Moments:
    """Of several rows of values, such as the scores of each head, in float64.

    Powers are summed about the mean of the first piece, so that they do not cancel where the mean is far
    from zero.

    >>> moments = Moments()
    >>> for piece in torch.arange(8.0).chunk(2):
    ...     moments.add(piece.view(1, 4))
    >>> moments.mean, moments.variance
    (tensor([3.5000], dtype=torch.float64), tensor([5.2500], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0  # of values in each row
        self._shift = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(len(POWERS), 0, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Some more values, ``[rows, any number]``."""
        if values.shape[1] == 0:
            return
        values = values.double()
        if self.count == 0:
            self._shift = values.mean(1)
            self._sums = values.new_zeros(len(POWERS), len(values))
        centred = values - self._shift.unsqueeze(1)
        self._sums = self._sums + torch.stack([centred.pow(power).sum(1) for power in POWERS])
        self.count += values.shape[1]

    @property
    def mean(self) -> Tensor:
        """``[rows]``."""
        return self._shift + self._raw[0]

    @property
    def variance(self) -> Tensor:
        """``[rows]``, of all values rather than of a sample."""
        return self._central[0]

    @property
    def spread(self) -> Tensor:
        """The standard deviation, ``[rows]``."""
        return self.variance.sqrt()

    @property
    def skewness(self) -> Tensor:
        """``[rows]``; 0 for a Gaussian, and NaN where nothing varies."""
        variance, third, _ = self._central
        return third / variance.pow(1.5)

    @property
    def kurtosis(self) -> Tensor:
        """The excess over a Gaussian's, ``[rows]``; NaN where nothing varies."""
        variance, _, fourth = self._central
        return fourth / variance.square() - 3

    @property
    def _raw(self) -> Tensor:
        if self.count == 0:
            raise ValueError("moments need values, got none: no query sees a key that counts")
        return self._sums / self.count

    @property
    def _central(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, second, third, fourth = self._raw
        return (
            (second - mean**2).clamp(min=0),
            third - 3 * mean * second + 2 * mean**3,
            fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4,
        )
