"""Folders that one process at a time may change, where the system has such locks."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class FolderInUseError(OSError):
    """Another process holds the lock of a folder."""


@contextmanager
def locked(folder: Path, *, exclusive: bool = True, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder: alone, or together with others that do not ask for it alone.

    A lock ends with its process, however that ends. Where the file system refuses to lock, there is
    none. Locks inside a process count like those of other processes, so a held one must not be
    taken again.

    Args:
        folder: which exists.
        exclusive: to change the folder; False to read it.
        wait: until others have released it; False raises :class:`FolderInUseError` at once.
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
            # Other errors are of network drives that refuse: who is alone needs no lock.
            if error.errno in (errno.EAGAIN, errno.EACCES) and not wait:
                raise FolderInUseError(
                    error.errno, f"{folder} is in use by another process; wait until it has ended"
                ) from error
        yield
    finally:
        # Closing is not enough: a process forked meanwhile has the descriptor too.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
