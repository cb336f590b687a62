"""Which frequencies rotate queries and keys: the tables of RoPE and its relatives, in float64.

A head of `head_dim` dimensions has ``head_dim / 2`` pairs; pair `k` of a token at position `i` is turned
by the angle ``i * frequency[k]``. Every function gives frequencies ``[..., head_dim / 2]``, highest first.
"""

import math

import torch
from torch import Tensor


def rope_frequencies(head_dim: int, base: float | Tensor = 10_000.0) -> Tensor:
    """RoPE: ``base ^ (-2k / head_dim)``; a tensor of bases ``[...]`` gives a table for each.

    >>> rope_frequencies(8, base=16.0).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    if not isinstance(base, Tensor):
        return base**-exponents
    return base.unsqueeze(-1) ** -exponents.to(base.device)


def truncated_frequencies(head_dim: int, base: float = 1024.0) -> Tensor:
    """p-RoPE as the paper has it: half of the pairs turn, at frequencies from 1 down to ``1 / base``.

    With ``n = head_dim / 4`` pairs that turn these are ``base ^ (-k / (n - 1))``; the others stand
    still.

    >>> truncated_frequencies(16, base=8.0)
    tensor([1.0000, 0.5000, 0.2500, 0.1250, 0.0000, 0.0000, 0.0000, 0.0000],
           dtype=torch.float64)
    """
    turning = base ** -torch.linspace(0, 1, head_dim // 4, dtype=torch.float64)
    return _with_still_pairs(turning, head_dim)


def proportional_frequencies(head_dim: int, fraction: float, base: float = 10_000.0) -> Tensor:
    """p-RoPE in its general form: the highest `fraction` of RoPE's frequencies; the others are 0.

    >>> proportional_frequencies(8, fraction=0.5, base=16.0).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    turning = int(fraction * head_dim // 2)
    return _with_still_pairs(rope_frequencies(head_dim, base)[:turning], head_dim)


def ntk_frequencies(head_dim: int, stretch: float | Tensor, base: float = 10_000.0) -> Tensor:
    """RoPE with its base raised: ``base * stretch ^ (head_dim / (head_dim - 2))``.

    The lowest frequency is divided by `stretch`, the highest stays.

    >>> ntk_frequencies(4, stretch=3.0, base=100.0).tolist()
    [1.0, 0.0333...]
    """
    if head_dim == 2:
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
    """RoPE with its low frequencies divided by `stretch`, and a ramp towards the high ones.

    A pair that makes `fast_rotations` or more within `train_length` keeps its frequency, one that makes
    `slow_rotations` or fewer is divided; between them the share grows linearly with the pair's number.

    >>> yarn_frequencies(8, stretch=4.0, train_length=64, base=16.0).tolist()
    [1.0, 0.40625, 0.15625, 0.0546875]
    """
    frequencies = rope_frequencies(head_dim, base)

    def pair_with(rotations: float) -> float:
        return head_dim * math.log(train_length / (rotations * math.tau)) / (2 * math.log(base))

    first = max(math.floor(pair_with(fast_rotations)), 0)
    last = min(math.ceil(pair_with(slow_rotations)), head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float64)
    # Where both ends meet the ramp is a step.
    divided = ((pairs - first) / max(last - first, 0.001)).clamp(0, 1)
    if isinstance(stretch, Tensor):
        stretch = stretch.unsqueeze(-1)
        frequencies, divided = frequencies.to(stretch.device), divided.to(stretch.device)
    return frequencies * (divided / stretch + (1 - divided))


def _with_still_pairs(turning: Tensor, head_dim: int) -> Tensor:
    still = head_dim // 2 - turning.shape[0]
    return torch.cat([turning, turning.new_zeros(still)])
