"""Models to diagnose, from the folder of a run or from one that transformers saved."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..analysis import ScoreSource, gpt_scores
from ..model import GPT
from ..schemes import ScaleInvariant, Scheme
from ..training import open_trained
from ..training.training_data import STANDARD_LIBRARY
from .trained_models import Subject, results_folder, subject_of
from .transformers_models import (
    is_of_transformers,
    open_transformers,
    results_beside,
    transformers_subject,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class DiagnosedModel(Subject):
    """A model whose attention scores can be read, and everything that its diagnosis depends on."""

    source: ScoreSource
    title: str  # of the figure
    scale_invariant: tuple[bool, ...]  # by layer
    qk_norm: bool
    transformers: bool  # whether it can be converted and calibrated
    knows_spread: bool = False  # whether its transform has the spread of each head's scores


def open_diagnosed_model(
    folder: Path,
    device: torch.device,
    lengths: Sequence[int],
    data: str | None,
    results: Path | None,
) -> DiagnosedModel:
    """The model of a run, of a checkpoint, of a saved model, or of a folder of transformers."""
    if is_of_transformers(folder):
        results = results or results_beside(folder, "diagnosis")
        return _open_transformers(folder, device, lengths, data or STANDARD_LIBRARY, results)
    trained = open_trained(folder, device=device)
    results = results or results_folder(folder, "diagnosis")
    subject = subject_of(trained, lengths, data, results)
    return DiagnosedModel(**vars(subject), **_gpt_properties(trained.model))


def _gpt_properties(model: GPT) -> dict[str, Any]:
    return {
        "source": partial(gpt_scores, model),
        "title": f"Attention of {model.config.scheme_name or 'a custom scheme'}",
        "scale_invariant": _have_transform(
            [model.scheme.of_layer(layer) for layer in range(model.config.layers)]
        ),
        "qk_norm": model.config.qk_norm,
        "transformers": False,
    }


def _have_transform(layers: Sequence[Scheme]) -> tuple[bool, ...]:
    """Whether layers with these schemes have the transform."""
    return tuple(isinstance(scheme.distance, ScaleInvariant) for scheme in layers)


def _open_transformers(
    folder: Path, device: torch.device, lengths: Sequence[int], data: str, results: Path
) -> DiagnosedModel:
    """The model of a folder that ``save_pretrained`` wrote, converted or not, or that we exported."""
    # Slow to import, and not always installed.
    from ..huggingface import transformers_scores
    from ..huggingface.settings import read

    opened = open_transformers(folder, device)
    if opened.gpt is not None:
        properties = _gpt_properties(opened.gpt)
    else:
        settings = read(opened.model.config)
        layers = range(opened.model.config.num_hidden_layers)
        plain = Scheme()
        in_layers = [plain if settings is None else settings.layer_scheme(it) for it in layers]
        properties = {
            "source": partial(transformers_scores, opened.model),
            "title": f"Attention of {opened.name}",
            "scale_invariant": _have_transform(in_layers),
            # Whatever it does with queries and keys, a calibration makes up for it.
            "qk_norm": False,
            "transformers": True,
            "knows_spread": settings is not None and settings.calibration is not None,
        }
    subject = transformers_subject(opened, lengths, data, results)
    return DiagnosedModel(**vars(subject), **properties)
