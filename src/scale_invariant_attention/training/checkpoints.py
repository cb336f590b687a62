"""The checkpoints of a run: whole or not there, the newest and the best kept, the damaged found.

``<folder>/step-00001000/`` is a checkpoint. It is written under a name that starts with a dot, and
renamed when all of it is on the disk; what is removed is renamed to such a name first. A step that is
saved again, after going on from an earlier one, gets ``step-00001000-2``, so that nothing has to make
way for it before it stands.
"""

import math
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..arguments import integer
from ..files import locked, sync_folder
from ..files.space import amount
from .checkpoint_folder import (
    Checkpoint,
    DamagedCheckpointError,
    Manifest,
    Tensors,
    check_contents,
    check_files,
    read_folder,
    read_manifest,
    size_of,
    write_folder,
)

__all__ = [
    "Checkpoint",
    "CheckpointNotSavedError",
    "DamagedCheckpointError",
    "FoundCheckpoint",
    "find_checkpoints",
    "latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]

NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")
LEFTOVER = re.compile(r"\.(saving|removing)-[0-9a-f]{16}")


class CheckpointNotSavedError(OSError):
    """A checkpoint could not be saved; those saved before are as they were."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint in the folder of a run, and what is wrong with it, if anything is."""

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
    """Save a checkpoint, then remove those that need not be kept; where it is.

    However this ends, by a kill too, the checkpoints that were there are whole until the new one is.
    Checkpoints of later steps, which a run leaves behind when it goes on from an earlier one, are
    removed, so that the newest is always the one to go on from.

    Args:
        folder: of the checkpoints of a run; made if need be.
        step: how many updates have been made.
        tensors: by group and name, as ``{"model": ..., "optimisers": ...}``, on any device.
        values: what JSON can hold, and gives back as it was.
        metric: by which the best is kept; lower is better. What is not finite is never the best.
        keep_last: how many of the newest to keep, this one among them.
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
    check_contents(step, tensors, values)
    integer("keep_last", keep_last, at_least=1)
    known = float(metric) if metric is not None and math.isfinite(metric) else None
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        with locked(folder):
            _clear_leftovers(folder)
            path = _write(folder, step, tensors, values, known)
            # What cannot be looked at or removed now is left to the next save.
            with suppress(OSError):
                for old in _superseded(folder, path, step, known, keep_last, keep_best):
                    _remove(old)
    except OSError as error:
        raise CheckpointNotSavedError(
            error.errno, _why_not_saved(folder, step, size_of(tensors), error)
        ) from error
    return path


def load_checkpoint(
    path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint:
    """A checkpoint, verified to the bit. If it is damaged, the error names the last good one."""
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no checkpoint {path}; give one of the folders step-...")
    with locked(path.parent, exclusive=False):
        try:
            return read_folder(path, device)
        except (DamagedCheckpointError, OSError) as error:
            others = (other for _, other in _numbered(path.parent) if other != path)
            good = next((other for other in others if _damage(other) is None), None)
            offer = f"the last good one is {good}" if good else "there is no other that is good"
            raise DamagedCheckpointError(f"{error}; of the checkpoints, {offer}") from error


def latest_checkpoint(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint | None:
    """The newest checkpoint that is good, or None if none has been saved.

    Newer ones that are damaged are passed over with a warning. If all are damaged that is an error.
    """
    folder = Path(folder)
    if not folder.exists():
        return None
    wrong: list[str] = []
    with locked(folder, exclusive=False):
        for step, path in _numbered(folder):
            try:
                checkpoint = read_folder(path, device)
                _check_step(path, step, checkpoint.step)
            except (DamagedCheckpointError, OSError) as error:
                wrong.append(str(error))
            else:
                for damage in wrong:
                    warnings.warn(f"{damage}; going on from {path}", stacklevel=2)
                return checkpoint
    if wrong:
        raise DamagedCheckpointError(
            f"every checkpoint in {folder} is damaged: {'; '.join(wrong)}. Restore one of them, or "
            f"start again in another folder"
        )
    return None


def find_checkpoints(folder: str | os.PathLike[str]) -> list[FoundCheckpoint]:
    """The checkpoints of a run, newest first, each with what is wrong with it."""
    folder = Path(folder)
    if not folder.exists():
        return []
    with locked(folder, exclusive=False):
        return [FoundCheckpoint(path, step, _damage(path)) for step, path in _numbered(folder)]


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders of all checkpoints, newest first."""
    found = []
    for path in folder.iterdir():
        name = NAME.fullmatch(path.name)
        if name and path.is_dir():
            found.append((int(name[1]), int(name[2] or 1), path))
    return [(step, path) for step, _, path in sorted(found, reverse=True)]


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, found by reading all of it."""
    try:
        check_files(path, _manifest(path))
    except (DamagedCheckpointError, OSError) as error:
        return str(error)
    return None


def _manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    name = NAME.fullmatch(path.name)
    if name:
        _check_step(path, int(name[1]), manifest.step)
    return manifest


def _check_step(path: Path, named: int, recorded: int) -> None:
    if named != recorded:
        raise DamagedCheckpointError(f"{path} has been renamed: it was saved at step {recorded}")


def _write(
    folder: Path, step: int, tensors: Tensors, values: Mapping[str, Any], metric: float | None
) -> Path:
    partial = folder / f".saving-{secrets.token_hex(8)}"
    try:
        write_folder(partial, step, tensors, values, metric)
        path = _free_name(folder, step)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_folder(folder)
    return path


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
    """What may go now that the new checkpoint stands, oldest first."""
    old = [(other, path) for other, path in _numbered(folder) if path != new]
    good = {
        path: manifest.metric
        for other, path in old
        if other < step and (manifest := _sound_manifest(path))
    }
    kept = {new, *list(good)[: keep_last - 1]}
    measured = {p: found for p, found in {new: metric, **good}.items() if found is not None}
    if keep_best and measured:
        # Of two as good, the newer, which comes first.
        kept.add(min(measured, key=measured.__getitem__))
    return [path for _, path in reversed(old) if path not in kept]


def _sound_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint that is good at a quick look."""
    try:
        manifest = _manifest(path)
        check_files(path, manifest, contents=False)
    except DamagedCheckpointError:
        return None
    return manifest


def _remove(path: Path) -> None:
    """Remove a checkpoint, or leave what cannot be removed now to the next save."""
    doomed = path.with_name(f".removing-{secrets.token_hex(8)}")
    with suppress(OSError):
        path.rename(doomed)
        shutil.rmtree(doomed)


def _clear_leftovers(folder: Path) -> None:
    for path in list(folder.iterdir()):
        if LEFTOVER.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _why_not_saved(folder: Path, step: int, size: int, error: OSError) -> str:
    message = f"the checkpoint of step {step} was not saved to {folder}: {error.strerror or error}"
    with suppress(OSError):
        message += f" ({amount(size)} to write, {amount(shutil.disk_usage(folder).free)} free)"
    last = None
    with suppress(OSError):
        last = next((path for _, path in _numbered(folder) if _sound_manifest(path)), None)
    message += f"; the last one that was saved is {last}" if last else "; none was saved before"
    return f"{message}. Free some space, or let the folder be written to, and go on from there"
