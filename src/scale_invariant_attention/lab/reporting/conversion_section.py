"""The section of REPRODUCTION.md on Table 4: a trained model converted, and trained on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import paper
from .claims import CLAIMS_HEAD, CONVERSION_CLAIMS, judged, verdict_table
from .drawing import OURS, TITLES
from .losses import Record, SeedRow, lowest, over_seeds, scheme_of, seed_rows
from .markdown import bold, filled, table

_TABLE4 = """## Table 4: a trained model converted

```bash
sia reproduce table4 --scale mini
```

A Llama of transformers trained with RoPE, converted to every scheme and trained on with the same tokens;
those with * are not trained on. Loss in nats a token on the same tokens at every length, {seeds}; the
lowest of each column in bold. The paper's Table 4 is to the right."""

_SCALE = "### What differs in scale"

_CALIBRATION = """### Calibration, and no training at all

Llama has no QK-norm, so its scores do not have the unit variance that the transform expects. Calibrated
models divide the scores of every head by their spread, measured with p-RoPE on a batch of
the training text. The paper has neither, and claims nothing for a model that is not trained on."""

TRAINED, CALIBRATED = "trained on", "calibrated, trained on"
WAYS = (TRAINED, CALIBRATED, "converted alone", "calibrated, converted alone")


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
    yield _TABLE4.format(seeds=over_seeds(rows))
    yield _main_table(rows)
    yield filled(_findings(rows, ours))
    yield _SCALE
    yield table(("", "here", "paper"), _settings(ours))
    judgements = judged(rows, CONVERSION_CLAIMS, paper.TABLE4)
    if judgements:
        yield CLAIMS_HEAD.format(what="loss")
        yield verdict_table(judgements)
    all_ways = [record for record in records if scheme_of(record) == OURS]
    yield from _calibration(all_ways, rows, ours["config"]["continued"])
    yield filled(_sources(records))


def _is_main(record: Record) -> bool:
    """Whether it is as in the paper: ours is trained on, and not calibrated."""
    config = record["config"]
    return not config["calibrated"] and (
        scheme_of(record) != OURS or config["continued"] is not None
    )


def _main_table(rows: Mapping[str, SeedRow]) -> str:
    lengths = list(rows[OURS].spreads)
    best = {length: min(row.spreads[length].mean for row in rows.values()) for length in lengths}
    least = [min(losses) for losses in zip(*paper.TABLE4.values(), strict=True)]
    header = (
        "scheme",
        *(f"{length:,}" for length in lengths),
        "change",
        *(f"paper, {length:,}" for length in paper.LENGTHS),
        "change",
    )
    return table(header, [_row(row, best, least) for row in rows.values()])


def _row(row: SeedRow, best: Mapping[int, float], least: Sequence[float]) -> tuple[str, ...]:
    first, *_, last = row.spreads.values()
    printed = paper.TABLE4[row.label]
    return (
        TITLES[row.label] + ("*" if row.label in paper.NOT_CONTINUED else ""),
        *(bold(str(it), it.mean == best[length]) for length, it in row.spreads.items()),
        f"{last.mean - first.mean:+.3f}",
        *(bold(f"{loss:.3f}", loss == low) for loss, low in zip(printed, least, strict=True)),
        f"{printed[-1] - printed[0]:+.3f}",
    )


def _findings(rows: Mapping[str, SeedRow], ours: Record) -> str:
    """Where the lowest losses are, here and in the paper."""
    here = [
        f"{' and '.join(TITLES[name] for name in lowest(rows, length))} at {length:,}"
        for length in rows[OURS].spreads
    ]
    printed = [
        f"{TITLES[min(paper.TABLE4, key=lambda name: paper.TABLE4[name][place])]} at {length:,}"
        for place, length in enumerate(paper.LENGTHS)
    ]
    return (
        f"Lowest here: {'; '.join(here)}. In the paper: {'; '.join(printed)}. YaRN is transformers' "
        f"own, whose factor is fixed, here {_reach(ours):g}; that of Table 1 changes with the text."
    )


def _reach(record: Record) -> float:
    """The number of trained lengths in the longest one that is evaluated."""
    longest: int = max(record["evaluation"]["lengths"])
    return longest / int(record["config"]["continued"]["length"])


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


def _calibration(
    records: Sequence[Record], main: Mapping[str, SeedRow], settings: Mapping[str, Any]
) -> Iterator[str]:
    """Ours in all four ways, if they are recorded."""
    rows = {row.label: row for row in seed_rows(records, _way)}
    if not rows.keys() >= set(WAYS):
        return
    yield _CALIBRATION
    lengths = list(rows[TRAINED].spreads)
    yield table(
        (TITLES[OURS], *(f"{length:,}" for length in lengths)),
        [(way, *map(str, rows[way].spreads.values())) for way in WAYS],
    )
    gains = [_gain(rows[one], rows[other]) for one, other in (WAYS[:2], WAYS[2:])]
    calibrated = {**main, CALIBRATED: rows[CALIBRATED]}
    least = [f"{n:,}" for n in lengths if lowest(calibrated, n) == [CALIBRATED]]
    steps = settings["tokens"] // (settings["batch_size"] * settings["length"])
    yield filled(
        f"Calibration changes the loss by {gains[0]} when the model is trained on for {steps} steps, "
        f"and by {gains[1]} when it is not. Calibrated and trained on, ours has the lowest loss of all "
        f"{f'at {_and(least)}' if least else 'at no length'}. The row of the table above is not "
        f"calibrated."
    )


def _gain(plain: SeedRow, calibrated: SeedRow) -> str:
    changes = [
        f"{calibrated.spreads[n].mean - loss.mean:+.3f} at {n:,}"
        for n, loss in plain.spreads.items()
    ]
    return _and(changes)


def _and(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[:-1] else []), words[-1]])


def _way(record: Record) -> str:
    config = record["config"]
    place = 2 * (config["continued"] is None) + bool(config["calibrated"])
    return WAYS[place]


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
