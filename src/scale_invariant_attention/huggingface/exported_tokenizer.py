"""The encoding that a model was trained with, as a tokenizer of transformers."""

import tempfile
from pathlib import Path

from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from ..data.encoding import KEPT, Bytes, Encoding, TokenizerFile
from .byte_tokenizer import byte_tokenizer


def exported_tokenizer(encoding: Encoding) -> PreTrainedTokenizerFast:
    """The tokenizer that gives a text the tokens that `encoding` gives it, and adds none.

    The token before documents is that of their start and of their end, and that of padding.

    >>> from scale_invariant_attention.data import get_encoding
    >>> exported_tokenizer(get_encoding("bytes")).eos_token_id
    0
    """
    if isinstance(encoding, Bytes):
        return byte_tokenizer()
    if not isinstance(encoding, TokenizerFile):
        raise ValueError(
            f"encoding must be bytes or a tokenizer file, got {encoding.name!r}, which tiktoken does "
            f"not write as a file; give the same tokenizer as a file of the tokenizers library, "
            f"ending in .json"
        )
    with tempfile.TemporaryDirectory() as folder:
        encoding.keep(Path(folder))
        tokenizer = Tokenizer.from_file(str(Path(folder, KEPT)))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Trained on documents without what a file may put around a text.
    tokenizer.post_processor = processors.Sequence([])
    start = tokenizer.id_to_token(encoding.document_start)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=start,
        eos_token=start,
        pad_token=start,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
