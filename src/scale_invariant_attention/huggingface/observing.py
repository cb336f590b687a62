"""What the layers of a transformers model compute their attention from, seen while it reads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis import LayerScores
from ..schemes import Scheme
from .attention import OBSERVER
from .placing import Placing
from .settings import IMPLEMENTATION
from .slots import NAME, Slots, is_attention
from .unrotated import unrotated


@torch.no_grad()
def transformers_scores(
    model: Any, tokens: Tensor, visit: Callable[[LayerScores], object], **arguments: Any
) -> None:
    """Read tokens ``[B, L]`` and call `visit` with every layer's scores, the first layer first.

    ``functools.partial(transformers_scores, model)`` is a :class:`ScoreSource`, so that all of
    `analysis` works for models of transformers. Scores are as the layer's scheme gets them, with the
    factors of LogN and of a calibration, after rotary and before it; of a family that does not hand its
    layers a rotary embedding they are not known before it. A learned sink (gpt-oss) is not among the
    keys.

    Args:
        model: a causal language model of transformers; it is left as it was.
        tokens: token ids.
        visit: called with each layer, one at a time.
        arguments: what the model takes besides, such as `attention_mask`.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> transformers_scores(model, torch.randint(256, (1, 50)), lambda it: print(it.query.shape))
    torch.Size([1, 4, 50, 16])
    torch.Size([1, 4, 50, 16])
    """
    with observed(model, visit):
        model(**{**arguments, "input_ids": tokens, "use_cache": False})


@contextmanager
def observed(model: Any, visit: Callable[[LayerScores], object]) -> Iterator[None]:
    """A model that shows `visit` the scores of every layer, with the attention that it has."""
    attention = [module for module in model.modules() if is_attention(module)]
    implementation, training = model.config._attn_implementation, model.training
    plain = implementation != IMPLEMENTATION
    # Also those of a converted model that was switched to another implementation.
    slots_before = {module: module._modules[NAME] for module in attention if hasattr(module, NAME)}
    before_rotary: dict[nn.Module, tuple[Tensor, Tensor] | None] = {}

    def look_before(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        before_rotary[module] = unrotated(module, arguments, named)

    def observe(
        module: nn.Module,
        slots: Slots,
        query: Tensor,
        key: Tensor,
        placing: Placing,
        scale: float | None,
    ) -> None:
        layer: Any = module.layer_idx
        # Known once: a layer that attends twice shows the second time without it.
        before = before_rotary.pop(module, None)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        shift = slots.shift(query.device)
        visit(
            LayerScores(
                layer,
                *_shifted(query, key, shift, scale),
                slots.tables_of_scheme(placing, query),
                scale,
                placing.visibility,
                unrotated=None if before is None else _shifted(*before, shift, scale),
                rotary_known=before is not None,
            )
        )

    hooks = [
        module.register_forward_pre_hook(look_before, with_kwargs=True) for module in attention
    ]
    try:
        model.eval()
        model.set_attn_implementation(IMPLEMENTATION)
        for module in attention:
            setattr(module, OBSERVER, observe)
            if plain:
                setattr(module, NAME, Slots(Scheme(), model.config.num_attention_heads))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in attention:
            module.__dict__.pop(OBSERVER, None)
            if plain and NAME in module._modules:
                delattr(module, NAME)
            if module in slots_before:
                setattr(module, NAME, slots_before[module])
        model.set_attn_implementation(implementation)
        model.train(training)


def _shifted(
    query: Tensor, key: Tensor, shift: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Query and key with a dimension more, which adds each head's shift to its scores."""
    if shift is None:
        return query, key
    factor = (shift / scale).to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
    return torch.cat([query, factor], -1), torch.cat([key, torch.ones_like(key[..., :1])], -1)
