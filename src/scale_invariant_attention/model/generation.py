"""Autoregressive generation with a KV cache."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..arguments import integer
from .inputs import check_inputs
from .sampling import Sampler

if TYPE_CHECKING:
    from .gpt import GPT


# New tokens that a cache has room for at first: generation often stops before its limit.
ROOM = 1024


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


def write(
    model: "GPT",
    tokens: Tensor,
    token_mask: Tensor | None,
    max_new_tokens: int,
    sampler: Sampler,
    stop_tokens: Sequence[int],
) -> Iterator[Tensor]:
    """Generate the tokens after prompts ``[B, L]``, yielding ``[B]`` at a time; see ``GPT.generate``."""
    check_inputs(model.config.vocab_size, tokens, token_mask=token_mask)
    integer("max_new_tokens", max_new_tokens, at_least=0)
    if not isinstance(stop_tokens, Iterable):
        raise TypeError(
            f"stop_tokens must be a sequence of tokens, got {stop_tokens!r}: pass [{stop_tokens!r}]"
        )
    stops = torch.tensor(
        [integer("stop_tokens", token) for token in stop_tokens],
        dtype=torch.long,
        device=tokens.device,
    )
    if token_mask is not None:
        _check_left_padding(token_mask)
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
        # A row that has ended repeats the token it ended with.
        written = torch.where(ended, written, chosen)
        yield written.clone()  # the caller may change it
        ended |= torch.isin(written, stops)
        if len(ended) and ended.all():
            return
        tokens, token_mask = written.unsqueeze(1), None


def _check_left_padding(token_mask: Tensor) -> None:
    if not bool(token_mask[:, -1].all()) or bool((token_mask[:, :-1] & ~token_mask[:, 1:]).any()):
        raise ValueError(
            "token_mask may be False only on the left of a row, and must be True at its end: "
            "pad prompts on the left, as left_padded does"
        )
