"""Gain and bias by distance: the only slot that acts between the scores and the softmax.

logit(i, j) = gain(t) * scale * q_i . k_j + bias(t),    t the distance between i and j
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..arguments import integer, positive_number, real_number, shown
from ..theory.schedules import alibi_bias
from ..theory.transform import scale_invariant_gain_and_bias
from .numerics import check_dense, holds_values

# The ratio of any distance to it stays finite in float32.
SMALLEST_TAU = 1e-19
LARGEST_TAU = torch.finfo(torch.float64).max
# A tuple, because a union would be built at every use.
NUMBERS = (float, int)
LEARNED = ": to learn it, learn its logarithm, and pass log_{name}.exp()"


@dataclass(frozen=True, eq=False)
class DistanceAffine:
    """A gain and a bias for every distance ``0 .. length - 1``.

    Each table is ``[length]``, shared by the heads, or ``[heads, length]``. Both may require grad.
    Between tokens with coordinates, whose distance need not be an integer, they are interpolated.

    >>> affine = DistanceAffine.scale_invariant(4096)
    >>> affine.length, affine.gain[0].item(), affine.bias[0].item()
    (4096, 1.0, 0.0)
    """

    gain: Tensor
    bias: Tensor

    def __post_init__(self) -> None:
        for name, table in (("gain", self.gain), ("bias", self.bias)):
            if not isinstance(table, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(table).__name__}")
            check_dense(name, table)
            if not table.dtype.is_floating_point:
                raise TypeError(f"{name} must be a floating-point tensor, got {table.dtype}")
            if table.ndim not in (1, 2) or table.shape[-1] == 0:
                raise ValueError(
                    f"{name} must be [length] or [heads, length] with length >= 1, "
                    f"got shape {tuple(table.shape)}"
                )
        lengths = self.gain.shape[-1], self.bias.shape[-1]
        if lengths[0] != lengths[1]:
            raise ValueError(f"gain and bias must cover the same distances, got lengths {lengths}")
        if self.gain.device != self.bias.device:
            devices = f"{self.gain.device} and {self.bias.device}"
            raise ValueError(f"gain and bias must be on one device, got {devices}")

    @property
    def length(self) -> int:
        """Number of distances in the tables."""
        return self.gain.shape[-1]

    @classmethod
    def identity(cls, length: int, *, device: torch.device | str | None = None) -> "DistanceAffine":
        """Gain 1 and bias 0: ordinary attention."""
        _require_length(length)
        return cls(torch.ones(length, device=device), torch.zeros(length, device=device))

    @classmethod
    def scale_invariant(
        cls,
        length: int,
        tau: float | Tensor = 10.0,
        *,
        sigma: float | Tensor = 1.0,
        mu: float | Tensor = 0.0,
        dimensions: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "DistanceAffine":
        """The scale-invariant transform for scores with the standard deviation `sigma` and mean `mu`.

        Each of the three is a number or a tensor ``[]`` or ``[heads]``, even learned. `dimensions` is
        the number of coordinates per token.

        >>> spreads = torch.tensor([1.0, 4.0])
        >>> DistanceAffine.scale_invariant(100, sigma=spreads).gain[:, 99]
        tensor([2.4036, 1.1396])
        """
        _require_length(length)
        given = {"tau": tau, "sigma": sigma, "mu": mu}
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        device = tensors[0].device if tensors and device is None else device
        distance = torch.arange(length, dtype=torch.float64, device=device)
        columns = {name: _column(name, value, distance.device) for name, value in given.items()}
        dimensions = integer("dimensions", dimensions, at_least=1)
        tables = scale_invariant_gain_and_bias(distance, **columns, dimensions=dimensions)
        # A single row is for all heads.
        gain, bias = (table[0] if table.shape[0] == 1 else table for table in tables)
        return cls(gain.to(dtype), bias.to(dtype))

    @classmethod
    def alibi(cls, length: int, slopes: Tensor) -> "DistanceAffine":
        """Gain 1 and bias ``-slope * t``, with one slope per head."""
        _require_length(length)
        if not isinstance(slopes, Tensor) or slopes.ndim != 1:
            raise ValueError(f"slopes must be a tensor [heads], got {slopes!r}")
        distance = torch.arange(length, dtype=torch.float64, device=slopes.device)
        dtype = torch.promote_types(slopes.dtype, torch.float32)
        bias = alibi_bias(distance, slopes.unsqueeze(-1).double()).to(dtype)
        return cls(torch.ones(length, dtype=dtype, device=slopes.device), bias)


def look_up(table: Tensor, distance: Tensor) -> Tensor:
    """``[rows, length]`` at distances of any shape: ``[rows, *distance]``.

    Between two integers the table is linear. Distances beyond it count as its last one: they belong to
    hidden pairs, as checked by the contract.

    >>> look_up(torch.tensor([[0.0, 10.0, 30.0]]), torch.tensor([0.0, 1.5, 2.0]))
    tensor([[ 0., 20., 30.]])
    """
    last = table.shape[1] - 1
    if not distance.is_floating_point():
        return table[:, distance.clamp_max(last)]
    below, above, share = neighbours(distance, last)
    # Without a share, a bias of -inf has no effect.
    between = (1 - share) * table[:, below] + share * table[:, above]
    return torch.where(share == 0, table[:, below], between)


def neighbours(distance: Tensor, last: int) -> tuple[Tensor, Tensor, Tensor]:
    """The integers below and above a distance, at most `last`, and the share of the one above."""
    floor = distance.floor()
    below, above = (it.long().clamp_max(last) for it in (floor, distance.ceil()))
    return below, above, distance - floor


def _column(name: str, value: float | Tensor, device: torch.device) -> float | Tensor:
    """tau, sigma or mu of :meth:`DistanceAffine.scale_invariant`, tensors as ``[1 or heads, 1]``."""
    if isinstance(value, Tensor) and value.ndim > 1:
        raise ValueError(f"{name} must be [] or [heads], got shape {tuple(value.shape)}")
    value = value.to(device) if isinstance(value, Tensor) else value
    if name == "tau":
        return tau_tensor(value, device).unsqueeze(-1)
    if not isinstance(value, Tensor):
        return positive_number(name, value) if name == "sigma" else real_number(name, value)
    if name == "sigma":
        check_positive(name, value)
    return value.reshape(-1, 1)


def tau_tensor(tau: float | Tensor | None, device: torch.device) -> Tensor:
    """tau as a tensor ``[1 or heads]``; raises unless it is positive and finite."""
    if isinstance(tau, Tensor):
        if not tau.dtype.is_floating_point:
            raise TypeError(f"tau must be a floating-point tensor, got {tau.dtype}")
        check_positive("tau", tau)
        return tau.reshape(-1)
    if isinstance(tau, bool) or not isinstance(tau, NUMBERS):
        hint = ": use torch.tensor(tau)" if isinstance(tau, list | tuple) else ""
        raise TypeError(f"tau must be a number or a tensor [] or [heads], got {tau!r}{hint}")
    if not SMALLEST_TAU <= tau <= LARGEST_TAU:
        raise ValueError(f"tau must be positive and finite{_bound(tau)}, got {shown(tau)}")
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    if watched or device.type != "cpu" or torch._C._functorch.maybe_current_level() is not None:
        # A product, because with torch.full a compiler would build a graph for every value.
        return torch.ones(1, dtype=torch.float64, device=device) * tau
    return _constant(float(tau))


@lru_cache(maxsize=64)
def _constant(value: float) -> Tensor:
    """A cached tensor ``[1]``: for short calls, creating it would take longer than using it."""
    with torch.inference_mode(False):
        return torch.full((1,), value, dtype=torch.float64, device="cpu")


def check_positive(name: str, values: Tensor) -> None:
    """Raise if values are not positive and finite, provided they can be read."""
    if not holds_values(values):
        return
    if values.device.type != "cpu":
        # Reading the values would stall the GPU; it reports the failure on its own.
        sound = (torch.isfinite(values) & (values.double() >= SMALLEST_TAU)).all()
        torch._assert_async(sound, f"{name} must be positive and finite{LEARNED.format(name=name)}")
        return
    wrong = [it for it in values.flatten().tolist() if not SMALLEST_TAU <= it <= LARGEST_TAU]
    if wrong:
        learned = LEARNED if wrong[0] <= 0 else ""
        raise ValueError(
            f"{name} must be positive and finite{_bound(wrong[0])}, got {values.tolist()}"
            f"{learned.format(name=name)}"
        )


def _bound(value: float) -> str:
    """Name the lower bound for a positive value below it."""
    return f" and at least {SMALLEST_TAU:g}" if 0 < value < SMALLEST_TAU else ""


def _require_length(length: int) -> None:
    if isinstance(length, bool) or not isinstance(length, int | torch.SymInt) or length < 1:
        raise ValueError(f"length must be an integer of at least 1, got {length!r}")
