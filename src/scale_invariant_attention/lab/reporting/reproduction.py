"""REPRODUCTION.md and its figures, from records alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from ...evaluation import PositionLoss
from ..records import Record, TrainingRecord
from ..seeds import SeedRow, lowest, option_value, scheme_of, seed_rows, with_common_seeds
from ..tables import length_table, markdown, markdown_table
from . import paper
from ._claims import CLAIMS_HEAD, judged, verdict_table
from ._conversion_section import conversion_section
from ._retrieval_sections import needle_section, recall_section
from .drawing import as_png, title_of
from .evaluation_figures import draw_loss_by_position, sweep_figure
from .paper import OURS
from .prose import filled, first_date, made_with, records_and_trainings

if TYPE_CHECKING:
    from ..experiments.table4 import ConversionConfig

POSITION_FIGURE = "reproduction-position.png"
SWEEP_FIGURE = "reproduction-{option}.png"

_HEAD = """# Reproduction

<!-- Written by `sia reproduce page` from the records in results/: do not edit. -->

The paper's experiments in miniature, on two cores of a CPU and text that everyone has: the source of
Python's standard library, as bytes. Miniatures need not agree with the paper; this page says where they
do not."""

_TABLE1 = """## Table 1: loss beyond the training length

```bash
sia reproduce table1 --scale mini
```

Loss in nats per token, on the same tokens at every length, mean and standard error over {seeds} seeds;
the lowest in each column is bold. The paper's Table 1 is on the right. NTK and YaRN change nothing up to
the training length, so as in the paper they are evaluated with the weights of RoPE, or of LogN+RoPE."""

_SCALE = "### Differences in scale"

_POSITION = """### By position

Loss by the number of tokens before the predicted one, in {documents} files of the validation split, from
the 16th token of each file; mean over seeds."""

_SWEEPS = {
    "tau": """## Figure 5: tau

```bash
sia reproduce tau --scale mini
```

Scale-invariant p-RoPE with other values of tau. In the paper they are close at the training length, with
10 the best, and further apart at 16 times that length.""",
    "base": """## The base of p-RoPE

```bash
sia reproduce base --scale mini
```

Scale-invariant p-RoPE with other bases; the longest period of the rotation is 2 pi times the base. The
paper's 1024 goes with its training length of 4096.""",
}

_PAPER_SCALE = """## The paper's scale

```bash
sia data fetch fineweb10B --shards 25 -o fineweb10B
torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table1 --scale paper
```

trains the paper's 162 million parameters on GPUs, with the same code, records and tables. It has not
been run: all results here are those of the miniature. The rows of Infini-attention in the paper's tables
are left out."""


def page_and_figures(
    main: Sequence[TrainingRecord],
    sweeps: Mapping[str, Sequence[TrainingRecord]],
    needles: Sequence[TrainingRecord] = (),
    recall: Sequence[TrainingRecord] = (),
    conversions: "Sequence[Record[ConversionConfig]]" = (),
    *,
    figures_at: str = "docs",
) -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and its figures by file name.

    Args:
        main: the records of Table 1, including those of our scheme.
        sweeps: the records of our scheme by swept option.
        needles: the records of Table 2.
        recall: the records of associative recall.
        conversions: the records of Table 4.
        figures_at: the path from the page to the folder of the figures.
    """
    rows = seed_rows(main, scheme_of, TrainingRecord.losses_by_length)
    if OURS not in rows:
        raise ValueError(f"records must include trainings of {OURS}, got those of {list(rows)}")
    figures: dict[str, bytes] = {}
    ours = next(record for record in main if record.scheme == OURS)
    parts = [_HEAD, *_table1(rows, ours), *_by_position(main, ours, figures)]
    for option, records in sweeps.items():
        parts += _sweep(option, records, ours, figures)
    parts += [*needle_section(needles), *conversion_section(conversions), *recall_section(recall)]
    others = [it for records in sweeps.values() for it in records if it not in main]
    parts += [_PAPER_SCALE, *_sources([*main, *others, *needles, *recall])]
    page = "\n\n".join(parts) + "\n"
    return page.replace("](FIGURES/", f"]({figures_at}/"), figures


def _table1(rows: Mapping[str, SeedRow], ours: TrainingRecord) -> Iterator[str]:
    seeds = {len(row.seeds) for row in rows.values()}
    yield _TABLE1.format(seeds=" or ".join(map(str, sorted(seeds))))
    titles = {scheme: title_of(scheme) for scheme in rows}
    table = length_table(rows, "scheme", min, titles=titles, change=True)
    yield markdown(table.beside(paper.printed_table(paper.TABLE1, min, change=True)))
    least = [_lowest(rows, length) for length in rows[OURS].spreads]
    yield filled(f"Lowest here: {'; '.join(least)}. In the paper: {title_of(OURS)} at all three.")
    yield _SCALE
    yield markdown_table(("", "here", "paper"), _settings(ours, rows))
    judgements = judged(rows)
    if judgements:
        yield CLAIMS_HEAD.format(what="loss")
        yield verdict_table(judgements)


def _lowest(rows: Mapping[str, SeedRow], length: int) -> str:
    return f"{' and '.join(map(title_of, lowest(rows, length)))} at {length:,}"


def _settings(ours: TrainingRecord, rows: Mapping[str, SeedRow]) -> Iterator[tuple[str, str, str]]:
    config = ours.config
    heads, width, layers = config.heads, config.width, config.layers
    parameters = layers * 12 * width**2 + 2 * config.vocab_size * width
    per_step = config.batch_size * config.length
    here = {
        "parameters": f"{parameters / 1e6:.2f} million",
        "layers, width": f"{layers}, {width}",
        "heads": f"{heads} of {width // heads}",
        "text": "the source of Python's standard library, bytes",
        "training": f"{config.steps:,} steps of {per_step:,} tokens",
        "training length": f"{config.length:,}",
        "evaluated on": f"{ours.measured('losses')[0].tokens:,} tokens",
        "seeds": " or ".join(sorted({str(len(row.seeds)) for row in rows.values()})),
        "base of p-RoPE": f"{config.scheme_options['base']:g}",
        "tau": f"{config.scheme_options['tau']:g}",
        "Muon": f"{config.matrix_rate:g}",
        "Adam: embedding, head, scalars": ", ".join(
            f"{rate:g}" for rate in (config.embedding_rate, config.head_rate, config.scalar_rate)
        ),
        "precision": f"{config.precision}, on one core of a CPU",
    }
    for name, value in paper.SETTING.items():
        yield name, here[name], value


def _by_position(
    main: Sequence[TrainingRecord], ours: TrainingRecord, figures: dict[str, bytes]
) -> Iterator[str]:
    by_scheme: dict[str, list[Sequence[PositionLoss]]] = {}
    for record in main:
        by_scheme.setdefault(record.scheme, []).append(record.measured("by_position"))
    means = {
        scheme: [
            replace(bins[0], loss=sum(it.loss for it in bins) / len(bins))
            for bins in zip(*seeds, strict=True)
        ]
        for scheme, seeds in by_scheme.items()
    }
    length = ours.config.length
    title = f"Loss by position, trained at {length:,} tokens"
    figures[POSITION_FIGURE] = draw_loss_by_position(means, title=title, train_length=length)
    yield _POSITION.format(documents=ours.measured("by_position")[0].documents)
    yield f"![{title}](FIGURES/{POSITION_FIGURE})"


def _sweep(
    option: str,
    records: Sequence[TrainingRecord],
    ours: TrainingRecord,
    figures: dict[str, bytes],
) -> Iterator[str]:
    """A section, if there are several values to compare."""
    found = seed_rows(records, lambda it: option_value(it, option), TrainingRecord.losses_by_length)
    if len(found) < 2:
        return
    rows = dict(sorted(with_common_seeds(found).items()))
    train_length = ours.config.length
    title = f"Scale-invariant p-RoPE by {option}, trained at {train_length:,} tokens"
    name = SWEEP_FIGURE.format(option=option)
    drawn = sweep_figure(option, rows, title=title, train_length=train_length)
    figures[name] = as_png(drawn)
    yield _SWEEPS[option]
    labelled = {f"{value:g}": row for value, row in rows.items()}
    yield markdown(length_table(labelled, option))
    first = next(iter(rows.values()))
    least = {n: min(rows, key=lambda value: rows[value].spreads[n].mean) for n in first.spreads}
    finding = ", ".join(f"{option} {value:g} at {n:,}" for n, value in least.items())
    *_, longest = least.values()
    more = f" {_period(longest, train_length)}" if option == "base" else ""
    yield filled(f"Seeds: {', '.join(map(str, first.seeds))}. Lowest: {finding}.{more}")
    yield f"![{title}](FIGURES/{name})"


def _period(base: float, length: int) -> str:
    """The longest period of a base relative to the training length, beside the paper's."""
    here, there = (2 * math.pi * it / n for it, n in ((base, length), (1024, paper.TRAIN_LENGTH)))
    return (
        f"The longest period of base {base:g}, {2 * math.pi * base:,.0f} tokens, is {here:.2f} times "
        f"the training length; the paper's is {there:.2f} times its own."
    )


def _sources(records: Sequence[TrainingRecord]) -> Iterator[str]:
    names = ("commit", "version", "torch", "python", "cpu")
    commit, version, torch, python, cpu = (made_with(records, name) for name in names)
    minutes = {record.trained_as: record.seconds / 60 for record in records}
    text = (
        f"{records_and_trainings(records)}, each on one core ({cpu}), made since {first_date(records)} "
        f"with scale-invariant-attention {version} (commit {commit}), torch {torch}, Python {python}. "
        f"The median training took {median(minutes.values()):.1f} minutes, with two running at a time. "
        f"The text is the standard library of that Python version: with another, losses differ a "
        f"little. Every file in `results/mini` holds the whole configuration, the loss of every step, "
        f"and the fingerprint of the text."
    )
    yield "## Provenance"
    yield filled(text)
