"""The experiments of `sia reproduce`, one row each; importing this module does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .spread_candidates import SPREAD_CANDIDATES

if TYPE_CHECKING:
    from ..records import Record
    from .trials import Trial

ATTENTION_SCHEMES = (
    *("rope", "p-rope", "logn-p-rope", "alibi"),
    *("scale-invariant-p-rope", "scale-invariant-spread"),
)
SWEPT_VALUES = {
    "tau": (0.01, 0.1, 1.0, 10.0, 100.0),
    "base": (4.0, 16.0, 64.0, 1024.0),
}
# The first of the seeds that settings are chosen with; the tables have the ones before it.
SELECTION_SEED = 3
# The methods of a record whose values tables show.
MEASURES = {
    "losses_by_length": "Loss in nats per token",
    "needles_by_length": "Share of needles found",
    "strings_by_length": "Share of the letters of repeated strings predicted",
    "recall_by_length": "Share of values recalled",
    "scores_by_length": "Share of answers right; of fractal noise and motifs, loss above the optimum",
    "images_by_size": "Share of digits right, or of the variance of hidden pixels explained",
    "recent_share_by_length": "Share of attention on the nearest 100 tokens",
}
# Shares of the pairs of dimensions that rotate.
SHARES = {0.5: "half", 0.25: "a quarter", 0.125: "an eighth"}
TRAINED_LENGTHS = (256, 1024, 4096)
INFINI_SCHEMES = ("infini-rope", "infini-p-rope")
# Half the training length first.
SEGMENT_LENGTHS = {
    **{"mini": (128, 64, 32), "mini-500": (128, 64, 32), "small": (256, 128, 64)},
    "paper": (2048,),
}
LENGTH_SCHEMES = ("alibi", "scale-invariant-p-rope", "scale-invariant-spread")


@dataclass(frozen=True)
class Experiment:
    """The trials behind a table or a figure, and the command that runs them.

    `builder` is the function in this package that builds the trials, as "module.function"; it is called
    with `arguments`, a scale, the schemes or values to compare, seeds, and changes to trainings and
    evaluation.
    """

    name: str
    help: str
    builder: str
    arguments: tuple[Any, ...] = ()
    scales: tuple[str, ...] = ("mini", "mini-500", "small", "paper")
    seeds: int = 3
    """Number of seeds by default."""
    first_seed: int = 0
    compares: str = "schemes"
    """The option that chooses the rows of the table: "schemes", "values" or "candidates"."""
    default: str = "every scheme"
    """The rows compared by default, in words."""
    size: str | None = "tokens"
    """The option that sets the size of the evaluation; None if neither size nor lengths can be set."""
    length: str = "context length"
    """The sizes that tables show by, which the option `lengths` sets."""
    measured_at: str = "at each length"
    """Where the evaluation has its size."""
    starts_from_training: bool = False
    """Whether trainings start from others, whose fields can be set too."""
    in_one_process: bool = False
    """Whether trials run in turn at every scale."""
    trains_gpts: bool = True
    """Whether trials take fields of ``TrainingConfig``, and `sia report` has their records."""
    has_families: bool = False
    """Whether models of several families are compared."""
    has_tasks: bool = False
    """Whether schemes are compared in several tasks."""
    is_ranked: bool = False
    """Whether the ranks of all recorded schemes are shown: those of the leaderboard."""
    folder: str = "mini"
    """Folder of trainings and records, inside runs and results, where there are no scales."""
    row: Sequence[str] = ("scheme",)
    """What of a configuration names its row, where schemes are compared: fields, or "segments"."""
    shown: str = "losses_by_length"
    """The method of a record that returns the values of its row."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that its command has."""
        return (
            *(("scale",) if self.scales else ()),
            *(self.compares, "seeds", "runs", "results", "print_config"),
            *(("lengths", self.size) if self.size else ()),
            *(("before",) if self.starts_from_training else ()),
            *(() if self.in_one_process else ("workers",)),
            *(("device",) if self.scales and not self.in_one_process else ()),
            *(("families",) if self.has_families else ()),
            *(("tasks",) if self.has_tasks else ()),
        )

    @property
    def heading(self) -> str:
        """Header of the table's first column."""
        if self.compares == "candidates" and "label" in self.row:
            return "model"
        # The labels of converted models are names of schemes.
        row = ", ".join(self.row).replace("label", "scheme")
        return {"schemes": row, "candidates": "tau"}.get(self.compares, self.name)

    @property
    def measure(self) -> str:
        """The values of the table in words."""
        return MEASURES[self.shown]

    def trials(
        self,
        scale: str = "mini",
        compared: Sequence[Any] = (),
        seeds: Sequence[int] = (),
        **changes: Mapping[str, Any],
    ) -> "list[Trial]":
        """The trials, by default all; `changes` are those of the builder.

        >>> [trial.name for trial in EXPERIMENTS["recall"].trials(compared=("alibi",), seeds=(0,))]
        ['recall-alibi-seed-0']
        """
        module, _, function = self.builder.rpartition(".")
        build = getattr(import_module(f".{module}", __package__), function)
        chosen = tuple(seeds or self.seed_range(self.seeds))
        return list(build(*self.arguments, scale, compared, chosen, **changes))

    def seed_range(self, count: int) -> range:
        """The first `count` seeds of the experiment."""
        return range(self.first_seed, self.first_seed + count)

    def records(
        self, results: Path, seeds: Sequence[int] = (), scale: str = "mini"
    ) -> "list[Record[Any]]":
        """The records of a scale, which are in the folder of its name inside `results`."""
        from .trials import find_record

        trials, folder = self.trials(scale, seeds=seeds), scale if self.scales else self.folder
        found = (find_record(trial, results / folder) for trial in trials)
        return [record for record in found if record is not None]

    def label(self, record: "Record[Any]") -> str:
        """The row of the table that a record belongs to."""
        if self.compares == "values":
            return number(record.config.scheme_options[self.name])
        if self.compares == "candidates" and "label" not in self.row:
            return _spread_of(record)
        return ", ".join(_shown(name, record.config) for name in self.row)

    def values(self, record: "Record[Any]") -> Mapping[int, float]:
        """The values of a record by length, as the table shows them."""
        return dict(getattr(record, self.shown)())


def number(value: float) -> str:
    """A number as names and tables have it, with all its digits.

    >>> number(10.0), number(0.01)
    ('10', '0.01')
    """
    return repr(float(value)).removesuffix(".0")


def _shown(name: str, config: Any) -> str:
    """A part of a configuration in a label: of a scheme its title, of its memory the segments."""
    from ... import schemes

    if name == "segments":
        return f"segments of {config.model_config().scheme.memory.tokens_per_segment:,}"
    value = getattr(config, name)
    return schemes.entry(value).title if name == "scheme" else str(value)


def _spread_of(record: "Record[Any]") -> str:
    """A candidate for the spread of tau: its tau, and the share of the pairs that rotate."""
    slots = record.config.model_config().scheme
    lowest, highest = slots.distance.tau, slots.distance.highest_tau
    tau = f"{lowest:g} in all heads" if highest is None else f"{lowest:g} to {highest:g}"
    learned = ", learned" if slots.distance.learn_tau else ""
    turning = "no rotation" if slots.rotary is None else f"{SHARES[slots.rotary.rotating]} rotating"
    # The names of candidates have their training length if it is another than the scale's.
    length = f", trained at {record.config.length}" if "-at-" in record.name else ""
    return f"{tau}{learned}, {turning}{length}"


def _sweep(option: str, help_text: str) -> Experiment:
    return Experiment(
        option,
        f"{help_text}\n\nResumes and records as table1 does; the training with the scale's own {option} "
        f"is the same.",
        "table1.sweep_trials",
        (option,),
        scales=("mini", "mini-500"),
        seeds=1,
        compares="values",
        default=", ".join(map(number, SWEPT_VALUES[option])),
    )


def _choice(name: str, help_text: str, builder: str, **fields: Any) -> Experiment:
    return Experiment(
        name,
        f"{help_text}\n\nSeeds and text are others than the tables'. Resumes as table1 does.",
        builder,
        scales=("mini",),
        seeds=2,
        first_seed=SELECTION_SEED,
        compares="candidates",
        default=", ".join(SPREAD_CANDIDATES),
        **fields,
    )


def _extension(name: str, help_text: str, builder: str, **fields: Any) -> Experiment:
    return Experiment(
        name,
        f"{help_text}\n\nResumes as table1 does. Two processes can share the work if each is given "
        f"other families. Needs transformers, as table4 does.",
        builder,
        scales=("mini",),
        compares="candidates",
        default="all",
        in_one_process=True,
        trains_gpts=False,
        has_families=True,
        row=("label",),
        **fields,
    )


EXPERIMENTS: Mapping[str, Experiment] = {
    it.name: it
    for it in (
        Experiment(
            "table1",
            "Table 1: loss at 1, 4 and 16 times the training length, for every scheme.\n\n"
            "Rerun an interrupted command to resume it; what is recorded is not trained again. Fields "
            "of the configuration can be set as for sia train. On several GPUs: torchrun "
            "--nproc-per-node 8 -m scale_invariant_attention.cli reproduce table1 --scale paper --data "
            "shards:PATH.",
            "table1.loss_trials",
        ),
        Experiment(
            "table2",
            "Table 2: needles found at 1, 4 and 16 times the training length, for every scheme.\n\n"
            "Fine-tunes the models of table1; models whose folders are missing are trained first. "
            "Resumes as table1 does. Fields of the configuration apply to the fine-tuning; those that "
            "describe the model apply to both. The paper's haystack is C4: sia data shards --help "
            "shows how to encode it.",
            "table2.needle_trials",
            size="examples",
            starts_from_training=True,
            shown="needles_by_length",
        ),
        Experiment(
            "table3",
            "Table 3: loss of Infini-attention at 1, 4 and 16 times the training length, by the length "
            "of its segments.\n\n"
            "The trainings with segments of half the training length are those of table1. Resumes as "
            "table1 does.",
            "table3.segment_trials",
            default=", ".join(INFINI_SCHEMES),
            row=("scheme", "segments"),
        ),
        Experiment(
            "table4",
            "Table 4: loss by length of a Llama that was trained with RoPE, converted to every scheme "
            "and fine-tuned.\n\n"
            "These are trials of extension, and are recorded once. Resumes as table1 does. Needs "
            "transformers: pip install 'scale-invariant-attention[huggingface]'.",
            "extension.table4_trials",
            scales=("mini",),
            default="the paper's ten",
            size=None,
            in_one_process=True,
            trains_gpts=False,
            row=("label",),
        ),
        _extension(
            "extension",
            "Models of three families, trained with RoPE and extended in several ways: loss by length, "
            "untrained and after 1 and 10 % of the tokens.",
            "extension.reported_trials",
        ),
        _extension(
            "extension-choice",
            "How rotary and tau of an extension were chosen, with other seeds and text than those of "
            "the tables.",
            "extension.choice_trials",
            seeds=1,
            first_seed=SELECTION_SEED,
        ),
        _extension(
            "extension-strings",
            "Random strings before a text and again after it: the share of their letters that extended "
            "models without fine-tuning predict, by length.",
            "extension.string_trials",
            size="examples",
            shown="strings_by_length",
        ),
        _extension(
            "extension-needles",
            "Needles that extended models find after fine-tuning, by length.",
            "extension.needle_trials",
            size="examples",
            shown="needles_by_length",
        ),
        Experiment(
            "recall",
            "Values recalled for keys in noise, at up to 16 times the training length, for every "
            "scheme.\n\n"
            "Not in the paper: what a scheme can find, apart from what it knows of language. Resumes "
            "as table1 does.",
            "recall.recall_trials",
            scales=(),
            size="examples",
            shown="recall_by_length",
        ),
        Experiment(
            "leaderboard",
            "Schemes in ten tasks of length generalisation, at up to 64 times the training length.\n\n"
            "Not in the paper. Shows the rank of every scheme that is recorded, in every task; sia "
            "reproduce leaderboard-page writes the page. Resumes as table1 does.",
            "leaderboard.leaderboard_trials",
            scales=(),
            default="the paper's, and the recommended one",
            size="examples",
            has_tasks=True,
            is_ranked=True,
            folder="leaderboard",
            row=("task", "scheme"),
            shown="scores_by_length",
        ),
        Experiment(
            "masked",
            "Hidden bytes predicted by encoders, at up to 16 times the training length.\n\n"
            "Not in the paper. The bytes are the same at every length. Resumes as table1 does.",
            "masked.masked_trials",
            scales=(),
            default="the paper's, and the recommended one",
            size="examples",
            measured_at="at the greatest length, and as many bytes at the others",
            folder="masked",
            shown="scores_by_length",
        ),
        Experiment(
            "images",
            "Digits, textures and photographs on canvases of up to 8 times the training size, by "
            "schemes for the plane.\n\n"
            "Not in the paper. Sizes are patches along a side of the canvas. What is recorded is not "
            "trained again; an interrupted training, of a minute or two, starts again. sia reproduce "
            "images-page writes the page. Needs scikit-learn and scikit-image: pip install "
            "'scale-invariant-attention[images]'.",
            "images.image_trials",
            scales=(),
            compares="candidates",
            default="all",
            size="examples",
            length="canvas size",
            trains_gpts=False,
            has_tasks=True,
            folder="images",
            row=("label",),
            shown="images_by_size",
        ),
        Experiment(
            "attention",
            "Figure 1 and the QQ plots: attention of the models of table1 by context length.\n\n"
            "Records mass and entropy by range of distance, and score statistics, of every layer and "
            "head; shows the share of attention on the nearest 100 tokens. Resumes as table1 does; "
            "models whose folders are missing are trained first. sia figures draws what is recorded.",
            "table1.attention_trials",
            seeds=1,
            default=", ".join(ATTENTION_SCHEMES),
            size="contexts",
            shown="recent_share_by_length",
        ),
        Experiment(
            "lengths",
            "Models trained at 1, 4 and 16 times the length, for the same tokens, and evaluated at "
            "all.\n\n"
            "In the paper, ours is also the lowest when it is trained at the length at which it is "
            "evaluated. Resumes as table1 does.",
            "table1.length_trials",
            scales=("mini",),
            seeds=1,
            default=", ".join(LENGTH_SCHEMES),
            row=("scheme", "length"),
        ),
        _choice(
            "spread",
            "How the spread of tau over the heads was chosen: loss of the candidates.",
            "spread.spread_trials",
        ),
        _choice(
            "spread-needles",
            "How the spread of tau over the heads was chosen: needles found by the candidates.",
            "spread.spread_needle_trials",
            size="examples",
            starts_from_training=True,
            shown="needles_by_length",
        ),
        _sweep("tau", "Figure 5: scale-invariant p-RoPE with other values of tau."),
        _sweep(
            "base",
            "Scale-invariant p-RoPE with other bases: how the base of the miniature was chosen.",
        ),
    )
}
