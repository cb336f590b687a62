"""Models of ours as folders of transformers, whole or not there, and back."""

import glob
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.encoding import Encoding
from ..files import clear_partial, write_folder
from ..model import GPT
from .exported_tokenizer import exported_tokenizer
from .gpt_config import MODEL_TYPE
from .gpt_model import ScaleInvariantGPTForCausalLM
from .model_card import model_card

CONFIG = "config.json"
CARD = "README.md"
# What an export consists of; a folder with anything else in it is not replaced.
WRITTEN = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map)\.json|README\.md|"
    r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
)


def save_for_transformers(
    model: GPT,
    folder: str | os.PathLike[str],
    *,
    encoding: Encoding | None = None,
    document_start: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Save a model as transformers opens it: configuration, weights, tokenizer and a card.

    Args:
        model: with a scheme by name.
        folder: made if need be. An earlier export is replaced, and anything else refused.
        encoding: that of its text, for the tokenizer; None leaves that out.
        document_start: the token before documents, where there is no encoding to tell it.
        provenance: what is known of where the model comes from, for the card.

    >>> import tempfile
    >>> from scale_invariant_attention.data import get_encoding
    >>> from scale_invariant_attention.model import GPTConfig
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = GPT(GPTConfig.preset("mini"))
    ...     save_for_transformers(model, f"{folder}/hf", encoding=get_encoding("bytes"))
    ...     sorted(file.name for file in Path(folder, "hf").iterdir())
    ['README.md', 'config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json',
     'tokenizer_config.json']
    """
    folder = Path(folder).absolute()
    check_replaceable(folder)
    tokenizer = None if encoding is None else exported_tokenizer(encoding)
    start = document_start if encoding is None else encoding.document_start
    wrapped = ScaleInvariantGPTForCausalLM.of(
        model, bos_token_id=start, eos_token_id=start, pad_token_id=start
    )
    card = model_card(model.config, None if encoding is None else encoding.name, provenance or {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    clear_partial(folder.parent, glob.escape(folder.name))
    with write_folder(folder) as partial:
        wrapped.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        (partial / CARD).write_text(card)
        for path in partial.iterdir():
            # Weights come readable for their owner alone.
            shutil.copymode(partial / CONFIG, path)


def open_from_transformers(folder: str | os.PathLike[str]) -> GPT:
    """The model of a folder that transformers saved, as one of ours; ``save_pretrained`` saves it.

    Weights that are missing, superfluous or of another shape are refused, where transformers starts
    them anew.
    """
    folder = Path(folder)
    if _model_type(folder) != MODEL_TYPE:
        raise ValueError(
            f"{folder} must be a folder of transformers with the model_type {MODEL_TYPE!r}, got "
            f"{_model_type(folder)!r}"
        )
    model, found = ScaleInvariantGPTForCausalLM.from_pretrained(
        folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
    )
    wrong = {name: sorted(map(str, which)) for name, which in found.items() if which}
    if wrong:
        raise ValueError(f"the weights in {folder} do not fit its configuration: {wrong}")
    gpt: GPT = model.gpt
    return gpt


def check_replaceable(folder: Path) -> None:
    """Refuse to put an export where anything is but an earlier one."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give a folder for the export")
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if not WRITTEN.fullmatch(name)]
    if others or (names and _model_type(folder) != MODEL_TYPE):
        raise FileExistsError(
            f"{folder} holds something else than an export, {(others or names)[0]!r} for one; give "
            f"another folder"
        )


def _model_type(folder: Path) -> str | None:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG} is not JSON: {error}") from error
    return str(config.get("model_type")) if isinstance(config, dict) else None
