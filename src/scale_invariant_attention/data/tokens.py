"""Token streams with document boundaries, the form of every corpus, and how text is split."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .shard_records import ShardError

Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
TokenArray = NDArray[np.unsignedinteger[Any]]
# Scans read a stream in pieces of this many tokens.
_PIECE = 2**24
# Sampled fingerprints: tokens up to which all are read; how many windows at least, their length, and how
# far apart they are at most.
_READ_WHOLE, _SAMPLES, _SAMPLE, _SAMPLE_SPACING = 2**26, 1024, 4096, 2**25


class TokenSource(Protocol):
    """The corpus that batches and evaluation read; :class:`TokenStream` implements it."""

    # Tokens are 0 to `vocab_size - 1`.
    vocab_size: int

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """Positions where documents start, ascending from 0; each ends where the next one starts."""

    def __len__(self) -> int:
        """The number of tokens."""

    def read(self, start: int, stop: int) -> TokenArray:
        """The tokens `start` to `stop - 1`."""


class TokenStream:
    """Arrays of tokens, in memory or memory-mapped, read as one stream.

    Every document begins with the token `document_start`, which occurs nowhere else: boundaries are
    part of the stream, and a model can see them.

    >>> stream = TokenStream([np.array([0, 7, 8], np.uint8), np.array([9, 0, 5], np.uint8)],
    ...                      vocab_size=256, document_start=0)
    >>> len(stream), stream.read(1, 4).tolist(), stream.document_starts.tolist()
    (6, [7, 8, 9], [0, 4])
    """

    def __init__(
        self, parts: Sequence[TokenArray], *, vocab_size: int, document_start: int
    ) -> None:
        self.vocab_size = vocab_size
        self.document_start = document_start
        self._parts = list(parts)
        # The end of each part.
        self._ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        if len(self) == 0:
            raise ValueError("parts must hold at least one token, got none")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> TokenArray:
        """The tokens `start` to `stop - 1`, as a new array in the dtype of the parts."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(
                f"start and stop must be in order and within the {len(self)} tokens of the "
                f"stream, got {start} and {stop}"
            )
        first = int(np.searchsorted(self._ends, start, side="right"))
        pieces = [np.empty(0, self._parts[0].dtype)]
        while start < stop:
            part, end = self._parts[first], int(self._ends[first])
            check_mapped(part)
            begin = end - len(part)
            pieces.append(part[start - begin : min(stop, end) - begin])
            start, first = min(stop, end), first + 1
        return np.concatenate(pieces)

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """Positions where documents start: 0, and every position of `document_start`.

        The first may be the rest of a document, as shards are cut without regard to documents. The
        first use scans all tokens.
        """
        starts = [np.zeros(1, np.int64)]
        for offset, tokens in self._pieces():
            starts.append(np.flatnonzero(tokens == self.document_start) + offset)
        return np.unique(np.concatenate(starts))

    def fingerprint(self) -> str:
        """SHA-256 of the tokens as little-endian uint32, independent of how they are stored."""
        digest = hashlib.sha256()
        for _, tokens in self._pieces():
            digest.update(tokens.astype("<u4").tobytes())
        return digest.hexdigest()

    def sampled_fingerprint(self) -> str:
        """SHA-256 of the size and of evenly spaced windows, quick even on terabytes.

        It detects other text, not a change of a few tokens between windows. Up to 64 million tokens it
        equals :meth:`fingerprint`; beyond, it reads 1,024 windows of 4,096 tokens, or more, so that they
        are at most 32 million tokens apart.
        """
        size = len(self)
        if size <= _READ_WHOLE:
            return self.fingerprint()
        count = max(_SAMPLES, size // _SAMPLE_SPACING)
        digest = hashlib.sha256(f"{size} tokens".encode())
        for number in range(count):
            start = number * (size - _SAMPLE) // (count - 1)
            digest.update(self.read(start, start + _SAMPLE).astype("<u4").tobytes())
        return digest.hexdigest()

    def _pieces(self) -> Iterator[tuple[int, TokenArray]]:
        for part, end in zip(self._parts, self._ends.tolist(), strict=True):
            for start in range(0, len(part), _PIECE):
                check_mapped(part)
                yield end - len(part) + start, part[start : start + _PIECE]


class TokenSlice:
    """The tokens `start` to `stop - 1` of a source, as a source of their own.

    >>> stream = TokenStream([np.array([0, 7, 8, 0, 5], np.uint8)], vocab_size=256, document_start=0)
    >>> part = TokenSlice(stream, 1, 5)
    >>> len(part), part.read(0, 2).tolist(), part.document_starts.tolist()
    (4, [7, 8], [0, 2])
    """

    def __init__(self, source: TokenSource, start: int, stop: int) -> None:
        self.vocab_size = source.vocab_size
        self._source, self._start, self._stop = source, start, stop

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """Positions where documents start, and 0."""
        starts = self._source.document_starts - self._start
        inside: NDArray[np.int64] = starts[(starts > 0) & (starts < len(self))]
        return np.concatenate([np.zeros(1, np.int64), inside])

    def __len__(self) -> int:
        return self._stop - self._start

    def read(self, start: int, stop: int) -> TokenArray:
        """The tokens `start` to `stop - 1` of the slice."""
        return self._source.read(self._start + start, self._start + stop)


def token_source(text: Any, tokenizer: Any, vocab_size: int) -> TokenSource:
    """A text, token ids, an iterable of token ids or a corpus, as a source for a model.

    `tokenizer` is one of transformers, which a text needs; its `bos_token_id` starts documents.

    >>> token_source([[1, 2], [3]], None, vocab_size=4).read(0, 3).tolist()
    [1, 2, 3]
    """
    if hasattr(text, "read") and hasattr(text, "vocab_size"):
        source: TokenSource = text
        if source.vocab_size > vocab_size:
            raise ValueError(
                f"text must have tokens below the model's vocab_size, {vocab_size}, got a corpus with "
                f"{source.vocab_size}: encode it with the model's own tokenizer"
            )
        return source
    if isinstance(text, str):
        if tokenizer is None:
            raise TypeError("tokenizer must be given to encode a text, got None: or pass token ids")
        parts = [np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"])]
    elif isinstance(text, torch.Tensor):
        parts = [text.flatten().cpu().numpy()]
    elif isinstance(text, Iterable):
        parts = [torch.as_tensor(batch).flatten().cpu().numpy() for batch in text]
    else:
        raise TypeError(f"text must be a text, token ids or a corpus, got a {type(text).__name__}")
    start = getattr(tokenizer, "bos_token_id", None)
    ids = [part.astype(np.uint32) for part in parts]
    highest = max((int(part.max()) for part in ids if len(part)), default=0)
    if highest >= vocab_size:
        raise ValueError(
            f"text must have tokens below the model's vocab_size, {vocab_size}, got {highest}: encode "
            "it with the model's own tokenizer"
        )
    return TokenStream(ids, vocab_size=vocab_size, document_start=-1 if start is None else start)


def check_mapped(part: TokenArray) -> None:
    """Raise if the file of a memory-mapped array has become shorter: reading would end the process."""
    if isinstance(part, np.memmap):
        # The file that is mapped, even if another one has its name by now.
        mapped: Any = part
        size, expected = mapped._mmap.size(), mapped.offset + mapped.nbytes
        if size < expected:
            raise ShardError(
                f"{mapped.filename} was truncated while it was in use: it has {size} bytes of "
                f"{expected}; fetch or make it again"
            )


def assign_split(key: bytes, validation: float) -> Split:
    """The split of the document with this key; a fraction of about `validation` is held out.

    The result depends on key and fraction alone: a document keeps its split whatever is added, removed
    or reordered around it, and documents with equal keys are never in both.

    >>> [assign_split(name, 0.5) for name in (b"abc.py", b"argparse.py", b"bisect.py")]
    ['train', 'train', 'validation']
    """
    uniform = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
    return "validation" if uniform < validation * 2**64 else "train"


def divide(text: bytes, validation: float, *, alone: bool) -> dict[Split, bytes]:
    """The text of a document by split: all of it in one, or its end in "validation" if it is alone.

    A document that is `alone` is cut between two characters of UTF-8.

    >>> divide(b"one of many", 0.1, alone=False)
    {'train': b'one of many'}
    >>> divide(b"0123456789", 0.1, alone=True)
    {'train': b'012345678', 'validation': b'9'}
    """
    if not alone:
        return {assign_split(text, validation): text}
    cut = round(len(text) * (1 - validation))
    # A character has at most three bytes after its first.
    for _ in range(3):
        if cut < len(text) and text[cut] & 0xC0 == 0x80:
            cut += 1
    parts: dict[Split, bytes] = {"train": text[:cut], "validation": text[cut:]}
    return {split: part for split, part in parts.items() if part}


def check_share(validation: float) -> None:
    """Raise unless `validation` is a fraction from 0 to 1."""
    if not 0 <= validation <= 1:
        raise ValueError(f"validation must be a fraction from 0 to 1, got {validation}")


def check_split(split: str | None) -> None:
    """Raise unless `split` is a split, or None for both."""
    if split is not None and split not in SPLITS:
        raise ValueError(f"split must be 'train', 'validation' or None for both, got {split!r}")
