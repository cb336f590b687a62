"""The next token from its logits: the most likely one, or a sample."""

from math import inf

import torch
from torch import Tensor

from ..arguments import integer, real_number


class Sampler:
    """Samples tokens, reproducibly if it has a seed.

    >>> Sampler()(torch.tensor([[0.0, 2.0, 1.0]]))
    tensor([1])
    """

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> None:
        self.temperature = real_number("temperature", temperature)
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}")
        if top_k is not None:
            integer("top_k", top_k, at_least=1)
        if top_p is not None and not 0 < real_number("top_p", top_p) <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
        self.top_k = top_k
        self.top_p = top_p
        self.seed = None if seed is None else integer("seed", seed)
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ValueError(f"seed must fit into 64 bits, got {seed}")
        self._generator: torch.Generator | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Tokens ``[B]`` from logits ``[B, V]``."""
        if self.temperature == 0:
            return logits.argmax(-1)
        if self.seed is not None and self._generator is None:
            self._generator = torch.Generator(logits.device).manual_seed(self.seed)
        # Shift the maximum to zero, in float64, so that no temperature is too small.
        logits = (logits - logits.amax(-1, keepdim=True)).double() / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        return torch.multinomial(logits.softmax(-1), 1, generator=self._generator).squeeze(1)


def keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Logits ``[B, V]`` with -inf for all but the `top_k` largest.

    >>> keep_top_k(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    tensor([[-inf, 2., 1.]])
    """
    largest = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, -inf).scatter(-1, largest.indices, largest.values)


def keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Logits ``[B, V]`` with -inf for all but the fewest most likely tokens with total `top_p`.

    >>> keep_top_p(torch.tensor([[0.2, 0.5, 0.3]]).log(), 0.75).exp()
    tensor([[0.0000, 0.5000, 0.3000]])
    """
    if top_p == 1:
        return logits  # rounded sums may reach 1 before the last
    ordered, tokens = logits.sort(-1, descending=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    return torch.full_like(logits, -inf).scatter(
        -1, tokens, ordered.masked_fill(before >= top_p, -inf)
    )
