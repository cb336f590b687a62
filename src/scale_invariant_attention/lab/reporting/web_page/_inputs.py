"""Reading what the page shows: folders of runs, and records of `sia reproduce`, one entry each."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....arguments import integer, real_number
from ....data.needles import NeedleFormat
from ....evaluation import LengthLoss, PositionLoss
from ....model.pretrained import RECORD, model_folder
from ....training import TrainingConfig, read_metrics, read_provenance
from ....training.runs import CONFIG, METRICS, MODEL, read_config
from ....training.training_data import MASKED
from ..._schema import to_json
from ...experiments.evaluations import (
    AttentionEvaluation,
    LossEvaluation,
    NeedleEvaluation,
    RecallEvaluation,
    TaskEvaluation,
)
from ...measurements import (
    DiagnosisResults,
    EvaluationResults,
    NeedleCell,
    NeedleResults,
    NeedleShare,
)
from ...records import TrainingRecord, read_record, read_results
from ._entries import Entry, MeasuredOn, Measurement, StepLoss

# The files that `sia evaluate`, `sia needle` and `sia diagnose` write into the folder of a run.
RESULTS: dict[Path, type[Any]] = {
    Path("evaluation", "evaluation.json"): EvaluationResults,
    Path("needles", "needles.json"): NeedleResults,
    Path("diagnosis", "diagnosis.json"): DiagnosisResults,
}

# Records of converted models of transformers, which have a section of their own.
CONVERSIONS = "extension-*.json"
# Records of images, whose page `lab.reporting.images` writes.
IMAGES = "images-*.json"

# The measurements of an entry, by the names of its fields.
Measurements = dict[str, Measurement[Any] | None]


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """The entries of runs, records, pretrained models, and folders of these; each once."""
    return [
        _entry_of_run(it) if it.is_dir() else _entry_of_record(it)
        for it in _all_members(paths)
        if not it.match(CONVERSIONS)
    ]


def find_conversions(paths: Sequence[Path]) -> list[Path]:
    """The records of converted models among records and folders of them; each once."""
    return [it for it in _all_members(paths) if it.match(CONVERSIONS)]


def _all_members(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        for each in _members(model_folder(path)):
            found.setdefault(each.resolve(), each)
    return list(found.values())


def _members(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file or folder {path}; give the folder of a run, a record, or a folder of them"
        )
    if path.is_file() or (path / CONFIG).exists():
        yield path
        return
    inside = sorted(path.iterdir())
    members = [it for it in inside if it.suffix == ".json" or (it / CONFIG).exists()]
    if not members:
        what = "is empty" if not inside else f"has no {CONFIG}, no record and no run in it"
        raise ValueError(
            f"{path} {what}; give a folder that sia train or sia reproduce wrote, such as runs/NAME or "
            f"results/mini"
        )
    yield from members


def _entry_of_record(path: Path) -> Entry:
    if path.match(IMAGES):
        raise ValueError(
            f"{path} is a record of images, which this page has no section for; sia reproduce "
            f"images-page writes one from them"
        )
    record = read_record(path, TrainingConfig)
    own = record.is_own_training
    measured = _recorded(record)
    if own:
        on = _trained_on(record.config)
        steps = [StepLoss(step, loss) for step, loss in enumerate(record.training.loss, start=1)]
        validations = [
            StepLoss(it.step, loss, length)
            for it in record.validation or ()
            for length, loss in it.validation.items()
        ]
        measured["training"] = Measurement(on, steps)
        measured["validation"] = Measurement(on, validations)
    return Entry(
        name=record.name,
        source=str(path),
        config=record.config,
        origins=[to_json(record.provenance)],
        trained_as=None if own else record.trained_as,
        seconds=record.seconds if own else None,
        **measured,  # type: ignore[arg-type]
    )


def _recorded(record: TrainingRecord) -> Measurements:
    data = MeasuredOn(data=record.config.data, fingerprint=record.corpus)
    asked = record.evaluation
    if isinstance(asked, LossEvaluation):
        by_position = record.by_position or ()
        return _losses(data, record.measured("losses"), by_position, skip=asked.skip or 0)
    if isinstance(asked, NeedleEvaluation):
        form, found = record.config.task_options, record.measured("needles")
        data = replace(data, split=asked.split or data.split)
        return _needles(data, form, found.lengths, found.cells)
    if isinstance(asked, RecallEvaluation):
        on = MeasuredOn(options=record.config.task_options, examples=asked.examples)
        return {"recall": Measurement(on, record.measured("recall"))}
    if isinstance(asked, TaskEvaluation):
        config = record.config
        if config.task == MASKED:
            tokens = asked.examples * max(asked.lengths)
            on = replace(data, task=MASKED, options=config.task_options, tokens=tokens)
            return {"scores": Measurement(on, record.measured("scores"))}
        on = MeasuredOn(task=config.task, options=config.task_options, examples=asked.examples)
        return {"scores": Measurement(on, record.measured("scores"))}
    assert isinstance(asked, AttentionEvaluation)
    on = replace(data, contexts=asked.contexts, recent=asked.recent)
    return {"attention": Measurement(on, record.measured("attention"))}


def _entry_of_run(folder: Path) -> Entry:
    fields = read_config(folder)
    if "model_type" in fields:
        if (folder / RECORD).exists():
            return replace(_entry_of_record(folder / RECORD), name=folder.resolve().name)
        raise ValueError(
            f"{folder} holds a saved model, not a run: nothing is known of its training; give the "
            f"folder that sia train wrote"
        )
    with _naming(folder / CONFIG, "restore it, or train the run again"):
        config = TrainingConfig.from_dict(fields)
    metrics = read_metrics(folder)
    with _naming(folder / METRICS, "restore it, or train the run again"):
        steps = [
            StepLoss(_step(it), _measured("loss", it["loss"])) for it in metrics if "loss" in it
        ]
        validations = [
            StepLoss(_step(it), _measured(f"validation.{length}", loss), int(length))
            for it in metrics
            for length, loss in _validation(it).items()
        ]
        last_step = max(map(_step, metrics), default=0)
        seconds = sum(real_number("seconds", it.get("seconds", 0.0)) for it in metrics)
    on = _trained_on(config)
    finished = (folder / MODEL / CONFIG).exists()
    states = [] if finished else [f"unfinished, at step {last_step:,} of {config.steps:,}"]
    measured: Measurements = {}
    for path, kind in ((folder / name, kind) for name, kind in RESULTS.items()):
        if not path.exists():
            continue
        results: Results = read_results(path, kind)
        with _naming(path, "rerun the command that wrote it"):
            measured |= _measurements(results)
        if results.unfinished_at_step is not None:
            states.append(f"{path.name} was measured at step {results.unfinished_at_step:,}")
    return Entry(
        name=folder.resolve().name,
        source=str(folder),
        config=config,
        origins=read_provenance(folder),
        state="; ".join(states) or None,
        seconds=seconds,
        training=Measurement(on, steps),
        validation=Measurement(on, validations),
        **measured,  # type: ignore[arg-type]
    )


def _step(line: Mapping[str, Any]) -> int:
    return integer("step", line["step"], at_least=0)


def _validation(line: Mapping[str, Any]) -> dict[str, Any]:
    losses = line.get("validation", {})
    if not isinstance(losses, dict):
        raise TypeError(f"validation must be an object, got {losses!r}")
    return losses


def _measured(name: str, value: object) -> float:
    """A loss, which may be NaN or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return real_number(name, value)


Results = EvaluationResults | NeedleResults | DiagnosisResults


def _measurements(results: Results) -> Measurements:
    data = MeasuredOn(results.data.name, results.data.split, results.data.fingerprint)
    if isinstance(results, EvaluationResults):
        return _losses(data, results.by_length, results.by_position)
    if isinstance(results, NeedleResults):
        return _needles(data, results.format, results.lengths, results.cells)
    on = replace(data, contexts=results.contexts, recent=results.recent)
    return {"attention": Measurement(on, results.attention)}


def _losses(
    data: MeasuredOn,
    by_length: Sequence[LengthLoss],
    by_position: Sequence[PositionLoss],
    skip: int = 0,
) -> Measurements:
    if not by_length:
        raise ValueError("it has no loss of any length")
    on = replace(data, tokens=by_length[0].tokens, skip=skip)
    measured: Measurements = {"losses": Measurement(on, by_length)}
    if by_position and by_position[0].documents:
        documents, longest = by_position[0].documents, by_position[-1].stop
        on = replace(data, documents=documents, longest=longest)
        measured["positions"] = Measurement(on, by_position)
    return measured


def _needles(
    data: MeasuredOn,
    form: Mapping[str, Any],
    lengths: Sequence[NeedleShare],
    cells: Sequence[NeedleCell],
) -> Measurements:
    # Equal formats compare as equal, whether they were read as lists or as tuples.
    fields: dict[str, Any] = {
        name: tuple(it) if isinstance(it, list) else it for name, it in form.items()
    }
    on = replace(data, form=NeedleFormat(**fields), examples=lengths[0].examples)
    return {"needles": Measurement(on, lengths), "needle_cells": Measurement(on, cells)}


def _trained_on(config: TrainingConfig) -> MeasuredOn:
    return MeasuredOn(data=config.data, task=config.task)


@contextmanager
def _naming(path: Path, remedy: str) -> Iterator[None]:
    """Name the file in errors, and what to do about it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} cannot be read: {what}; {remedy}") from error
