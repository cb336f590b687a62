"""Checkpoints of a run: written whole or not at all, the newest and the best kept, damage detected.

``<folder>/step-00001000/`` is a checkpoint: a safetensors file per group of tensors, and
``manifest.json`` with the step, the values, and size and SHA-256 of every file. Nothing is unpickled. A
step that is saved again, after resuming from an earlier one, becomes ``step-00001000-2``, so that no
checkpoint has to be removed before the new one is complete.
"""

import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import integer
from ..files import (
    clear_partial,
    locked,
    remove_folder,
    sync_folder,
    write_folder,
    write_new_file,
)
from ..files.manifest import Manifest, ManifestFormat
from ..files.safetensors_format import check_storable, read_safetensors, safetensors_bytes
from ..files.space import amount

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
        metric: decides which checkpoint is the best; lower is better, and one that is not finite is
            never the best.
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
            clear_partial(folder, "step-*")
            path = _free_name(folder, step)
            _write(path, {"step": step, "metric": known, "values": dict(values)}, tensors)
            # Checkpoints that cannot be read or removed now are left to the next save.
            with suppress(OSError):
                for old in _superseded(folder, path, step, known, keep_last, keep_best):
                    with suppress(OSError):
                        remove_folder(old)
    except OSError as error:
        raise CheckpointNotSavedError(
            error.errno, _why_not_saved(folder, step, _size_of(tensors), error)
        ) from error
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
    """Load the newest good checkpoint; None if none has been saved.

    Newer ones that are damaged are skipped with a warning. If all are damaged, that is an error.
    """
    folder = Path(folder)
    if not folder.exists():
        return None
    damages: list[str] = []
    with locked(folder, exclusive=False):
        for step, path in _numbered(folder):
            try:
                checkpoint = _read(path, device)
                _check_step(path, step, checkpoint.step)
            except (DamagedCheckpointError, OSError) as error:
                damages.append(str(error))
            else:
                for damage in damages:
                    warnings.warn(f"{damage}; resuming from {path}", stacklevel=2)
                return checkpoint
    if damages:
        raise DamagedCheckpointError(
            f"every checkpoint in {folder} is damaged: {'; '.join(damages)}. Restore one of them, or "
            f"start again in another folder"
        )
    return None


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
            raise ValueError(
                f"tensors must have groups named with small letters, digits, - and _, got {group!r}"
            )
        for name, tensor in members.items():
            check_storable(name, tensor)
    try:
        returned = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"values must be JSON: {error}") from error
    changed = [name for name in values if name not in returned or returned[name] != values[name]]
    if changed:
        raise ValueError(
            f"values must come back from JSON unchanged, but {changed[0]!r} does not; "
            f"use lists instead of tuples, and strings as keys"
        )


def _write(path: Path, contents: Mapping[str, Any], tensors: Tensors) -> None:
    with write_folder(path) as partial:
        files = {
            f"{group}.safetensors": write_new_file(
                partial / f"{group}.safetensors", safetensors_bytes(dict(members))
            )
            for group, members in tensors.items()
        }
        write_new_file(partial / MANIFEST, [FORMAT.text(contents, files)])


def _read(path: Path, device: str | torch.device) -> Checkpoint:
    manifest = _read_manifest(path)
    FORMAT.check_files(path, manifest, MANIFEST)
    try:
        groups = {
            name.removesuffix(".safetensors"): read_safetensors(path / name, device)
            for name in manifest.files
        }
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    contents = manifest.contents
    return Checkpoint(path, contents["step"], contents["metric"], groups, contents["values"])


def _read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, verified; its files are not looked at."""
    try:
        manifest = FORMAT.read(path / MANIFEST)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path / MANIFEST} is missing") from error
    match manifest.contents:
        case {"step": int(), "metric": float() | None, "values": dict()}:
            return manifest
    raise DamagedCheckpointError(
        f"{path / MANIFEST} must have an integer 'step', a number or null 'metric', and an object "
        f"'values'"
    )


def _check_step(path: Path, named: int, recorded: int) -> None:
    if named != recorded:
        raise DamagedCheckpointError(f"{path} has been renamed: it was saved at step {recorded}")


def _check_files(path: Path, *, quick: bool = False) -> Manifest:
    """The manifest of a checkpoint whose files are as recorded, by size alone if `quick`."""
    manifest = _read_manifest(path)
    name = NAME.fullmatch(path.name)
    if name:
        _check_step(path, int(name[1]), manifest.contents["step"])
    FORMAT.check_files(path, manifest, MANIFEST, quick=quick)
    return manifest


def _damage(path: Path) -> str | None:
    try:
        _check_files(path)
    except (DamagedCheckpointError, OSError) as error:
        return str(error)
    return None


def _sound_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint in which a quick check finds no damage."""
    try:
        return _check_files(path, quick=True)
    except DamagedCheckpointError:
        return None


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders of all checkpoints, newest first."""
    checkpoints = []
    for path in folder.iterdir():
        name = NAME.fullmatch(path.name)
        if name and path.is_dir():
            checkpoints.append((int(name[1]), int(name[2] or 1), path))
    return [(step, path) for step, _, path in sorted(checkpoints, reverse=True)]


def _free_name(folder: Path, step: int) -> Path:
    path, count = folder / f"step-{step:08d}", 1
    while path.exists():
        count += 1
        path = folder / f"step-{step:08d}-{count}"
    return path


def _superseded(
    folder: Path,
    new: Path,
    step: int,
    metric: float | None,
    keep_last: int,
    keep_best: bool,
) -> list[Path]:
    """Checkpoints that the new one makes unnecessary, oldest first."""
    old = [(other, path) for other, path in _numbered(folder) if path != new]
    good = {
        path: manifest.contents["metric"]
        for other, path in old
        if other < step and (manifest := _sound_manifest(path))
    }
    kept = {new, *list(good)[: keep_last - 1]}
    metrics = {path: known for path, known in {new: metric, **good}.items() if known is not None}
    if keep_best and metrics:
        # Of two that are equally good, the newer, which comes first.
        kept.add(min(metrics, key=metrics.__getitem__))
    return [path for _, path in reversed(old) if path not in kept]


def _size_of(tensors: Tensors) -> int:
    every = (tensor for members in tensors.values() for tensor in members.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in every)


def _why_not_saved(folder: Path, step: int, size: int, error: OSError) -> str:
    message = f"the checkpoint of step {step} was not saved to {folder}: {error.strerror or error}"
    with suppress(OSError):
        message += f" ({amount(size)} to write, {amount(shutil.disk_usage(folder).free)} free)"
    last = None
    with suppress(OSError):
        last = next((path for _, path in _numbered(folder) if _sound_manifest(path)), None)
    message += (
        f"; the last saved checkpoint is {last}" if last else "; there is no earlier checkpoint"
    )
    return f"{message}. Free some space or make the folder writable, and resume from there"
