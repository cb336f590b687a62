"""A folder that transformers saved, for `sia diagnose`: its model and its tokenizer, off line."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import huggingface
from ..data import Encoding, TokenStream, get_encoding
from ..data.encoding import DOCUMENT_START, KEPT
from ..huggingface.settings import read
from ..schemes import ScaleInvariant
from ..training.training_data import STANDARD_LIBRARY, open_corpus
from .diagnosed import Diagnosed, of_gpt
from .subject import LENGTHS

TOKENIZER_CONFIG = "tokenizer_config.json"


def open_transformers(folder: Path, device: torch.device) -> Diagnosed:
    """The model of a folder that ``save_pretrained`` wrote, converted or not, or exported from here."""
    model = _model(folder, device)
    known = of_gpt(model.gpt) if _is_ours(model) else _of_another(model)
    return Diagnosed(
        path=folder,
        described=f"{_name(model)}, from {folder}",
        lengths=LENGTHS,
        data=lambda: STANDARD_LIBRARY,
        corpus=partial(_corpus, folder, model.config.vocab_size),
        # Inside, it would be taken for a part of the model.
        results=folder.absolute().with_name(f"{folder.absolute().name}-diagnosis"),
        **known,
    )


def _model(folder: Path, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model, found = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        output_loading_info=True,
        # Pickled files can run any code.
        use_safetensors=True,
        # CPUs mostly compute half precision slowly.
        dtype=torch.float32 if device.type == "cpu" else "auto",
    )
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        raise ValueError(
            f"the weights in {folder} lack {len(missing)} of what its configuration asks for, "
            f"{missing[0]!r} for one: save the whole model there"
        )
    return model.to(device).eval()


def _is_ours(model: Any) -> bool:
    return isinstance(model, huggingface.ScaleInvariantGPTForCausalLM)


def _of_another(model: Any) -> dict[str, Any]:
    settings = read(model.config)
    return {
        "source": partial(huggingface.transformers_scores, model),
        "title": f"Attention of {_name(model)}",
        "config": json.loads(model.config.to_json_string()),
        "scale_invariant": settings is not None
        and isinstance(settings.scheme.distance, ScaleInvariant),
        # Whatever it does with queries and keys, a calibration brings scores to unit variance.
        "qk_norm": False,
        "transformers": True,
    }


def _name(model: Any) -> str:
    """The family, and the scheme that it has here."""
    settings = read(model.config)
    scheme = model.config.scheme if _is_ours(model) else settings and settings.scheme_name
    return f"{model.config.model_type} with {scheme}" if scheme else str(model.config.model_type)


def _corpus(folder: Path, vocab_size: int, name: str) -> TokenStream:
    encoding = None if name.startswith("shards:") else _encoding(folder, vocab_size)
    return open_corpus(name, "validation", vocab_size, encoding)


def _encoding(folder: Path, vocab_size: int) -> Encoding:
    """That of the tokenizer beside the model, or bytes for a model that has as many tokens."""
    bytes_ = get_encoding("bytes")
    if (folder / KEPT).exists():
        return get_encoding(str(folder / KEPT), document_start=_document_start(folder))
    if vocab_size == bytes_.vocab_size:
        return bytes_
    raise FileNotFoundError(
        f"{folder} has no {KEPT} to encode text with: save the tokenizer there, with "
        f"tokenizer.save_pretrained, or give --data shards:FOLDER with tokens of this model"
    )


def _document_start(folder: Path) -> str:
    """The token that starts texts, or else that which ends them."""
    path = folder / TOKENIZER_CONFIG
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return DOCUMENT_START
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    for name in ("bos_token", "eos_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return DOCUMENT_START
