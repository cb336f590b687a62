"""Writes files and folders that are on the disk whole or not at all, whenever the machine stops.

Both are written under a hidden partial name beside their own and renamed once they are on the disk. A
file that grows over several runs has a partial name that the next run finds again. Locks on folders let
one process at a time change one.
"""

import errno
import hashlib
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# The name of the file written as a test; a kill may leave it, like any partial file.
PROBE_NAME = "probe"
_CACHE = "scale-invariant-attention"


class FolderInUseError(OSError):
    """Another process holds the lock on a folder."""


class UnlockedFolderWarning(RuntimeWarning):
    """A folder is used without a lock, because its file system refuses one."""


@dataclass(frozen=True)
class FileRecord:
    """Size and SHA-256 of a file as it was written."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """The record of a file as it is now."""
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(file.tell(), sha256)


def write_new_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Write and sync a file that must not exist yet; :func:`sync_folder` makes its name durable."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size, digest.hexdigest())


def replace_file(path: Path, *pieces: bytes | memoryview) -> None:
    """Create or replace a file in one durable step; on failure an existing file is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "notes"), b"first")
    ...     replace_file(Path(folder, "notes"), b"second", b" line")
    ...     [file.name for file in Path(folder).iterdir()], Path(folder, "notes").read_bytes()
    (['notes'], b'second line')
    """
    partial = partial_path(path)
    try:
        write_new_file(partial, pieces)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which gets its name when the block ends and all is synced.

    It replaces a folder of that name. If the block fails, nothing is left of the new one.
    """
    partial = partial_path(path)
    partial.mkdir()
    replaced = None
    try:
        # Locked, it is no leftover; a killed process holds no lock.
        with locked(partial):
            yield partial
            _sync_tree(partial)
            if path.exists():
                replaced = path.rename(partial_path(path))
            partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_folder(path.parent)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that it is never seen half removed; what is left, `clear_partial` removes."""
    partial = partial_path(path)
    path.rename(partial)
    shutil.rmtree(partial)


def partial_path(path: Path) -> Path:
    """A new hidden name beside a path, for what is to get its name later."""
    return path.with_name(f".{path.name}-{secrets.token_hex(8)}")


def clear_partial(folder: Path, name: str) -> None:
    """Remove the partial files and folders that killed writers of `name`, a glob pattern, left.

    No file of that name may be in the middle of being written; a folder may, and is left alone.
    """
    for partial in list(folder.glob(f".{name}-{'[0-9a-f]' * 16}")):
        with suppress(OSError):
            if partial.is_dir():
                with locked(partial, wait=False):
                    shutil.rmtree(partial)
            else:
                partial.unlink()


def growing_path(path: Path) -> Path:
    """Path at which a file or folder grows, perhaps over several runs, until :func:`finish_growing`."""
    return path.with_name(f"{path.name}.partial")


def finish_growing(path: Path) -> None:
    """Sync what has grown at :func:`growing_path` and give it its name."""
    partial = growing_path(path)
    _sync_tree(partial)
    partial.replace(path)
    sync_folder(path.parent)


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


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _sync_tree(inner)
        sync_folder(path)
    else:
        with path.open("rb") as file:
            os.fsync(file.fileno())


@contextmanager
def locked(folder: Path, *, exclusive: bool = True, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a folder: exclusive, or shared with other holders of a shared lock.

    A lock ends with its process, however that ends. File systems that refuse to lock are used without,
    with an :class:`UnlockedFolderWarning`; so is Windows, without one. A process cannot take a lock
    twice: the second would wait for the first. If another process holds it, `wait` until that releases
    it, or raise :class:`FolderInUseError` at once.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        try:
            fcntl.flock(descriptor, mode if wait else mode | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES) and not wait:
                message = f"{folder} is in use by another process; wait until it has ended"
                raise FolderInUseError(error.errno, message) from error
            # Other errors come from network drives that cannot lock.
            warnings.warn(
                # Without the folder, so that Python shows it once and not for every folder of a run.
                f"the file system cannot lock folders ({error.strerror or error}), so they are used "
                f"without locks: let no other process write to them meanwhile",
                UnlockedFolderWarning,
                stacklevel=1,
            )
        yield
    finally:
        # Closing is not enough: a process forked in the meantime shares the descriptor.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def check_writable(folder: str | os.PathLike[str], bytes_needed: int = 0) -> None:
    """Create a folder if missing, test that it is writable and has room; raise OSError otherwise.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_writable(folder, 10**18)
    Traceback (most recent call last):
    OSError: [Errno 28] ... has ... free, but 1000000.0 TB are needed; free some space, ...
    """
    folder = Path(folder)
    probe = partial_path(folder / PROBE_NAME)
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            write_new_file(probe, [bytes(4096)])
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        problem = f"{folder} cannot be written to: {error.strerror or error}"
        fix = "change its permissions or free some space, or give another folder"
        if isinstance(error, NotADirectoryError):
            fix = "give another folder"
        raise OSError(error.errno, f"{problem}; {fix}") from error
    if free < bytes_needed:
        problem = f"{folder} has {amount(free)} free, but {amount(bytes_needed)} are needed"
        raise OSError(errno.ENOSPC, f"{problem}; free some space, or give another folder")


def cache_folder() -> Path | None:
    """The user's cache folder for this package; None without a home."""
    if sys.platform == "win32":
        given, usual = os.environ.get("LOCALAPPDATA"), "AppData/Local"
    elif sys.platform == "darwin":
        given, usual = None, "Library/Caches"
    else:
        given, usual = os.environ.get("XDG_CACHE_HOME"), ".cache"
    if given:
        return Path(given, _CACHE)
    with suppress(RuntimeError):
        return Path.home() / usual / _CACHE
    return None


def amount(count: int) -> str:
    """A number of bytes for people to read.

    >>> amount(512), amount(1_500_000), amount(2 * 10**9)
    ('512 bytes', '1.5 MB', '2.0 GB')
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"
