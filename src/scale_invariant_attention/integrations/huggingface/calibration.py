"""Calibration for models without QK-norm: the mean and spread of each head's scores on sample text.

The transform expects scores of about unit variance. ``convert(model, calibration=...)`` has every
score S become ``(S - mean) / spread`` before the transform, with the numbers measured here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...schemes import Scheme
from .attention import OBSERVER, Observer
from .placing import Placing
from .score_statistics import ScoreSums
from .settings import IMPLEMENTATION
from .slots import NAME, Slots, is_attention


@dataclass(frozen=True, eq=False)
class Calibration:
    """Spread of the scores, float64 ``[layers, heads]``, and their mean, if it is to be taken away.

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
                f"spread must be positive, got {self.spread.tolist()}: a head whose scores are all "
                "equal cannot be calibrated"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        layers, heads = self.spread.shape
        return layers, heads

    @property
    def without_mean(self) -> "Calibration":
        """The same spreads, for scores that are only divided."""
        return Calibration(self.spread)

    def as_lists(self) -> dict[str, list[list[float]]]:
        """As a config holds it."""
        lists = {"spread": self.spread.double().tolist()}
        return lists if self.mean is None else {**lists, "mean": self.mean.double().tolist()}


@torch.no_grad()
def measure_scores(model: Any, batches: Iterable[Any], *, skip_keys: int = 1) -> Calibration:
    """The statistics of the scores in every head while the model reads.

    A model that was not converted reads with its own plain attention; of a converted one these are the
    scores as the transform gets them, so that measuring again tells what a calibration did. The model
    is left as it was.

    Args:
        model: a causal language model of transformers.
        batches: token ids ``[B, L]`` each, or dictionaries of arguments for the model.
        skip_keys: this many keys at the start of every text are left out: first tokens are
            attention sinks, with scores unlike the others.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> measured = measure_scores(model, [torch.randint(256, (2, 100))])
    >>> measured.spread.shape, bool((measured.spread < 0.1).all())      # far from unit variance
    (torch.Size([2, 4]), True)
    """
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    sums = [ScoreSums.zeros(heads) for _ in range(layers)]

    def observe(
        module: nn.Module, query: Tensor, key: Tensor, placing: Placing, scale: float | None
    ) -> None:
        layer: Any = module.layer_idx
        sums[layer].add(query, key, scale=scale, skip_keys=skip_keys, **placing.visibility)

    read = 0
    with _observed(model, observe):
        for batch in batches:
            arguments = batch if hasattr(batch, "keys") else {"input_ids": batch}
            model(**{**arguments, "use_cache": False})
            read += 1
    if read == 0:
        raise ValueError("batches must hold at least one batch of tokens, got none")
    return Calibration(
        torch.stack([layer.spread for layer in sums]), torch.stack([layer.mean for layer in sums])
    )


@contextmanager
def _observed(model: Any, observe: Observer) -> Iterator[None]:
    """A model whose scores are seen by `observe`, with the attention that it has."""
    attention = [module for module in model.modules() if is_attention(module)]
    implementation, training = model.config._attn_implementation, model.training
    plain = implementation != IMPLEMENTATION
    try:
        model.eval()
        model.set_attn_implementation(IMPLEMENTATION)
        for module in attention:
            setattr(module, OBSERVER, observe)
            if plain:
                setattr(module, NAME, Slots(Scheme(), model.config.num_attention_heads))
        yield
    finally:
        for module in attention:
            module.__dict__.pop(OBSERVER, None)
            if plain and NAME in module._modules:
                delattr(module, NAME)
        model.set_attn_implementation(implementation)
        model.train(training)
