"""Logs of one JSON object per line; a line torn by a kill is repaired when the run resumes.

JSON has no NaN and no infinity, and losses may be both: they are stored as the strings "NaN", "Infinity"
and "-Infinity", and read back as numbers.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..files import replace_file

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class DamagedLogError(ValueError):
    """A log has a line that is not a JSON object."""


class JsonLines:
    """A log open for appending; each line is handed to the operating system at once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, JsonLines(Path(folder, "metrics.jsonl")) as log:
    ...     log.append({"step": 1, "loss": 5.5})
    ...     log.append({"step": 2, "loss": float("nan")})
    ...     read_json_lines(log.path)
    [{'step': 1, 'loss': 5.5}, {'step': 2, 'loss': nan}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line; a line that cannot be written whole is removed again."""
        text = memoryview(_text(line))
        size = self._file.seek(0, os.SEEK_END)
        try:
            while text:
                text = text[self._file.write(text) :]
        except OSError as error:
            self._file.truncate(size)
            raise OSError(
                error.errno, f"{self.path} could not be extended: {error.strerror or error}"
            ) from error

    def sync(self) -> None:
        """Sync all lines to the disk, before a checkpoint that relies on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, without a line at its end that was torn by a kill."""
    if not path.exists():
        return []
    *lines, torn = path.read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        value = _object(line)
        if value is None:
            raise DamagedLogError(
                f"{path} is damaged: line {number} is {line[:50]!r}, which is not a JSON object; "
                f"restore the file, or remove the line"
            )
        values.append(value)
    # A line that lacks only its line end is whole.
    last = _object(torn)
    return values if last is None else [*values, last]


def repair_json_lines(path: Path, *, last_step: int | None = None) -> None:
    """Remove a torn line, and lines of steps after `last_step`, which a resumed run writes again."""
    lines = read_json_lines(path)
    if last_step is not None:
        lines = [line for line in lines if line["step"] <= last_step]
    text = b"".join(_text(line) for line in lines)
    if path.exists() and text != path.read_bytes():
        replace_file(path, text)


def _text(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_with_names(dict(line)), allow_nan=False) + "\n").encode()


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _with_numbers(value) if isinstance(value, dict) else None


def _with_names(value: Any) -> Any:
    """Replace numbers that are not finite by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _with_names(item) for key, item in value.items()}
    return [_with_names(item) for item in value] if isinstance(value, list | tuple) else value


def _with_numbers(value: Any) -> Any:
    """The inverse of :func:`_with_names`."""
    if isinstance(value, str):
        return NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value
