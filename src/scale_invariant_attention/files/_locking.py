"""Locks on folders, so that one process at a time changes one, where the system has such locks."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class FolderInUseError(OSError):
    """Another process holds the lock on a folder."""


@contextmanager
def locked(folder: Path, *, exclusive: bool = True, wait: bool = True) -> Iterator[None]:
    """Hold a lock on a folder: exclusive, or shared with other holders of a shared lock.

    A lock ends with its process, however that ends. File systems that refuse to lock are used without.
    A process cannot take a lock twice: the second would wait for the first.

    Args:
        folder: an existing folder.
        exclusive: True to change the folder, False to read it.
        wait: until other processes release it; False raises :class:`FolderInUseError` at once.
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
            # Other errors come from network drives that cannot lock.
            if error.errno in (errno.EAGAIN, errno.EACCES) and not wait:
                raise FolderInUseError(
                    error.errno, f"{folder} is in use by another process; wait until it has ended"
                ) from error
        yield
    finally:
        # Closing is not enough: a process forked in the meantime shares the descriptor.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
