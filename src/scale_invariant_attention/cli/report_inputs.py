"""What `sia report` reads: folders of runs, and records of `sia reproduce`, each as an entry."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from ..data.needles import NeedleFormat
from ..lab.reporting.web_page import Entry, Measurement
from ..training import TrainingConfig, read_metrics, read_provenance
from ..training.runs import CONFIG, METRICS, MODEL, read_config

# What `sia evaluate`, `sia needle` and `sia diagnose` leave in the folder of a run.
EVALUATION = Path("evaluation", "evaluation.json")
NEEDLES = Path("needles", "needles.json")
DIAGNOSIS = Path("diagnosis", "diagnosis.json")

# Records of Table 4, whose models are those of transformers: the page has no section for them.
CONVERSIONS = "table4-*.json"

# What a record has at least one of.
MEASURED = ("losses", "needles", "recall", "attention")


def read_entries(paths: Sequence[Path]) -> list[Entry]:
    """The entries of runs, records, and folders of either; each once."""
    found: dict[Path, Entry] = {}
    for path in paths:
        for each in _members(path):
            if each.resolve() not in found:
                found[each.resolve()] = (
                    _entry_of_run(each) if each.is_dir() else _entry_of_record(each)
                )
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
    found = [
        it
        for it in inside
        if (it.suffix == ".json" and not it.match(CONVERSIONS)) or (it / CONFIG).exists()
    ]
    if not found:
        what = "is empty" if not inside else f"has no {CONFIG}, no record and no run in it"
        raise ValueError(
            f"{path} {what}; give a folder that sia train or sia reproduce wrote, such as runs/NAME or "
            f"results/mini"
        )
    yield from found


def _entry_of_record(path: Path) -> Entry:
    if path.match(CONVERSIONS):
        raise ValueError(
            f"{path} is a record of Table 4, which this page does not show: sia reproduce page does"
        )
    record = _json_object(path)
    if "config" not in record or not any(name in record for name in MEASURED):
        raise ValueError(
            f"{path} is no record of sia reproduce: it must have 'config' and one of "
            f"{', '.join(MEASURED)}; give such a record, or the folder of a run"
        )
    with _whole(path, "restore it, or remove it and let sia reproduce make it again"):
        config = TrainingConfig.from_dict(record["config"]).to_dict()
        own = record["trained_as"] == path.stem
        return Entry(
            name=path.stem,
            source=str(path),
            config=config,
            origins=[record["provenance"]],
            measured=_recorded(record, config)
            | (_recorded_training(record, config) if own else {}),
            trained_as=None if own else record["trained_as"],
            seconds=float(record["seconds"]) if own else None,
        )


def _recorded(record: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Measurement]:
    """What was measured of the model of a record."""
    found: dict[str, Measurement] = {}
    data = {"data": config["data"], "fingerprint": record.get("corpus")}
    if "losses" in record:
        found |= _losses(data, record["losses"], record["by_position"])
    if "needles" in record:
        found |= _needles(data, config["task_options"], record["needles"])
    if "recall" in record:
        on = {"task": config["task_options"], "examples": record["evaluation"]["examples"]}
        found["recall"] = Measurement(on, [_counted(row) for row in record["recall"]])
    if "attention" in record:
        asked = record["evaluation"]
        on = {**data, "contexts": asked["contexts"], "recent": asked["recent"]}
        found |= _attention(on, record["attention"])
    return found


def _recorded_training(
    record: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Measurement]:
    on = _trained_on(config)
    losses = enumerate(record["training"]["loss"], start=1)
    return {
        "training": Measurement(on, [{"step": step, "loss": float(loss)} for step, loss in losses]),
        "validation": Measurement(on, list(_validations(record["validation"]))),
    }


def _entry_of_run(folder: Path) -> Entry:
    config = read_config(folder)
    if "model_type" in config:
        raise ValueError(
            f"{folder} holds a saved model and no run: nothing is known of its training; give the "
            f"folder that sia train wrote"
        )
    with _whole(folder / CONFIG, "restore it, or train the run again"):
        config = TrainingConfig.from_dict(config).to_dict()
    metrics = read_metrics(folder)
    with _whole(folder / METRICS, "restore it, or train the run again"):
        on = _trained_on(config)
        steps = [{"step": it["step"], "loss": float(it["loss"])} for it in metrics if "loss" in it]
        validations = list(_validations([it for it in metrics if "validation" in it]))
        made = max((it["step"] for it in metrics), default=0)
        seconds = sum(it.get("seconds", 0.0) for it in metrics)
    measured = {
        "training": Measurement(on, steps),
        "validation": Measurement(on, validations),
    }
    readings = {EVALUATION: _evaluation, NEEDLES: _needle_test, DIAGNOSIS: _diagnosis}
    finished = (folder / MODEL / CONFIG).exists()
    states = [] if finished else [f"unfinished, at step {made:,} of {config['steps']:,}"]
    for name, reading in readings.items():
        path = folder / name
        if path.exists():
            results = _json_object(path)
            with _whole(path, "make it again"):
                measured |= reading(results)
                step = results["unfinished_at_step"]
            if step is not None:
                states.append(f"{path.name} is of step {step:,}")
    return Entry(
        name=folder.resolve().name,
        source=str(folder),
        config=config,
        origins=read_provenance(folder),
        measured=measured,
        state="; ".join(states) or None,
        seconds=seconds,
    )


def _evaluation(results: Mapping[str, Any]) -> dict[str, Measurement]:
    """What `sia evaluate` wrote."""
    data = {"data": results["data"]["name"], "fingerprint": results["data"]["fingerprint"]}
    return _losses(data, results["by_length"], results["by_position"])


def _needle_test(results: Mapping[str, Any]) -> dict[str, Measurement]:
    """What `sia needle` wrote."""
    data = {"data": results["data"]["name"], "fingerprint": results["data"]["fingerprint"]}
    return _needles(data, results["format"], results)


def _diagnosis(results: Mapping[str, Any]) -> dict[str, Measurement]:
    """What `sia diagnose` wrote."""
    data = {"data": results["data"]["name"], "fingerprint": results["data"]["fingerprint"]}
    on = {**data, "contexts": results["contexts"], "recent": results["recent"]}
    return _attention(on, results["attention"])


def _attention(
    on: Mapping[str, Any], lengths: Sequence[Mapping[str, Any]]
) -> dict[str, Measurement]:
    by_distance, by_length = [], []
    for each in lengths:
        overall = each["overall"]
        [recent], [entropy] = overall["recent_share"], overall["global_entropy"]
        by_length.append(
            {
                "length": int(each["length"]),
                "recent_share": float(recent["mean"]),
                "entropy": float(entropy["mean"]),
            }
        )
        by_distance += [
            {"length": each["length"], "start": start, "stop": stop, "share": float(it["mean"])}
            for (start, stop), it in zip(pairwise(each["edges"]), overall["share"], strict=True)
        ]
    return {
        "attention": Measurement(on, by_distance),
        "attention_by_length": Measurement(on, by_length),
    }


def _losses(
    data: Mapping[str, Any],
    by_length: Sequence[Mapping[str, Any]],
    by_position: Sequence[Mapping[str, Any]],
) -> dict[str, Measurement]:
    if not by_length:
        raise ValueError("it has no loss of any length")
    lengths = [{"length": int(row["length"]), "loss": _finite(row["loss"])} for row in by_length]
    found = {"losses": Measurement({**data, "tokens": by_length[0]["tokens"]}, lengths)}
    if by_position:
        documents, longest = by_position[0]["documents"], by_position[-1]["stop"]
        on = {**data, "documents": documents, "longest": longest}
        names = ("start", "stop", "loss", "standard_error")
        rows = [{name: row[name] for name in names} for row in by_position]
        found["positions"] = Measurement(on, rows)
    return found


def _needles(
    data: Mapping[str, Any], form: Mapping[str, Any], table: Mapping[str, Any]
) -> dict[str, Measurement]:
    lengths, cells = table["lengths"], table["cells"]
    whole = json.loads(json.dumps(asdict(NeedleFormat(**form))))
    on = {**data, "format": whole, "examples": lengths[0]["examples"]}
    return {
        "needles": Measurement(on, [_counted(row) for row in lengths]),
        "needle_cells": Measurement(
            on, [{**_counted(row), "start": row["start"], "stop": row["stop"]} for row in cells]
        ),
    }


def _counted(row: Mapping[str, Any]) -> dict[str, Any]:
    if not 0 <= row["found"] <= row["count"] or row["count"] == 0:
        raise ValueError(f"found must be from 0 to count, got {row['found']} of {row['count']}")
    return {name: row[name] for name in ("length", "found", "count", "low", "high")}


def _finite(loss: Any) -> float:
    number = float(loss)
    if not isfinite(number):
        raise ValueError(f"a loss must be a finite number, got {number}")
    return number


def _trained_on(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": config["data"], "task": config["task"]}


def _validations(lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        for length, loss in line["validation"].items():
            yield {"step": line["step"], "length": int(length), "loss": float(loss)}


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged: it is not JSON ({error}); restore it, or make it again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object; give a record of sia reproduce")
    return value


@contextmanager
def _whole(path: Path, remedy: str) -> Iterator[None]:
    """Tell which file lacks something, and what to do."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} cannot be read: {what}; {remedy}") from error
