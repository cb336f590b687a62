"""Files that are on the disk whole or not at all, and are known again by size and SHA-256."""

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileRecord:
    """What a file was when it was written."""

    bytes: int
    sha256: str


def write_new_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a file that must not exist yet, through to the disk.

    Its name is durable only after :func:`sync_folder`.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size, digest.hexdigest())


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place, or in the place of another, in one step that is durable afterwards.

    If this fails, what was there is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "notes"), b"first")
    ...     replace_file(Path(folder, "notes"), b"second")
    ...     [file.name for file in Path(folder).iterdir()], Path(folder, "notes").read_bytes()
    (['notes'], b'second')
    """
    partial = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        write_new_file(partial, [content])
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def clear_partial_files(path: Path) -> None:
    """Remove what killed calls of :func:`replace_file` left; none may be going on for this path."""
    name = re.compile(rf"\.{re.escape(path.name)}-[0-9a-f]{{16}}")
    for partial in list(path.parent.iterdir()):
        if name.fullmatch(partial.name):
            with suppress(OSError):
                partial.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where a folder can be opened and synced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def damage_of(
    path: Path, record: FileRecord, recorded_in: str, *, contents: bool = True
) -> str | None:
    """What is wrong with a file, in words that name it and its record; None if it is as recorded.

    Without `contents` only its presence and its size are checked, which is quick. A file that cannot
    be read now is an OSError: nothing is known of it.
    """
    if not path.is_file():
        return f"{path} is missing, but {recorded_in} names it"
    size = path.stat().st_size
    if size != record.bytes:
        reason = "it was truncated" if size < record.bytes else "something was added to it"
        return f"{path} has {size} bytes, but {recorded_in} records {record.bytes}: {reason}"
    if contents:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != record.sha256:
            return (
                f"{path} is corrupt: its SHA-256 is {sha256}, but {recorded_in} records "
                f"{record.sha256}"
            )
    return None
