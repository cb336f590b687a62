"""The corpus that needs no download: the source of the running Python's standard library.

It is real text with structure at every range, from the spelling of a name to a function that is
defined in the first lines of a module and called in the last ones. Which files are in it:

- `.py` files of the modules in `sys.stdlib_module_names`, so nothing that was installed or that the
  build wrote;
- no tests, which many distributions leave out, and none of the packages that some of them pack
  separately (`OPTIONAL`), so that installations agree as far as they can;
- no tables and help pages that programs wrote (`GENERATED`): they are many, and near copies of each
  other;
- of files with the same bytes only the first, and no empty ones.

Line ends are those of Unix on every platform. A file is held out by a hash of its path, so that it
stays on its side from one version of Python to the next. The version decides the text: record the
fingerprint with whatever is trained on it.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .encoding import Bytes, Encoding, encode_documents
from .tokens import TokenStream, check_split, side

TESTS = frozenset({"test", "tests", "idle_test"})
OPTIONAL = frozenset(
    {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "venv"}
)
GENERATED = frozenset({"encodings", "pydoc_data"})

VALIDATION = 0.1


def standard_library(split: str | None = None, encoding: Encoding | None = None) -> TokenStream:
    """The corpus as tokens, each file a document after the token that starts one, sorted by path.

    Args:
        split: "train", "validation" (a tenth of the files), or None for both.
        encoding: what makes tokens of text; None is bytes, with a byte 0 before every document.

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
        if split is None or side(name.encode(), VALIDATION) == split
    ]
    encoding = Bytes() if encoding is None else encoding
    return TokenStream(
        encode_documents(encoding, documents),
        vocab_size=encoding.vocab_size,
        document_start=encoding.document_start,
    )


def source_files(folder: Path | None = None) -> Iterator[tuple[str, bytes]]:
    """Path and text of the files in the corpus, in order; `folder` is by default Python's own."""
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
            f"files instead, or with a Python that was installed with its source"
        )


def _paths(folder: Path) -> Iterator[str]:
    modules = sys.stdlib_module_names - TESTS - OPTIONAL - GENERATED
    for top in folder.iterdir():
        if top.name.removesuffix(".py") in modules:
            for path in [top] if top.is_file() else top.rglob("*.py"):
                inside = path.relative_to(folder)
                if path.suffix == ".py" and TESTS.isdisjoint(inside.parts):
                    yield inside.as_posix()
