"""Encodings of this package as transformers tokenizers: bytes, and files of the tokenizers library.

The tokenizers library writes each byte as one printable character. Byte 0, which starts documents and
occurs in no text, stays itself: it is the only special token, and no text can be mistaken for it.
"""

import tempfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..data.encoding import KEPT, Bytes, Encoding, TokenizerFile

DOCUMENT_START = "\0"


def tokenizer_for(encoding: Encoding) -> PreTrainedTokenizerFast:
    """A tokenizer that encodes text exactly as `encoding` does, and adds no tokens.

    The document-start token is also the end-of-text and padding token.

    >>> from scale_invariant_attention.data import get_encoding
    >>> tokenizer_for(get_encoding("bytes")).eos_token_id
    0
    """
    if isinstance(encoding, Bytes):
        return byte_tokenizer()
    if not isinstance(encoding, TokenizerFile):
        raise ValueError(
            f"encoding must be bytes or a tokenizer file, got {encoding.name!r}, which tiktoken cannot "
            f"write to a file; pass the same tokenizer as a .json file of the tokenizers library"
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
