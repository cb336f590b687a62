"""Exports a GPT as a folder that transformers opens, complete or not at all, and opens it again.

Encodings become transformers tokenizers. The tokenizers library writes each byte as one printable
character. Byte 0, which starts documents and occurs in no text, stays itself: it is the only special
token, and no text can be mistaken for it.
"""

import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..data.encoding import KEPT, Bytes, Encoding, TokenizerFile
from ..files import FileRecord, clear_partial, write_folder, write_new_file
from ..files.json_files import read_json_object
from ..files.manifest import ManifestFormat
from ..model import GPT, GPTConfig
from ._gpt_model import MODEL_TYPE, ScaleInvariantGPTForCausalLM
from .folders import ADAPTER, CONFIG, check_folder, inside

CARD = "README.md"
MANIFEST = "sia_manifest.json"
DOCUMENT_START = "\0"
# The files that decide what a model computes. With card and manifest, they are the files of an export:
# a folder that holds any other is not replaced.
FORMAT = ManifestFormat(
    f"{MODEL_TYPE}_export",
    re.compile(
        r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map)\.json|"
        r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
    ),
    ValueError,
)
_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [scale-invariant-attention]
---

# A GPT with the scheme {config.scheme_name}

{config.layers} layers, {config.width} wide, {config.heads} heads, {config.vocab_size:,} tokens; scheme \
options {options}. {trained}

```python
import scale_invariant_attention.huggingface  # registers the model with transformers
from transformers import AutoModelForCausalLM{more_imports}

model = AutoModelForCausalLM.from_pretrained("."){more_lines}
```

It needs the package scale-invariant-attention with its extra huggingface. {tokens}

## Provenance

```json
{provenance}
```
"""


def save_for_transformers(
    model: GPT,
    folder: str | os.PathLike[str],
    *,
    encoding: Encoding | None = None,
    document_start: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Save a model for transformers: configuration, weights, tokenizer, model card and their hashes.

    Args:
        model: a GPT whose scheme has a name.
        folder: created if missing. An earlier export is replaced; anything else is refused.
        encoding: encoding of the model's text, exported as a tokenizer; None exports none.
        document_start: the token that starts documents, if there is no encoding.
        provenance: the origin of the model, for the card.

    >>> import tempfile
    >>> from scale_invariant_attention.data import get_encoding
    >>> from scale_invariant_attention.model import GPTConfig
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = GPT(GPTConfig.preset("mini"))
    ...     save_for_transformers(model, f"{folder}/hf", encoding=get_encoding("bytes"))
    ...     sorted(file.name for file in Path(folder, "hf").iterdir())
    ['README.md', 'config.json', 'generation_config.json', 'model.safetensors', 'sia_manifest.json',
     'tokenizer.json', 'tokenizer_config.json']
    """
    folder = Path(folder).absolute()
    check_replaceable(folder)
    tokenizer = None if encoding is None else _tokenizer_for(encoding)
    start = document_start if encoding is None else encoding.document_start
    wrapped = ScaleInvariantGPTForCausalLM.of(
        model, bos_token_id=start, eos_token_id=start, pad_token_id=start
    )
    card = _model_card(model.config, None if encoding is None else encoding.name, provenance or {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    clear_partial(folder.parent, glob.escape(folder.name))
    with write_folder(folder) as partial:
        wrapped.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        files = {path.name: FileRecord.of(path) for path in sorted(partial.iterdir())}
        write_new_file(partial / MANIFEST, [FORMAT.text({}, files)])
        (partial / CARD).write_text(card)
        for path in partial.iterdir():
            # Weights are written readable by their owner alone.
            shutil.copymode(partial / CONFIG, path)


def open_from_transformers(folder: str | os.PathLike[str]) -> GPT:
    """Open a GPT from a folder of transformers; weights that do not fit are refused, not initialised.

    Only safetensors files inside the folder are read, or in the cache of the hub that it belongs to. If
    the folder has the manifest of an export, its files are verified by their hashes.
    """
    folder = Path(folder)
    found = _model_type(folder)
    if found != MODEL_TYPE:
        raise ValueError(f"{folder} must be a transformers folder of {MODEL_TYPE!r}, got {found!r}")
    check_folder(folder)
    if (folder / ADAPTER).exists():
        raise ValueError(
            f"{folder} has an adapter, {ADAPTER}; merge it into the model, and save that"
        )
    check_manifest(folder)
    model, report = ScaleInvariantGPTForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    wrong = {name: sorted(map(str, which)) for name, which in report.items() if which}
    if wrong:
        raise ValueError(f"the weights in {folder} do not fit its configuration: {wrong}")
    gpt: GPT = model.gpt
    return gpt


def check_manifest(folder: Path) -> None:
    """Refuse files that have changed since they were exported; folders without a manifest pass."""
    if not (folder / MANIFEST).exists():
        return
    try:
        FORMAT.check_files(folder, FORMAT.read(inside(folder, MANIFEST)), MANIFEST)
    except ValueError as error:
        raise ValueError(
            f"{error}. If the folder was changed on purpose, remove its {MANIFEST}"
        ) from error


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that exists and is not an earlier export."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; pass a folder for the export")
    names = sorted(path.name for path in folder.iterdir())
    others = [
        it for it in names if it not in (CARD, MANIFEST) and not FORMAT.file_name.fullmatch(it)
    ]
    if others or (names and _model_type(folder) != MODEL_TYPE):
        raise FileExistsError(
            f"{folder} holds more than an export, such as {(others or names)[0]!r}; pass another folder"
        )


def _model_type(folder: Path) -> str | None:
    if not (folder / CONFIG).exists():
        return None
    return str(read_json_object(inside(folder, CONFIG)).get("model_type"))


def _model_card(config: GPTConfig, encoding_name: str | None, provenance: Mapping[str, Any]) -> str:
    """The model card, as Markdown.

    >>> print(_model_card(GPTConfig.preset("mini"), "bytes", {"seed": 0}).splitlines()[6])
    # A GPT with the scheme scale-invariant-p-rope
    """
    trained = "Its training length is unknown."
    if config.train_length is not None:
        trained = f"It was trained at {config.train_length:,} tokens, and accepts any length."
    more_imports, more_lines, tokens = "", "", "The folder holds no tokenizer."
    if encoding_name is not None:
        more_imports = ", AutoTokenizer"
        more_lines = '\ntokenizer = AutoTokenizer.from_pretrained(".")'
        tokens = f"Text is encoded with: {encoding_name}."
    return _CARD.format(
        config=config,
        options=json.dumps(config.scheme_options),
        trained=trained,
        more_imports=more_imports,
        more_lines=more_lines,
        tokens=tokens,
        provenance=json.dumps(dict(provenance), indent=2),
    )


def _tokenizer_for(encoding: Encoding) -> PreTrainedTokenizerFast:
    """A tokenizer that encodes text exactly as `encoding` does, and adds no tokens.

    The document-start token is also the end-of-text and padding token.

    >>> from scale_invariant_attention.data import get_encoding
    >>> _tokenizer_for(get_encoding("bytes")).eos_token_id
    0
    """
    if isinstance(encoding, Bytes):
        return byte_tokenizer()
    if not isinstance(encoding, TokenizerFile):
        raise ValueError(
            f"encoding must be bytes or a tokenizer file, got {encoding.name!r} of tiktoken; pass the "
            "same tokenizer as a .json file of the tokenizers library"
        )
    with tempfile.TemporaryDirectory() as folder:
        encoding.keep(Path(folder))
        tokenizer = Tokenizer.from_file(str(Path(folder, KEPT)))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Training encodes documents without the special tokens that a file may add around a text.
    tokenizer.post_processor = processors.Sequence([])
    return _fast_tokenizer(tokenizer, tokenizer.id_to_token(encoding.document_start))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of byte-level models, with the tokens of ``data.encoding.Bytes``; lossless.

    >>> tokenizer = byte_tokenizer()
    >>> tokenizer("café").input_ids
    [99, 97, 102, 195, 169]
    >>> tokenizer.decode([99, 97, 102, 195, 169]), tokenizer.bos_token_id, len(tokenizer)
    ('café', 0, 256)
    """
    vocabulary = {_character(byte): byte for byte in range(1, 256)} | {DOCUMENT_START: 0}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(DOCUMENT_START, special=True, normalized=False)])
    return _fast_tokenizer(tokenizer, DOCUMENT_START)


def _fast_tokenizer(tokenizer: Tokenizer, document_start: str | None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=document_start,
        eos_token=document_start,
        pad_token=document_start,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def _character(byte: int) -> str:
    """The library's character for a byte: itself if printable, otherwise one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(other not in printable for other in range(byte)))
