"""Images: small vision transformers, trained on small canvases and tested on large ones.

    sia reproduce images

Each model sees canvases of 4 to 6 patches along a side, and is tested at up to 48: digits among
distractors, and hidden patches of textures and of photographs. docs/images.md is made from the records,
and says what they do not show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.nn.utils import get_total_norm

from ...arguments import did_you_mean
from ...data.images import IMAGE_TASKS, ImageTask
from ...evaluation.image_scores import answers, example_losses
from ...model.vision import VisionConfig, VisionTransformer
from ...provenance import provenance
from ...training import DivergedError, LearningRates, Trapezoid, build_optimisers
from ...training.loop import Progress
from ...training.training_data import HELD_OUT
from ..measurements import Provenance
from ..records import Record, TrainingCurve
from .evaluations import Evaluation, ImageEvaluation
from .trials import Trial, Watch, ignore

# The last of these sizes is that of the tests' 1x.
TRAINED_SIZES = (4, 5, 6)
# The names of its trials and records begin with this.
PREFIX = "images"


@dataclass(frozen=True)
class Variant:
    """A way to tell patches apart: a scheme, and perhaps a learned embedding per patch."""

    title: str
    scheme: str
    grid: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options_in_words(self) -> str:
        """The options, and the size of the learned embedding."""
        named = [
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in self.options.items()
        ]
        if self.grid is not None:
            named.append(f"{self.grid} x {self.grid} learned embeddings")
        return ", ".join(named)


# Distances are in patches, and at most 7 in training. RoPE has the base of Heo et al., 2024, for images;
# p-RoPE's longest period is that of two canvases. LogN counts patches.
VARIANTS: Mapping[str, Variant] = {
    "scale-invariant-nope": Variant(
        "Scale-invariant", "scale-invariant-nope", options={"tau": 1.0}
    ),
    "scale-invariant-p-rope": Variant(
        "Scale-invariant p-RoPE", "scale-invariant-p-rope", options={"tau": 1.0, "base": 2.0}
    ),
    "alibi": Variant("ALiBi-2D", "alibi"),
    "rope": Variant("RoPE-2D, axial", "rope", options={"base": 100.0}),
    "logn-rope": Variant(
        "LogN RoPE-2D, axial",
        "logn-rope",
        options={"train_length": TRAINED_SIZES[-1] ** 2, "counts": "context", "base": 100.0},
    ),
    "p-rope": Variant("p-RoPE-2D", "p-rope", options={"base": 2.0}),
    "nope": Variant("NoPE", "nope"),
    "learned": Variant("Learned absolute, interpolated", "nope", grid=TRAINED_SIZES[-1]),
}


@dataclass(frozen=True)
class ImageConfig:
    """A vision transformer, its task and its training; canvases have the `sizes` in turn."""

    task: str
    variant: str
    seed: int
    scheme: str
    scheme_options: Mapping[str, Any]
    grid: int | None
    layers: int = 3
    width: int = 96
    heads: int = 4
    sizes: tuple[int, ...] = TRAINED_SIZES
    batch_size: int = 64
    steps: int = 900
    matrix_rate: float = 0.02
    other_rate: float = 0.005

    @property
    def label(self) -> str:
        """The task and the variant, as tables have them."""
        return f"{self.task}, {VARIANTS[self.variant].title}"

    @property
    def data(self) -> ImageTask:
        """The examples of the tests; those of trainings have other digits, photographs and numbers."""
        return IMAGE_TASKS[self.task](split="validation", seed=HELD_OUT)

    @property
    def trained_on(self) -> ImageTask:
        """The examples of the training."""
        return IMAGE_TASKS[self.task](split="train", seed=HELD_OUT + 1 + self.seed)

    def model(self) -> VisionTransformer:
        """A new model."""
        kind = IMAGE_TASKS[self.task]
        config = VisionConfig(
            scheme_name=self.scheme,
            scheme_options=self.scheme_options,
            patch=kind.patch,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            classes=kind.classes,
            grid=self.grid,
        )
        return VisionTransformer(config)


EVALUATION = ImageEvaluation((6, 12, 24, 48), examples=128)


@dataclass(frozen=True, eq=False)
class TrainedImages:
    """A trained model, and the metrics of its training."""

    model: VisionTransformer
    losses: list[float]
    norms: list[float]
    seconds: float


@dataclass(frozen=True)
class ImageTrial(Trial):
    """A vision transformer that is trained in a minute and evaluated.

    A training has no folder and no checkpoint: one that is interrupted starts again.
    """

    name: str
    config: ImageConfig
    evaluation: Evaluation

    @property
    def training_name(self) -> str:
        """See :class:`Trial`."""
        return self.name

    @property
    def training_steps(self) -> dict[str, int]:
        """See :class:`Trial`."""
        return {self.name: self.config.steps}

    @property
    def printed_config(self) -> dict[str, Any]:
        """See :class:`Trial`."""
        return asdict(self.config) | {"evaluation": asdict(self.evaluation)}

    def check(self) -> None:
        """See :class:`Trial`."""
        self.evaluation.check(self.config)  # type: ignore[arg-type]

    def train(
        self,
        runs: Path,
        *,
        device: torch.device | str | None = None,
        watch: Watch = ignore,
        **options: Any,
    ) -> TrainedImages:
        """See :class:`Trial`."""
        return train_images(self.config, torch.device(device or "cpu"), watch)

    def steps_trained(self, runs: Path) -> int:
        """See :class:`Trial`: a training counts when it is recorded."""
        return 0

    def measure(
        self, model: TrainedImages, runs: Path, device: torch.device
    ) -> Record[ImageConfig]:
        """See :class:`Trial`."""
        return Record(
            name=self.name,
            config=self.config,
            evaluation=self.evaluation,
            trained_as=self.name,
            **self.evaluation.measure(model.model, self.config, device),  # type: ignore[arg-type]
            training=TrainingCurve.rounded(model.losses, model.norms),
            seconds=round(model.seconds, 1),
            provenance=Provenance(**provenance()),
        )


def image_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    evaluation: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> list[ImageTrial]:
    """All trials, seed by seed and task by task; `scale` must be "mini", the only one.

    >>> [trial.name for trial in image_trials(names=("rope", "alibi"), seeds=(0,), tasks=("digits",))]
    ['images-digits-rope-seed-0', 'images-digits-alibi-seed-0']
    """
    if scale != "mini":
        raise ValueError(f"images has the scale 'mini' alone, got {scale!r}")
    for kind, given, known in (("candidate", names, VARIANTS), ("task", tasks, IMAGE_TASKS)):
        for name in given:
            if name not in known:
                hint = f"{did_you_mean(name, known)}; there are: {', '.join(known)}"
                raise ValueError(f"there is no {kind} {name!r}{hint}")
    return [
        _trial(task, name, seed, EVALUATION.changed(evaluation), changes or {})
        for seed in seeds
        for task in tasks or IMAGE_TASKS
        for name in names or VARIANTS
    ]


def _trial(
    task: str, name: str, seed: int, evaluation: ImageEvaluation, changes: Mapping[str, Any]
) -> ImageTrial:
    variant = VARIANTS[name]
    parts = variant.scheme, dict(variant.options), variant.grid
    config = ImageConfig(task, name, seed, *parts, **changes)
    return ImageTrial(f"{PREFIX}-{task}-{name}-seed-{seed}", config, evaluation)


def train_images(config: ImageConfig, device: torch.device, watch: Watch = ignore) -> TrainedImages:
    """Train a model; `watch` is called after every step."""
    torch.manual_seed(config.seed)
    model, task = config.model().to(device), config.trained_on
    others = dict.fromkeys(("embedding", "head", "scalars"), config.other_rate)
    optimisers = build_optimisers(model, LearningRates(matrices=config.matrix_rate, **others))
    schedule = Trapezoid(config.steps * 5 // 7)
    losses, norms, start = [], [], perf_counter()
    for step in range(config.steps):
        factor = schedule.factor(step, config.steps)
        optimisers.set_schedule_factor(factor)
        first, size = step * config.batch_size, config.sizes[step % len(config.sizes)]
        batch = task.batch(size, range(first, first + config.batch_size))
        loss = example_losses(answers(model, batch, device), batch, device).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        if not isfinite(norm):
            raise DivergedError(
                f"step {step + 1}: the gradient of the loss {loss:.4g} is not finite"
            )
        optimisers.step()
        optimisers.zero_grad()
        losses.append(loss.item())
        norms.append(norm)
        watch(Progress(step + 1, config.steps, losses[-1], norm, factor, nan, None))
    return TrainedImages(model, losses, norms, perf_counter() - start)
