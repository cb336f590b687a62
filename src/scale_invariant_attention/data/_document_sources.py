"""Sources of documents: local text files, and text datasets of the Hugging Face hub."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from .encoding import Encoding, encode_documents, get_encoding
from .tokens import TokenStream, assign_split, check_share, check_split

AnyPath = str | os.PathLike[str]


class DocumentSource(Protocol):
    """Documents in a fixed order, readable from any of them on."""

    @property
    def identity(self) -> str:
        """Identifies the source, so that shards of two sources are never mixed."""
        ...

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Name and UTF-8 text of each document, after the first `skip`."""
        ...


@dataclass(frozen=True)
class TextFile:
    """A file and its name: its path below the given folder, or its own name if given itself."""

    name: str
    path: Path


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
        given = [
            Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
        ]
        files: dict[Path, TextFile] = {}
        for path in given:
            for file in _files(path, suffixes):
                if file.path.stat().st_size:
                    files.setdefault(file.path.resolve(), file)
        self.files = list(files.values())
        if not self.files:
            ending = "" if suffixes is None else f" that ends in {' or '.join(suffixes)}"
            where = ", ".join(repr(str(path)) for path in given) or "nothing"
            raise FileNotFoundError(f"found no file{ending} with text in it; given was {where}")

    def __len__(self) -> int:
        return len(self.files)

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Path and content of each file, after the first `skip`."""
        for file in islice(self.files, skip, None):
            yield str(file.path), file.path.read_bytes()

    @property
    def identity(self) -> str:
        """Identifies the files by their names and sizes."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.name}\0{file.path.stat().st_size}\0".encode())
        return f"{len(self)} files {digest.hexdigest()[:16]}"


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
        encoding: "bytes", a tokenizer file ending in .json, a name of tiktoken, or an
            :class:`Encoding`.
        split: "train", "validation", or None for all. The split of a file depends on its content
            alone, so that equal files are in the same split.
        validation: fraction of the files that is held out.
    """
    check_split(split)
    check_share(validation)
    chosen = get_encoding(encoding) if isinstance(encoding, str) else encoding
    files = TextFiles(paths, suffixes=suffixes)
    documents = [
        (name, text)
        for name, text in files.documents()
        if split is None or assign_split(text, validation) == split
    ]
    if not documents:
        raise ValueError(
            f"split={split!r} with validation={validation} leaves none of {len(files)} files; give "
            f"more files, or separate files for training and validation, with split=None here, or "
            f"with --validation 0 and --validation 1 for sia data shards"
        )
    return TokenStream(
        encode_documents(chosen, documents),
        vocab_size=chosen.vocab_size,
        document_start=chosen.document_start,
    )


def _files(path: Path, suffixes: Sequence[str] | None) -> Iterator[TextFile]:
    if path.is_file():
        yield TextFile(path.name, path)
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
    yield from (TextFile(name, path / name) for name in sorted(names))


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
        if self.at_most is not None and self.at_most < 1:
            raise ValueError(f"at_most must be at least 1, got {self.at_most}")

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
        try:
            import datasets
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"{self.name} needs the datasets library; install it with: "
                f'pip install "scale-invariant-attention[datasets]"'
            ) from missing
        try:
            return datasets.load_dataset(self.name, self.config, split=self.split, streaming=True)
        except OSError as problem:  # network errors and unknown names alike
            raise ConnectionError(
                f"cannot open the dataset {self.name!r}: {problem}. Without a network, give a local "
                f"folder of it, or text files"
            ) from problem
