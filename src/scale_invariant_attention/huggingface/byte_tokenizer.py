"""Bytes as a tokenizer of transformers: the tokens of ``data.encoding.Bytes``, and text from them.

The tokenizers library writes bytes as printable characters, each as one of its own. Byte 0, which starts
documents and stands in no text, is written as itself: it is the one special token, and nothing that
looks like a name can be taken for it.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

DOCUMENT_START = "\0"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of byte-level models; nothing is added to a text, and nothing is lost.

    >>> tokenizer = byte_tokenizer()
    >>> tokenizer("café").input_ids
    [99, 97, 102, 195, 169]
    >>> tokenizer.decode([99, 97, 102, 195, 169]), tokenizer.bos_token_id, len(tokenizer)
    ('café', 0, 256)
    """
    words = {_character(byte): byte for byte in range(1, 256)} | {DOCUMENT_START: 0}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(DOCUMENT_START, special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=DOCUMENT_START,
        eos_token=DOCUMENT_START,
        pad_token=DOCUMENT_START,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def _character(byte: int) -> str:
    """How the library writes a byte: as itself if it is printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(other not in printable for other in range(byte)))
