"""Models in folders that transformers saved: opening them, their text, and generating with them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Encoding, get_encoding
from ..data.encoding import DOCUMENT_START, KEPT
from ..evaluation.losses import Scored
from ..files.json_files import read_json_object
from ..model import GPT, Sampler
from ..model.inputs import check_inputs
from ..model.storage import MODEL_TYPE
from ..training.runs import CONFIG
from ..training.training_data import open_corpus
from .trained_models import BYTES, LENGTHS, Subject, check_fits

TOKENIZER_CONFIG = "tokenizer_config.json"


def is_of_transformers(folder: Path) -> bool:
    """Whether the configuration is that of a model that we did not save."""
    try:
        config = read_json_object(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return bool(config.get("model_type", MODEL_TYPE) != MODEL_TYPE)


def results_beside(folder: Path, name: str) -> Path:
    """Folder for results; inside the model's, they would be taken for a part of it.

    >>> results_beside(Path("/models/llama"), "evaluation").as_posix()
    '/models/llama-evaluation'
    """
    return folder.absolute().with_name(f"{folder.absolute().name}-{name}")


@dataclass(frozen=True, eq=False)
class TransformersModel:
    """A transformers model in its folder; `gpt` is the GPT inside one that we exported."""

    folder: Path
    model: Any
    gpt: GPT | None
    scheme: str | None

    @property
    def name(self) -> str:
        """Family, and scheme if there is one."""
        family = str(self.model.config.model_type)
        return f"{family} with {self.scheme}" if self.scheme else family

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as JSON."""
        if self.gpt is not None:
            return self.gpt.config.to_dict()
        return dict(json.loads(self.model.config.to_json_string()))

    @property
    def train_length(self) -> int | None:
        """The training length, if it is known."""
        if self.gpt is not None:
            return self.gpt.config.train_length
        return getattr(self.model.config, "max_position_embeddings", None)

    @property
    def scored(self) -> Scored:
        """The model as evaluation takes it."""
        from ..huggingface.extension import TokenLosses

        return TokenLosses(self.model) if self.gpt is None else self.gpt

    @property
    def stop_tokens(self) -> list[int]:
        """The tokens that end a text."""
        ends = self.model.config.eos_token_id
        return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]

    def encoding(self, tokenizer: str | None, document_start: str | None) -> Encoding:
        """The encoding of its text: the one given, or that of the tokenizer next to the model."""
        size = int(self.model.config.vocab_size)
        if tokenizer is None:
            return text_encoding(self.folder, size)
        start = document_start or recorded_start(self.folder)
        encoding = get_encoding(tokenizer, document_start=start)
        check_fits(encoding, size)
        return encoding

    def stream(
        self, tokens: Tensor, max_new_tokens: int, *, stop_tokens: Sequence[int], **sampling: Any
    ) -> Iterator[Tensor]:
        """The tokens generated after a prompt ``[1, L]``, with the arguments of ``GPT.stream``."""
        check_inputs(self.model.config.vocab_size, tokens)
        return self._steps(tokens, max_new_tokens, stop_tokens, Sampler(**sampling))

    @torch.no_grad()
    def _steps(
        self, tokens: Tensor, max_new_tokens: int, stop_tokens: Sequence[int], sampler: Sampler
    ) -> Iterator[Tensor]:
        cache = None
        for _ in range(max_new_tokens):
            output = self.model(tokens, past_key_values=cache, use_cache=True)
            chosen, cache = sampler(output.logits[:, -1]), output.past_key_values
            yield chosen
            if int(chosen) in stop_tokens:
                return
            tokens = chosen.unsqueeze(1)


def open_transformers(folder: Path, device: torch.device) -> TransformersModel:
    """The model of a folder that ``save_pretrained`` wrote, converted or not, or that we exported."""
    # Slow to import, and not always installed.
    from ..huggingface import ScaleInvariantGPTForCausalLM
    from ..huggingface.settings import read

    model = load_transformers(folder, device)
    if isinstance(model, ScaleInvariantGPTForCausalLM):
        return TransformersModel(folder, model, model.gpt, model.config.scheme_name)
    settings = read(model.config)
    return TransformersModel(folder, model, None, settings.scheme_name if settings else None)


def transformers_subject(
    opened: TransformersModel, lengths: Sequence[int], data: str, results: Path
) -> Subject:
    """A transformers model as a subject; its own tokenizer encodes text."""
    vocab_size = opened.model.config.vocab_size
    encoding = None if data.startswith("shards:") else text_encoding(opened.folder, vocab_size)
    return Subject(
        path=opened.folder,
        description=f"{opened.name}, from {opened.folder}",
        config=opened.config,
        lengths=tuple(lengths or LENGTHS),
        data=data,
        corpus=open_corpus(data, "validation", vocab_size, encoding),
        results=results,
    )


def load_transformers(folder: Path, device: torch.device) -> Any:
    """The model of a folder that ``save_pretrained`` wrote, in evaluation mode."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from ..huggingface.export import check_manifest
    from ..huggingface.folders import ADAPTER, check_folder

    disable_progress_bar()
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(
            f"{folder} has no {CONFIG}: give the folder of a model that save_pretrained wrote"
        )
    if not (folder / ADAPTER).exists():
        check_folder(folder)
    check_manifest(folder)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            output_loading_info=True,
            # Pickled files can run any code.
            use_safetensors=True,
            # Most CPUs compute slowly in half precision.
            dtype=torch.float32 if device.type == "cpu" else "auto",
        )
    except (OSError, ImportError):
        raise
    except Exception as error:
        # A configuration from elsewhere can fail in any way.
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"transformers cannot open {folder} ({first}); check that its {CONFIG} and its weights "
            f"belong together"
        ) from error
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise ValueError(
            f"the weights in {folder} lack tensors of its configuration: {missing[0]!r}"
            f"{f' and {len(missing) - 1} more' if missing[1:] else ''}; save the whole model there"
        )
    return model.to(device).eval()


def text_encoding(folder: Path, vocab_size: int) -> Encoding:
    """The encoding of the tokenizer next to the model, or bytes if the vocabulary is as large."""
    if (folder / KEPT).exists():
        return get_encoding(str(folder / KEPT), document_start=recorded_start(folder))
    if vocab_size == BYTES.vocab_size:
        return BYTES
    raise FileNotFoundError(
        f"{folder} has no {KEPT} to encode text with: save the tokenizer there, with "
        f"tokenizer.save_pretrained, or give --data shards:PATH with tokens of this model"
    )


def recorded_start(folder: Path) -> str:
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
