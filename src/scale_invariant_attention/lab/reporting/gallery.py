"""The paper's figures redrawn from records and from theory, and the page that shows them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...theory import Plain, ScaleInvariantTransform
from ..experiments import theory_numbers
from ..experiments.catalogue import EXPERIMENTS
from ..experiments.theory_numbers import TransformTable
from ..measurements import LengthAttention, Mean
from ..records import TrainingRecord
from ..seeds import option_value, seed_rows, with_common_seeds
from .attention_figures import (
    against_length_figure,
    entropy_figure,
    quantile_figure,
    root_log,
    transform_figure,
)
from .drawing import Fit, add_source, as_png, as_svg, title_of
from .evaluation_figures import sweep_figure, training_figure
from .pages import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = Sequence[TrainingRecord]

TRAINED = ("rope", "p-rope", "nope", "logn-rope", "logn-p-rope", "alibi", "scale-invariant-p-rope")
ROTARY = ("scale-invariant-p-rope", "scale-invariant-rope", "scale-invariant-nope")
COMPARED = ("p-rope", "logn-p-rope", "scale-invariant-p-rope")

# The figures are wide: as many pixels as a page shows.
# The models of the figures.
SCALE = "mini-500"
FORMATS: dict[str, Callable[[Any], bytes]] = {"png": partial(as_png, dpi=110), "svg": as_svg}


@dataclass(frozen=True)
class TheoryNumbers:
    """The theory's numbers that figures show; `samples` is that of the Monte-Carlo estimates."""

    against_length: Mapping[str, Sequence[LengthAttention]]
    transformed: Mapping[str, Mapping[int, Mean]]
    plain: Mapping[str, Mapping[int, Mean]]
    transform: Mapping[str, TransformTable]
    samples: int

    @classmethod
    def computed(cls) -> "TheoryNumbers":
        """Compute them; takes some seconds."""
        return cls(
            theory_numbers.against_length(),
            theory_numbers.range_entropies(ScaleInvariantTransform()),
            theory_numbers.range_entropies(Plain()),
            theory_numbers.transform_tables(),
            theory_numbers.SAMPLES,
        )


@dataclass(frozen=True)
class Recorded:
    """The records that figures are drawn from: Table 1, the sweep over tau, and attention."""

    main: Records
    tau: Records
    attention: Records

    @classmethod
    def read(cls, results: Path) -> "Recorded":
        """The records that a folder of results has of the miniature with 500 steps."""
        table1 = EXPERIMENTS["table1"]
        return cls(
            table1.records(results, scale=SCALE),
            EXPERIMENTS["tau"].records(results, range(table1.seeds), scale=SCALE),
            EXPERIMENTS["attention"].records(results, scale=SCALE),
        )


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its title; `name` is the stem of its files.

    The page has its caption by name; that of a figure of one model names `scheme` and `length`.
    """

    name: str
    title: str
    figure: "Figure"
    source: str
    fits: Mapping[str, Fit] = field(default_factory=dict)
    scheme: str = ""
    length: int = 0


@dataclass(frozen=True)
class Missing:
    """A figure that lacks records, and the command that makes them."""

    title: str
    command: str


def gallery(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    """All figures in the paper's order, after the transform itself."""
    for drawn in _all(theory, recorded):
        if isinstance(drawn, Drawing):
            add_source(drawn.figure, drawn.source)
        yield drawn


def figure_page(drawn: Sequence[Drawing | Missing], *, figures_at: str) -> str:
    """The page of all figures, as Markdown; `figures_at` is the path from the page to their folder."""
    config = EXPERIMENTS["table1"].trials(SCALE)[0].config
    return render("figures.md", drawn=drawn, figures_at=figures_at, config=config)


def parse_formats(text: str) -> list[str]:
    """The names of `FORMATS` in a list with commas.

    >>> parse_formats("png, svg")
    ['png', 'svg']
    """
    kinds = [kind.strip() for kind in text.split(",")]
    for kind in kinds:
        if kind not in FORMATS:
            raise ValueError(f"--formats must be some of {', '.join(FORMATS)}, got {kind!r}")
    return kinds


def source_of(records: Records) -> str:
    """The names of records and their commits: "the records rope-seed-{0,1} (commit 0123456)"."""
    seeds: dict[str, list[str]] = {}
    for record in records:
        stem, _, seed = record.name.rpartition("-seed-")
        seeds.setdefault(stem, []).append(seed)
    names = [
        f"{stem}-seed-{found[0] if len(found) == 1 else '{' + ','.join(found) + '}'}"
        for stem, found in seeds.items()
    ]
    commits = sorted({record.provenance.commit[:7] for record in records})
    noun = "commit" if len(commits) == 1 else "commits"
    what = "record" if len(records) == 1 else "records"
    return f"the {what} {', '.join(names)} ({noun} {', '.join(commits)})"


def _all(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    sampled = f"theory: IID N(0, 1) scores, {theory.samples} samples, bars are standard errors"
    yield Drawing(
        "transform", "The transform", transform_figure(theory.transform), "theory: closed forms"
    )
    title = "Figure 1: attention against context length"
    if set(COMPARED) <= {record.scheme for record in recorded.attention}:
        yield Drawing(
            "figure-1-attention-against-length",
            title,
            against_length_figure(theory.against_length, recorded.attention),
            f"{sampled}; {source_of(recorded.attention)}",
        )
    else:
        yield Missing(title, "sia reproduce attention")
    figure, fits = entropy_figure(theory.transformed, root_log, "sqrt(log t)")
    title = "Figure 2: range entropy with the transform"
    yield Drawing("figure-2-range-entropy", title, figure, sampled, fits)
    yield _training("figure-3-training", "Figure 3: loss through training", recorded.main, TRAINED)
    yield _tau("Figure 5: tau", recorded.tau)
    figure, fits = entropy_figure(theory.plain, math.log, "log t")
    title = "Figure 6: range entropy of plain attention"
    yield Drawing("figure-6-plain-range-entropy", title, figure, sampled, fits)
    title = "Figure 8: the transform with other rotations"
    yield _training("figure-8-rotary", title, recorded.main, ROTARY)
    title = "Figures 9 to 14: scores against a Gaussian"
    if not recorded.attention:
        yield Missing(title, "sia reproduce attention")
    for record in recorded.attention:
        scheme, length = record.scheme, record.config.length
        yield Drawing(
            f"figure-9-scores-{scheme}",
            f"{title}, {title_of(scheme)}",
            quantile_figure(record, length),
            source_of([record]),
            scheme=scheme,
            length=length,
        )


def _training(name: str, title: str, main: Records, schemes: Sequence[str]) -> Drawing | Missing:
    used = [record for record in main if record.scheme in schemes]
    if {record.scheme for record in used} != set(schemes):
        return Missing(title, f"sia reproduce table1 --schemes {','.join(schemes)}")
    return Drawing(name, title, training_figure(used, schemes), source_of(used))


def _tau(title: str, records: Records) -> Drawing | Missing:
    rows = seed_rows(records, lambda it: option_value(it, "tau"), TrainingRecord.losses_by_length)
    common = with_common_seeds(rows) if rows else {}
    if len(common) < 2 or not all(row.seeds for row in common.values()):
        return Missing(title, "sia reproduce tau")
    used = [
        record
        for tau, row in common.items()
        for record in records
        if option_value(record, "tau") == tau and record.seed in row.seeds
    ]
    length = used[0].config.length
    figure = sweep_figure("tau", common, title="Scale-invariant p-RoPE", train_length=length)
    return Drawing("figure-5-tau", title, figure, source_of(used))
