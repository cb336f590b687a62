"""Token shards in the format of llm.c and modded-nanogpt, in which FineWeb is published.

A shard has a header of 256 int32 (magic 20240520, version 1, the number of tokens, zeros) and then the
tokens as uint16, all little-endian. Before every document stands the token that starts it; shards are
cut at a number of tokens, in the middle of a document if need be, and are read as one stream.
"""

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import replace_file
from .encoding import (
    DOCUMENT_START,
    KEPT,
    Bytes,
    Encoding,
    get_encoding,
    may_be_same,
    noted_document_start,
)
from .tokens import SPLITS, Split, TokenArray, TokenStream, check_split

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 256 * 4
LARGEST_COUNT = 2**31 - 1
LARGEST_VOCABULARY = 2**16

# GPT-2 has 50,257 tokens; its last one, <|endoftext|>, starts a document.
GPT2_VOCAB_SIZE, GPT2_DOCUMENT_START = 50257, 50256

# What `sia data shards` notes beside the shards that it makes.
RECORD = "shards.json"
_NOTED = frozenset({"vocab_size", "document_start", "documents", "tokens", "complete"})

_SIDE_IN_NAME = re.compile(r"_(train|val)_\d+\.bin$")
_SIDES: dict[str, Split] = {"train": "train", "val": "validation"}

TIKTOKEN = "tiktoken "
# Published shards have no note, and are GPT-2's.
UNNOTED = f"{TIKTOKEN}gpt2"

Shard = NDArray[np.uint16]
Place = str | os.PathLike[str]


class ShardError(ValueError):
    """A file that is no whole shard; the message names it and tells what is wrong."""


def header(count: int) -> bytes:
    """The header of a shard of `count` tokens."""
    fields = np.zeros(256, "<i4")
    fields[:3] = MAGIC, VERSION, count
    return fields.tobytes()


def write_shard(path: Place, tokens: TokenArray) -> None:
    """Write tokens as a shard; a file that is there is replaced, by the whole new one or not at all."""
    largest = int(tokens.max(initial=0))
    if largest >= LARGEST_VOCABULARY:
        raise ValueError(f"tokens must be below {LARGEST_VOCABULARY} for a shard, got {largest}")
    if not 1 <= len(tokens) <= LARGEST_COUNT:
        raise ValueError(f"a shard holds 1 to {LARGEST_COUNT} tokens, got {len(tokens)}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, header(len(tokens)), tokens.astype("<u2").tobytes())


def read_shard(path: Place) -> Shard:
    """The tokens of a shard, memory-mapped. Raises :class:`ShardError` unless it is whole."""
    path = Path(path)
    size = path.stat().st_size
    if size < HEADER_BYTES:
        raise ShardError(
            f"{path} is no shard: it has {size} bytes, and the header alone has {HEADER_BYTES}"
        )
    with path.open("rb") as file:
        magic, version, count = np.frombuffer(file.read(12), "<i4").tolist()
    if magic != MAGIC:
        raise ShardError(f"{path} is no shard: it begins with {magic}, not with {MAGIC}")
    if version != VERSION:
        raise ShardError(f"{path} is a shard of version {version}; only version {VERSION} is known")
    if count <= 0:
        raise ShardError(f"{path} is an empty shard: its header tells of {count} tokens")
    expected = HEADER_BYTES + 2 * count
    if size != expected:
        fault = "is truncated" if size < expected else "has too many bytes"
        raise ShardError(
            f"{path} {fault}: its header tells of {count} tokens, so {expected} bytes, and it has "
            f"{size}; fetch or make it again"
        )
    return np.memmap(path, "<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


def check_shard(path: Place, vocab_size: int = GPT2_VOCAB_SIZE) -> Shard:
    """Like :func:`read_shard`, and raises if a token is not in the vocabulary, which takes a scan."""
    tokens = read_shard(path)
    piece = 2**24
    for start in range(0, len(tokens), piece):
        wrong = np.flatnonzero(tokens[start : start + piece] >= vocab_size)
        if len(wrong):
            place = start + int(wrong[0])
            raise ShardError(
                f"{path} has the token {tokens[place]} at place {place}, and the vocabulary ends "
                f"at {vocab_size - 1}"
            )
    return tokens


def find_shards(where: Place | Iterable[Place], split: str | None = None) -> list[Path]:
    """The files of a split, in order: from files, folders (all `*.bin` in them) and patterns.

    Args:
        where: One or several, taken in this order; what a folder or pattern has is sorted by name.
        split: "train" or "validation" takes the files that have `_train_` or `_val_` and a number at
            the end of their names; None takes all.
    """
    check_split(split)
    places = [where] if isinstance(where, str | os.PathLike) else list(where)
    found = dict.fromkeys(file for place in places for file in _found(place))
    files = [file for file in found if split is None or split_of(file) == split]
    if not files:
        given = ", ".join(map(repr, map(str, places))) or "nothing"
        wanted = "" if split is None else f" whose name tells that it is for {split}"
        raise FileNotFoundError(f"found no shard, no *.bin{wanted}; given was {given}")
    return files


def open_shards(
    where: Place | Iterable[Place],
    split: str | None = None,
    *,
    vocab_size: int | None = None,
    document_start: int | None = None,
) -> TokenStream:
    """Shards as one stream of tokens, memory-mapped. Every one is verified to be whole.

    Args:
        where: Files, folders and patterns; see :func:`find_shards`.
        split: "train" or "validation", by the names of the files; None takes all, but not both sides
            of a split by accident.
        vocab_size: By default what `sia data shards` noted beside the files, or that of GPT-2.
        document_start: The token before every document; default likewise.
    """
    files = find_shards(where, split)
    if {split_of(file) for file in files} >= set(SPLITS):
        raise ValueError(
            f"the shards in {str(files[0].parent)!r} are for training and for validation; give "
            f"split='train' or split='validation'"
        )
    noted_size, noted_start = vocabulary_of(files)
    return TokenStream(
        [read_shard(file) for file in files],
        vocab_size=noted_size if vocab_size is None else vocab_size,
        document_start=noted_start if document_start is None else document_start,
    )


def vocabulary_of(files: Sequence[Path]) -> tuple[int, int]:
    """Vocabulary size and document start as noted beside the files, by default those of GPT-2."""
    noted = {_noted(folder) for folder in {file.parent for file in files}}
    if len(noted) > 1:
        raise ValueError(f"shards of several vocabularies do not go together: {sorted(noted)}")
    return noted.pop()


def read_record(folder: Path) -> dict[str, Any] | None:
    """What is noted about the shards that were made in a folder, if anything is."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        lacking = _NOTED - set(record if isinstance(record, dict) else ())
        if lacking:
            raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
    except FileNotFoundError:
        return None
    except ValueError as problem:
        raise ValueError(
            f"{path} cannot be read ({problem}); delete the folder and make the shards again"
        ) from problem
    return dict(record)


def _noted(folder: Path) -> tuple[int, int]:
    record = read_record(folder)
    if record is None:
        return GPT2_VOCAB_SIZE, GPT2_DOCUMENT_START
    if not record["complete"]:
        raise ValueError(
            f"the shards in {str(folder)!r} are unfinished; run again the command that makes them, "
            f"and it goes on"
        )
    return record["vocab_size"], record["document_start"]


def _found(place: Place) -> list[Path]:
    path = Path(place)
    if path.is_file():
        return [path]
    if path.is_dir():
        return sorted(path.glob("*.bin"))
    files = sorted(Path(name) for name in glob.glob(str(place)) if Path(name).is_file())  # noqa: PTH207  also absolute
    if not files:
        raise FileNotFoundError(f"there is no file, no folder and no match for {str(place)!r}")
    return files


def split_of(file: Path) -> Split | None:
    """The side that a shard is on by its name, if that tells.

    >>> split_of(Path("fineweb_val_000000.bin"))
    'validation'
    """
    found = _SIDE_IN_NAME.search(file.name)
    return _SIDES[found[1]] if found else None


@dataclass(frozen=True)
class NotedEncoding:
    """The name of an encoding, its vocabulary, and the folder where its tokenizer may be kept."""

    name: str
    vocab_size: int
    document_start: int
    folder: Path | None = None

    @property
    def document_start_word(self) -> str | None:
        """How the tokenizer file that was used writes the token before documents, if it was one."""
        return noted_document_start(self.name)

    def open(self) -> Encoding:
        """The encoding; raises if it is a file that is not kept."""
        if self.name == Bytes.name:
            return Bytes()
        if self.name.startswith(TIKTOKEN):
            encoding = get_encoding(self.name.removeprefix(TIKTOKEN))
        elif self.folder is not None and (self.folder / KEPT).exists():
            word = self.document_start_word or DOCUMENT_START
            encoding = get_encoding(str(self.folder / KEPT), document_start=word)
        else:
            raise FileNotFoundError(
                f"the tokens were made with {self.name!r}, which is not kept beside them; give the "
                f"file of that tokenizer"
            )
        self.check(encoding)
        return encoding

    def check(self, encoding: Encoding) -> None:
        """Raise if an encoding is not the one that is noted, as far as that can be told."""
        numbers = (encoding.vocab_size, encoding.document_start)
        if numbers == (self.vocab_size, self.document_start) and may_be_same(
            self.name, encoding.name
        ):
            return
        raise ValueError(
            f"the tokens were made with {self.name!r} ({self.vocab_size:,} tokens, "
            f"{self.document_start} before documents), and {encoding.name!r} is another tokenizer "
            f"({encoding.vocab_size:,} tokens, {encoding.document_start} before documents)"
        )


BYTES = NotedEncoding(Bytes.name, Bytes.vocab_size, Bytes.document_start)


def shards_encoding(where: Place | Iterable[Place]) -> NotedEncoding:
    """The encoding of shards: as `sia data shards` noted it beside them, or that of GPT-2."""
    files = find_shards(where)
    size, start = vocabulary_of(files)
    folders = sorted({file.parent for file in files})
    records = [read_record(folder) for folder in folders]
    names = {UNNOTED if noted is None else str(noted.get("encoding")) for noted in records}
    if len(names) > 1:
        raise ValueError(f"shards of several encodings do not go together: {sorted(names)}")
    return NotedEncoding(names.pop(), size, start, folders[0])
