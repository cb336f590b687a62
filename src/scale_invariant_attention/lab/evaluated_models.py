"""Models to evaluate, from the folder of a run or from one that transformers saved."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..evaluation.losses import Scored
from ..model import ContextParallel, WholeLosses
from ..training import open_trained
from ..training.training_data import STANDARD_LIBRARY
from .trained_models import Subject, results_folder, subject_of
from .transformers_models import (
    is_of_transformers,
    open_transformers,
    results_beside,
    transformers_subject,
)

NAME = "evaluation"


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedModel(Subject):
    """A model whose losses can be measured, with its name and its training length for figures."""

    scored: Scored
    name: str
    train_length: int | None


def open_evaluated_model(
    folder: Path,
    device: torch.device,
    lengths: Sequence[int],
    data: str | None,
    results: Path | None,
    context_parallel: ContextParallel | None = None,
) -> EvaluatedModel:
    """The model of a run, of a checkpoint, of a saved model, or of a folder of transformers.

    With `context_parallel`, processes share each context; models of transformers cannot.
    """
    if is_of_transformers(folder):
        if context_parallel is not None:
            raise ValueError(
                f"{folder} holds a model of transformers, whose contexts cannot be shared between "
                f"processes; start one process, without torchrun"
            )
        opened = open_transformers(folder, device)
        results = results or results_beside(folder, NAME)
        subject = transformers_subject(opened, lengths, data or STANDARD_LIBRARY, results)
        return EvaluatedModel(
            **vars(subject),
            scored=opened.scored,
            name=opened.scheme or opened.name,
            train_length=opened.train_length,
        )
    trained = open_trained(folder, device=device)
    subject = subject_of(trained, lengths, data, results or results_folder(folder, NAME))
    config, model = trained.model.config, trained.model
    return EvaluatedModel(
        **vars(subject),
        scored=model if context_parallel is None else WholeLosses(model, context_parallel),
        name=config.scheme_name or "a custom scheme",
        train_length=config.train_length,
    )
