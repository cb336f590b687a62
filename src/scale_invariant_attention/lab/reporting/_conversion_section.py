"""The section of REPRODUCTION.md on Table 4: a trained model converted and fine-tuned."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..records import Record
from ..seeds import SeedRow, lowest, over_seeds, scheme_of, seed_rows
from ..tables import length_table, markdown, markdown_table
from . import paper
from ._claims import CLAIMS_HEAD, CONVERSION_CLAIMS, judged, verdict_table
from .drawing import title_of
from .paper import OURS
from .prose import filled, first_date, listed, made_with, records_and_trainings

if TYPE_CHECKING:
    from ..experiments.table4 import ConversionConfig

_TABLE4 = """## Table 4: a trained model converted

```bash
sia reproduce table4 --scale mini
```

A Llama from transformers, trained with RoPE, converted to every scheme and fine-tuned on the same
tokens; rows with * are not fine-tuned. Loss in nats per token, on the same
tokens at every length, {seeds}; the lowest in each column is bold. The paper's Table 4 is on the
right."""

_SCALE = "### Differences in scale"

_CALIBRATION = """### Calibration, and no fine-tuning

Llama has no QK-norm, so its scores do not have the unit variance that the transform expects. Calibrated
models divide the scores of every head by their spread, measured with p-RoPE on a batch of the training
text. The paper has neither calibration nor converted models without fine-tuning."""

TRAINED, CALIBRATED = "fine-tuned", "calibrated, fine-tuned"
WAYS = (TRAINED, CALIBRATED, "only converted", "calibrated, only converted")


def conversion_section(records: "Sequence[Record[ConversionConfig]]") -> Iterator[str]:
    """Table 4, if our scheme and others are recorded."""
    main = [record for record in records if _is_main(record)]
    rows = seed_rows(main, scheme_of, Record.losses_by_length)
    if OURS not in rows:
        return
    ours = next(record for record in main if record.scheme == OURS)
    yield _TABLE4.format(seeds=over_seeds(rows.values()))
    yield _main_table(rows)
    yield filled(_findings(rows, ours))
    yield _SCALE
    yield markdown_table(("", "here", "paper"), _settings(ours))
    judgements = judged(rows, CONVERSION_CLAIMS, paper.TABLE4)
    if judgements:
        yield CLAIMS_HEAD.format(what="loss")
        yield verdict_table(judgements)
    all_ways = [record for record in records if record.scheme == OURS]
    yield from _calibration(all_ways, rows)
    yield filled(_sources(records))


def _is_main(record: "Record[ConversionConfig]") -> bool:
    """Whether it is as in the paper: not calibrated, and ours fine-tuned."""
    config = record.config
    return not config.calibrated and (record.scheme != OURS or config.continued is not None)


def _main_table(rows: Mapping[str, SeedRow]) -> str:
    titles = {
        scheme: title_of(scheme) + ("*" if scheme in paper.NOT_CONTINUED else "") for scheme in rows
    }
    table = length_table(rows, "scheme", min, titles=titles, change=True)
    return markdown(table.beside(paper.printed_table(paper.TABLE4, min, change=True)))


def _findings(rows: Mapping[str, SeedRow], ours: "Record[ConversionConfig]") -> str:
    """Sentence naming the schemes with the lowest loss per length, here and in the paper."""
    here = [
        f"{' and '.join(map(title_of, lowest(rows, length)))} at {length:,}"
        for length in rows[OURS].spreads
    ]
    printed = [
        f"{title_of(min(paper.TABLE4, key=lambda name: paper.TABLE4[name][index]))} at {length:,}"
        for index, length in enumerate(paper.LENGTHS)
    ]
    return (
        f"Lowest here: {'; '.join(here)}. In the paper: {'; '.join(printed)}. YaRN is that of "
        f"transformers, with a fixed factor, here {_reach(ours):g}; in Table 1 the factor grows with "
        f"the context."
    )


def _reach(record: "Record[ConversionConfig]") -> float:
    """The longest evaluated length as a multiple of the training length."""
    return max(record.evaluation.lengths) / record.config.first.length


def _settings(ours: "Record[ConversionConfig]") -> Iterator[tuple[str, str, str]]:
    config = ours.config
    first, continued = config.first, config.continued
    assert continued is not None  # _is_main
    here = {
        "model": f"a Llama of {_parameters(config.model) / 1e6:.2f} million parameters, with RoPE "
        f"for {first.tokens:,} tokens first",
        "text": "the source of Python's standard library, bytes",
        "fine-tuned for": f"{continued.tokens:,} tokens",
        "training length": f"{continued.length:,}",
        "AdamW": f"{continued.learning_rate:g}, after {first.learning_rate:g} at first",
    }
    for name, value in paper.SETTING4.items():
        yield name, here[name], value
    yield "base of p-RoPE", f"{config.scheme_options['base']:g}", ""
    yield "tau", f"{config.scheme_options['tau']:g}", ""
    yield "evaluated on", f"{ours.measured('losses')[0].tokens:,} tokens", ""


def _parameters(model: Mapping[str, Any]) -> int:
    width, layers = model["hidden_size"], model["num_hidden_layers"]
    layer = 4 * width**2 + 3 * width * model["intermediate_size"] + 2 * width
    return int(2 * model["vocab_size"] * width + layers * layer + width)


def _calibration(
    records: "Sequence[Record[ConversionConfig]]", main: Mapping[str, SeedRow]
) -> Iterator[str]:
    """Ours in all four ways, if they are recorded."""
    rows = seed_rows(records, _way, Record.losses_by_length)
    if not rows.keys() >= set(WAYS):
        return
    yield _CALIBRATION
    lengths = list(rows[TRAINED].spreads)
    yield markdown_table(
        (title_of(OURS), *(f"{length:,}" for length in lengths)),
        [(way, *map(str, rows[way].spreads.values())) for way in WAYS],
    )
    gains = [_gain(rows[one], rows[other]) for one, other in (WAYS[:2], WAYS[2:])]
    calibrated = {**main, CALIBRATED: rows[CALIBRATED]}
    least = [f"{n:,}" for n in lengths if lowest(calibrated, n) == [CALIBRATED]]
    [steps] = {it.config.continued.steps for it in records if it.config.continued}
    yield filled(
        f"Calibration changes the loss by {gains[0]} when the model is fine-tuned for {steps} steps, "
        f"and by {gains[1]} when it is not. Calibrated and fine-tuned, ours has the lowest loss of all "
        f"{f'at {listed(least)}' if least else 'at no length'}. The row in Table 4 is not calibrated."
    )


def _gain(plain: SeedRow, calibrated: SeedRow) -> str:
    changes = [
        f"{calibrated.spreads[n].mean - loss.mean:+.3f} at {n:,}"
        for n, loss in plain.spreads.items()
    ]
    return listed(changes)


def _way(record: "Record[ConversionConfig]") -> str:
    config = record.config
    return WAYS[2 * (config.continued is None) + config.calibrated]


def _sources(records: "Sequence[Record[ConversionConfig]]") -> str:
    commit, torch, transformers = (
        made_with(records, fact) for fact in ("commit", "torch", "transformers")
    )
    return (
        f"{records_and_trainings(records)}, made since {first_date(records)} (commit {commit}) with "
        f"torch {torch} and transformers {transformers}."
    )
