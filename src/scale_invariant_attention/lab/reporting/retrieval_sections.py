"""The sections of REPRODUCTION.md on what models find: needles in text, values of keys in noise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import paper
from .claims import CLAIMS_HEAD, NEEDLE_CLAIMS, judged, verdict_table
from .drawing import TITLES
from .losses import Record, SeedRow, over_seeds, scheme_of, seed_rows
from .markdown import bold, filled, table
from .shares import needles_found, values_recalled

# What a model finds at the trained length, if it has learned to.
LEARNED = 0.9

_TABLE2 = """## Table 2: needles in a haystack

```bash
sia reproduce table2 --scale mini
```

The models of Table 1, fine-tuned to tell at the end of a text what was hidden in it, and tested on texts
that none was trained on, the same for every scheme. The share of needles found, each right only to the
letter, {seeds}; the highest of each column in bold. The paper's Table 2 is to the right."""

_RECALL = """## Recall without language

```bash
sia reproduce recall
```

Not in the paper. Models that know nothing else learn to give the values of keys that stand somewhere in
noise, so that what a scheme can find is told apart from what it knows of language. The share of values
recalled, {seeds}; the highest of each column in bold."""


def needle_section(records: Sequence[Record]) -> Iterator[str]:
    """Table 2, if anything of it is recorded."""
    if not records:
        return
    rows = _rows(records, needles_found)
    yield _TABLE2.format(seeds=over_seeds(rows))
    yield _shares_table(rows, paper.TABLE2)
    config = records[0]["config"]
    yield filled(_task(config, records[0]["evaluation"]["examples"]))
    yield from _not_learned(records, needles_found)
    judgements = judged(rows, NEEDLE_CLAIMS, paper.TABLE2)
    if judgements:
        yield CLAIMS_HEAD.format(what="the share found")
        yield verdict_table(judgements)


def recall_section(records: Sequence[Record]) -> Iterator[str]:
    """Associative recall, if anything of it is recorded."""
    if not records:
        return
    rows = _rows(records, values_recalled)
    yield _RECALL.format(seeds=over_seeds(rows))
    yield _shares_table(rows)
    config = records[0]["config"]
    task: Mapping[str, Any] = config["task_options"]
    yield filled(
        f"{task['pairs']} pairs of {task['keys']} keys and {task['values']} values among "
        f"{task['noise']} kinds of noise, {task['queries']} of them asked for; {config['layers']} "
        f"layers of width {config['width']}, {config['steps']} steps of {config['batch_size']} "
        f"sequences that grow from {config['first_length']} to {config['length']} tokens in the first "
        f"{config['growth_steps']} steps. One value in {task['values']} is right by chance."
    )
    yield from _not_learned(records, values_recalled)


def _not_learned(
    records: Sequence[Record], values: Callable[[Record], Mapping[int, float]]
) -> Iterator[str]:
    """Which trainings ended before the model found what it should, even at the trained length."""
    by_scheme: dict[str, list[str]] = {}
    for record in records:
        config = record["config"]
        share = values(record)[config["length"]]
        if share < LEARNED:
            seeds = by_scheme.setdefault(TITLES[scheme_of(record)], [])
            seeds.append(f"{share:.2f} in seed {config['seed']}")
    if by_scheme:
        listed = "; ".join(
            f"{title} ({', '.join(by_scheme[title])})"
            for title in TITLES.values()
            if title in by_scheme
        )
        yield filled(
            f"Below {LEARNED} at the trained length, and so not learned in time: {listed}."
        )


def _rows(
    records: Sequence[Record], values: Callable[[Record], Mapping[int, float]]
) -> dict[str, SeedRow]:
    return {row.label: row for row in seed_rows(records, scheme_of, values)}


def _shares_table(
    rows: Mapping[str, SeedRow], printed: Mapping[str, tuple[float, ...]] | None = None
) -> str:
    first = next(iter(rows.values()))
    best = {n: max(row.spreads[n].mean for row in rows.values()) for n in first.spreads}
    header = ["scheme", *(f"{length:,}" for length in best)]
    if printed is not None:
        header += [f"paper, {length:,}" for length in paper.LENGTHS]
    return table(
        header,
        [
            (
                TITLES[row.label],
                *(bold(str(it), it.mean == best[n]) for n, it in row.spreads.items()),
                *(() if printed is None else _printed(printed, row.label)),
            )
            for row in rows.values()
        ],
    )


def _printed(printed: Mapping[str, tuple[float, ...]], scheme: str) -> Sequence[str]:
    if scheme not in printed:
        return ("",) * len(paper.LENGTHS)
    best = [max(column) for column in zip(*printed.values(), strict=True)]
    return [
        bold(f"{share:.3f}", share == most)
        for share, most in zip(printed[scheme], best, strict=True)
    ]


def _task(config: Mapping[str, Any], examples: int) -> str:
    form: Mapping[str, Any] = config["task_options"]
    third = config["warmup_steps"]
    down = config["steps"] - third - config["constant_steps"]
    needles = "1 needle" if form["needles"] == 1 else f"{form['needles']} needles"
    grown = (
        f", which grow from {config['first_length']} bytes to {config['length']} in the first "
        f"{config['growth_steps']} steps"
        if config["first_length"]
        else ""
    )
    return (
        f"What differs from the paper: {needles} of {form['digits']} digits a text instead of 3 of 7, "
        f"since in bytes three of its sentences would be most of {config['length']}; the source of "
        f"Python as the text instead of C4; {config['batch_size']} sequences a step instead of 64"
        f"{grown}. The sentence, the form of the answer and the schedule are the paper's: {third} steps "
        f"up, {config['constant_steps']} constant, {down} down. {examples} texts at each length."
    )
