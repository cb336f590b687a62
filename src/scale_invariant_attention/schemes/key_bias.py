"""The fourth slot of a scheme: a bias per key, computed from the input of a layer.

The bias of a key is the sum of a step for each token of its document up to it. Shapes: B batch, H heads,
L tokens, W width.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class KeyBias(Protocol):
    """Steps of a bias from one key to the next, and the parameters they take in each layer."""

    def build(self, heads: int, width: int) -> nn.Module:
        """The module of one layer, from its input ``[B, L, width]`` to steps ``[B, heads, L]``.

        They are float64.
        """


@dataclass(frozen=True)
class ForgetGate:
    """The Forgetting Transformer: each token multiplies the weights of all earlier keys by a gate.

    With gates ``f = sigmoid(w . x + b)`` per head, and ``c_i`` the sum of ``log f`` up to token i, the
    logit of query i and key j gets ``c_i - c_j``. As ``c_i`` is the same for all keys, it cancels in the
    softmax; ``-c_j`` is the bias of the key, whose steps are ``-log f``.
    """

    def build(self, heads: int, width: int) -> nn.Module:
        """The gates of a layer, with parameters ``[heads, width]`` and ``[heads]``."""
        return ForgetGates(width, heads)


class ForgetGates(nn.Linear):
    """Steps ``-log(sigmoid(w . x + b))``; `w` starts small and random, `b` at 0."""

    def reset_parameters(self) -> None:
        """Initialise as the Forgetting Transformer does."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, W]`` to ``[B, H, L]``, float64."""
        return -F.logsigmoid(super().forward(x).double()).transpose(1, 2)


def running_bias(
    steps: Tensor,
    token_mask: Tensor | None = None,
    documents: Tensor | None = None,
    earlier: Tensor | None = None,
) -> Tensor:
    """The bias of each key ``[B, H, L]``: the sum of the steps of its document up to it.

    Args:
        steps: ``[B, H, L]``.
        token_mask: bool ``[B, L]``, False for padding, whose steps are left out.
        documents: ``[B, L]``, the numbers of documents, each a run of neighbours.
        earlier: the bias of the last token before these, ``[B, H, 1]``.

    >>> running_bias(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), documents=torch.tensor([[0, 0, 1, 1]]))
    tensor([[[1., 3., 3., 7.]]])
    """
    if token_mask is not None:
        steps = steps.masked_fill(~token_mask.unsqueeze(1), 0)
    if earlier is not None:
        return torch.cat([earlier, steps], -1).cumsum(-1)[..., 1:]
    total = steps.cumsum(-1)
    if documents is None:
        return total
    indices = torch.arange(steps.shape[-1], device=steps.device)
    starts = documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0
    first = torch.where(starts, indices, 0).cummax(1).values.unsqueeze(1).expand_as(steps)
    # A constant per document, which changes no weight, and keeps the sums small.
    return total - (total - steps).detach().gather(-1, first)
