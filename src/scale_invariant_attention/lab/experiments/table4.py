"""Table 4: a trained RoPE model converted to every scheme and fine-tuned, and its loss by length.

    sia reproduce table4 --scale mini        on a CPU, about half an hour on one core

The paper continues the pretraining of Llama-2-7B. The miniature first trains a Llama of less than a
million parameters with RoPE on the source of Python's standard library, and converts that. Expected, as
in the paper: a model converted to scale-invariant p-RoPE is a little worse at the training length, and
holds beyond it. REPRODUCTION.md shows whether it does here, calibrated or not. `extension` studies
longer trainings, more families and more ways to convert them.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import huggingface, schemes
from ...arguments import did_you_mean
from ...data import SameTokens, Windows, standard_library
from ...evaluation import loss_by_length
from ...files import locked
from ...huggingface.continued_pretraining import (
    PretrainingRecipe,
    continue_pretraining,
    training_log,
)
from ...huggingface.extension import TokenLosses
from ...provenance import provenance
from ...schemes.distance import ScaleInvariant
from ...schemes.rotary import YaRN
from ...training.loop import Progress
from ..measurements import Provenance
from ..records import Record, TrainingCurve
from .evaluations import LossEvaluation
from .table1 import SCALES
from .trials import Trial, Watch, ignore

# The paper's schemes, in its order, and those that it does not fine-tune.
SCHEMES = (
    *("rope", "p-rope", "nope", "rope-ntk", "yarn", "logn-rope", "logn-p-rope", "logn-ntk"),
    *("alibi", "scale-invariant-p-rope"),
)
NOT_CONTINUED = ("rope", "rope-ntk")

LENGTH = 256
LLAMA = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FIRST = PretrainingRecipe(
    tokens=300 * 16 * LENGTH,
    length=LENGTH,
    batch_size=16,
    learning_rate=3e-3,
    schedule="cosine",
    warmup_steps=30,
    weight_decay=0.1,
    checkpoint_every=50,
)
# A tenth of the tokens. The paper's rate is too low for so few steps of so small a model.
CONTINUED = PretrainingRecipe(
    tokens=30 * 16 * LENGTH,
    length=LENGTH,
    batch_size=16,
    learning_rate=1e-3,
    schedule="linear",
    warmup_steps=3,
    checkpoint_every=10,
)
EVALUATION = LossEvaluation((256, 1024, 4096), 65_536)

# Sequences of the training text that calibration measures scores on.
CALIBRATION_ROWS = 16


@dataclass(frozen=True)
class ConversionConfig:
    """A scheme that the first model is converted to, and the recipes of both trainings.

    `calibrated` gives the transform the spread of every head's scores. `continued` is None for a model
    that is not fine-tuned. `seed` is that of the first weights and sequences, whatever
    the recipes say; fine-tuning has the next one.
    """

    scheme: str
    seed: int
    calibrated: bool
    model: Mapping[str, Any]
    first: PretrainingRecipe
    continued: PretrainingRecipe | None
    scheme_options: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The scheme, and what was done besides or left out."""
        calibrated = ", calibrated" if self.calibrated else ""
        return f"{self.scheme}{calibrated}" + (", not fine-tuned" if self.continued is None else "")


@dataclass(frozen=True)
class ConversionTrial(Trial):
    """A Llama that is trained, converted, fine-tuned if its configuration says so, and evaluated."""

    name: str
    config: ConversionConfig
    evaluation: LossEvaluation

    @property
    def first_name(self) -> str:
        """Name of the first training, which all schemes of a seed share."""
        return f"table4-first-seed-{self.config.seed}"

    @property
    def training_name(self) -> str:
        """See :class:`Trial`."""
        return self.first_name if self.config.continued is None else self.name

    @property
    def training_steps(self) -> dict[str, int]:
        """See :class:`Trial`.

        >>> conversion_trials(names=("alibi",))[0].training_steps
        {'table4-first-seed-0': 300, 'table4-alibi-seed-0': 30}
        """
        steps = {self.first_name: self.config.first.steps}
        if self.config.continued is not None:
            steps[self.name] = self.config.continued.steps
        return steps

    @property
    def printed_config(self) -> dict[str, Any]:
        """See :class:`Trial`."""
        fields = asdict(self.config)
        options = fields.pop("scheme_options")
        return fields | {"evaluation": asdict(self.evaluation), "options": options}

    def check(self) -> None:
        """See :class:`Trial`; the standard library can always be read."""

    def train(self, runs: Path, *, watch: Watch = ignore, **options: Any) -> Any:
        """See :class:`Trial`; always on the CPU.

        Several processes may train different schemes: one does the first training, the others wait.
        """
        config, model = self.config, self.first_model(runs, watch)
        with warnings.catch_warnings():
            # What a conversion warns about is what is measured.
            warnings.filterwarnings("ignore", ".*must be fine-tuned before use")
            model = self.convert(model)
        if config.continued is None:
            return model
        # Another order of the sequences than in the first training.
        recipe = replace(config.continued, seed=config.seed + 1)
        return self._continue(model, runs / self.name, recipe, config.first.steps, watch)

    def first_model(self, runs: Path, watch: Watch = ignore) -> Any:
        """The model with RoPE that is converted: trained, resumed or opened."""
        folder = runs / self.first_name
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(self.config.seed)
        model = self.new_model()
        with locked(folder):
            recipe = replace(self.config.first, seed=self.config.seed)
            return self._continue(model, folder, recipe, 0, watch)

    def new_model(self) -> Any:
        """A model with random weights."""
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(LlamaConfig(**self.config.model))

    def at_length(self, model: Any, length: int) -> Any:
        """The model as it is evaluated at a length."""
        return model

    def convert(self, model: Any) -> Any:
        """The model with the scheme, before fine-tuning."""
        config, options = self.config, self.config.scheme_options
        if not config.calibrated:
            return huggingface.convert(model, config.scheme, **options)
        # Scores are measured with the rotary that the model is going to have.
        base = {name: it for name, it in options.items() if name == "base"}
        huggingface.convert(model, "p-rope", **base)
        rows = Windows(
            standard_library("train"),
            length=config.first.length,
            batch_size=CALIBRATION_ROWS,
            order="shuffled",
            seed=config.seed,
        )
        scores = huggingface.measure_scores(model, [rows[0][0]])
        return huggingface.convert(model, config.scheme, calibration=scores.without_mean, **options)

    def steps_trained(self, runs: Path) -> int:
        """See :class:`Trial`: a training counts when it is done."""
        return sum(n for name, n in self.training_steps.items() if (runs / name / "model").exists())

    def measure(self, model: Any, runs: Path, device: torch.device) -> Record[ConversionConfig]:
        """See :class:`Trial`."""
        log = training_log(runs / self.training_name)
        corpus = standard_library("validation")
        # Ascending, and on a model that has read nothing longer: dynamic NTK remembers the longest text.
        lengths, settings = sorted(self.evaluation.lengths), self.evaluation
        same = SameTokens(corpus, lengths, at_most=settings.tokens, skip=settings.skip or 0)
        losses = loss_by_length(_AtEveryLength(self, model), same)
        return Record(
            name=self.name,
            config=self.config,
            evaluation=self.evaluation,
            trained_as=self.training_name,
            losses=tuple(losses),
            corpus=corpus.fingerprint(),
            training=TrainingCurve.rounded(log["loss"], log["grad_norm"]),
            seconds=round(sum(log["seconds"]), 1),
            provenance=Provenance(**provenance(), transformers=version("transformers")),
        )

    def _continue(
        self, model: Any, folder: Path, recipe: PretrainingRecipe, before: int, watch: Watch
    ) -> Any:
        """Train, resume or open the training in a folder, after `before` steps of other trainings."""
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        steps = sum(self.training_steps.values())

        def show(step: int, loss: float) -> None:
            watch(Progress(before + step, steps, loss, nan, nan, nan, None))

        corpus = standard_library("train")
        return continue_pretraining(model, corpus, folder, recipe, watch=show, use_cpu=True)


class _AtEveryLength:
    """The losses of a model that a trial may change for every length."""

    def __init__(self, trial: ConversionTrial, model: Any) -> None:
        self._trial, self._model, self._length = trial, model, 0

    def __call__(self, tokens: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
        if tokens.shape[1] != self._length:
            self._length = tokens.shape[1]
            self._model = self._trial.at_length(self._model, self._length)
        return TokenLosses(self._model)(tokens, targets, reduction=reduction)


def conversion_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    evaluation: Mapping[str, Any] | None = None,
) -> list[ConversionTrial]:
    """The trials of Table 4, seed by seed.

    The scale-invariant scheme is also calibrated, and both are also measured before fine-tuning.

    >>> for trial in conversion_trials(names=("rope", "scale-invariant-p-rope")):
    ...     print(trial.name)
    table4-rope-seed-0
    table4-scale-invariant-p-rope-seed-0
    table4-scale-invariant-p-rope-calibrated-seed-0
    table4-scale-invariant-p-rope-untrained-seed-0
    table4-scale-invariant-p-rope-calibrated-untrained-seed-0
    """
    if scale != "mini":
        raise ValueError(
            f"table4 has the scale mini alone, got {scale!r}: for a model of your own see "
            f"continue_pretraining in docs/huggingface.md"
        )
    for name in names:
        if name not in SCHEMES:
            hint, known = did_you_mean(name, SCHEMES), ", ".join(SCHEMES)
            raise ValueError(f"Table 4 has no scheme {name!r}{hint}; its schemes are: {known}")
    return [
        ConversionTrial(_name(config), config, EVALUATION.changed(evaluation))
        for seed in seeds
        for name in names or SCHEMES
        for config in _configs(name, seed)
    ]


def _name(config: ConversionConfig) -> str:
    calibrated = "-calibrated" if config.calibrated else ""
    bare = config.continued is None and config.scheme not in NOT_CONTINUED
    untrained = "-untrained" if bare else ""
    return f"table4-{config.scheme}{calibrated}{untrained}-seed-{config.seed}"


def _configs(scheme: str, seed: int) -> list[ConversionConfig]:
    slots, options = schemes.get(scheme), SCALES["mini"].scheme_options(scheme)
    if isinstance(slots.rotary, YaRN):
        # transformers' YaRN needs it.
        options = {"factor": max(EVALUATION.lengths) / LENGTH}
    in_both_ways = isinstance(slots.distance, ScaleInvariant)
    recipes = (CONTINUED, None) if in_both_ways else (CONTINUED,)
    return [
        ConversionConfig(scheme, seed, calibrated, dict(LLAMA), FIRST, recipe, options)
        for recipe in ((None,) if scheme in NOT_CONTINUED else recipes)
        for calibrated in ((False, True) if in_both_ways else (False,))
    ]
