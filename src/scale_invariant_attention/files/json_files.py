"""Reads JSON that somebody else may have written: every fault is an error that names file and field."""

import json
import math
import stat
from pathlib import Path
from typing import Any

# Far beyond anything that is written here; more would only exhaust the memory or the stack.
LARGEST_BYTES = 2**30
DEEPEST = 64
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_small_file(path: Path) -> bytes:
    """The bytes of a file; ValueError for a pipe or a device, whose reading may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ValueError(f"{path} must be a file, got {kind}")
    if status.st_size > LARGEST_BYTES:
        limit = f"at most {LARGEST_BYTES:,} bytes"
        raise ValueError(f"{path} must have {limit}, got {status.st_size:,}")
    return path.read_bytes()


def read_json_object(path: Path, *, finite: bool = True) -> dict[str, Any]:
    """The JSON object in a file; by default all its numbers must be finite.

    Raises FileNotFoundError if there is no file, and ValueError for everything that is no such object.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = Path(folder, "config.json")
    ...     _ = config.write_text('{"scheme_options": {"tau": Infinity}}')
    ...     read_json_object(config)
    Traceback (most recent call last):
    ValueError: ...config.json must have a finite number as scheme_options.tau, got inf
    """
    return checked_json_object(path, read_small_file(path), finite=finite)


def checked_json_object(path: Path, text: bytes, *, finite: bool = True) -> dict[str, Any]:
    """The JSON object in the bytes of a file; see :func:`read_json_object`."""
    try:
        value = json.loads(text, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    _check_parts(path, value, finite)
    return value


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a field occurs twice")
    return values


def _check_parts(path: Path, value: Any, finite: bool, name: str = "", depth: int = 1) -> None:
    if depth > DEEPEST:
        raise ValueError(f"{path} must be nested at most {DEEPEST} deep, got more in {name[:80]}")
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, dict | list):
            _check_parts(path, part, finite, _inside(name, key), depth + 1)
        # Not only NaN and Infinity, which JSON does not have: 1e999 is read as an infinity.
        elif finite and isinstance(part, float) and not math.isfinite(part):
            where = _inside(name, key)
            raise ValueError(f"{path} must have a finite number as {where}, got {part}")


def _inside(name: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{name}[{key}]"
    return f"{name}.{key}" if name else key
