"""Captures the scores of every attention layer while a transformers model reads.

Queries and keys before rotary come from a second call of the layer's attention, as if every token stood
at position 0. There cosines are 1 and sines 0, so the model's own code rotates nothing, whatever its
layout, and layers without rotary compute what they always do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis import LayerScores
from ..schemes import Scheme
from ._attention import OBSERVER
from ._layer import NAME, CalibratedLayer, is_attention
from ._visibility import TokenLayout
from .settings import IMPLEMENTATION


@torch.no_grad()
def transformers_scores(
    model: Any, tokens: Tensor, visit: Callable[[LayerScores], object], **arguments: Any
) -> None:
    """Read tokens ``[B, L]`` and call `visit` with the scores of every layer, in order.

    ``functools.partial(transformers_scores, model)`` is a :class:`ScoreSource`, so all of `analysis`
    works for transformers models. Scores include the query factors of LogN and of a calibration. They
    are captured after and before rotary, the latter only if the model passes rotary embeddings to its
    layers. A learned sink (gpt-oss) is not among the keys.

    Args:
        model: a causal language model of transformers; left unchanged.
        tokens: token ids.
        visit: called with one layer at a time.
        arguments: further arguments of the model, such as `attention_mask`.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> transformers_scores(model, torch.randint(256, (1, 50)), lambda it: print(it.query.shape))
    torch.Size([1, 4, 50, 16])
    torch.Size([1, 4, 50, 16])
    """
    with capturing(model, visit):
        model(**{**arguments, "input_ids": tokens, "use_cache": False})


@contextmanager
def capturing(model: Any, visit: Callable[[LayerScores], object]) -> Iterator[None]:
    """Call `visit` with the scores of every layer that runs in this context."""
    attention = [module for module in model.modules() if is_attention(module)]
    implementation, training = model.config._attn_implementation, model.training
    plain = implementation != IMPLEMENTATION
    # A converted model may have been switched to another implementation.
    schemes_before = {
        module: module._modules[NAME] for module in attention if hasattr(module, NAME)
    }
    before_rotary: dict[nn.Module, tuple[Tensor, Tensor] | None] = {}

    def capture_before_rotary(
        module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        before_rotary[module] = _before_rotary(module, arguments, named)

    def observe(
        module: nn.Module,
        layer: CalibratedLayer,
        query: Tensor,
        key: Tensor,
        layout: TokenLayout,
        scale: float | None,
    ) -> None:
        index: Any = module.layer_idx
        # Captured once per call of the module, even if it attends twice.
        before = before_rotary.pop(module, None)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        shift = layer.shift(query.device)
        visit(
            LayerScores(
                index,
                *_shifted(query, key, shift, scale),
                layer.affine(layout.span, query),
                scale,
                layout.visibility,
                unrotated=None if before is None else _shifted(*before, shift, scale),
                rotary_known=before is not None,
            )
        )

    hooks = [
        module.register_forward_pre_hook(capture_before_rotary, with_kwargs=True)
        for module in attention
    ]
    try:
        model.eval()
        model.set_attn_implementation(IMPLEMENTATION)
        for module in attention:
            setattr(module, OBSERVER, observe)
            if plain:
                setattr(module, NAME, CalibratedLayer(Scheme(), model.config.num_attention_heads))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in attention:
            module.__dict__.pop(OBSERVER, None)
            if plain and NAME in module._modules:
                delattr(module, NAME)
            if module in schemes_before:
                setattr(module, NAME, schemes_before[module])
        model.set_attn_implementation(implementation)
        model.train(training)


class _CapturedError(Exception):
    """Ends a layer's call as soon as its queries and keys are known."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        super().__init__()
        self.query, self.key = query, key


def _before_rotary(
    attention: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """Query and key of a call without rotary, the query with its scheme's factors.

    None if the call has no rotary embedding of a known form.
    """
    embedding = _at_position_zero(named.get("position_embeddings"))
    if embedding is None:
        return None

    def stop(module: nn.Module, layer: Any, query: Tensor, key: Tensor, *others: Any) -> None:
        raise _CapturedError(query, key)

    observer = getattr(attention, OBSERVER)
    setattr(attention, OBSERVER, stop)
    try:
        attention.forward(*arguments, **{**named, "position_embeddings": embedding})
    except _CapturedError as captured:
        return captured.query, captured.key
    finally:
        setattr(attention, OBSERVER, observer)
    return None


def _at_position_zero(embedding: Any) -> Any:
    """The rotary embedding of position 0 for every token: cosines and sines, or complex numbers."""
    if isinstance(embedding, Tensor) and embedding.is_complex():
        return torch.ones_like(embedding)
    if isinstance(embedding, tuple) and len(embedding) == 2:
        cosine, sine = embedding
        return torch.ones_like(cosine), torch.zeros_like(sine)
    return None


def _shifted(
    query: Tensor, key: Tensor, shift: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Query and key with one more dimension, which adds each head's shift to its scores."""
    if shift is None:
        return query, key
    factor = (shift / scale).to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
    return torch.cat([query, factor], -1), torch.cat([key, torch.ones_like(key[..., :1])], -1)
