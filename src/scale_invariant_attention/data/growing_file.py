"""Files that are there whole or not at all, whenever the machine stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..files import sync_folder


def partial_name(path: Path) -> Path:
    """Where a file grows until it is whole."""
    return path.with_name(f"{path.name}.partial")


def put_in_place(path: Path) -> None:
    """Give the grown file its name, once its content is on the disk."""
    with partial_name(path).open("rb") as file:
        os.fsync(file.fileno())
    partial_name(path).replace(path)
    sync_folder(path.parent)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name at the end of the block, and not if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial_name(path).open("wb") as file:
        yield file
    put_in_place(path)
