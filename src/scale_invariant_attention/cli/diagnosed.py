"""What `sia diagnose` needs to know of a model, and how it is found in a folder of either kind."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..analysis import ScoreSource, gpt_scores
from ..data import TokenStream
from ..model import GPT
from ..model.storage import MODEL_TYPE
from ..schemes import ScaleInvariant
from ..training import open_trained
from ..training.runs import CONFIG
from ..training.training_data import open_corpus
from .subject import beside, described, own_data, own_lengths


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """A model that shows its scores, with what its diagnosis says of it and depends on."""

    path: Path
    source: ScoreSource
    described: str  # in a line
    title: str  # of its figure
    config: Mapping[str, Any]
    scale_invariant: bool
    qk_norm: bool
    transformers: bool  # whether it can be converted and calibrated
    lengths: tuple[int, ...]  # those to look at unless others are given
    data: Callable[[], str]  # the text to read unless another is given
    corpus: Callable[[str], TokenStream]  # the tokens of a text by its name
    results: Path  # where to put results unless another place is given
    unfinished: int | None = None


def open_diagnosed(folder: Path, device: torch.device) -> Diagnosed:
    """The model of a run, of a checkpoint, of a saved model, or of a folder of transformers."""
    if _is_of_transformers(folder):
        # Heavy, and it may be missing.
        from .diagnosed_transformers import open_transformers

        return open_transformers(folder, device)
    return _trained(folder, device)


def _is_of_transformers(folder: Path) -> bool:
    """Whether the configuration is that of a model, and not of one that we saved."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("model_type", MODEL_TYPE) != MODEL_TYPE


def _trained(folder: Path, device: torch.device) -> Diagnosed:
    trained = open_trained(folder, device=device)
    vocab_size = trained.model.config.vocab_size
    return Diagnosed(
        path=trained.path,
        described=described(trained),
        lengths=own_lengths(trained),
        data=lambda: own_data(trained),
        corpus=lambda name: open_corpus(name, "validation", vocab_size),
        results=beside(folder, "diagnosis"),
        unfinished=trained.unfinished,
        **of_gpt(trained.model),
    )


def of_gpt(model: GPT) -> dict[str, Any]:
    """What our GPT itself tells."""
    scheme = model.config.scheme or "a scheme of its own"
    return {
        "source": partial(gpt_scores, model),
        "title": f"Attention of {scheme}",
        "config": model.config.to_dict(),
        "scale_invariant": isinstance(model.scheme.distance, ScaleInvariant),
        "qk_norm": model.config.qk_norm,
        "transformers": False,
    }
