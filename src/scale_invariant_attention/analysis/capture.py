"""The scores of our GPT, layer by layer, while it reads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.numerics import compute_dtype
from ..model import GPT
from ..model.block import Attention, ForwardPass
from .scores import LayerScores


@torch.no_grad()
def gpt_scores(
    model: GPT, tokens: Tensor, visit: Callable[[LayerScores], object], **placing: Any
) -> None:
    """Read tokens ``[B, L]`` and call `visit` with every layer's scores, the first layer first.

    `placing` is what ``GPT.hidden_states`` takes beside tokens: positions, documents, token_mask and
    context_length. The model is left as it was. ``functools.partial(gpt_scores, model)`` is a
    :class:`ScoreSource`.

    >>> from scale_invariant_attention.model import GPTConfig
    >>> model = GPT(GPTConfig.preset("mini"))
    >>> gpt_scores(model, torch.zeros(1, 50, dtype=torch.long), lambda it: print(it.query.shape))
    torch.Size([1, 4, 50, 32])
    torch.Size([1, 4, 50, 32])
    torch.Size([1, 4, 50, 32])
    torch.Size([1, 4, 50, 32])
    """
    if placing.get("cache") is not None:
        raise ValueError("cache must be None: scores are of texts that are read whole")

    def look(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(module, Attention)
        visit(_layer_scores(module, *arguments))

    hooks = [
        module.register_forward_pre_hook(look)
        for module in model.modules()
        if isinstance(module, Attention)
    ]
    try:
        model.hidden_states(tokens, **placing)
    finally:
        for hook in hooks:
            hook.remove()


def _layer_scores(attention: Attention, x: Tensor, call: ForwardPass) -> LayerScores:
    plain = attention.queries_and_keys(x)
    rotate, dtype = call.rotate, compute_dtype(plain[0].dtype)
    query, key = plain if rotate is None else (rotate(plain[0]), rotate(plain[1]))
    return LayerScores(
        attention.layer,
        query,
        key,
        attention.affine(call, query),
        visibility=call.layout.visibility,
        query_scale=attention.scheme.query_factors(call.layout.tokens, dtype),
        unrotated=None if rotate is None else plain,
    )
