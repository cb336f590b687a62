"""Calibration for models without QK-norm: the mean and spread of each head's scores on sample text.

The transform expects scores with a variance near 1. With ``convert(model, calibration=...)`` every score
S becomes ``(S - mean) / spread`` before the transform.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..analysis import LayerScores
from ..analysis.score_statistics import FIRST_KEYS, ScoreGathering
from ._capture import capturing


@dataclass(frozen=True, eq=False)
class Calibration:
    """Spread of the scores, float64 ``[layers, heads]``, and their mean, if it is to be subtracted.

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
        """Number of layers and of heads."""
        layers, heads = self.spread.shape
        return layers, heads

    @property
    def without_mean(self) -> "Calibration":
        """The same spreads with no mean to subtract."""
        return Calibration(self.spread)

    def as_lists(self) -> dict[str, list[list[float]]]:
        """The calibration as a config holds it."""
        lists = {"spread": self.spread.double().tolist()}
        return lists if self.mean is None else {**lists, "mean": self.mean.double().tolist()}


@torch.no_grad()
def measure_scores(
    model: Any, batches: Iterable[Any], *, skip_keys: int = FIRST_KEYS
) -> Calibration:
    """Measure mean and spread of every head's scores while the model reads.

    A model that was not converted reads with plain attention. For a converted one the scores are those
    that enter the transform, so measuring again shows the effect of a calibration. The model is left
    unchanged.

    Args:
        model: a causal language model of transformers.
        batches: token ids ``[B, L]`` each, or dictionaries of arguments for the model.
        skip_keys: keys to skip at the start of every text: the first tokens are attention sinks, with
            scores unlike the others.

    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> measured = measure_scores(model, [torch.randint(256, (2, 100))])
    >>> measured.spread.shape, bool((measured.spread < 0.1).all())      # far from unit variance
    (torch.Size([2, 4]), True)
    """
    gathered = [ScoreGathering(skip_keys) for _ in range(model.config.num_hidden_layers)]

    def gather(scores: LayerScores) -> None:
        gathered[scores.layer].add(scores)

    count = 0
    with capturing(model, gather):
        for batch in batches:
            arguments = batch if hasattr(batch, "keys") else {"input_ids": _tokens(batch)}
            model(**{**arguments, "use_cache": False})
            count += 1
    if count == 0:
        raise ValueError("batches must hold at least one batch of tokens, got none")
    unmeasured = [layer for layer, scores in enumerate(gathered) if not scores.moments.count]
    if unmeasured:
        raise NotImplementedError(
            f"layers {unmeasured} of {type(model).__name__} have no attention whose scores could be "
            "measured: calibration needs attention in every layer"
        )
    moments = [layer.moments for layer in gathered]
    return Calibration(
        torch.stack([layer.spread.cpu() for layer in moments]),
        torch.stack([layer.mean.cpu() for layer in moments]),
    )


def _tokens(batch: Any) -> Tensor:
    if not isinstance(batch, Tensor) or batch.ndim != 2:
        shape = f"shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else repr(batch)
        raise ValueError(
            f"batches must hold token ids [B, L] or dictionaries, got {shape}: put a single batch into "
            f"a list"
        )
    return batch
