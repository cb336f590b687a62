"""Captures the scores of every attention layer while a transformers model reads, and measures them.

Queries and keys before rotary come from a second call of the layer's attention, as if every token stood
at position 0. There cosines are 1 and sines 0, so the model's own code rotates nothing, whatever its
layout, and layers without rotary compute what they always do.

The transform depends on the spread of a head's scores, which is 1 only with QK-norm, and on their mean:
``convert(model, calibration=...)`` gives it those that were measured.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis import LayerScores
from ..analysis.score_statistics import FIRST_KEYS, ScoreGathering
from ..schemes import Scheme
from ._attention import NAME, OBSERVER, LoadableLayer, is_attention
from ._visibility import TokenLayout
from .settings import IMPLEMENTATION


@torch.no_grad()
def transformers_scores(
    model: Any, tokens: Tensor, visit: Callable[[LayerScores], object], **arguments: Any
) -> None:
    """Read tokens ``[B, L]`` and call `visit` with the scores of every layer, in order.

    ``functools.partial(transformers_scores, model)`` is a :class:`ScoreSource`, so all of `analysis`
    works for transformers models. Scores include the query factors of LogN. They are captured after and
    before rotary, the latter only if the model passes rotary embeddings to its layers. A learned sink
    (gpt-oss) is not among the keys.

    Args:
        model: a causal language model of transformers; left unchanged.
        tokens: token ids.
        visit: called with each layer.
        arguments: further arguments of the model, such as `attention_mask`.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> transformers_scores(model, torch.randint(256, (1, 50)), lambda it: print(it.query.shape))
    torch.Size([1, 4, 50, 16])
    torch.Size([1, 4, 50, 16])
    """
    with _capturing(model, visit):
        model(**{**arguments, "input_ids": tokens, "use_cache": False})


@dataclass(frozen=True, eq=False)
class Calibration:
    """Spread of the scores, sigma, float64 ``[layers, heads]``, and their mean, mu; None counts as 0.

    >>> Calibration(spread=torch.ones(2, 4)).shape
    (2, 4)
    """

    spread: Tensor
    mean: Tensor | None = None

    def __post_init__(self) -> None:
        for name, values in (("spread", self.spread), ("mean", self.mean)):
            if values is None:
                continue
            if values.ndim != 2 or values.shape != self.spread.shape:
                raise ValueError(f"{name} must be [layers, heads], got shape {tuple(values.shape)}")
            if not bool(torch.isfinite(values).all()):
                raise ValueError(f"{name} must be finite, got {values.tolist()}")
        if not bool((self.spread > 0).all()):
            raise ValueError(
                f"spread must be positive, got {self.spread.tolist()}: scores of a head are all equal"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers and of heads."""
        layers, heads = self.spread.shape
        return layers, heads

    @property
    def without_mean(self) -> "Calibration":
        """The same spreads with the mean 0."""
        return Calibration(self.spread)

    @classmethod
    def from_lists(cls, held: dict[str, list[list[float]]]) -> "Calibration":
        """The calibration that :meth:`as_lists` wrote."""
        return cls(**{name: torch.tensor(it, dtype=torch.float64) for name, it in held.items()})

    def as_lists(self) -> dict[str, list[list[float]]]:
        """The calibration as a config holds it."""
        lists = {"spread": self.spread.double().tolist()}
        return lists if self.mean is None else {**lists, "mean": self.mean.double().tolist()}


@torch.no_grad()
def measure_scores(
    model: Any, batches: Iterable[Any], *, skip_keys: int = FIRST_KEYS
) -> Calibration:
    """Measure mean and spread of every head's scores while the model reads.

    Scores are those that enter the transform, or that would: after rotary. So convert to the rotary of
    the new scheme first, and measure then. A model that was not converted reads with plain attention.

    Args:
        model: a causal language model of transformers; left unchanged.
        batches: token ids ``[B, L]`` each, or dictionaries of arguments for the model.
        skip_keys: keys to skip at the start of every text, which are often attention sinks.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> measured = measure_scores(model, [torch.randint(256, (2, 100))])
    >>> measured.spread.shape, bool((measured.spread < 0.1).all())      # far from 1
    (torch.Size([2, 4]), True)
    """
    gathered = [ScoreGathering(skip_keys) for _ in range(model.config.num_hidden_layers)]
    count = 0
    with _capturing(model, lambda scores: gathered[scores.layer].add(scores)):
        for batch in batches:
            arguments = {"input_ids": batch} if isinstance(batch, Tensor) else batch
            if not hasattr(arguments, "keys") or (isinstance(batch, Tensor) and batch.ndim != 2):
                raise ValueError(
                    "batches must hold token ids [B, L] or dictionaries, got "
                    f"{getattr(batch, 'shape', batch)}: put a single batch into a list"
                )
            model(**{**arguments, "use_cache": False})
            count += 1
    if count == 0:
        raise ValueError("batches must hold at least one batch of tokens, got none")
    moments = [layer.moments for layer in gathered]
    unmeasured = [layer for layer, scores in enumerate(moments) if not scores.count]
    if unmeasured:
        raise NotImplementedError(
            f"layers {unmeasured} of {type(model).__name__} have no attention, which calibration needs"
        )
    mean, variance = zip(*(layer.central[:2] for layer in moments), strict=True)
    # Layers may be on different devices.
    return Calibration(
        torch.stack([each.cpu() for each in variance]).sqrt(),
        torch.stack([each.cpu() for each in mean]),
    )


@contextmanager
def _capturing(model: Any, visit: Callable[[LayerScores], object]) -> Iterator[None]:
    """Call `visit` with the scores of every layer that runs in this context."""
    attention = [module for module in model.modules() if is_attention(module)]
    implementation, training = model.config._attn_implementation, model.training
    plain = implementation != IMPLEMENTATION
    # A converted model may have been switched to another implementation.
    schemes_before = {module: getattr(module, NAME, None) for module in attention}
    before_rotary: dict[nn.Module, tuple[Tensor, Tensor] | None] = {}

    def capture_before_rotary(module: nn.Module, *call: Any) -> None:
        before_rotary[module] = _before_rotary(module, *call)

    def observe(
        module: Any,
        layer: LoadableLayer,
        query: Tensor,
        key: Tensor,
        layout: TokenLayout,
        scale: float | None,
    ) -> None:
        # Captured once per call of the module, even if it attends twice.
        before = before_rotary.pop(module, None)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        visit(
            LayerScores(
                module.layer_idx,
                query,
                key,
                layer.affine(layout.span, query),
                scale,
                layout.visibility,
                unrotated=before,
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
                setattr(module, NAME, LoadableLayer(Scheme(), model.config.num_attention_heads))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, scheme in schemes_before.items():
            module.__dict__.pop(OBSERVER, None)
            if scheme is not None:
                setattr(module, NAME, scheme)
            elif NAME in module._modules:
                delattr(module, NAME)
        model.set_attn_implementation(implementation)
        model.train(training)


class _CapturedError(Exception):
    """Ends a layer's call, with its queries and keys, as soon as they are known."""


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
        query, key = captured.args
        return query, key
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
