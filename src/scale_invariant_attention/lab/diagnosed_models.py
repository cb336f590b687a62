"""Models to diagnose, from the folder of a run or from one that transformers saved."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..analysis import ScoreSource, gpt_scores
from ..data import Encoding, get_encoding
from ..data.encoding import DOCUMENT_START, KEPT
from ..files.json_files import read_json_object
from ..model import GPT
from ..model.storage import MODEL_TYPE
from ..schemes import ScaleInvariant
from ..training import open_trained
from ..training.runs import CONFIG
from ..training.training_data import STANDARD_LIBRARY, open_corpus
from .trained_models import BYTES, LENGTHS, Subject, results_folder, subject_of

TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, eq=False, kw_only=True)
class DiagnosedModel(Subject):
    """A model whose attention scores can be read, and everything that its diagnosis depends on."""

    source: ScoreSource
    title: str  # of the figure
    scale_invariant: bool
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
    if _is_of_transformers(folder):
        # Inside the folder, results would be taken for a part of the model.
        results = results or folder.absolute().with_name(f"{folder.absolute().name}-diagnosis")
        return _open_transformers(folder, device, lengths, data or STANDARD_LIBRARY, results)
    trained = open_trained(folder, device=device)
    results = results or results_folder(folder, "diagnosis")
    subject = subject_of(trained, lengths, data, results)
    return DiagnosedModel(**vars(subject), **_gpt_properties(trained.model))


def _is_of_transformers(folder: Path) -> bool:
    """Whether the configuration is that of a model that we did not save."""
    try:
        config = read_json_object(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return bool(config.get("model_type", MODEL_TYPE) != MODEL_TYPE)


def _gpt_properties(model: GPT) -> dict[str, Any]:
    return {
        "source": partial(gpt_scores, model),
        "title": f"Attention of {model.config.scheme_name or 'a custom scheme'}",
        "scale_invariant": isinstance(model.scheme.distance, ScaleInvariant),
        "qk_norm": model.config.qk_norm,
        "transformers": False,
    }


def _open_transformers(
    folder: Path, device: torch.device, lengths: Sequence[int], data: str, results: Path
) -> DiagnosedModel:
    """The model of a folder that ``save_pretrained`` wrote, converted or not, or that we exported."""
    # Slow to import, and not always installed.
    from ..huggingface import ScaleInvariantGPTForCausalLM, transformers_scores
    from ..huggingface.settings import read

    model = load_transformers(folder, device)
    if isinstance(model, ScaleInvariantGPTForCausalLM):
        scheme, config = model.config.scheme_name, model.gpt.config.to_dict()
        properties = _gpt_properties(model.gpt)
    else:
        settings, config = read(model.config), json.loads(model.config.to_json_string())
        scheme = None if settings is None else settings.scheme_name
        distance = None if settings is None else settings.scheme.distance
        properties = {
            "source": partial(transformers_scores, model),
            "title": f"Attention of {_name(model, scheme)}",
            "scale_invariant": isinstance(distance, ScaleInvariant),
            # Whatever it does with queries and keys, a calibration makes up for it.
            "qk_norm": False,
            "transformers": True,
            "knows_spread": settings is not None and settings.calibration is not None,
        }
    vocab_size = model.config.vocab_size
    encoding = None if data.startswith("shards:") else text_encoding(folder, vocab_size)
    return DiagnosedModel(
        path=folder,
        description=f"{_name(model, scheme)}, from {folder}",
        config=config,
        lengths=tuple(lengths or LENGTHS),
        data=data,
        corpus=open_corpus(data, "validation", vocab_size, encoding),
        results=results,
        **properties,
    )


def _name(model: Any, scheme: str | None) -> str:
    family = str(model.config.model_type)
    return f"{family} with {scheme}" if scheme else family


def load_transformers(folder: Path, device: torch.device) -> Any:
    """The model of a folder that ``save_pretrained`` wrote, in evaluation mode."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(
            f"{folder} has no {CONFIG}: give the folder of a model that save_pretrained wrote"
        )
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        output_loading_info=True,
        # Pickled files can run any code.
        use_safetensors=True,
        # Most CPUs compute slowly in half precision.
        dtype=torch.float32 if device.type == "cpu" else "auto",
    )
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise ValueError(
            f"the weights in {folder} lack {len(missing)} tensors of its configuration, "
            f"{missing[0]!r} for one: save the whole model there"
        )
    return model.to(device).eval()


def text_encoding(folder: Path, vocab_size: int) -> Encoding:
    """The encoding of the tokenizer next to the model, or bytes if the vocabulary is as large."""
    if (folder / KEPT).exists():
        return get_encoding(str(folder / KEPT), document_start=_document_start(folder))
    if vocab_size == BYTES.vocab_size:
        return BYTES
    raise FileNotFoundError(
        f"{folder} has no {KEPT} to encode text with: save the tokenizer there, with "
        f"tokenizer.save_pretrained, or give --data shards:FOLDER with tokens of this model"
    )


def _document_start(folder: Path) -> str:
    """The token that starts a text, or else the one that ends it."""
    path = folder / TOKENIZER_CONFIG
    try:
        config = read_json_object(path)
    except FileNotFoundError:
        return DOCUMENT_START
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return DOCUMENT_START
