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
from ..tables import markdown_table
from .attention_figures import (
    against_length_figure,
    entropy_figure,
    quantile_figure,
    root_log,
    transform_figure,
)
from .drawing import Fit, add_source, as_png, as_svg, title_of
from .evaluation_figures import sweep_figure, training_figure
from .prose import filled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = Sequence[TrainingRecord]

TRAINED = ("rope", "p-rope", "nope", "logn-rope", "logn-p-rope", "alibi", "scale-invariant-p-rope")
ROTARY = ("scale-invariant-p-rope", "scale-invariant-rope", "scale-invariant-nope")
COMPARED = ("p-rope", "logn-p-rope", "scale-invariant-p-rope")

# The figures are wide: as many pixels as a page shows.
FORMATS: dict[str, Callable[[Any], bytes]] = {"png": partial(as_png, dpi=110), "svg": as_svg}

_HEAD = """# Figures

<!-- Written by `sia figures --page`, from the records in results/ and from theory. -->

The paper's figures redrawn: those of theory as in the paper, those of trained models with the miniatures
of `REPRODUCTION.md`, which are trained at {length:,} tokens. The paper trains at 4,096 tokens and
evaluates up to 65,536. Its Figures 4 and 7, on a larger model and on longer training contexts, have not
been run. Where a caption states a finding of the paper, compare the miniature with it.

```bash
sia figures -o figures
```

draws all of them, as PNG and SVG."""


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
        """The records of the miniature that a folder has."""
        table1 = EXPERIMENTS["table1"]
        return cls(
            table1.records(results),
            EXPERIMENTS["tau"].records(results, range(table1.seeds)),
            EXPERIMENTS["attention"].records(results),
        )


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure with its title and caption; `name` is the stem of its files."""

    name: str
    title: str
    caption: str
    figure: "Figure"
    source: str
    fits: Mapping[str, Fit] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """A figure that lacks records, and the command that makes them."""

    title: str
    command: str


def gallery(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    """All figures in the paper's order, after the transform itself."""
    for draw in (
        _transform,
        _against_length,
        _range_entropy,
        _training,
        _tau,
        _plain_entropy,
        _rotary,
        _quantiles,
    ):
        for drawn in draw(theory, recorded):
            if isinstance(drawn, Drawing):
                add_source(drawn.figure, drawn.source)
            yield drawn


def figure_page(drawn: Sequence[Drawing | Missing], *, figures_at: str) -> str:
    """The page of all figures, as Markdown; `figures_at` is the path from the page to their folder."""
    parts = [_HEAD.format(length=EXPERIMENTS["table1"].trials()[0].config.length)]
    for it in drawn:
        parts.append(f"## {it.title}")
        if isinstance(it, Missing):
            parts.append(f"Not drawn: its records are missing; make them with `{it.command}`.")
            continue
        parts.append(filled(it.caption))
        parts.append(f"![{it.title}]({figures_at}/{it.name}.png)")
        if it.fits:
            rows = [
                (name, f"{fit.slope:.3f}", f"{fit.intercept:.3f}", f"{fit.r_squared:.4f}")
                for name, fit in it.fits.items()
            ]
            parts.append(markdown_table(("Delta", "slope", "intercept", "R²"), rows))
        parts.append(filled(f"From {it.source}."))
    return "\n\n".join(parts) + "\n"


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


def _of_theory(theory: TheoryNumbers) -> str:
    return f"theory: IID N(0, 1) scores, {theory.samples} samples, bars are standard errors"


def _transform(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing]:
    yield Drawing(
        "transform",
        "The transform",
        "Gain and bias by distance for several values of tau, the expected weight of a token, and the "
        "expected mass of the decade that starts at a distance, divided by tau. The mass tends to "
        "e^0.5 ln 10: all decades far beyond tau get the same. At distance 0 the gain is 1 and the "
        "bias is 0.",
        transform_figure(theory.transform),
        "theory: closed forms",
    )


def _against_length(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    title = "Figure 1: attention against context length"
    if not set(COMPARED) <= {record.scheme for record in recorded.attention}:
        yield Missing(title, "sia reproduce attention")
        return
    yield Drawing(
        "figure-1-attention-against-length",
        title,
        "Entropy of all attention, entropy inside two ranges of distance, and share of attention on "
        "the last 100 tokens. Above: Gaussian scores, plain, with LogN, and with the transform. Below: "
        "trained models, mean over all layers and heads, for the last 16 queries of contexts with the "
        "same ending at every length; error bars are over contexts. A range is drawn only where the "
        "context holds all of it. In the paper, as the context grows, plain attention spreads out and "
        "leaves the local context, LogN stays sparse but leaves the local context too, and the "
        "transform stays sparse and local.",
        against_length_figure(theory.against_length, recorded.attention),
        f"{_of_theory(theory)}; {source_of(recorded.attention)}",
    )


def _range_entropy(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing]:
    figure, fits = entropy_figure(theory.transformed, root_log, "sqrt(log t)")
    yield Drawing(
        "figure-2-range-entropy",
        "Figure 2: range entropy with the transform",
        "Entropy inside the range of distances from t to Delta t, against t, and against the square "
        "root of log t with least-squares lines. It grows roughly like sqrt(log t): slower than log t, "
        "so attention is weakly sparse, but without bound.",
        figure,
        _of_theory(theory),
        fits,
    )


def _training(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    yield from _through_training(
        recorded.main,
        TRAINED,
        "figure-3-training",
        "Figure 3: loss through training",
        "Training loss, smoothed over 25 steps, and validation loss at the training length and beyond "
        "it, mean and standard error over seeds. With some schemes, learning at the training length "
        "also helps beyond it; with others it does not.",
    )


def _tau(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    title = "Figure 5: tau"
    rows = seed_rows(
        recorded.tau, lambda it: option_value(it, "tau"), TrainingRecord.losses_by_length
    )
    common = with_common_seeds(rows) if rows else {}
    if len(common) < 2 or not all(row.seeds for row in common.values()):
        yield Missing(title, "sia reproduce tau")
        return
    used = [
        record
        for tau, row in common.items()
        for record in recorded.tau
        if option_value(record, "tau") == tau and record.seed in row.seeds
    ]
    length = used[0].config.length
    yield Drawing(
        "figure-5-tau",
        title,
        "Loss of scale-invariant p-RoPE with several values of tau, at the training length and beyond.",
        sweep_figure("tau", common, title="Scale-invariant p-RoPE", train_length=length),
        source_of(used),
    )


def _plain_entropy(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing]:
    figure, fits = entropy_figure(theory.plain, math.log, "log t")
    yield Drawing(
        "figure-6-plain-range-entropy",
        "Figure 6: range entropy of plain attention",
        "The same without the transform, against log t. It grows with slope 1, like log t itself: "
        "attention covers the same fraction of every range, however many tokens that is.",
        figure,
        _of_theory(theory),
        fits,
    )


def _rotary(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    yield from _through_training(
        recorded.main,
        ROTARY,
        "figure-8-rotary",
        "Figure 8: the transform with other rotations",
        "The transform with p-RoPE, with RoPE and without rotation, through training, as in Figure 3.",
    )


def _through_training(
    main: Records, schemes: Sequence[str], name: str, title: str, caption: str
) -> Iterator[Drawing | Missing]:
    used = [record for record in main if record.scheme in schemes]
    if {record.scheme for record in used} != set(schemes):
        yield Missing(title, f"sia reproduce table1 --schemes {','.join(schemes)}")
        return
    figure = training_figure(used, schemes)
    yield Drawing(name, title, caption, figure, source_of(used))


def _quantiles(theory: TheoryNumbers, recorded: Recorded) -> Iterator[Drawing | Missing]:
    title = "Figures 9 to 14: scores against a Gaussian"
    if not recorded.attention:
        yield Missing(title, "sia reproduce attention")
    for record in recorded.attention:
        scheme, length = record.scheme, record.config.length
        shown = title_of(scheme)
        yield Drawing(
            f"figure-9-scores-{scheme}",
            f"{title}, {shown}",
            f"Standardised quantiles of the scores of {shown} in contexts of {length:,} tokens, one "
            f"line per head, against those of N(0, 1), without the key of the first token. On the "
            f"diagonal, scores are Gaussian. Each panel states the spread and mean of its heads.",
            quantile_figure(record, length),
            source_of([record]),
        )
