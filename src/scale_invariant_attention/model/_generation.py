"""Autoregressive generation with a KV cache: sampling the next token, and streaming tokens."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..arguments import integer, real_number
from .inputs import check_inputs

if TYPE_CHECKING:
    from .gpt import GPT


# New tokens that a cache has room for at first: limits are often set higher than they are reached.
ROOM = 1024


class Sampler:
    """Choose the next token from its logits: the likeliest, or a sample, reproducible with a seed.

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
        # With the largest at zero, in float64, no temperature is too small.
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
    """Logits ``[B, V]`` with -inf except for the fewest likeliest tokens that together have `top_p`.

    >>> keep_top_p(torch.tensor([[0.2, 0.5, 0.3]]).log(), 0.75).exp()
    tensor([[0.0000, 0.5000, 0.3000]])
    """
    if top_p == 1:
        return logits  # rounded sums may reach 1 too early
    ordered, tokens = logits.sort(-1, descending=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    kept = ordered.masked_fill(before >= top_p, -inf)
    return torch.full_like(logits, -inf).scatter(-1, tokens, kept)


def left_padded(prompts: Sequence[Sequence[int]], pad_token: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths as tokens and token mask ``[B, longest]``, padded on the left.

    >>> tokens, token_mask = left_padded([[5, 6, 7], [8]])
    >>> tokens.tolist(), token_mask.tolist()
    ([[5, 6, 7], [0, 0, 8]], [[True, True, True], [False, False, True]])
    """
    longest = max((len(prompt) for prompt in prompts), default=0)
    if not prompts or min(len(prompt) for prompt in prompts) == 0:
        raise ValueError("prompts must contain at least one prompt, and each at least one token")
    tokens = [[pad_token] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(tokens), torch.tensor(mask)


def generate_tokens(
    model: "GPT",
    tokens: Tensor,
    token_mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    stop_tokens: Sequence[int],
) -> Iterator[Tensor]:
    """The tokens generated after prompts ``[B, L]``, ``[B]`` per step; see ``GPT.generate``."""
    model.config.check_is_causal("generation")
    check_inputs(model.config.vocab_size, tokens, token_mask=token_mask)
    integer("max_new_tokens", max_new_tokens, at_least=0)
    if not isinstance(stop_tokens, Iterable):
        raise TypeError(
            f"stop_tokens must be a sequence of tokens, got {stop_tokens!r}: pass [{stop_tokens!r}]"
        )
    numbers = [integer("stop_tokens", token) for token in stop_tokens]
    stops = torch.tensor(numbers, dtype=torch.long, device=tokens.device)
    if token_mask is not None:
        padded_later = token_mask[:, :-1] & ~token_mask[:, 1:]
        if bool(padded_later.any()) or not bool(token_mask[:, -1].all()):
            raise ValueError(
                "token_mask may be False only on the left of a row, and must be True at its end: "
                "pad prompts on the left, as left_padded does"
            )
    return _steps(model, tokens, token_mask, max_new_tokens, sampler, stops)


@torch.no_grad()
def _steps(
    model: "GPT",
    tokens: Tensor,
    token_mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    stops: Tensor,
) -> Iterator[Tensor]:
    lengths = tokens.shape[1] if token_mask is None else token_mask.sum(1)
    room = tokens.shape[1] + min(max_new_tokens, ROOM)
    cache = model.new_cache(context_length=lengths + max_new_tokens, room=room)
    ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    written = tokens[:, -1]
    for _ in range(max_new_tokens):
        hidden = model.hidden_states(tokens, token_mask=token_mask, cache=cache)
        chosen = sampler(model.logits(hidden[:, -1]))
        # A finished row repeats its last token.
        written = torch.where(ended, written, chosen)
        yield written.clone()  # the caller may modify it
        ended |= torch.isin(written, stops)
        if len(ended) and ended.all():
            return
        tokens, token_mask = written.unsqueeze(1), None
