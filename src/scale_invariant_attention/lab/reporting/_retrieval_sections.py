"""The sections of REPRODUCTION.md on retrieval: needles in text, values of keys in noise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ... import schemes
from ...training import TrainingConfig
from ..records import TrainingRecord
from ..seeds import SeedRow, over_seeds, scheme_of, seed_rows
from ..tables import Table, length_table, markdown
from . import paper
from ._claims import CLAIMS_HEAD, NEEDLE_CLAIMS, judged, verdict_table
from .drawing import title_of
from .prose import filled

# The share that a model finds at the training length, if it has learned the task.
LEARNED = 0.9

_TABLE2 = """## Table 2: needles in a haystack

```bash
sia reproduce table2 --scale mini
```

The models of Table 1, fine-tuned to repeat at the end of a text the needles hidden in it, and tested on
held-out texts, the same for every scheme. Share of needles found (only exact answers count),
{seeds}; the highest in each column is bold. The paper's Table 2 is on the
right."""

_RECALL = """## Recall without language

```bash
sia reproduce recall
```

Not in the paper. Models learn nothing but to recall the values of keys hidden in noise, which separates
what a scheme can find from what it knows about language. Share of values recalled,
{seeds}; the highest in each column is bold."""


def needle_section(records: Sequence[TrainingRecord]) -> Iterator[str]:
    """Table 2, if any of it is recorded."""
    if not records:
        return
    rows = seed_rows(records, scheme_of, TrainingRecord.needles_by_length)
    yield _TABLE2.format(seeds=over_seeds(rows.values()))
    yield markdown(_table(rows).beside(paper.printed_table(paper.TABLE2, max)))
    first = records[0]
    examples = first.measured("needles").lengths[0].examples
    yield filled(_task(first.config, examples))
    yield from _not_learned(records, TrainingRecord.needles_by_length)
    judgements = judged(rows, NEEDLE_CLAIMS, paper.TABLE2)
    if judgements:
        yield CLAIMS_HEAD.format(what="the share found")
        yield verdict_table(judgements)


def recall_section(records: Sequence[TrainingRecord]) -> Iterator[str]:
    """Associative recall, if any of it is recorded."""
    if not records:
        return
    rows = seed_rows(records, scheme_of, TrainingRecord.recall_by_length)
    yield _RECALL.format(seeds=over_seeds(rows.values()))
    yield markdown(_table(rows))
    config = records[0].config
    task: Mapping[str, Any] = config.task_options
    yield filled(
        f"{task['pairs']} key-value pairs, out of {task['keys']} keys and {task['values']} values, "
        f"among {task['noise']} kinds of noise tokens; {task['queries']} of the pairs are queried. "
        f"{config.layers} layers of width {config.width}, {config.steps} steps of {config.batch_size} "
        f"sequences that grow from {config.first_length} to {config.length} tokens in the first "
        f"{config.growth_steps} steps. One value in {task['values']} is right by chance."
    )
    yield from _not_learned(records, TrainingRecord.recall_by_length)


def _not_learned(
    records: Sequence[TrainingRecord], values: Callable[[TrainingRecord], Mapping[int, float]]
) -> Iterator[str]:
    """The trainings that ended before the model had learned the task, even at the training length."""
    by_scheme: dict[str, list[str]] = {}
    for record in records:
        share = values(record)[record.config.length]
        if share < LEARNED:
            seeds = by_scheme.setdefault(record.scheme, [])
            seeds.append(f"{share:.2f} in seed {record.seed}")
    if by_scheme:
        listed = "; ".join(
            f"{title_of(scheme)} ({', '.join(by_scheme[scheme])})"
            for scheme in schemes.names()
            if scheme in by_scheme
        )
        yield filled(
            f"Below {LEARNED} at the training length, so the task was not learned: {listed}."
        )


def _table(rows: Mapping[str, SeedRow]) -> Table:
    return length_table(rows, "scheme", max, titles={it: title_of(it) for it in rows})


def _task(config: TrainingConfig, examples: int) -> str:
    form: Mapping[str, Any] = config.task_options
    up, constant = config.warmup_steps, config.constant_steps or 0
    down = config.steps - up - constant
    needles = "1 needle" if form["needles"] == 1 else f"{form['needles']} needles"
    grown = (
        f", which grow from {config.first_length} bytes to {config.length} in the first "
        f"{config.growth_steps} steps"
        if config.first_length
        else ""
    )
    return (
        f"Differences from the paper: {needles} of {form['digits']} digits per text instead of 3 of 7, "
        f"because three of its sentences would fill most of {config.length} bytes; the source of Python "
        f"instead of C4 as the text; {config.batch_size} sequences per step instead of 64{grown}. The "
        f"sentence, the form of the answer and the schedule are the paper's: {up} steps of warm-up, "
        f"{constant} constant, {down} of decay. {examples} texts at each length."
    )
