"""A trial: a training and its evaluation, and the one JSON file that is kept of both.

It is what tables and figures are made from; the folder of the training may be thrown away.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..data import SameTokens, TokenSource, document_spans
from ..evaluation import PositionLoss, loss_by_length, loss_by_position
from ..files import check_writable, replace_file
from ..model import GPT
from ..provenance import provenance
from ..training import TrainingConfig, read_metrics
from ..training.corpus import open_corpus
from ..training.runs import differences

# Digits of what is recorded of every step: a curve needs no more.
DIGITS = 5

Record = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """What is measured of a trained model: its loss at `lengths`, and by position up to the longest."""

    lengths: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Trial:
    """A training and its evaluation, with a name, which is that of its folder and of its record.

    If `trained_as` is given, the model is that of another trial, which reads as `config` has it.
    """

    name: str
    config: TrainingConfig
    evaluation: Evaluation
    trained_as: "Trial | None" = None

    @property
    def training(self) -> "Trial":
        """The trial that is trained for this one: mostly itself."""
        return self.trained_as or self


class DifferentRecordError(ValueError):
    """What is recorded under the name of a trial is another."""


def recorded(trial: Trial, results: Path) -> Record | None:
    """The record of a trial, if there is one; that of another training is never overwritten."""
    path = results / f"{trial.name}.json"
    if not path.exists():
        return None
    wanted = json.loads(json.dumps(_asked_for(trial)))
    try:
        record: Record = json.loads(path.read_text())
        # Fields that are newer than the record have the defaults.
        config = TrainingConfig.from_dict(record["config"]).to_dict()
        there = {"config": config, "evaluation": record["evaluation"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no record of a trial ({type(error).__name__}: {error}); remove it, and it "
            f"will be made again"
        ) from error
    different = list(differences(there, wanted))
    if different:
        raise DifferentRecordError(
            f"{path} records something else: {'; '.join(different)}. Give another folder for the "
            f"results, or remove the file"
        )
    return record


def check_recordable(trial: Trial, results: Path) -> None:
    """Refuse, before hours of training, what could not be evaluated or recorded after it."""
    check_writable(results)
    _tokens(trial, open_corpus(trial.config.data, "validation", trial.config.vocab_size))


def make_record(
    trial: Trial, model: GPT, folder: Path, results: Path, device: torch.device
) -> Record:
    """Evaluate a model and write the record of its trial, with the metrics of its training."""
    corpus = open_corpus(trial.config.data, "validation", trial.config.vocab_size)
    tokens = _tokens(trial, corpus)
    metrics = read_metrics(folder)
    if trial.trained_as is not None:
        model = _reading_as(trial.config, model, device)
    # A model that was trained in parts is given back on the CPU.
    model = model.to(device)
    with trial.config.autocast(device):
        by_length = loss_by_length(model, tokens, device=device)
        by_position = _by_position(model, corpus, trial.evaluation, device)
    record = _asked_for(trial) | {
        "trained_as": trial.training.name,
        "losses": [asdict(row) for row in by_length],
        "by_position": [asdict(row) for row in by_position],
        "training": {
            name: [float(f"{line[name]:.{DIGITS}g}") for line in metrics if name in line]
            for name in ("loss", "gradient_norm")
        },
        "validation": [_validation(trial, line) for line in metrics if "validation" in line],
        "seconds": round(sum(line.get("seconds", 0.0) for line in metrics), 1),
        "corpus": corpus.fingerprint(),
        "provenance": provenance(),
    }
    # A line a name: short enough to keep, and to compare.
    lines = (
        f" {json.dumps(name)}: {json.dumps(it, allow_nan=False)}" for name, it in record.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    replace_file(results / f"{trial.name}.json", text.encode())
    # As it would be read: a record is the same whether it was just made or not.
    again: Record = json.loads(text)
    return again


def _tokens(trial: Trial, corpus: TokenSource) -> SameTokens:
    return SameTokens(corpus, trial.evaluation.lengths, at_most=trial.evaluation.tokens)


def _reading_as(config: TrainingConfig, model: GPT, device: torch.device) -> GPT:
    """The same weights with another scheme."""
    other = GPT(config.model_config(), backend=config.backend)
    other.load_state_dict(model.state_dict())
    return other.to(device)


def _validation(trial: Trial, line: Mapping[str, Any]) -> dict[str, Any]:
    """A validation during training; of a model trained as another, at the trained length alone."""
    own = trial.trained_as is None
    trained = str(trial.config.length)
    losses = {n: loss for n, loss in line["validation"].items() if own or n == trained}
    return {"step": line["step"], "validation": losses}


def _by_position(
    model: GPT, corpus: TokenSource, evaluation: Evaluation, device: torch.device
) -> list[PositionLoss]:
    """None where no document is long enough."""
    length = max(evaluation.lengths)
    if not len(document_spans(corpus, at_least=length + 1)):
        return []
    at_most = max(1, evaluation.tokens // length)
    return loss_by_position(model, corpus, length, at_most=at_most, device=device)


def _asked_for(trial: Trial) -> Record:
    return {"config": trial.config.to_dict(), "evaluation": asdict(trial.evaluation)}
