"""Token shards in the format of llm.c and modded-nanogpt, in which FineWeb is published.

A shard has a header of 256 int32 (magic 20240520, version 1, the number of tokens, zeros) and then the
tokens as uint16, all little-endian. Every document begins with the token that starts it; shards are cut
at a number of tokens, even in the middle of a document, and are read as one stream. `shards.json` beside
them records their encoding and their hashes.
"""

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    recorded_document_start,
)
from .shard_records import (
    LARGEST_VOCABULARY,
    ShardError,
    check_complete,
    check_recorded,
    find_recorded,
    read_record,
)
from .tokens import SPLITS, Split, TokenArray, TokenStream, check_mapped, check_split

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 256 * 4
LARGEST_COUNT = 2**31 - 1

GPT2_VOCAB_SIZE = 50257
TIKTOKEN = "tiktoken "

_SPLIT_IN_NAME = re.compile(r"_(train|val)_\d+\.bin$")
_SPLITS_BY_MARK: dict[str, Split] = {"train": "train", "val": "validation"}

Shard = NDArray[np.uint16]
AnyPath = str | os.PathLike[str]


def header(count: int) -> bytes:
    """The header of a shard of `count` tokens."""
    fields = np.zeros(256, "<i4")
    fields[:3] = MAGIC, VERSION, count
    return fields.tobytes()


def write_shard(path: AnyPath, tokens: TokenArray) -> None:
    """Write tokens as a shard, replacing an existing file in one step."""
    largest = int(tokens.max(initial=0))
    if largest >= LARGEST_VOCABULARY:
        raise ValueError(f"tokens must be below {LARGEST_VOCABULARY} for a shard, got {largest}")
    if not 1 <= len(tokens) <= LARGEST_COUNT:
        raise ValueError(f"a shard holds 1 to {LARGEST_COUNT} tokens, got {len(tokens)}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, header(len(tokens)), tokens.astype("<u2").tobytes())


def announced_bytes(path: AnyPath) -> int:
    """The size of a shard by its header. Raises :class:`ShardError` if it has no valid one."""
    path = Path(path)
    size = path.stat().st_size
    if size < HEADER_BYTES:
        raise ShardError(
            f"{path} is not a shard: it has {size} bytes, and the header alone has {HEADER_BYTES}"
        )
    magic, version, count = np.fromfile(path, "<i4", 3).tolist()
    if magic != MAGIC:
        raise ShardError(f"{path} is not a shard: it begins with {magic}, not with {MAGIC}")
    if version != VERSION:
        raise ShardError(f"{path} is a shard of version {version}; only {VERSION} is supported")
    if count <= 0:
        raise ShardError(f"{path} is an empty shard: its header announces {count} tokens")
    return HEADER_BYTES + 2 * int(count)


def read_shard(path: AnyPath) -> Shard:
    """The tokens of a shard, memory-mapped. Raises :class:`ShardError` unless it is whole."""
    path = Path(path)
    expected, size = announced_bytes(path), path.stat().st_size
    count = (expected - HEADER_BYTES) // 2
    if size != expected:
        fault = "is truncated" if size < expected else "has too many bytes"
        raise ShardError(
            f"{path} {fault}: its header announces {count} tokens, so {expected} bytes, and it has "
            f"{size}; fetch or make it again"
        )
    return np.memmap(path, "<u2", mode="r", offset=HEADER_BYTES, shape=(count,))


def check_shard(path: AnyPath, vocab_size: int = GPT2_VOCAB_SIZE) -> Shard:
    """Like :func:`read_shard`, and check all tokens: the vocabulary, and the SHA-256 if recorded."""
    tokens = read_shard(path)
    path = Path(path)
    check_recorded(path, find_recorded([path]).get(path))
    piece = 2**24
    for start in range(0, len(tokens), piece):
        check_mapped(tokens)
        wrong = np.flatnonzero(tokens[start : start + piece] >= vocab_size)
        if len(wrong):
            index = start + int(wrong[0])
            raise ShardError(
                f"{path} has the token {tokens[index]} at index {index}, and the vocabulary ends "
                f"at {vocab_size - 1}"
            )
    return tokens


def find_shards(where: AnyPath | Iterable[AnyPath], split: str | None = None) -> list[Path]:
    """Find the shards of a split, in order, in files, folders (all `*.bin` in them) and patterns.

    Args:
        where: one or several, in this order; matches in a folder or of a pattern are sorted by name.
        split: "train" or "validation" selects files whose names end in `_train_` or `_val_` and a
            number; None selects all.
    """
    check_split(split)
    given = [where] if isinstance(where, str | os.PathLike) else list(where)
    matches = dict.fromkeys(file for each in given for file in _matches(each))
    files = [file for file in matches if split is None or split_of(file) == split]
    if not files:
        described = ", ".join(map(repr, map(str, given))) or "nothing"
        purpose = "" if split is None else f" for {split}"
        marks = [mark for mark, of_split in _SPLITS_BY_MARK.items() if of_split == split]
        name = "*.bin" if split is None else f"*_{marks[0]}_NUMBER.bin"
        raise FileNotFoundError(f"found no shards{purpose} in {described}: there is no file {name}")
    return files


def holds_shards(path: Path) -> bool:
    """Whether a file is a shard, or a folder has any, by the names."""
    return path.suffix == ".bin" or any(path.glob("*.bin"))


def open_shards(
    where: AnyPath | Iterable[AnyPath],
    split: str | None = None,
    *,
    vocab_size: int | None = None,
    document_start: int | None = None,
    verify: bool = False,
) -> TokenStream:
    """Open shards as one stream of tokens, memory-mapped. Every shard is verified to be whole.

    A shard that is truncated later, while it is mapped, is noticed when it is read next.

    Args:
        where: files, folders and patterns; see :func:`find_shards`.
        split: "train" or "validation", by the names of the files; None takes all, and refuses a mix of
            the two.
        vocab_size: by default as recorded beside the files, or that of GPT-2.
        document_start: the token before every document, by default likewise.
        verify: also read every shard and compare it with its recorded SHA-256, which it must have.
    """
    files = find_shards(where, split)
    if {split_of(file) for file in files} >= set(SPLITS):
        raise ValueError(
            f"the shards in {str(files[0].parent)!r} are for training and for validation; give "
            f"split='train' or split='validation'"
        )
    recorded = recorded_encodings(files)[0]
    records = find_recorded(files)
    for file in files:
        check_recorded(file, records.get(file), quick=not verify)
        if verify and file not in records:
            raise ShardError(
                f"{file} has no recorded SHA-256 to compare it with; fetch or make the shards again, or "
                f"pass verify=False"
            )
    return TokenStream(
        [read_shard(file) for file in files],
        vocab_size=recorded.vocab_size if vocab_size is None else vocab_size,
        document_start=recorded.document_start if document_start is None else document_start,
    )


def recorded_fingerprint(
    where: AnyPath | Iterable[AnyPath], split: str | None = None
) -> str | None:
    """SHA-256 of the recorded hashes of shards, in order; None unless all are recorded.

    It stands for every token, as far as the shards have their recorded hashes.
    """
    files = find_shards(where, split)
    records = find_recorded(files)
    if len(records) < len(files):
        return None
    hashes = "".join(records[file].sha256 for file in files)
    return hashlib.sha256(hashes.encode()).hexdigest()


def _matches(where: AnyPath) -> list[Path]:
    path = Path(where)
    if path.is_file():
        return [path]
    if path.is_dir():
        check_complete(path)
        return sorted(path.glob("*.bin"))
    files = sorted(Path(name) for name in glob.glob(str(where)) if Path(name).is_file())  # noqa: PTH207  also absolute
    if not files:
        raise FileNotFoundError(f"there is no file, no folder and no match for {str(where)!r}")
    return files


def split_of(file: Path) -> Split | None:
    """The split in a shard's name; None if it names none.

    >>> split_of(Path("fineweb_val_000000.bin"))
    'validation'
    """
    mark = _SPLIT_IN_NAME.search(file.name)
    return _SPLITS_BY_MARK[mark[1]] if mark else None


@dataclass(frozen=True)
class RecordedEncoding:
    """The recorded encoding of a corpus, and the folder with its tokenizer, if any."""

    name: str
    vocab_size: int
    document_start: int
    folder: Path | None = None

    @property
    def document_start_name(self) -> str | None:
        """The name of the token before documents in the tokenizer file, if the encoding is a file."""
        return recorded_document_start(self.name)

    def open(self) -> Encoding:
        """Open the encoding; raises if it is a tokenizer file that was not kept."""
        if self.name == Bytes.name:
            return Bytes()
        if self.name.startswith(TIKTOKEN):
            encoding = get_encoding(self.name.removeprefix(TIKTOKEN))
        elif self.folder is not None and (self.folder / KEPT).exists():
            start = self.document_start_name or DOCUMENT_START
            encoding = get_encoding(str(self.folder / KEPT), document_start=start)
        else:
            raise FileNotFoundError(
                f"the tokens were made with {self.name!r}, whose file is not beside them; give that file"
            )
        self.check(encoding)
        return encoding

    def check(self, encoding: Encoding) -> None:
        """Raise if an encoding is certainly not the recorded one."""
        recorded = (self.vocab_size, self.document_start)
        same = recorded == (encoding.vocab_size, encoding.document_start)
        if not same or not may_be_same(self.name, encoding.name):
            raise ValueError(
                f"the tokens were made with {self.name!r} ({self.vocab_size:,} tokens, "
                f"{self.document_start} before documents), and {encoding.name!r} is another tokenizer "
                f"({encoding.vocab_size:,} tokens, {encoding.document_start} before documents)"
            )


BYTES = RecordedEncoding(Bytes.name, Bytes.vocab_size, Bytes.document_start)


def shards_encoding(where: AnyPath | Iterable[AnyPath]) -> RecordedEncoding:
    """The encoding of shards as recorded beside them, or that of GPT-2."""
    recorded = recorded_encodings(find_shards(where))
    names = {encoding.name for encoding in recorded}
    if len(names) > 1:
        raise ValueError(f"shards of different encodings cannot be mixed: {sorted(names)}")
    return recorded[0]


def recorded_encodings(files: Sequence[Path]) -> list[RecordedEncoding]:
    """The encoding recorded in each folder of files, by default GPT-2's, all of one vocabulary."""
    encodings = [_recorded_in(folder) for folder in sorted({file.parent for file in files})]
    vocabularies = {(one.vocab_size, one.document_start) for one in encodings}
    if len(vocabularies) > 1:
        raise ValueError(
            f"shards of different vocabularies cannot be mixed: {sorted(vocabularies)}"
        )
    return encodings


def _recorded_in(folder: Path) -> RecordedEncoding:
    record = read_record(folder)
    if record is None:
        # Published shards; the last token of GPT-2, <|endoftext|>, starts a document.
        return RecordedEncoding(f"{TIKTOKEN}gpt2", GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE - 1, folder)
    if not record["complete"]:
        raise ValueError(
            f"{str(folder)!r} has unfinished shards; rerun the command that makes them to resume"
        )
    name = str(record.get("encoding"))
    return RecordedEncoding(name, record["vocab_size"], record["document_start"], folder)
