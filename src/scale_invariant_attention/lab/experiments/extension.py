"""How to extend a trained model: the transform on several rotaries against YaRN, NTK and others.

    sia reproduce extension-choice       rotary, tau and mean, with other seeds and text than reported
    sia reproduce extension              the table, untrained and after 1 and 10 % of the tokens

Models of three families are trained with RoPE: a Llama without QK-norm, a Qwen 3 with it, and a GPT-NeoX
with a partial rotary. Each is converted in several ways and evaluated at 1, 4 and 16 times its training
length, with no fine-tuning and with a little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ... import huggingface
from ...arguments import did_you_mean
from ...data import Windows, standard_library
from .catalogue import SELECTION_SEED
from .evaluations import LossEvaluation
from .table4 import (
    CALIBRATION_ROWS,
    CONTINUED,
    FIRST,
    LLAMA,
    ConversionConfig,
    ConversionTrial,
)

SHARED = {name: it for name, it in LLAMA.items() if name != "intermediate_size"}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {**SHARED, "intermediate_size": 352},
    "qwen3": {**SHARED, "intermediate_size": 352, "head_dim": 32, "num_key_value_heads": 4},
    "gpt_neox": {**SHARED, "intermediate_size": 512},
}
LENGTH, FACTOR = 256, 16
STEPS = 2_000
# Shares of the first training's tokens that a model is fine-tuned for.
SHARES = (0.0, 0.01, 0.1)
EVALUATION = LossEvaluation((LENGTH, 4 * LENGTH, FACTOR * LENGTH), 65_536)
TRANSFORM = "scale-invariant-rope"


@dataclass(frozen=True)
class Variant:
    """A way to convert a model.

    `calibrated` gives the transform the spread of each head's scores, `with_mean` also their mean.
    `by_length` changes the factor of the rotary with the context. `shares` are those it is measured at.
    """

    scheme: str = TRANSFORM
    rotary: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    calibrated: bool = False
    with_mean: bool = False
    by_length: bool = False
    shares: Sequence[float] = SHARES


def _transform(rotary: str, tau: float = 3.0, **fields: Any) -> Variant:
    options = {"tau": tau, **fields.pop("options", {})}
    return Variant(TRANSFORM, rotary, options, calibrated=True, **fields)


UNTRAINED, TRAINED = (0.0,), SHARES[1:]
P_ROPE = {"base": 16.0}
VARIANTS: Mapping[str, Variant] = {
    "rope": Variant("rope"),
    "ntk-by-length": Variant("rope", "dynamic", shares=UNTRAINED),
    "yarn": Variant("rope", "yarn"),
    "yarn-by-length": Variant("rope", "yarn", by_length=True, shares=UNTRAINED),
    "p-rope": Variant("p-rope", options=P_ROPE, shares=TRAINED),
    "logn-rope": Variant("logn-rope", shares=TRAINED),
    "alibi": Variant("alibi", shares=TRAINED),
    "paper": Variant("scale-invariant-p-rope", options={**P_ROPE, "tau": 10.0}, shares=TRAINED),
    "transform-own": _transform("own", shares=UNTRAINED),
    "transform-ntk": _transform("ntk", shares=UNTRAINED),
    "transform-yarn": _transform("yarn"),
    "transform-yarn-by-length": _transform("yarn", by_length=True, shares=UNTRAINED),
    "transform-yarn-beyond": _transform("yarn-beyond", shares=UNTRAINED),
    "transform-slow": _transform("slow"),
    "transform-slow-beyond": _transform("slow-beyond"),
    "transform-fast": _transform("fast", shares=TRAINED),
    "transform-p-rope": Variant(
        "scale-invariant-p-rope", options={**P_ROPE, "tau": 3.0}, calibrated=True, shares=TRAINED
    ),
    "transform-learned": _transform(
        "slow", shares=TRAINED, options={"learn_tau": True, "learn_sigma": True}
    ),
}
# What is chosen between before any of it is reported.
CHOICES: Mapping[str, Variant] = {
    **{
        f"{rotary}-tau-{tau:g}": _transform(rotary, tau, shares=(0.0, 0.1))
        for rotary in ("slow", "slow-beyond")
        for tau in (1.0, 3.0, 10.0, 30.0)
    },
    **{
        f"{rotary}-tau-3": _transform(rotary, shares=UNTRAINED)
        for rotary in ("yarn", "yarn-beyond", "ntk", "llama3", "own")
    },
    "slow-beyond-tau-1-to-30": _transform("slow-beyond", 1.0, options={"highest_tau": 30.0}),
    "slow-beyond-tau-3-with-mean": _transform("slow-beyond", with_mean=True),
}


@dataclass(frozen=True)
class ExtensionConfig(ConversionConfig):
    """A family, the way that its model is converted, and the recipes of both trainings."""

    family: str = "llama"
    variant: str = "rope"
    share: float = 0.0
    rotary: str | None = None
    with_mean: bool = False
    by_length: bool = False

    @property
    def label(self) -> str:
        """The family, the variant, and the share of tokens that it was fine-tuned for."""
        return f"{self.family} {self.variant}, {self.share:.0%}"


@dataclass(frozen=True)
class ExtensionTrial(ConversionTrial):
    """A model of one family that is trained, converted, perhaps fine-tuned, and evaluated."""

    config: ExtensionConfig

    @property
    def first_name(self) -> str:
        """Name of the first training, which all variants of a family and a seed share."""
        return f"extension-{self.config.family}-first-seed-{self.config.seed}"

    def new_model(self) -> Any:
        """A model with random weights."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(self.config.family, **self.config.model)
        return AutoModelForCausalLM.from_config(config)

    def convert(self, model: Any) -> Any:
        """See :class:`ConversionTrial`."""
        return self._converted(model, FACTOR)

    def _converted(self, model: Any, factor: float) -> Any:
        config, named = self.config, dict(self.config.scheme_options)
        rotary: dict[str, Any] = (
            {} if config.rotary is None else {"rotary": config.rotary, "factor": factor}
        )
        if config.calibrated:
            base = {name: it for name, it in named.items() if name == "base"}
            plain = "p-rope" if config.rotary is None else "rope"
            huggingface.convert(model, plain, **rotary, **base)
            scores = huggingface.measure_scores(model, [self._rows()])
            named["calibration"] = scores if config.with_mean else scores.without_mean
        return huggingface.convert(model, config.scheme, **rotary, **named)

    def _rows(self) -> torch.Tensor:
        """Sequences of the training text, to measure scores on."""
        length, seed = self.config.first.length, self.config.seed
        settings: dict[str, Any] = {"batch_size": CALIBRATION_ROWS, "order": "shuffled"}
        rows = Windows(standard_library("train"), length=length, seed=seed, **settings)
        return rows[0][0]

    def at_length(self, model: Any, length: int) -> Any:
        """See :class:`ConversionTrial`."""
        if not self.config.by_length:
            return model
        return self._converted(model, max(1.0, length / self.config.first.length))


def extension_trials(
    variants: Mapping[str, Variant] | None = None,
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    evaluation: Mapping[str, Any] | None = None,
    prefix: str = "extension",
) -> list[ExtensionTrial]:
    """The trials of all families, seed by seed; the first training of each is shared.

    >>> for trial in extension_trials(names=("yarn",), seeds=(0,))[:3]:
    ...     print(trial.name, *trial.training_steps.values())
    extension-llama-yarn-0-seed-0 2000
    extension-llama-yarn-1-seed-0 2000 20
    extension-llama-yarn-10-seed-0 2000 200
    """
    known = VARIANTS if variants is None else variants
    if scale != "mini":
        raise ValueError(f"the extension of models has the scale mini alone, got {scale!r}")
    for name in names:
        if name not in known:
            hint, those = did_you_mean(name, known), ", ".join(known)
            raise ValueError(f"there is no candidate {name!r}{hint}; the candidates are: {those}")
    measured = EVALUATION.changed(evaluation)
    return [
        ExtensionTrial(f"{prefix}-{family}-{name}-{share:.0%}-seed-{seed}".replace("%", ""), *rest)
        for seed in seeds
        for family in FAMILIES
        for name in names or known
        for share in known[name].shares
        for rest in [(_config(family, name, known[name], share, seed), measured)]
    ]


def choice_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (SELECTION_SEED, SELECTION_SEED + 1),
    evaluation: Mapping[str, Any] | None = None,
) -> list[ExtensionTrial]:
    """The candidates, with seeds and validation text that :func:`extension_trials` does not use.

    >>> choice_trials(names=("slow-tau-3",))[0].name, choice_trials()[0].evaluation.skip
    ('extension-choice-llama-slow-tau-3-0-seed-3', 65536)
    """
    text = {"skip": EVALUATION.tokens, **(evaluation or {})}
    return extension_trials(CHOICES, scale, names, seeds, text, "extension-choice")


def reported_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    evaluation: Mapping[str, Any] | None = None,
) -> list[ExtensionTrial]:
    """The trials of the table."""
    return extension_trials(VARIANTS, scale, names, seeds, evaluation)


def _config(family: str, name: str, variant: Variant, share: float, seed: int) -> ExtensionConfig:
    first = replace(FIRST, tokens=STEPS * FIRST.batch_size * LENGTH, checkpoint_every=250)
    continued = None
    if share:
        tokens = round(share * first.tokens)
        continued = replace(CONTINUED, tokens=tokens, checkpoint_every=100)
    return ExtensionConfig(
        variant.scheme,
        seed,
        variant.calibrated,
        dict(FAMILIES[family]),
        first,
        continued,
        dict(variant.options),
        family,
        name,
        share,
        variant.rotary,
        variant.with_mean,
        variant.by_length,
    )
