"""Packages recorded runs as pretrained models: rounded weights, a model card and hashes.

    sia reproduce pretrained                 seconds per model whose run is there; else it is trained

A model that does not reproduce its record is refused.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ...files import FileRecord, remove_folder, replace_file
from ...model import GPT
from ...model.pretrained import CARD, RECORD, PretrainedModel
from ...training.training_data import NEEDLES
from ..records import TrainingRecord, write_record
from .table1 import loss_trials
from .table2 import needle_trials
from .trials import TrainingTrial, Watch, find_record, ignore, record_trial

# Half the size of float32.
STORED_DTYPE = torch.float16
# How far stored weights may be from the record of their run; rounding changes less.
TOLERANCES = {"loss": 1e-3, "needles": 0.01}
_CARD = """\
---
license: apache-2.0
library_name: scale-invariant-attention
pipeline_tag: text-generation
---

# {name}

A GPT of {parameters:,} parameters with the position scheme `{scheme}`{options}, trained
at {length} tokens on Python source{tuned}. It is a toy, made to try the library in seconds and to see
what a position scheme does beyond the training length.

```bash
{commands}
```

```python
from scale_invariant_attention.model import GPT

model = GPT.from_pretrained("{name}")
```

## Measured

| context length | {measured} |
|---|---|
{rows}

{about}
The text is the validation split of the source of Python {python}'s standard library; other versions
of Python have other files, and give other figures.

## Training

| | |
|---|---|
| data | {data}; SHA-256 of the validation split: {corpus} |
| tokens | bytes; byte 0 starts a document |
| model | {layers} layers, {width} wide, {heads} heads{with_qk_norm} |
| recipe | {steps:,} steps of {batch_size} x {length} tokens, Muon and Adam, seed {seed}{starting} |
| recorded | {date}, commit {commit}, torch {torch}, {cpu}, {seconds:,.0f} s |

`{record}` has the configuration, the loss of every step and all figures. Weights are stored as
{dtype} and loaded as float32. The stored weights were measured too: within {tolerance:g} of the record.

## Limits

It has read nothing but Python source, one byte at a time, and writes text that looks like Python and
means nothing. One seed does not rank schemes: REPRODUCTION.md compares several. Licence: Apache-2.0.
"""


class NotReproducedError(ValueError):
    """A trained model does not measure what its record says."""


@dataclass(frozen=True)
class Miniature:
    """A pretrained model and the trial that trains it."""

    name: str
    trial: TrainingTrial

    @property
    def measured(self) -> str:
        """The measure of its trial: "loss" or "needles"."""
        return "needles" if self.trial.config.task == NEEDLES else "loss"

    def values(self, record: TrainingRecord) -> dict[int, float]:
        """The values of a record of it, by context length."""
        losses, needles = record.losses_by_length, record.needles_by_length
        return needles() if self.measured == "needles" else losses()


# Names of the models, the experiment that trains each, and its scheme.
_EXPERIMENTS: dict[str, tuple[Callable[..., list[TrainingTrial]], str]] = {
    "sia-mini-rope": (loss_trials, "rope"),
    "sia-mini-alibi": (loss_trials, "alibi"),
    "sia-mini-paper": (loss_trials, "scale-invariant-p-rope"),
    "sia-mini-spread": (loss_trials, "scale-invariant-spread"),
    "sia-needles-rope": (needle_trials, "rope"),
    "sia-needles-spread": (needle_trials, "scale-invariant-spread"),
}


def miniatures() -> dict[str, Miniature]:
    """The models that can be packaged, by name, each with the first seed of its experiment.

    >>> miniatures()["sia-needles-spread"].trial.name
    'needles-scale-invariant-spread-seed-0'
    """
    return {
        name: Miniature(name, *trials("mini", (scheme,), (0,)))
        for name, (trials, scheme) in _EXPERIMENTS.items()
    }


def package(
    miniature: Miniature,
    runs: Path,
    results: Path,
    output: Path,
    *,
    watch: Watch = ignore,
    notice: Callable[[str], object] = ignore,
) -> PretrainedModel:
    """Write the folder of a model in `output`, and return its entry in the list of models.

    A model that is in `output` already is measured again, and keeps its weights and its record. The
    weights of others are those of the run in `runs`, which is trained if it is missing, and their
    records those of that run in `results`, which are written if they are missing.
    """
    trial, folder, device = miniature.trial, output / miniature.name, torch.device("cpu")
    record = find_record(replace(trial, name=Path(RECORD).stem), folder)
    if record is not None:
        model = GPT.from_pretrained(folder)
    else:
        model = trial.train(runs, device=device, watch=watch, notice=notice)
        record = find_record(trial, results)
    if record is None:
        results.mkdir(parents=True, exist_ok=True)
        record = record_trial(trial, model, runs, results, device)
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output) as scratch:
        fresh = Path(scratch, miniature.name)
        model.save_pretrained(fresh, stored_dtype=STORED_DTYPE)
        stored = GPT.from_pretrained(fresh)
        again = replace(record, **trial.evaluation.measure(stored, trial.config, device))
        check_reproduced(miniature, record, again)
        write_record(replace(record, name=Path(RECORD).stem), fresh)
        count = sum(weight.numel() for weight in stored.parameters())
        (fresh / CARD).write_text(model_card(miniature, record, count), encoding="utf-8")
        files = {path.name: FileRecord.of(path) for path in sorted(fresh.iterdir())}
        if folder.exists():
            remove_folder(folder)
        fresh.rename(folder)
    config = trial.config
    by_length = {n: round(value, 4) for n, value in miniature.values(record).items()}
    return PretrainedModel(
        miniature.name, config.scheme, config.length, count, miniature.measured, by_length, files
    )


def write_list(path: Path, models: Mapping[str, PretrainedModel]) -> None:
    """Write the list of pretrained models, in the order of :func:`miniatures`."""
    entries = [asdict(models[name]) for name in miniatures() if name in models]
    replace_file(path, (json.dumps(entries, indent=1) + "\n").encode())


def check_reproduced(miniature: Miniature, record: TrainingRecord, again: TrainingRecord) -> None:
    """Refuse a model whose measurements differ from its record."""
    tolerance = TOLERANCES[miniature.measured]
    measured = miniature.values(again)
    for length, recorded in miniature.values(record).items():
        # Rounded, because 1 - 0.99 is more than 0.01.
        if not round(abs(measured[length] - recorded), 9) <= tolerance:
            raise NotReproducedError(
                f"{miniature.name} must have the {miniature.measured} {recorded:.4f} at {length:,} "
                f"tokens, as its record {record.name} says, got {measured[length]:.4f}: the record is "
                f"that of another run, or of another version of Python ({record.provenance.python}) or "
                f"kind of machine ({record.provenance.cpu}). Remove it to record this run"
            )


def model_card(miniature: Miniature, record: TrainingRecord, parameters: int) -> str:
    """The model card, as Markdown, from the record."""
    config, provenance, values = record.config, record.provenance, miniature.values(record)
    name, lengths = miniature.name, ",".join(map(str, values))
    if record.needles is not None:
        tuned = ", then fine-tuned to retrieve a hidden number"
        about = f"The share of needles found in {record.needles.lengths[0].examples} texts."
        commands = [f"sia needle {name} --lengths {lengths} --examples 20"]
    else:
        tuned = ""
        about = f"Loss in nats per byte, of {record.measured('losses')[0].tokens:,} bytes."
        commands = [
            f'sia generate {name} --prompt "def "',
            f"sia evaluate {name} --lengths {lengths}",
            f"sia diagnose {name}",
        ]
    options = ", ".join(f"{option} {value:g}" for option, value in config.scheme_options.items())
    return _CARD.format(
        **config.to_dict() | asdict(provenance) | {"date": provenance.date[:10]},
        name=name,
        parameters=parameters,
        options=f" ({options})" if options else "",
        tuned=tuned,
        commands="\n".join(commands),
        measured=miniature.measured,
        rows="\n".join(
            f"| {length:,} ({length / config.length:g}x) | {value:.3f} |"
            for length, value in values.items()
        ),
        about=about,
        starting="" if config.start is None else f", from the model {config.start}",
        with_qk_norm=", QK-norm" if config.qk_norm else "",
        seconds=record.seconds,
        corpus=record.corpus,
        record=RECORD,
        dtype=str(STORED_DTYPE).removeprefix("torch."),
        tolerance=TOLERANCES[miniature.measured],
    )
