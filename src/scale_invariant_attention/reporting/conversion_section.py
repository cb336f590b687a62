"""The section of REPRODUCTION.md on Table 4: a trained model converted, and trained on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import paper
from .claims import CONVERSION_CLAIMS, judged
from .losses import Record, SeedRow, scheme_of, seed_rows
from .markdown import bold, filled, table
from .styles import OURS, TITLES
from .verdicts import CLAIMS_HEAD, verdict_table

_TABLE4 = """## Table 4: a trained model converted

```bash
sia reproduce table4 --scale mini
```

A Llama of transformers trained with RoPE, converted to every scheme and trained on with the same tokens;
those with * are not trained on. Loss in nats a token on the same tokens at every length, {seeds}; the
lowest of each column in bold. The paper's Table 4 is to the right."""

_SCALE = "### What differs in scale from Table 4"

_CALIBRATION = """### Calibration, and no training at all

Llama has no QK-norm, so its scores do not have the unit variance that the transform expects. Calibrated
models divide the scores of every head by their spread, measured with p-RoPE on a batch
of the training text. The paper has neither; it claims nothing for a model that is not trained on."""


def conversion_of(record: Record) -> str:
    """What a record is of: the scheme, and what was done besides or left out.

    >>> conversion_of({"config": {"scheme": "rope", "calibrated": False, "continued": None}})
    'rope, not trained on'
    """
    config = record["config"]
    calibrated = ", calibrated" if config["calibrated"] else ""
    bare = ", not trained on" if config["continued"] is None else ""
    return f"{config['scheme']}{calibrated}{bare}"


def conversion_section(records: Sequence[Record]) -> Iterator[str]:
    """Table 4, if our scheme and others are recorded."""
    main = [record for record in records if _is_main(record)]
    rows = {row.label: row for row in seed_rows(main, scheme_of)}
    if OURS not in rows:
        return
    ours = next(record for record in main if scheme_of(record) == OURS)
    yield _TABLE4.format(seeds=_seeds(rows))
    yield _main_table(rows)
    yield filled(_findings(rows, ours))
    yield _SCALE
    yield table(("", "here", "paper"), _settings(ours))
    judgements = judged(rows, CONVERSION_CLAIMS, paper.TABLE4)
    if judgements:
        yield CLAIMS_HEAD.format(what="loss")
        yield verdict_table(judgements)
    yield from _calibration([record for record in records if scheme_of(record) == OURS])
    yield filled(_sources(records))


def _is_main(record: Record) -> bool:
    """Whether it is as in the paper: ours is trained on, and not calibrated."""
    config = record["config"]
    return not config["calibrated"] and (
        scheme_of(record) != OURS or config["continued"] is not None
    )


def _seeds(rows: Mapping[str, SeedRow]) -> str:
    counts = sorted({len(row.seeds) for row in rows.values()})
    if counts == [1]:
        return "one seed"
    return f"mean and standard error over {' or '.join(map(str, counts))} seeds"


def _main_table(rows: Mapping[str, SeedRow]) -> str:
    lengths = list(rows[OURS].spreads)
    best = {length: min(row.spreads[length].mean for row in rows.values()) for length in lengths}
    lowest = [min(losses) for losses in zip(*paper.TABLE4.values(), strict=True)]
    header = (
        "scheme",
        *(f"{length:,}" for length in lengths),
        "change",
        *(f"paper, {length:,}" for length in paper.LENGTHS),
        "change",
    )
    return table(header, [_row(row, best, lowest) for row in rows.values()])


def _row(row: SeedRow, best: Mapping[int, float], lowest: Sequence[float]) -> tuple[str, ...]:
    first, *_, last = row.spreads.values()
    printed = paper.TABLE4[row.label]
    return (
        TITLES[row.label] + ("*" if row.label in paper.NOT_CONTINUED else ""),
        *(bold(str(it), it.mean == best[length]) for length, it in row.spreads.items()),
        f"{last.mean - first.mean:+.3f}",
        *(bold(f"{loss:.3f}", loss == low) for loss, low in zip(printed, lowest, strict=True)),
        f"{printed[-1] - printed[0]:+.3f}",
    )


def _findings(rows: Mapping[str, SeedRow], ours: Record) -> str:
    """Where the lowest losses are, and how far what was converted to ours is from what it was."""
    lowest = [
        f"{TITLES[min(rows, key=lambda name: rows[name].spreads[n].mean)]} at {n:,}"
        for n in rows[OURS].spreads
    ]
    return (
        f"Lowest here: {'; '.join(lowest)}. In the paper: {_lowest_printed()}. YaRN is transformers' "
        f"own, whose factor is fixed, here {_reach(ours):g}; that of Table 1 changes with the text."
    )


def _reach(record: Record) -> float:
    """The number of trained lengths in the longest one that is evaluated."""
    longest: int = max(record["evaluation"]["lengths"])
    return longest / int(record["config"]["continued"]["length"])


def _lowest_printed() -> str:
    return "; ".join(
        f"{TITLES[min(paper.TABLE4, key=lambda name: paper.TABLE4[name][place])]} at {length:,}"
        for place, length in enumerate(paper.LENGTHS)
    )


def _settings(ours: Record) -> Iterator[tuple[str, str, str]]:
    config: Mapping[str, Any] = ours["config"]
    first, continued = config["first"], config["continued"]
    here = {
        "model": f"a Llama of {_parameters(config['model']) / 1e6:.2f} million parameters, with RoPE "
        f"for {_tokens(first):,} tokens first",
        "text": "the source of Python's standard library, bytes",
        "trained on for": f"{_tokens(continued):,} tokens",
        "trained length": f"{continued['length']:,}",
        "AdamW": f"{continued['learning_rate']:g}, after {first['learning_rate']:g} at first",
    }
    for name, value in paper.SETTING4.items():
        yield name, here[name], value
    yield "base of p-RoPE", f"{config['scheme_options']['base']:g}", ""
    yield "tau", f"{config['scheme_options']['tau']:g}", ""
    yield "evaluated on", f"{ours['losses'][0]['tokens']:,} tokens", ""


def _tokens(recipe: Mapping[str, Any]) -> int:
    return int(recipe["tokens"])


def _parameters(model: Mapping[str, Any]) -> int:
    width, layers = model["hidden_size"], model["num_hidden_layers"]
    layer = 4 * width**2 + 3 * width * model["intermediate_size"] + 2 * width
    return int(2 * model["vocab_size"] * width + layers * layer + width)


def _calibration(records: Sequence[Record]) -> Iterator[str]:
    """Ours in all the ways that it was recorded, if there is more than one."""
    rows = seed_rows(records, _way)
    if len(rows) < 2:
        return
    yield _CALIBRATION
    lengths = [f"{length:,}" for length in rows[0].spreads]
    yield table(
        (TITLES[OURS], *lengths), [(row.label, *map(str, row.spreads.values())) for row in rows]
    )


def _way(record: Record) -> str:
    config = record["config"]
    trained = "converted alone" if config["continued"] is None else "trained on"
    return f"calibrated, {trained}" if config["calibrated"] else trained


def _sources(records: Sequence[Record]) -> str:
    origins = [record["provenance"] for record in records]
    names = ("commit", "torch", "transformers")
    facts = {name: " and ".join(sorted({origin[name] for origin in origins})) for name in names}
    trainings = {record["trained_as"] for record in records}
    return (
        f"{len(records)} records of {len(trainings)} trainings, made from "
        f"{min(origin['date'] for origin in origins)[:10]} on (commit {facts['commit']}), with torch "
        f"{facts['torch']} and transformers {facts['transformers']}."
    )
