"""Makes token shards of documents, in a run that can be interrupted at any moment and resumed.

Shards grow under a `.partial` name. From time to time they are synced, and then `shards.json` records
how many documents they hold and how long each shard is; a resumed run truncates them to that. So the
shards are the same bytes, however often the run was interrupted.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from ..files import FileRecord, clear_partial, finish_growing, growing_path
from ._document_sources import DocumentSource
from .encoding import Encoding, encode_documents
from .shard_records import (
    LARGEST_VOCABULARY,
    RECORD,
    ShardError,
    read_record,
    recorded_files,
    write_record,
)
from .shards import (
    HEADER_BYTES,
    LARGEST_COUNT,
    header,
    read_shard,
)
from .tokens import SPLITS, Split, TokenArray, check_share, divide

SHARD_TOKENS = 100_000_000
# Maximum number of documents, and approximate number of bytes, per batch to encode.
_BATCH_DOCUMENTS, _BATCH_BYTES = 256, 2**22


@dataclass(frozen=True)
class ShardProgress:
    """Documents read so far, and tokens written and shards begun per split."""

    documents: int
    tokens: dict[Split, int]
    shards: dict[Split, int]


def shard_path(folder: Path, split: Split, number: int) -> Path:
    """The name of a shard.

    >>> shard_path(Path("tokens"), "validation", 0).as_posix()
    'tokens/tokens_val_000000.bin'
    """
    mark = "val" if split == "validation" else "train"
    return folder / f"tokens_{mark}_{number:06}.bin"


def make_shards(
    source: DocumentSource,
    folder: str | os.PathLike[str],
    encoding: Encoding,
    *,
    validation: float = 0.1,
    shard_tokens: int = SHARD_TOKENS,
    save_every: int = 5_000_000,
    progress: Callable[[ShardProgress], None] = lambda _: None,
) -> ShardProgress:
    """Make the shards of a source in a folder, or resume an interrupted run.

    Args:
        source: the documents, such as :class:`TextFiles` or :class:`HubDataset`.
        folder: for the shards and their record; created if missing.
        encoding: turns documents into tokens.
        validation: fraction of the documents that is held out, by a hash of their text: equal
            documents are in the same split. Of a single document, its end is held out.
        shard_tokens: tokens per shard; the last one of each split has the remainder.
        save_every: progress is saved after this many tokens.
        progress: called after every batch of documents.
    """
    check_share(validation)
    if encoding.vocab_size > LARGEST_VOCABULARY:
        raise ValueError(
            f"shards hold tokens below {LARGEST_VOCABULARY}, and the encoding {encoding.name!r} has "
            f"{encoding.vocab_size}; choose one with fewer"
        )
    if not 1 <= shard_tokens <= LARGEST_COUNT:
        raise ValueError(f"shard_tokens must be from 1 to {LARGEST_COUNT}, got {shard_tokens}")
    settings = {
        "source": source.identity,
        "encoding": encoding.name,
        "vocab_size": encoding.vocab_size,
        "document_start": encoding.document_start,
        "validation": validation,
        "shard_tokens": shard_tokens,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    clear_partial(folder, RECORD)
    record = _resumed(folder, settings)
    shards = record.shards
    encoding.keep(folder)
    try:
        for each in shards.values():
            each.reopen(record.complete)
        progress(record.made())
        if record.complete:
            return record.made()
        unsaved = 0
        documents = source.documents(record.documents)
        first = list(islice(documents, 2))
        alone = len(first) == 1 and record.documents == 0
        for batch in _batched(chain(first, documents)):
            # An empty document would be a boundary with nothing after it.
            parts = [
                (name, split, part)
                for name, text in batch
                if text
                for split, part in divide(text, validation, alone=alone).items()
            ]
            texts = [(name, part) for name, _, part in parts]
            for (_, split, _), tokens in zip(parts, encode_documents(encoding, texts), strict=True):
                shards[split].append(tokens)
                unsaved += len(tokens)
            record.documents += len(batch)
            if unsaved >= save_every:
                record.save()
                unsaved = 0
            progress(record.made())
        if not any(record.made().tokens.values()):
            raise ValueError(f"the source ({source.identity}) has no text")
        for each in shards.values():
            each.finish()
        record.complete = True
        record.save()
    finally:
        for each in shards.values():
            each.close()
    return record.made()


@dataclass
class _GrowingShards:
    """The shards of one split: `number` are whole, and the next one has `count` tokens so far."""

    folder: Path
    split: Split
    shard_tokens: int
    number: int = 0
    count: int = 0
    # Those that are whole, by name.
    files: dict[str, FileRecord] = field(default_factory=dict)
    _file: BinaryIO | None = None

    @property
    def _path(self) -> Path:
        return shard_path(self.folder, self.split, self.number)

    def reopen(self, complete: bool) -> None:
        """Verify whole shards, the last one too if complete; truncate a growing one as recorded."""
        for number in range(self.number):
            _verify(shard_path(self.folder, self.split, number), self.shard_tokens)
        if not self.count:
            return
        if complete:
            _verify(self._path, self.count)
            return
        partial, size = growing_path(self._path), HEADER_BYTES + 2 * self.count
        # It may have been finished after the last save.
        if not partial.exists() and self._path.exists():
            self._path.replace(partial)
        if not partial.exists() or partial.stat().st_size < size:
            raise ShardError(
                f"{partial} does not have the {self.count} tokens that {RECORD} records; delete "
                f"{str(self.folder)!r} and start again"
            )
        self._file = partial.open("r+b")
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, tokens: TokenArray) -> None:
        while len(tokens):
            if self._file is None:
                self._file = growing_path(self._path).open("wb")
                # It gets a valid header when it is finished.
                self._file.write(bytes(HEADER_BYTES))
            fitting = tokens[: self.shard_tokens - self.count]
            self._file.write(fitting.astype("<u2").tobytes())
            self.count += len(fitting)
            tokens = tokens[len(fitting) :]
            if self.count == self.shard_tokens:
                self.finish()
                self.number, self.count = self.number + 1, 0

    def sync(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._file.write(header(self.count))
            self.close()
            self.files[self._path.name] = FileRecord.of(growing_path(self._path))
            finish_growing(self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass
class _Record:
    """The content of `shards.json`, and the growing shards it describes."""

    folder: Path
    settings: dict[str, Any]
    shards: dict[Split, _GrowingShards]
    documents: int = 0
    complete: bool = False

    def made(self) -> ShardProgress:
        each = self.shards.items()
        return ShardProgress(
            self.documents,
            {split: one.number * one.shard_tokens + one.count for split, one in each},
            {split: one.number + bool(one.count) for split, one in each},
        )

    def save(self) -> None:
        for shards in self.shards.values():
            shards.sync()
        contents = self.settings | {
            "documents": self.documents,
            "tokens": self.made().tokens,
            "complete": self.complete,
        }
        files = {name: it for one in self.shards.values() for name, it in one.files.items()}
        write_record(self.folder, contents, files)


def _resumed(folder: Path, settings: dict[str, Any]) -> _Record:
    """The record of an earlier run with the same settings, or a new one."""
    shard_tokens = settings["shard_tokens"]
    shards = {split: _GrowingShards(folder, split, shard_tokens) for split in SPLITS}
    record = _Record(folder, settings, shards)
    earlier = read_record(folder)
    shard_files = sorted(folder.glob("*.bin"))
    if shard_files and (earlier is None or "documents" not in earlier):
        raise ValueError(
            f"{folder} has shards of another origin, such as {shard_files[0].name}; use another folder"
        )
    if earlier is None or not earlier["documents"]:
        # An earlier run, perhaps with other settings, may have ended before its first save.
        for path in folder.glob("tokens_*.bin*"):
            path.unlink()
        # From now on the record says that the folder is unfinished.
        record.save()
        return record
    for name, value in settings.items():
        if earlier.get(name) != value:
            raise ValueError(
                f"{str(folder)!r} has shards made with {name} {earlier.get(name)!r}, and now it is "
                f"{value!r}; choose another folder, or delete this one"
            )
    record.documents, record.complete = earlier["documents"], earlier["complete"]
    files = recorded_files(earlier)
    for split, one in shards.items():
        one.number, one.count = divmod(earlier["tokens"][split], shard_tokens)
        whole = one.number + (record.complete and one.count > 0)
        names = [shard_path(folder, split, number).name for number in range(whole)]
        one.files = {name: files[name] for name in names if name in files}
    return record


def _verify(path: Path, count: int) -> None:
    if not path.exists() or len(read_shard(path)) != count:
        raise ShardError(
            f"{path} is not the shard in {RECORD}; delete {str(path.parent)!r} and start again"
        )


def _batched(documents: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for name, text in documents:
        batch.append((name, text))
        size += len(text)
        if len(batch) == _BATCH_DOCUMENTS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
