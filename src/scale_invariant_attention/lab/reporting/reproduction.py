"""REPRODUCTION.md and its figures, from recorded trainings alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from . import paper
from .claims import CLAIMS_HEAD, judged, verdict_table
from .conversion_section import conversion_section
from .drawing import OURS, TITLES
from .evaluation_figures import draw_loss_by_position, draw_sweep
from .losses import Record, SeedRow, lowest, scheme_of, seed_rows
from .markdown import bold, filled, table
from .retrieval_sections import needle_section, recall_section

POSITION_FIGURE = "reproduction-position.png"
SWEEP_FIGURE = "reproduction-{option}.png"

_HEAD = """# Reproduction

<!-- Written by `sia reproduce page` from the records in results/: nothing here is typed by hand. -->

The paper's experiments, trained anew in miniature, on two cores of a CPU and text that everyone has: the
source of Python's standard library, as bytes. Miniatures do not have to come out like the paper. Where
they do not, it is said."""

_TABLE1 = """## Table 1: the loss beyond the trained length

```bash
sia reproduce table1 --scale mini
```

Loss in nats a token on the same tokens at every length, mean and standard error over {seeds} seeds; the
lowest of each column in bold. The paper's Table 1 is to the right. NTK and YaRN change nothing up to the
trained length: as in the paper, they read with the weights of the row that they are trained as."""

_SCALE = "### What differs in scale"

_POSITION = """### By position

The loss of a token with so many before it, in {documents} files of the validation split, mean over
seeds; from the 16th token of a file on."""

_SWEEPS = {
    "tau": """## Figure 5: tau

```bash
sia reproduce tau --scale mini
```

Scale-invariant p-RoPE with other values of tau. The paper finds all near each other at the trained
length, 10 best, and the gap opening at 16 times it.""",
    "base": """## The base of p-RoPE

```bash
sia reproduce base --scale mini
```

Scale-invariant p-RoPE with other bases; 2 pi times the base is the longest period that rotates. The
paper's 1024 belongs to its length of 4096.""",
}

_PAPER_SCALE = """## The paper's own scale

```bash
sia data fetch fineweb10B --shards 25 -o fineweb10B
torchrun --nproc-per-node 8 -m scale_invariant_attention.cli reproduce table1 --scale paper
```

trains the paper's 162 million parameters on GPUs, with the same code, records and table. It has not been
run: this page has figures of the miniature only. Of the paper's tables the rows of Infini-attention are
left out."""


def page_and_figures(
    main: Sequence[Record],
    sweeps: Mapping[str, Sequence[Record]],
    needles: Sequence[Record] = (),
    recall: Sequence[Record] = (),
    conversions: Sequence[Record] = (),
    *,
    figures_at: str = "docs",
) -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and the figures that it shows, by the names of their files.

    Args:
        main: the records of Table 1, those of our scheme among them.
        sweeps: the records of each option of our scheme that was swept.
        needles: the records of Table 2.
        recall: those of associative recall.
        conversions: those of Table 4.
        figures_at: the folder of the figures, as seen from the page.
    """
    rows = {row.label: row for row in seed_rows(main, scheme_of)}
    if OURS not in rows:
        raise ValueError(f"records must have trainings of {OURS}, got those of {list(rows)}")
    figures: dict[str, bytes] = {}
    ours = next(record for record in main if scheme_of(record) == OURS)
    parts = [_HEAD, *_table1(rows, ours), *_by_position(main, ours, figures)]
    for option, records in sweeps.items():
        parts += _sweep(option, records, ours, figures)
    parts += [*needle_section(needles), *conversion_section(conversions), *recall_section(recall)]
    others = [it for records in sweeps.values() for it in records if it not in main]
    parts += [_PAPER_SCALE, *_sources([*main, *others, *needles, *recall])]
    page = "\n\n".join(parts) + "\n"
    return page.replace("](FIGURES/", f"]({figures_at}/"), figures


def _table1(rows: Mapping[str, SeedRow], ours: Record) -> Iterator[str]:
    seeds = {len(row.seeds) for row in rows.values()}
    yield _TABLE1.format(seeds=" or ".join(map(str, sorted(seeds))))
    lengths = list(rows[OURS].spreads)
    best = {length: min(row.spreads[length].mean for row in rows.values()) for length in lengths}
    paper_best = [min(losses) for losses in zip(*paper.TABLE1.values(), strict=True)]
    header = (
        "scheme",
        *(f"{length:,}" for length in lengths),
        "change",
        *(f"paper, {length:,}" for length in paper.LENGTHS),
        "change",
    )
    yield table(header, [_row(row, best, paper_best) for row in rows.values()])
    least = [_lowest(rows, length) for length in lengths]
    yield filled(f"Lowest here: {'; '.join(least)}. In the paper: {TITLES[OURS]} at all three.")
    yield _SCALE
    yield table(("", "here", "paper"), _settings(ours, rows))
    judgements = judged(rows)
    if judgements:
        yield CLAIMS_HEAD.format(what="loss")
        yield verdict_table(judgements)


def _lowest(rows: Mapping[str, SeedRow], length: int) -> str:
    return f"{' and '.join(TITLES[name] for name in lowest(rows, length))} at {length:,}"


def _row(row: SeedRow, best: Mapping[int, float], paper_best: Sequence[float]) -> tuple[str, ...]:
    first, *_, last = row.spreads.values()
    printed = paper.TABLE1.get(row.label)
    beside = ("",) * (len(paper.LENGTHS) + 1)
    if printed is not None:
        beside = (
            *(
                bold(f"{loss:.3f}", loss == low)
                for loss, low in zip(printed, paper_best, strict=True)
            ),
            f"{printed[-1] - printed[0]:+.3f}",
        )
    return (
        TITLES[row.label],
        *(bold(str(it), it.mean == best[length]) for length, it in row.spreads.items()),
        f"{last.mean - first.mean:+.3f}",
        *beside,
    )


def _settings(ours: Record, rows: Mapping[str, SeedRow]) -> Iterator[tuple[str, str, str]]:
    config: Mapping[str, Any] = ours["config"]
    heads, width, layers = config["heads"], config["width"], config["layers"]
    parameters = layers * 12 * width**2 + 2 * config["vocab_size"] * width
    per_step = config["batch_size"] * config["length"]
    here = {
        "parameters": f"{parameters / 1e6:.2f} million",
        "layers, width": f"{layers}, {width}",
        "heads": f"{heads} of {width // heads}",
        "text": "the source of Python's standard library, bytes",
        "training": f"{config['steps']:,} steps of {per_step:,} tokens",
        "trained length": f"{config['length']:,}",
        "evaluated on": f"{ours['losses'][0]['tokens']:,} tokens",
        "seeds": " or ".join(sorted({str(len(row.seeds)) for row in rows.values()})),
        "base of p-RoPE": f"{config['scheme_options']['base']:g}",
        "tau": f"{config['scheme_options']['tau']:g}",
        "Muon": f"{config['matrix_rate']:g}",
        "Adam: embedding, head, scalars": ", ".join(
            f"{config[name]:g}" for name in ("embedding_rate", "head_rate", "scalar_rate")
        ),
        "precision": f"{config['precision']}, on one core of a CPU",
    }
    for name, value in paper.SETTING.items():
        yield name, here[name], value


def _by_position(main: Sequence[Record], ours: Record, figures: dict[str, bytes]) -> Iterator[str]:
    by_scheme: dict[str, list[Sequence[Mapping[str, Any]]]] = {}
    for record in main:
        by_scheme.setdefault(scheme_of(record), []).append(record["by_position"])
    means = {
        scheme: [
            {**bins[0], "loss": sum(row["loss"] for row in bins) / len(bins)}
            for bins in zip(*seeds, strict=True)
        ]
        for scheme, seeds in by_scheme.items()
    }
    length = ours["config"]["length"]
    title = f"Loss by position, trained at {length:,} tokens"
    figures[POSITION_FIGURE] = draw_loss_by_position(means, title=title, train_length=length)
    yield _POSITION.format(documents=ours["by_position"][0]["documents"])
    yield f"![{title}](FIGURES/{POSITION_FIGURE})"


def _sweep(
    option: str, records: Sequence[Record], ours: Record, figures: dict[str, bytes]
) -> Iterator[str]:
    """A section, if there is more than one value to compare."""
    by_value: dict[float, list[Record]] = {}
    for record in records:
        by_value.setdefault(record["config"]["scheme_options"][option], []).append(record)
    if len(by_value) < 2:
        return
    # The same seeds for every value, or they could not be compared.
    seeds = set.intersection(
        *({record["config"]["seed"] for record in mine} for mine in by_value.values())
    )
    rows = {
        value: seed_rows((r for r in mine if r["config"]["seed"] in seeds), scheme_of)[0]
        for value, mine in by_value.items()
    }
    length = ours["config"]["length"]
    title = f"Scale-invariant p-RoPE by {option}, trained at {length:,} tokens"
    name = SWEEP_FIGURE.format(option=option)
    figures[name] = draw_sweep(option, rows, title=title, train_length=length)
    yield _SWEEPS[option]
    yield table(
        (option, *(f"{entry['length']:,}" for entry in ours["losses"])),
        [(f"{value:g}", *map(str, rows[value].spreads.values())) for value in sorted(rows)],
    )
    lengths = [entry["length"] for entry in ours["losses"]]
    least = [min(rows, key=lambda value: rows[value].spreads[n].mean) for n in lengths]
    finding = ", ".join(
        f"{option} {value:g} at {n:,}" for value, n in zip(least, lengths, strict=True)
    )
    more = f" {_period(least[-1], length)}" if option == "base" else ""
    yield filled(f"Seeds: {', '.join(map(str, sorted(seeds)))}. Lowest: {finding}.{more}")
    yield f"![{title}](FIGURES/{name})"


def _period(base: float, length: int) -> str:
    """The longest period of a base, in words, beside the paper's."""
    here, there = (2 * math.pi * it / n for it, n in ((base, length), (1024, paper.TRAIN_LENGTH)))
    return (
        f"The longest period of base {base:g}, {2 * math.pi * base:,.0f} tokens, is {here:.2f} of the "
        f"trained length; that of the paper's is {there:.2f} of its own."
    )


def _sources(records: Sequence[Record]) -> Iterator[str]:
    origins = [record["provenance"] for record in records]
    names = ("commit", "version", "torch", "python", "cpu")
    facts = {name: " and ".join(sorted({origin[name] for origin in origins})) for name in names}
    minutes = {record["trained_as"]: record["seconds"] / 60 for record in records}
    text = (
        f"{len(records)} records of {len(minutes)} trainings, each on one core ({facts['cpu']}), made "
        f"from {min(origin['date'] for origin in origins)[:10]} on with scale-invariant-attention "
        f"{facts['version']} (commit {facts['commit']}), torch {facts['torch']}, Python "
        f"{facts['python']}. The steps of one took {median(minutes.values()):.1f} minutes in the "
        f"median, two running at a time. The text is the standard library of that Python: with "
        f"another version the losses differ a little. Every file in `results/mini` has the whole "
        f"configuration, the losses of every step, and the fingerprint of the text."
    )
    yield "## Where the figures come from"
    yield filled(text)
