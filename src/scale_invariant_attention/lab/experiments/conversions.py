"""Trials of models of transformers: trained with RoPE, converted, perhaps fine-tuned, and measured."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from math import nan
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ... import huggingface
from ...data import SameTokens, Windows, standard_library
from ...evaluation import loss_by_length
from ...files import locked
from ...huggingface.continued_pretraining import (
    PretrainingRecipe,
    continue_pretraining,
    fine_tune_on_task,
    training_log,
)
from ...huggingface.extension import TokenLosses
from ...provenance import provenance
from ...training import Muon
from ...training.loop import Progress
from ...training.training_data import HELD_OUT, NEEDLES, STANDARD_LIBRARY, open_task
from ..measurements import Provenance
from ..records import Record, TrainingCurve
from .evaluations import Evaluation, LossEvaluation
from .trials import Trial, Watch, ignore

# Of AdamW beside Muon.
BETAS = (0.9, 0.95)
# Sequences of the training text that scores are measured on.
CALIBRATION_ROWS = 16


@dataclass(frozen=True)
class NeedleTuning:
    """Fine-tuning on needles: the recipe, fields of a ``NeedleFormat``, and how sequences grow."""

    recipe: PretrainingRecipe
    format: Mapping[str, Any]
    first_length: int
    growth_steps: int


@dataclass(frozen=True)
class ConversionConfig:
    """A model of a family, the way that it is converted, and the recipes of its trainings.

    `calibrated` gives the transform the spread of each head's scores, `with_mean` also their mean.
    `by_length` lets the factor of the rotary grow with the text. `continued` is None for a model that is
    not fine-tuned; `share` is that of its tokens in the first training's. `seed` is that of the first
    weights and sequences, whatever the recipes say; fine-tunings have the next one. With a
    `matrix_rate`, Muon trains the matrices of the layers at first, at this rate.
    """

    family: str
    variant: str
    share: float
    seed: int
    scheme: str
    scheme_options: Mapping[str, Any]
    rotary: str | None
    factor: float
    calibrated: bool
    with_mean: bool
    by_length: bool
    model: Mapping[str, Any]
    first: PretrainingRecipe
    matrix_rate: float | None
    continued: PretrainingRecipe | None
    needles: NeedleTuning | None

    @property
    def label(self) -> str:
        """The family, the variant, and the share of tokens that it was fine-tuned for."""
        return f"{self.family} {self.variant}, {self.share:.0%}"

    @property
    def name(self) -> str:
        """Family, variant, percent of the tokens and seed, as names of trials have them."""
        return f"{self.family}-{self.variant}-{100 * self.share:g}-seed-{self.seed}"

    @property
    def data(self) -> str:
        """The text, as a ``TrainingConfig`` names it."""
        return STANDARD_LIBRARY

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the vocabulary."""
        return int(self.model["vocab_size"])

    @property
    def task(self) -> str:
        """The task that it may be fine-tuned on, as a ``TrainingConfig`` names it."""
        return NEEDLES

    @property
    def task_options(self) -> Mapping[str, Any]:
        """Fields of the ``NeedleFormat``."""
        return {} if self.needles is None else self.needles.format


@dataclass(frozen=True)
class ConversionTrial(Trial):
    """A model that is trained, converted, fine-tuned if its configuration says so, and evaluated."""

    name: str
    config: ConversionConfig
    evaluation: Evaluation

    @property
    def first_name(self) -> str:
        """Name of the first training, which all variants of a family and a seed share."""
        return f"extension-{self.config.family}-first-seed-{self.config.seed}"

    @property
    def continued_name(self) -> str:
        """Name of the continued pretraining, which all trials of a variant and a share share."""
        return f"extension-{self.config.name}"

    @property
    def training_name(self) -> str:
        """See :class:`Trial`."""
        return list(self.training_steps)[-1]

    @property
    def training_steps(self) -> dict[str, int]:
        """See :class:`Trial`."""
        config = self.config
        steps = {self.first_name: config.first.steps}
        if config.continued is not None:
            steps[self.continued_name] = config.continued.steps
        if config.needles is not None:
            steps[self.name] = config.needles.recipe.steps
        return steps

    @property
    def printed_config(self) -> dict[str, Any]:
        """See :class:`Trial`."""
        fields = asdict(self.config)
        options = fields.pop("scheme_options")
        return fields | {"evaluation": asdict(self.evaluation), "options": options}

    def check(self) -> None:
        """See :class:`Trial`."""
        self.evaluation.check(self.config)

    def train(self, runs: Path, *, watch: Watch = ignore, **options: Any) -> Any:
        """See :class:`Trial`; always on the CPU.

        Several processes may train different variants: one does the first training, the others wait.
        """
        config, model = self.config, self.first_model(runs, watch)
        model, before = self.converted(model), config.first.steps
        # Another order of the sequences than in the first training.
        seed = config.seed + 1
        corpus = standard_library("train")
        if config.continued is not None:
            recipe, folder = replace(config.continued, seed=seed), runs / self.continued_name
            watched = self._watched(before, watch)
            with _alone_in(folder):
                model = continue_pretraining(
                    model, corpus, folder, recipe, watch=watched, use_cpu=True
                )
            before += recipe.steps
        if config.needles is not None:
            tuning = config.needles
            model = fine_tune_on_task(
                model,
                open_task(config, "train", HELD_OUT + 1 + config.seed),
                runs / self.name,
                replace(tuning.recipe, seed=seed),
                first_length=tuning.first_length,
                growth_steps=tuning.growth_steps,
                watch=self._watched(before, watch),
                use_cpu=True,
            )
        return model

    def first_model(self, runs: Path, watch: Watch = ignore) -> Any:
        """The model with RoPE that is converted: trained, resumed or opened."""
        folder, recipe = runs / self.first_name, replace(self.config.first, seed=self.config.seed)
        torch.manual_seed(self.config.seed)
        model, corpus, watched = (
            self.new_model(),
            standard_library("train"),
            self._watched(0, watch),
        )
        optimiser = None
        if self.config.matrix_rate is not None:
            optimiser = muon_and_adam(model, self.config.matrix_rate, recipe)
        with _alone_in(folder):
            return continue_pretraining(
                model, corpus, folder, recipe, optimiser=optimiser, watch=watched, use_cpu=True
            )

    def new_model(self) -> Any:
        """A model with random weights."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(self.config.family, **self.config.model)
        return AutoModelForCausalLM.from_config(config)

    def converted(self, model: Any, factor: float | None = None) -> Any:
        """The model with the scheme, before fine-tuning; `factor` replaces the configuration's."""
        config, named = self.config, dict(self.config.scheme_options)
        rotary: dict[str, Any] = {}
        if config.rotary is not None:
            rotary = {"rotary": config.rotary, "factor": factor or config.factor}
        with warnings.catch_warnings():
            # What a conversion warns about is what is measured.
            warnings.filterwarnings("ignore", ".*must be fine-tuned before use")
            if config.calibrated:
                # Scores are measured with the rotary that the model is going to have.
                base = {name: it for name, it in named.items() if name == "base"}
                plain = "p-rope" if config.rotary is None else "rope"
                huggingface.convert(model, plain, **rotary, **base)
                scores = huggingface.measure_scores(model, [self._rows()])
                named["calibration"] = scores if config.with_mean else scores.without_mean
            return huggingface.convert(model, config.scheme, **rotary, **named)

    def _rows(self) -> Tensor:
        """Sequences of the training text, to measure scores on."""
        rows = Windows(
            standard_library("train"),
            length=self.config.first.length,
            batch_size=CALIBRATION_ROWS,
            order="shuffled",
            seed=self.config.seed,
        )
        return rows[0][0]

    def at_length(self, model: Any, length: int) -> Any:
        """The model as it reads a text of this length."""
        if not self.config.by_length:
            return model
        return self.converted(model, max(1.0, length / self.config.first.length))

    def steps_trained(self, runs: Path) -> int:
        """See :class:`Trial`: a training counts when it is done."""
        return sum(n for name, n in self.training_steps.items() if (runs / name / "model").exists())

    def measure(self, model: Any, runs: Path, device: torch.device) -> Record[ConversionConfig]:
        """See :class:`Trial`."""
        log, called = training_log(runs / self.training_name), _AsGPT(self, model)
        measured: dict[str, Any]
        if isinstance(self.evaluation, LossEvaluation):
            measured = self._losses(called, self.evaluation)
        else:
            measured = self.evaluation.measure(cast(Any, called), self.config, device)
        return Record(
            name=self.name,
            config=self.config,
            evaluation=self.evaluation,
            trained_as=self.training_name,
            **measured,
            training=TrainingCurve.rounded(log["loss"], log["grad_norm"]),
            seconds=round(sum(log["seconds"]), 1),
            provenance=Provenance(**provenance(), transformers=version("transformers")),
        )

    def _losses(self, model: "_AsGPT", settings: LossEvaluation) -> dict[str, Any]:
        """Losses by length; those by position, of other tokens, would cost as much again."""
        corpus = standard_library("validation")
        # Ascending, and on a model that has read nothing longer: dynamic NTK remembers the longest text.
        lengths = sorted(settings.lengths)
        same = SameTokens(corpus, lengths, at_most=settings.tokens, skip=settings.skip or 0)
        return {"losses": tuple(loss_by_length(model, same)), "corpus": corpus.fingerprint()}

    def _watched(self, before: int, watch: Watch) -> Any:
        """Callback of a training after each step, with `before` steps of other trainings done."""
        steps = sum(self.training_steps.values())

        def show(step: int, loss: float) -> None:
            watch(Progress(before + step, steps, loss, nan, nan, nan, None))

        return show


def muon_and_adam(model: Any, matrix_rate: float, recipe: PretrainingRecipe) -> "JoinedOptimisers":
    """Muon for the matrices of the layers, AdamW with the recipe's rate for everything else."""
    matrices: list[Any] = []
    others: list[Any] = []
    for name, weight in model.base_model.named_parameters():
        is_matrix = weight.ndim == 2 and "layers." in name
        (matrices if is_matrix else others).append(weight)
    inside = {id(weight) for weight in model.base_model.parameters()}
    others += [weight for weight in model.parameters() if id(weight) not in inside]
    adam = torch.optim.AdamW(
        others, lr=recipe.learning_rate, betas=BETAS, weight_decay=recipe.weight_decay
    )
    return JoinedOptimisers(Muon(matrices, matrix_rate), adam)


class JoinedOptimisers(torch.optim.Optimizer):
    """Several optimisers as one, which is what Trainer takes; they share their groups with it."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """Update every parameter."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all parts."""
        return {str(index): part.state_dict() for index, part in enumerate(self.parts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for index, part in enumerate(self.parts):
            part.load_state_dict(state_dict[str(index)])
        # The parts have new groups now.
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def _alone_in(folder: Path) -> Any:
    """Wait until no other process trains in a folder."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    return locked(folder)


class _AsGPT:
    """A model of transformers, called as a GPT is; its trial may change it for every length."""

    def __init__(self, trial: ConversionTrial, model: Any) -> None:
        self._trial, self._model, self._length = trial, model.eval(), 0

    def __call__(
        self, tokens: Tensor, targets: Tensor | None = None, *, reduction: str = "mean"
    ) -> Tensor:
        model = self._at(tokens.shape[1])
        if targets is None:
            logits: Tensor = model(tokens, use_cache=False).logits
            return logits
        return TokenLosses(model)(tokens, targets, reduction=reduction)

    def generate(
        self, tokens: Tensor, max_new_tokens: int, *, token_mask: Tensor, stop_tokens: list[int]
    ) -> Tensor:
        written: Tensor = self._at(tokens.shape[1] + max_new_tokens).generate(
            tokens,
            attention_mask=token_mask.long(),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=stop_tokens,
            pad_token_id=stop_tokens[0],
        )
        return written

    def _at(self, length: int) -> Any:
        if length != self._length:
            self._length = length
            self._model = self._trial.at_length(self._model, length)
        return self._model
