"""Local text: files and folders as documents, and as a stream of tokens."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from .encoding import Encoding, encode_documents, get_encoding
from .tokens import TokenStream, check_share, check_split, side

Place = str | os.PathLike[str]


@dataclass(frozen=True)
class TextFile:
    """A file, and its name: its path in the folder that was given, or its own name."""

    name: str
    path: Path


class TextFiles:
    """The files that were given and those in the folders that were given, in a fixed order.

    Args:
        places: Files and folders, taken in this order; inside a folder files are sorted by path, at
            any depth. Hidden files and folders in it are passed over. A file reached twice counts
            once, and an empty one not at all.
        suffixes: Only files that end so are taken from folders, such as (".txt", ".md"); all if
            None.
    """

    def __init__(
        self, places: Place | Iterable[Place], *, suffixes: Sequence[str] | None = None
    ) -> None:
        several = [places] if isinstance(places, str | os.PathLike) else places
        given = [Path(place) for place in several]
        found: dict[Path, TextFile] = {}
        for place in given:
            for file in _files(place, suffixes):
                if file.path.stat().st_size:
                    found.setdefault(file.path.resolve(), file)
        self.files = list(found.values())
        if not self.files:
            ending = "" if suffixes is None else f" that ends in {' or '.join(suffixes)}"
            where = ", ".join(repr(str(place)) for place in given) or "nothing"
            raise FileNotFoundError(f"found no file{ending} with text in it; given was {where}")

    def __len__(self) -> int:
        return len(self.files)

    def documents(self, skip: int = 0) -> Iterator[tuple[str, bytes]]:
        """Path and content of each file, after the first `skip`."""
        for file in islice(self.files, skip, None):
            yield str(file.path), file.path.read_bytes()

    @property
    def identity(self) -> str:
        """Tells apart other files than these, by their names and sizes."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.name}\0{file.path.stat().st_size}\0".encode())
        return f"{len(self)} files {digest.hexdigest()[:16]}"


def text_files(
    places: Place | Iterable[Place],
    *,
    suffixes: Sequence[str] | None = None,
    encoding: str | Encoding = "bytes",
    split: str | None = None,
    validation: float = 0.1,
) -> TokenStream:
    """The text of files and folders as one stream of tokens in memory, each file a document.

    Args:
        places: Files and folders; see :class:`TextFiles`.
        suffixes: Only files that end so are taken from folders.
        encoding: "bytes", a tokenizer file ending in .json, a name of tiktoken, or an
            :class:`Encoding`.
        split: "train", "validation", or None for all. The side of a file depends on its content
            alone, so that equal files are on the same.
        validation: The share of files that are held out.
    """
    check_split(split)
    check_share(validation)
    chosen = get_encoding(encoding) if isinstance(encoding, str) else encoding
    found = TextFiles(places, suffixes=suffixes)
    documents = [
        (name, text)
        for name, text in found.documents()
        if split is None or side(text, validation) == split
    ]
    if not documents:
        raise ValueError(
            f"split={split!r} with validation={validation} leaves none of {len(found)} files; give "
            f"more files, or files of their own for each: split=None here, or sia data shards with "
            f"--validation 0 for the one and --validation 1 for the other"
        )
    return TokenStream(
        encode_documents(chosen, documents),
        vocab_size=chosen.vocab_size,
        document_start=chosen.document_start,
    )


def _files(place: Path, suffixes: Sequence[str] | None) -> Iterator[TextFile]:
    if place.is_file():
        yield TextFile(place.name, place)
        return
    if not place.is_dir():
        raise FileNotFoundError(f"there is no file or folder {str(place)!r}")
    names = []
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            wanted = suffixes is None or name.endswith(tuple(suffixes))
            if wanted and not name.startswith(".") and path.is_file():
                names.append(path.relative_to(place).as_posix())
    yield from (TextFile(name, place / name) for name in sorted(names))


@dataclass(frozen=True)
class HubDataset:
    """The rows of a dataset, one document each.

    Attributes:
        name: On the hub, such as "HuggingFaceFW/fineweb", or a local folder.
        config: Which configuration of it, such as "sample-10BT".
        split: Which split of it.
        column: Where in a row the text is.
        at_most: Only so many rows.
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
        """All that chooses the rows."""
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
                    f"column must be one of {', '.join(row)}, got {self.column!r}, which {name} lacks"
                )
            text = row[self.column]
            if not isinstance(text, str):
                raise ValueError(f"{name} has no text in {self.column!r}, but {text!r:.40}")
            # Half of a surrogate pair cannot be UTF-8; the hub's JSON may have one.
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
        except OSError as problem:  # of the network as well as of a name that is not there
            raise ConnectionError(
                f"cannot open the dataset {self.name!r}: {problem}. Without a network give a local "
                f"folder of it, or text files"
            ) from problem
