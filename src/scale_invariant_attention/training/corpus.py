"""The corpus that a configuration names, for training or for validation."""

from ..data import Encoding, TokenStream, open_shards, standard_library, text_files
from ..data.noted_encoding import BYTES, NotedEncoding, shards_encoding

STANDARD_LIBRARY = "standard-library"


def open_corpus(
    data: str, split: str, vocab_size: int, encoding: Encoding | None = None
) -> TokenStream:
    """The tokens of a split, "train" or "validation", checked against the model's vocabulary.

    `data` is "standard-library", "text:FOLDER" for text files, or "shards:FOLDER" for token shards. Text
    becomes tokens by `encoding`; None is bytes.

    >>> len(open_corpus("standard-library", "validation", vocab_size=256)) > 100_000
    True
    """
    kind, _, place = data.partition(":")
    if data == STANDARD_LIBRARY:
        corpus = standard_library(split, encoding)
    elif kind == "text" and place:
        corpus = text_files(place, split=split, encoding=encoding or "bytes")
    elif kind == "shards" and place:
        corpus = open_shards(place, split)
    else:
        raise ValueError(
            f"data must be {STANDARD_LIBRARY!r}, 'text:FOLDER' or 'shards:FOLDER', got {data!r}"
        )
    if corpus.vocab_size > vocab_size:
        raise ValueError(
            f"vocab_size must be at least the {corpus.vocab_size} of {data!r}, got {vocab_size}"
        )
    return corpus


def corpus_encoding(data: str) -> NotedEncoding:
    """How the text of a corpus became tokens.

    >>> corpus_encoding("standard-library").name
    'bytes'
    """
    kind, _, place = data.partition(":")
    return shards_encoding(place) if kind == "shards" else BYTES
