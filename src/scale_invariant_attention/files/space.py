"""Whether a folder can be written to, asked before hours of work depend on it."""

import errno
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from .durable import write_new_file

# What is written for a test, and to which name: a kill may leave it, as it may leave partial files.
PROBE = bytes(4096)
PROBE_NAME = "probe"


def check_writable(folder: str | os.PathLike[str], bytes_needed: int = 0) -> None:
    """Make a folder if need be, write to it for a test, and see that it has room; else OSError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_writable(folder, 10**18)
    Traceback (most recent call last):
    OSError: [Errno 28] ... has ... free, but 1000000.0 TB are needed; free some, or give another folder
    """
    folder = Path(folder)
    probe = folder / f".{PROBE_NAME}-{secrets.token_hex(8)}"
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
            f"free some, or give another folder",
        )


def amount(count: int) -> str:
    """A number of bytes to be read by people.

    >>> amount(512), amount(1_500_000), amount(2 * 10**9)
    ('512 bytes', '1.5 MB', '2.0 GB')
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"
