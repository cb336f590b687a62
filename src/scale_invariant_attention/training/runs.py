"""The folder of a run: its configuration, provenance, metrics and checkpoints.

config.json        the configuration; written once
provenance.jsonl   commit, versions and machine, one line per start or resumption of the run
metrics.jsonl      one line per measurement
checkpoints/       see `checkpoints`
model/             the trained model
tensorboard/       the metrics as TensorBoard reads them, if requested
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..arguments import integer
from ..files import clear_partial, locked, replace_file, sync_folder
from ..files.space import PROBE_NAME
from ..provenance import provenance
from ._json_lines import JsonLines, read_json_lines, repair_json_lines

CONFIG = "config.json"
PROVENANCE = "provenance.jsonl"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
MODEL = "model"
TENSORBOARD = "tensorboard"


class DifferentConfigError(ValueError):
    """A folder holds a run with another configuration."""


class Run:
    """A run whose folder is locked by this process until :func:`open_run` ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metrics: JsonLines | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    @property
    def config(self) -> dict[str, Any]:
        """The configuration."""
        return read_config(self.folder)

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
            raise RuntimeError(
                "the run has not been started; call start() with the step it begins at"
            )
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

    Args:
        folder: of the run; created if missing.
        config: JSON. A run that is already in the folder must have the same.
        defaults: of fields that are missing in a run begun before there were such fields.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_run(folder, {"steps": 300, "seed": 1}) as run:
    ...         run.start()
    ...         run.record(1, {"loss": 5.5})
    ...     with open_run(folder, {"steps": 400, "seed": 1}):
    ...         pass
    Traceback (most recent call last):
    scale_invariant_attention.training.runs.DifferentConfigError: ... holds a run with another
    configuration: steps is 300 there, 400 here. Give another folder, or ...
    """
    expected = _as_json(config)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=False):
        for name in (CONFIG, PROVENANCE, METRICS, PROBE_NAME):
            clear_partial(folder, name)
        _settle_config(folder, expected, _as_json(defaults or {}))
        run = Run(folder)
        try:
            yield run
        finally:
            run.close()


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of a run."""
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}); restore it") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object; restore it")
    return config


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The metrics of a run, finished or not."""
    return read_json_lines(Path(folder) / METRICS)


def read_provenance(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The provenance of a run: one entry per start or resumption, with its step."""
    return read_json_lines(Path(folder) / PROVENANCE)


def _settle_config(folder: Path, expected: dict[str, Any], defaults: dict[str, Any]) -> None:
    if not (folder / CONFIG).exists():
        text = json.dumps(expected, indent=2, allow_nan=False) + "\n"
        replace_file(folder / CONFIG, text.encode())
        return
    existing = read_config(folder)
    if "model_type" in existing:
        raise DifferentConfigError(f"{folder} holds a saved model, not a run; give another folder")
    different = list(differences(defaults | existing, expected))
    if different:
        raise DifferentConfigError(
            f"{folder} holds a run with another configuration: {'; '.join(different)}. "
            f"Give another folder, or the same configuration"
        )


def differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """The differences between two configurations, in words.

    >>> list(differences({"model": {"layers": 12}}, {"model": {"layers": 16}, "seed": 1}))
    ['model.layers is 12 there, 16 here', 'seed is missing there, 1 here']
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            inner = f"{name}.{key}" if name else key
            if key not in there or key not in here:
                yield f"{inner} is {_shown(there, key)} there, {_shown(here, key)} here"
            else:
                yield from differences(there[key], here[key], inner)
    # In Python 1 == True == 1.0, but in a configuration these differ.
    elif json.dumps(there) != json.dumps(here):
        yield f"{name} is {there!r} there, {here!r} here"


def _shown(config: dict[str, Any], key: str) -> str:
    return repr(config[key]) if key in config else "missing"


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        returned: dict[str, Any] = json.loads(json.dumps(dict(config), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"config must be JSON: {error}") from error
    return returned
