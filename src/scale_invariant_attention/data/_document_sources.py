"""Sources of documents: text files, datasets of the Hugging Face hub, Python's standard library."""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ..arguments import integer
from .encoding import Bytes, Encoding, encoded_stream, get_encoding, import_extra
from .tokens import TokenStream, assign_split, check_share, check_split, divide

AnyPath = str | os.PathLike[str]

# Parts of the standard library that the corpus omits, and the fraction of its files that is held out.
TESTS = frozenset({"test", "tests", "idle_test"})
OPTIONAL = frozenset(
    {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "venv"}
)
GENERATED = frozenset({"encodings", "pydoc_data"})
VALIDATION = 0.1


class DocumentSource(Protocol):
    """Documents in a fixed order, readable from any of them on."""

    @property
    def identity(self) -> str:
        """Identifies the source, so that shards of two sources are never mixed."""

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Name and UTF-8 text of each document, after the first `skip`."""


class TextFiles:
    """Given files, and all files in given folders, in a fixed order.

    Args:
        paths: files and folders, in this order; the files in a folder, at any depth, are sorted by
            path. Hidden files and folders are skipped, as are empty files and repetitions.
        suffixes: from folders take only files with these endings, such as (".txt", ".md"); all if
            None.
    """

    def __init__(
        self, paths: AnyPath | Iterable[AnyPath], *, suffixes: Sequence[str] | None = None
    ) -> None:
        given = list(map(Path, [paths] if isinstance(paths, str | os.PathLike) else paths))
        # Name and path of each file, by its real path; the name is below the given folder.
        files: dict[Path, tuple[str, Path]] = {}
        for path in given:
            for name, file in _files(path, suffixes):
                if file.stat().st_size:
                    files.setdefault(file.resolve(), (name, file))
        self.files = list(files.values())
        if not files:
            ending = "" if suffixes is None else f" that ends in {' or '.join(suffixes)}"
            where = ", ".join(repr(str(path)) for path in given) or "nothing"
            raise FileNotFoundError(f"found no file{ending} with text in {where}")

    def __len__(self) -> int:
        return len(self.files)

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Path and content of each file, after the first `skip`."""
        for _, path in islice(self.files, skip, None):
            yield str(path), path.read_bytes()

    @property
    def identity(self) -> str:
        """Identifies the files by their names and sizes."""
        digest = hashlib.sha256()
        for name, path in self.files:
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        return f"{len(self)} files {digest.hexdigest()[:16]}"


def _files(path: Path, suffixes: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
        return
    if not path.is_dir():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    names = []
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            selected = suffixes is None or name.endswith(tuple(suffixes))
            if selected and not name.startswith(".") and file.is_file():
                names.append(file.relative_to(path).as_posix())
    yield from ((name, path / name) for name in sorted(names))


def text_files(
    paths: AnyPath | Iterable[AnyPath],
    *,
    suffixes: Sequence[str] | None = None,
    encoding: str | Encoding = "bytes",
    split: str | None = None,
    validation: float = 0.1,
) -> TokenStream:
    """The text of files and folders as one stream of tokens in memory, each file a document.

    Args:
        paths: files and folders; see :class:`TextFiles`.
        suffixes: from folders take only files with these endings.
        encoding: an :class:`Encoding`, or a name for :func:`get_encoding`.
        split: "train", "validation", or None for all. The split of a file depends on its content
            alone, so that equal files are in the same split. A single file is divided by position: its
            end is held out.
        validation: fraction of the files, or of a single one, that is held out.
    """
    check_split(split)
    check_share(validation)
    chosen = get_encoding(encoding) if isinstance(encoding, str) else encoding
    files = TextFiles(paths, suffixes=suffixes)
    documents = list(files.documents())
    if split is not None:
        alone = len(files) == 1
        divided = [(name, divide(text, validation, alone=alone)) for name, text in documents]
        documents = [(name, parts[split]) for name, parts in divided if split in parts]
    if not documents:
        where = f"{len(files)} files" if len(files) > 1 else f"the file {files.files[0][1]}"
        raise ValueError(
            f"split={split!r} with validation={validation} leaves nothing of {where}: files are held "
            f"out whole, by a hash of their text. Give more text, or join it in a single file, which is "
            f"divided by position"
        )
    return encoded_stream(chosen, documents)


@dataclass(frozen=True)
class HubDataset:
    """The rows of a dataset of the Hugging Face hub, one document each, streamed and never stored.

    Attributes:
        name: on the hub, such as "HuggingFaceFW/fineweb", or a local folder.
        config: configuration of the dataset, such as "sample-10BT".
        split: split of the dataset.
        column: column of the text.
        at_most: use only this many rows.
    """

    name: str
    config: str | None = None
    split: str = "train"
    column: str = "text"
    at_most: int | None = None

    def __post_init__(self) -> None:
        if self.at_most is not None:
            integer("at_most", self.at_most, at_least=1)

    @property
    def identity(self) -> str:
        """Identifies the rows by everything that selects them."""
        return (
            f"dataset {self.name}, config {self.config}, split {self.split}, column {self.column}, "
            f"rows {self.at_most or 'all'}"
        )

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Name and text of each row, after the first `skip`."""
        rows = self._rows()
        if self.at_most is not None:
            rows = rows.take(self.at_most)
        for number, row in enumerate(rows.skip(skip), skip):
            name = f"row {number} of {self.name}"
            if self.column not in row:
                raise ValueError(
                    f"column must be one of {', '.join(row)}, got {self.column!r} for {name}"
                )
            text = row[self.column]
            if not isinstance(text, str):
                raise ValueError(f"{name} must have text in {self.column!r}, got {text!r:.40}")
            # JSON on the hub may contain half of a surrogate pair, which cannot be UTF-8.
            yield name, text.encode(errors="replace")

    def _rows(self) -> Any:
        datasets = import_extra("datasets", "datasets", needed_by=self.name)
        try:
            return datasets.load_dataset(self.name, self.config, split=self.split, streaming=True)
        except OSError as problem:  # network errors and unknown names alike
            raise ConnectionError(
                f"cannot open the dataset {self.name!r}: {problem}. Without a network, give a local "
                f"folder of it, or text files"
            ) from problem


def standard_library(split: str | None = None, encoding: Encoding | None = None) -> TokenStream:
    """The source of the running Python's standard library, a corpus that needs no download.

    One document per file, sorted by path. It is real text with structure at every range, from the
    spelling of a name to a function that is defined in the first lines of a module and called in the
    last. It contains

    - the `.py` files of the modules in `sys.stdlib_module_names`, so nothing that was installed, or
      generated by the build;
    - no tests, which many distributions omit, and none of the packages that some package separately
      (`OPTIONAL`), so that installations agree as far as possible;
    - no generated tables and help pages (`GENERATED`), which are many and nearly identical;
    - no empty files, and only the first of identical files.

    Line endings are Unix's on every platform. A file is held out by a hash of its path, so that it stays
    in its split from one version of Python to the next. The version determines the text: record the
    fingerprint with every model trained on it.

    Args:
        split: "train", "validation" (a tenth of the files), or None for both.
        encoding: turns text into tokens; None means bytes, with byte 0 before every document.

    >>> corpus = standard_library("validation")
    >>> corpus.vocab_size
    256
    >>> len(corpus) > 100_000
    True
    """
    check_split(split)
    documents = [
        (name, text)
        for name, text in source_files()
        if split is None or assign_split(name.encode(), VALIDATION) == split
    ]
    return encoded_stream(encoding or Bytes(), documents)


def source_files(folder: Path | None = None) -> Iterator[tuple[str, bytes]]:
    """Path and text of the files of the standard library, in order, of the running Python by default."""
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    seen: set[bytes] = set()
    for path in sorted(_paths(folder)):
        text = (folder / path).read_bytes().replace(b"\r\n", b"\n")
        if text and text not in seen:
            seen.add(text)
            yield path, text
    if not seen:
        raise FileNotFoundError(
            f"this Python has no source of its standard library in {str(folder)!r}; train on text "
            f"files instead, or use a Python that was installed with its source"
        )


def _paths(folder: Path) -> Iterator[str]:
    modules = sys.stdlib_module_names - TESTS - OPTIONAL - GENERATED
    for top in folder.iterdir():
        if top.name.removesuffix(".py") in modules:
            for path in [top] if top.is_file() else top.rglob("*.py"):
                inside = path.relative_to(folder)
                if path.suffix == ".py" and TESTS.isdisjoint(inside.parts):
                    yield inside.as_posix()
