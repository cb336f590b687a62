"""Table 1, the scales of all experiments, and what else is measured with the models of Table 1.

    sia reproduce table1 --scale mini        on CPUs, about two hours on two cores
    torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table1 --scale paper

Loss at the training length and beyond it, for every scheme, with three seeds. In miniature, less than a
million parameters read the source of Python's standard library, trained at 256 bytes and evaluated at
256, 1024 and 4096. Expected, as in the paper: plain schemes break beyond the training length, LogN
breaks less, ALiBi and scale-invariant p-RoPE hold.

    sia reproduce attention --scale mini     seconds for each model of Table 1 that is there

Attention by context length: the lower row of Figure 1, and the QQ plots. Expected, as in the paper: the
entropy of plain attention grows with length and its local share falls; LogN keeps entropy low and loses
the local share; scale-invariant attention keeps both.

    sia reproduce tau --scale mini
    sia reproduce base --scale mini

Scale-invariant p-RoPE with other values of tau, which is Figure 5, and with other bases of p-RoPE. For
tau the paper reports little difference at the training length, 10 best, and a gap that opens beyond it.
The base belongs to the training length; the one of the miniature was chosen by this sweep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import schemes
from ...arguments import did_you_mean
from ...schemes.distance import ScaleInvariant
from ...schemes.rotary import ProportionalRoPE, TruncatedRoPE
from ...training import recipe
from .catalogue import (
    ATTENTION_SCHEMES,
    LENGTH_SCHEMES,
    SWEPT_VALUES,
    TRAINED_LENGTHS,
    number,
)
from .evaluations import AttentionEvaluation, LossEvaluation
from .trials import TrainingTrial

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Scale:
    """The recipe of all trainings at a scale, its evaluation, and the options of its schemes.

    `base` belongs to the training length; every scheme with p-RoPE has it. Every scheme with the
    scale-invariant transform and one tau for all heads has `tau`. `changes` are fields that differ from
    the recipe's.
    """

    recipe: str
    evaluation: LossEvaluation
    base: float
    tau: float = 10.0
    changes: Mapping[str, Any] = field(default_factory=dict)

    def trial(
        self,
        scheme: str,
        seed: int,
        changes: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TrainingTrial:
        """A training of a scheme, named after the scheme, its `options` and the seed.

        `changes` are fields of the training, `evaluation` fields of its evaluation: neither is in the
        name.

        >>> SCALES["mini"].trial("scale-invariant-p-rope", seed=0, tau=0.1).name
        'scale-invariant-p-rope-tau-0.1-seed-0'
        >>> SCALES["mini"].trial("yarn", seed=1).training_name
        'rope-seed-1'
        """
        changes = {**self.changes, **(changes or {})}
        suffix = "".join(f"-{name}-{number(value)}" for name, value in options.items())
        given = changes.get("scheme_options", {})
        layers = changes.get("layers", recipe(self.recipe).layers)
        fields = {
            "scheme": scheme,
            "scheme_options": {**self.scheme_options(scheme, layers), **given, **options},
            "seed": seed,
        }
        trained_as = schemes.trained_as(scheme)
        # Options may be such as only the scheme itself has.
        shares = trained_as != scheme and not options and "scheme_options" not in changes
        return TrainingTrial(
            f"{scheme}{suffix}-seed-{seed}",
            recipe(self.recipe, **{**changes, **fields}),
            self.evaluation.changed(evaluation),
            self.trial(trained_as, seed, changes, evaluation) if shares else None,
        )

    def at_length(self, scheme: str, length: int) -> dict[str, Any]:
        """Fields of a training at another length, with as many tokens and a base to match.

        >>> SCALES["mini"].at_length("p-rope", 1024)
        {'length': 1024, 'batch_size': 4, 'scheme_options': {'base': 64.0}}
        """
        usual = recipe(self.recipe)
        options = self.for_length(length).scheme_options(scheme)
        batch_size = usual.batch_size * usual.length // length
        return {"length": length, "batch_size": batch_size, "scheme_options": options}

    def for_length(self, length: int) -> "Scale":
        """The same with a base that suits another training length.

        >>> SCALES["mini"].for_length(64).base
        4.0
        """
        return replace(self, base=self.base * length / recipe(self.recipe).length)

    def scheme_options(self, scheme: str, layers: int | None = None) -> dict[str, float]:
        """The options of a scheme that this scale sets, in a model of so many layers if it has few.

        >>> SCALES["mini"].scheme_options("scale-invariant-p-rope")
        {'base': 16.0, 'tau': 10.0}
        >>> SCALES["mini"].scheme_options("swan", layers=2)
        {'local_layers': 1}
        """
        pattern, names = schemes.get(scheme).pattern, schemes.options(scheme)
        transforms = [it.distance for it in pattern if isinstance(it.distance, ScaleInvariant)]
        filled = {
            "base": any(isinstance(it.rotary, TruncatedRoPE | ProportionalRoPE) for it in pattern),
            "tau": any(not transform.highest_tau for transform in transforms),
        }
        found = {name: getattr(self, name) for name in filled if filled[name] and name in names}
        if layers is not None and "local_layers" in names and len(pattern) > layers:
            # One layer is global.
            found["local_layers"] = layers - 1
        return found


MINI = Scale("mini", LossEvaluation((256, 1024, 4096), 131_072), base=16.0)
# Three on CPUs, and the paper's on GPUs.
SCALES = {
    "mini": MINI,
    # Too short for every scheme to learn to copy from the context: see REPRODUCTION.md.
    "mini-500": replace(MINI, changes={"steps": 500}),
    "small": Scale("small", LossEvaluation((512, 2048, 8192), 131_072), base=32.0),
    "paper": Scale("162m-4k", LossEvaluation((4096, 16_384, 65_536), 10_485_760), base=1024.0),
}
SWEPT_SCHEME = "scale-invariant-p-rope"
MINI_ATTENTION = AttentionEvaluation((256, 512, 1024, 2048, 4096), contexts=16)
ATTENTION = {
    "mini": MINI_ATTENTION,
    "mini-500": MINI_ATTENTION,
    "small": AttentionEvaluation((512, 2048, 8192), contexts=16),
    "paper": AttentionEvaluation((4096, 16_384, 65_536), contexts=16),
}


def scale_named(name: str) -> Scale:
    """The scale with this name."""
    if name not in SCALES:
        hint, known = did_you_mean(name, SCALES), ", ".join(SCALES)
        raise ValueError(f"there is no scale {name!r}{hint}; the scales are: {known}")
    return SCALES[name]


def loss_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """The trials of Table 1, seed by seed, so that every scheme has one result before any has two.

    `changes` are fields of all trainings, `evaluation` fields of the evaluation.

    >>> [trial.name for trial in loss_trials("mini", ("rope", "alibi"), seeds=(0, 1))]
    ['rope-seed-0', 'alibi-seed-0', 'rope-seed-1', 'alibi-seed-1']
    """
    return [
        scale_named(scale).trial(name, seed, changes, evaluation)
        for seed in seeds
        for name in names or schemes.names()
    ]


def length_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One training per scheme and training length; the scale's own length is the trial of Table 1.

    >>> [trial.name for trial in length_trials("mini", ("alibi",))]
    ['alibi-seed-0', 'alibi-length-1024-seed-0', 'alibi-length-4096-seed-0']
    """
    sizes, trials = scale_named(scale), []
    usual = recipe(sizes.recipe).length
    for seed in seeds:
        for name in names or LENGTH_SCHEMES:
            for length in TRAINED_LENGTHS:
                own = {} if length == usual else sizes.at_length(name, length)
                trial = sizes.trial(name, seed, {**own, **(changes or {})}, evaluation)
                named = trial.name if length == usual else f"{name}-length-{length}-seed-{seed}"
                trials.append(replace(trial, name=named))
    return trials


def attention_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One trial per scheme and seed, which measures the attention of a model of Table 1.

    >>> [trial] = attention_trials("mini", ("yarn",))
    >>> trial.name, trial.training_name
    ('attention-yarn-seed-0', 'rope-seed-0')
    """
    models = loss_trials(scale, names or ATTENTION_SCHEMES, seeds, changes)
    for name in names:
        if schemes.get(name).has_memory:
            raise ValueError(
                f"schemes must have no memory, as what it retrieves has no weight per key; got {name!r}"
            )
    measured = ATTENTION[scale].changed(evaluation)
    return [
        TrainingTrial(f"attention-{it.name}", it.config, measured, trained_as=it.training)
        for it in models
    ]


def sweep_trials(
    option: str,
    scale: str = "mini",
    values: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
    changes: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
) -> list[TrainingTrial]:
    """One trial per value of an option; the scale's own value is the trial of Table 1.

    >>> [trial.name for trial in sweep_trials("tau", "mini", (1.0, 10.0))]
    ['scale-invariant-p-rope-tau-1-seed-0', 'scale-invariant-p-rope-seed-0']
    """
    sizes = scale_named(scale)
    usual = getattr(sizes, option)
    return [
        sizes.trial(
            SWEPT_SCHEME, seed, changes, evaluation, **({} if value == usual else {option: value})
        )
        for seed in seeds
        for value in values or SWEPT_VALUES[option]
    ]
