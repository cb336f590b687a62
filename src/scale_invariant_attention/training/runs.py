"""The folder of a run: its configuration, provenance, metrics and checkpoints.

config.json        the configuration, with its SHA-256; written once
provenance.jsonl   commit, versions and machine, one line per start or resumption of the run
metrics.jsonl      one line per measurement; a line torn by a kill is repaired when the run resumes
checkpoints/       see `checkpoints`
model/             the trained model
tensorboard/       the metrics as TensorBoard reads them, if requested
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from ..arguments import integer, json_value
from ..files import PROBE_NAME, clear_partial, locked, replace_file, sync_folder
from ..files.json_files import read_json_object, read_small_file
from ..files.manifest import signed_text, verified
from ..provenance import provenance

CONFIG = "config.json"
PROVENANCE = "provenance.jsonl"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
MODEL = "model"
TENSORBOARD = "tensorboard"
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class DifferentConfigError(ValueError):
    """A folder holds a run with another configuration."""


class DamagedLogError(ValueError):
    """A log has a line that is not a JSON object."""


class JsonLines:
    """A log open for appending; each line is handed to the operating system at once.

    JSON has no NaN and no infinity, and losses may be both: they are stored as "NaN", "Infinity" and
    "-Infinity", and read back as numbers.

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
            message = f"{self.path} could not be extended: {error.strerror or error}"
            raise OSError(error.errno, message) from error

    def sync(self) -> None:
        """Sync all lines to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Run:
    """A run whose folder is locked by this process until :func:`open_run` ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics: JsonLines | None = None

    def start(self, step: int = 0, **facts: Any) -> None:
        """Begin at a step: 0, or that of the checkpoint to resume from; `facts` join the provenance.

        Metrics of later steps, which the run will measure again, are dropped, so that the metrics of a
        resumed run equal those of an uninterrupted one.
        """
        integer("step", step, at_least=0)
        self.close()
        repair_json_lines(self.folder / PROVENANCE)
        with JsonLines(self.folder / PROVENANCE) as log:
            log.append({"step": step, **provenance(), **facts})
            log.sync()
        repair_json_lines(self.folder / METRICS, last_step=step)
        self._metrics = JsonLines(self.folder / METRICS)
        sync_folder(self.folder)

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a line to the metrics. Record a step before saving its checkpoint."""
        if self._metrics is None:
            raise RuntimeError("the run has not been started; call start() with its first step")
        self._metrics.append({"step": integer("step", step, at_least=0), **metrics})

    def sync(self) -> None:
        """Sync the metrics to the disk, before a checkpoint of the same step is saved."""
        if self._metrics is not None:
            self._metrics.sync()

    def close(self) -> None:
        """Close the metrics."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


@contextmanager
def open_run(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
) -> Iterator[Run]:
    """Create or reopen the folder of a run, for this process alone.

    A run that is already in the folder must have the same `config`, which is JSON; `defaults` are those
    of fields that are missing in a run begun before there were such fields.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_run(folder, {"steps": 300, "seed": 1}) as run:
    ...         run.start()
    ...         run.record(1, {"loss": 5.5})
    ...     with open_run(folder, {"steps": 400, "seed": 1}):
    ...         pass
    Traceback (most recent call last):
    scale_invariant_attention.training.runs.DifferentConfigError: ... holds a run with another
    configuration: steps is 300 there, 400 here. Give another folder ...
    """
    expected = json_value("config", dict(config))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=False):
        for name in (CONFIG, PROVENANCE, METRICS, PROBE_NAME):
            clear_partial(folder, name)
        check_same_run(folder, expected, defaults=defaults)
        if not (folder / CONFIG).exists():
            replace_file(folder / CONFIG, signed_text(expected))
        run = Run(folder)
        try:
            yield run
        finally:
            run.close()


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of a run, verified by the SHA-256 in its file; early runs have none."""
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    try:
        config = read_json_object(path)
    except ValueError as error:
        raise ValueError(f"{error}; restore it") from error
    try:
        return verified(config)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error}; restore it, or remove its "
            f"sha256 if you changed it on purpose"
        ) from error


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The metrics of a run, finished or not."""
    return read_json_lines(Path(folder) / METRICS)


def read_provenance(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The provenance of a run: one entry per start or resumption, with its step."""
    return read_json_lines(Path(folder) / PROVENANCE)


def check_same_run(
    folder: Path, config: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None
) -> None:
    """Refuse a folder that holds anything but a run with this `config`; see :func:`open_run`."""
    if not (folder / CONFIG).exists():
        return
    existing = read_config(folder)
    if "model_type" in existing:
        raise DifferentConfigError(f"{folder} holds a saved model, not a run; give another folder")
    expected = json_value("config", dict(config))
    known = json_value("defaults", dict(defaults or {})) | existing
    different = list(differences(known, expected))
    if different:
        raise DifferentConfigError(
            f"{folder} holds a run with another configuration: {'; '.join(different)}. "
            f"Give another folder (-o of sia train, --runs of sia reproduce), or the same configuration"
        )


def differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """The differences between two configurations, in words.

    >>> list(differences({"model": {"layers": 12}}, {"model": {"layers": 16}, "seed": 1}))
    ['model.layers is 12 there, 16 here', 'seed is missing there, 1 here']
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            inner = f"{name}.{key}" if name else key
            if key in there and key in here:
                yield from differences(there[key], here[key], inner)
            else:
                shown = [repr(it[key]) if key in it else "missing" for it in (there, here)]
                yield f"{inner} is {shown[0]} there, {shown[1]} here"
    # In Python 1 == True == 1.0, but in a configuration these differ.
    elif json.dumps(there) != json.dumps(here):
        yield f"{name} is {there!r} there, {here!r} here"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, without a line at its end that was torn by a kill."""
    if not path.exists():
        return []
    *lines, torn = read_small_file(path).split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        value = _object(line)
        if value is None:
            problem = f"line {number} is {line[:50]!r}, which is not a JSON object"
            raise DamagedLogError(f"{path} is damaged: {problem}; restore it, or remove the line")
        values.append(value)
    # A line that lacks only its line end is whole.
    last = _object(torn)
    return values if last is None else [*values, last]


def repair_json_lines(path: Path, *, last_step: int | None = None) -> None:
    """Remove a torn line, and lines of steps after `last_step`, which a resumed run writes again."""
    lines = read_json_lines(path)
    if last_step is not None:
        lines = [line for line in lines if _step(path, line) <= last_step]
    text = b"".join(_text(line) for line in lines)
    if path.exists() and text != path.read_bytes():
        replace_file(path, text)


def _step(path: Path, line: Mapping[str, Any]) -> int:
    try:
        return integer("step", line.get("step"), at_least=0)
    except (TypeError, ValueError) as error:
        problem = f"{path} is damaged: {error}, in {str(line)[:50]}"
        raise DamagedLogError(f"{problem}; restore it, or remove the line") from error


def _text(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_mapped(_name, dict(line)), allow_nan=False) + "\n").encode()


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
        return _mapped(_number, value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(change, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(change, item) for item in value]
    return change(value)


def _name(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
