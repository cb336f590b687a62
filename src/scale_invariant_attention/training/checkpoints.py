"""Checkpoints of a run: written whole or not at all, the newest and the best kept, damage detected.

``<folder>/step-00001000/`` is a checkpoint: a safetensors file per group of tensors, and
``manifest.json`` with the step, the values, and size and SHA-256 of every file. Nothing is unpickled. A
step that is saved again, after resuming from an earlier one, becomes ``step-00001000-2``, so that no
checkpoint has to be removed before the new one is complete.
"""

import math
import os
import random
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arguments import integer, json_value
from ..files import (
    amount,
    clear_partial,
    locked,
    remove_folder,
    sync_folder,
    write_folder,
    write_new_file,
)
from ..files.manifest import Manifest, ManifestFormat
from ..files.safetensors_format import check_storable, read_safetensors, safetensors_bytes

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
GROUP_NAME = re.compile(r"[a-z][a-z0-9_-]*")

Tensors = Mapping[str, Mapping[str, Tensor]]


class CheckpointNotSavedError(OSError):
    """A checkpoint could not be saved; earlier ones are unchanged."""


class DamagedCheckpointError(ValueError):
    """A checkpoint is not as it was saved."""


FORMAT = ManifestFormat(
    "scale-invariant-gpt-checkpoint",
    re.compile(rf"{GROUP_NAME.pattern}\.safetensors"),
    DamagedCheckpointError,
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded checkpoint: `tensors` by group and name, and the values."""

    path: Path
    step: int
    metric: float | None
    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint in the folder of a run, with its damage in words, if any."""

    path: Path
    step: int
    damage: str | None


def save_checkpoint(
    folder: str | os.PathLike[str],
    step: int,
    tensors: Tensors,
    values: Mapping[str, Any],
    *,
    metric: float | None = None,
    keep_last: int = 2,
    keep_best: bool = True,
) -> Path:
    """Save a checkpoint, prune old ones, return its path.

    However this ends, even by a kill, the existing checkpoints stay whole until the new one is.
    Checkpoints of later steps, left over when a run resumes from an earlier one, are removed, so that
    the newest is always the one to resume from.

    Args:
        folder: of the run's checkpoints; created if missing.
        step: number of updates made.
        tensors: by group and name, as ``{"model": ..., "optimisers": ...}``, on any device.
        values: JSON that comes back unchanged.
        metric: lower is better; one that is not finite is never the best.
        keep_last: how many of the newest to keep, this one included.
        keep_best: also keep the one with the lowest metric.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     weights = {"model": {"tau": torch.tensor(10.0)}}
    ...     for step, loss in (100, 3.0), (200, 3.5), (300, 3.4), (400, 3.3):
    ...         path = save_checkpoint(folder, step, weights, {"loss": loss}, metric=loss)
    ...     print([found.step for found in find_checkpoints(folder)])
    ...     latest_checkpoint(folder).values
    [400, 300, 100]
    {'loss': 3.3}
    """
    _check_contents(step, tensors, values)
    integer("keep_last", keep_last, at_least=1)
    known = float(metric) if metric is not None and math.isfinite(metric) else None
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        with locked(folder):
            _clear_torn(folder)
            path = _free_name(folder, step)
            _write(path, {"step": step, "metric": known, "values": dict(values)}, tensors)
            # Checkpoints that cannot be read or removed now are left to the next save.
            with suppress(OSError):
                for old in _superseded(folder, path, step, keep_last, keep_best):
                    with suppress(OSError):
                        remove_folder(old)
    except OSError as error:
        message = _why_not_saved(folder, step, tensors, error)
        raise CheckpointNotSavedError(error.errno, message) from error
    return path


def load_checkpoint(
    path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint:
    """Load a checkpoint, verified to the bit. If it is damaged, the error names the last good one."""
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no checkpoint {path}; give one of the folders step-...")
    with locked(path.parent, exclusive=False):
        try:
            return _read(path, device)
        except (DamagedCheckpointError, OSError) as error:
            others = (other for _, other in _numbered(path.parent) if other != path)
            good = next((other for other in others if _damage(other) is None), None)
            offer = f"the last good checkpoint is {good}" if good else "no other checkpoint is good"
            raise DamagedCheckpointError(f"{error}; {offer}") from error


def latest_checkpoint(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint | None:
    """Load the newest good checkpoint, warning of damaged newer ones; None if none has been saved."""
    folder = Path(folder)
    if not folder.exists():
        return None
    damages: list[str] = []
    with locked(folder, exclusive=False):
        for _, path in _numbered(folder):
            try:
                checkpoint = _read(path, device)
            except (DamagedCheckpointError, OSError) as error:
                damages.append(str(error))
            else:
                for damage in damages:
                    warnings.warn(f"{damage}; resuming from {path}", stacklevel=2)
                return checkpoint
    if damages:
        problem = f"every checkpoint in {folder} is damaged: {'; '.join(damages)}"
        raise DamagedCheckpointError(f"{problem}. Restore one, or start again in another folder")
    return None


def clear_torn_checkpoints(folder: str | os.PathLike[str]) -> None:
    """Remove what killed processes left of checkpoints that were being saved or removed."""
    folder = Path(folder)
    if folder.exists():
        with locked(folder):
            _clear_torn(folder)


def find_checkpoints(folder: str | os.PathLike[str]) -> list[FoundCheckpoint]:
    """The checkpoints of a run, newest first, each read to find its damage."""
    folder = Path(folder)
    if not folder.exists():
        return []
    with locked(folder, exclusive=False):
        return [FoundCheckpoint(path, step, _damage(path)) for step, path in _numbered(folder)]


def _check_contents(step: int, tensors: Tensors, values: Mapping[str, Any]) -> None:
    """Refuse contents that a checkpoint would not give back unchanged."""
    integer("step", step, at_least=0)
    for group, members in tensors.items():
        if not isinstance(group, str) or not GROUP_NAME.fullmatch(group):
            right = "named with small letters, digits, - and _"
            raise ValueError(f"tensors must have groups {right}, got {group!r}")
        for name, tensor in members.items():
            check_storable(name, tensor)
    returned = json_value("values", values)
    changed = [name for name in values if name not in returned or returned[name] != values[name]]
    if changed:
        problem = f"values must come back from JSON unchanged, but {changed[0]!r} does not"
        raise ValueError(f"{problem}; use lists instead of tuples, and strings as keys")


def _clear_torn(folder: Path) -> None:
    clear_partial(folder, "step-*")


def _write(path: Path, contents: Mapping[str, Any], tensors: Tensors) -> None:
    with write_folder(path) as partial:
        files = {}
        for group, members in tensors.items():
            name = f"{group}.safetensors"
            files[name] = write_new_file(partial / name, safetensors_bytes(dict(members)))
        write_new_file(partial / MANIFEST, [FORMAT.text(contents, files)])


def _read(path: Path, device: str | torch.device) -> Checkpoint:
    manifest = _verified(path)
    try:
        groups = {
            name.removesuffix(".safetensors"): read_safetensors(path / name, device)
            for name in manifest.files
        }
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    contents = manifest.contents
    return Checkpoint(path, contents["step"], contents["metric"], groups, contents["values"])


def _verified(path: Path, *, quick: bool = False) -> Manifest:
    """The manifest of a checkpoint whose files are as recorded, by size alone if `quick`."""
    try:
        manifest = FORMAT.read(path / MANIFEST)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path / MANIFEST} is missing") from error
    match manifest.contents:
        case {"step": int(step), "metric": float() | None, "values": dict()}:
            name = NAME.fullmatch(path.name)
        case _:
            expected = "an integer 'step', a number or null 'metric', and an object 'values'"
            raise DamagedCheckpointError(f"{path / MANIFEST} must have {expected}")
    if name and int(name[1]) != step:
        raise DamagedCheckpointError(f"{path} has been renamed: it was saved at step {step}")
    FORMAT.check_files(path, manifest, MANIFEST, quick=quick)
    return manifest


def _damage(path: Path) -> str | None:
    try:
        _verified(path)
    except (DamagedCheckpointError, OSError) as error:
        return str(error)
    return None


def _sound_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint in which a quick check finds no damage."""
    try:
        return _verified(path, quick=True)
    except DamagedCheckpointError:
        return None


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders of all checkpoints, newest first."""
    checkpoints = [
        (int(name[1]), int(name[2] or 1), path)
        for path in folder.iterdir()
        if (name := NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [(step, path) for step, _, path in sorted(checkpoints, reverse=True)]


def _free_name(folder: Path, step: int) -> Path:
    path, count = folder / f"step-{step:08d}", 1
    while path.exists():
        count += 1
        path = folder / f"step-{step:08d}-{count}"
    return path


def _superseded(folder: Path, new: Path, step: int, keep_last: int, keep_best: bool) -> list[Path]:
    """Checkpoints that the new one makes unnecessary, oldest first."""
    numbered = _numbered(folder)
    good = {
        path: manifest.contents["metric"]
        for other, path in numbered
        if (path == new or other < step) and (manifest := _sound_manifest(path))
    }
    kept = {new, *list(good)[:keep_last]}
    metrics = {path: metric for path, metric in good.items() if metric is not None}
    if keep_best and metrics:
        # Of two that are equally good, the newer, which comes first.
        kept.add(min(metrics, key=metrics.__getitem__))
    return [path for _, path in reversed(numbered) if path not in kept]


def _why_not_saved(folder: Path, step: int, tensors: Tensors, error: OSError) -> str:
    message = f"the checkpoint of step {step} was not saved to {folder}: {error.strerror or error}"
    size = sum(tensor.nbytes for members in tensors.values() for tensor in members.values())
    with suppress(OSError):
        message += f" ({amount(size)} to write, {amount(shutil.disk_usage(folder).free)} free)"
    last = None
    with suppress(OSError):
        last = next((path for _, path in _numbered(folder) if _sound_manifest(path)), None)
    rest = f"the last saved checkpoint is {last}" if last else "there is no earlier checkpoint"
    return f"{message}; {rest}. Free some space or make the folder writable, and resume from there"


@dataclass(frozen=True)
class RandomState:
    """Torch's generators on the CPU and each GPU as uint8 tensors, NumPy's and Python's as JSON."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def capture_random_state() -> RandomState:
    """The current state of the global generators.

    >>> state = capture_random_state()
    >>> first = torch.rand(3)
    >>> restore_random_state(state.tensors, state.values)
    >>> torch.equal(first, torch.rand(3))
    True
    """
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states = torch.cuda.get_rng_state_all()
        tensors |= {f"cuda.{device}": state for device, state in enumerate(states)}
    legacy: Any = np.random.get_state(legacy=True)
    name, key, position, has_gauss, gauss = legacy
    numpy = {"bit_generator": name, "key": key.tolist(), "position": position}
    version, words, python_gauss = random.getstate()
    values = {
        "numpy": numpy | {"has_gauss": has_gauss, "gauss": gauss},
        "python": {"version": version, "words": list(words), "gauss": python_gauss},
    }
    return RandomState(tensors, values)


def restore_random_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore a captured state; those of GPUs that this machine does not have are ignored."""
    if "torch" not in tensors:
        raise ValueError(f"tensors must have the state 'torch', got {sorted(tensors)}")
    numpy, python = values["numpy"], values["python"]
    torch.set_rng_state(tensors["torch"].cpu())
    for device in range(torch.cuda.device_count()):
        if f"cuda.{device}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{device}"].cpu(), device)
    names = ("bit_generator", "key", "position", "has_gauss", "gauss")
    np.random.set_state(tuple(numpy[name] for name in names))
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
