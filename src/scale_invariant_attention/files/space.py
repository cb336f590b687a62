"""Checks that a folder is writable and has room, before hours of work depend on it."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from ._durable import partial_path, write_new_file

# The content and name of the file written as a test; a kill may leave it, like any partial file.
PROBE = bytes(4096)
PROBE_NAME = "probe"


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
        folder.mkdir(parents=True, exist_ok=True)
        try:
            write_new_file(probe, [PROBE])
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise OSError(
            error.errno,
            f"{folder} cannot be written to: {error.strerror or error}; "
            f"change its permissions or free some space, or give another folder",
        ) from error
    if free < bytes_needed:
        raise OSError(
            errno.ENOSPC,
            f"{folder} has {amount(free)} free, but {amount(bytes_needed)} are needed; "
            f"free some space, or give another folder",
        )


def amount(count: int) -> str:
    """A number of bytes for people to read.

    >>> amount(512), amount(1_500_000), amount(2 * 10**9)
    ('512 bytes', '1.5 MB', '2.0 GB')
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"
