"""One checkpoint in a folder: groups of tensors, values, and a manifest that vouches for both.

Each group is a safetensors file, the values are JSON, and ``manifest.json`` has the size and the
SHA-256 of every file and of itself. Nothing is unpickled.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import integer
from ..files import FileRecord, damage_of, sync_folder, write_new_file
from ..files.safetensors_format import check_storable, read_safetensors, safetensors_bytes

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
VALUES = "values.json"
GROUP_NAME = re.compile(r"[a-z][a-z0-9_-]*")
FILE_NAME = re.compile(rf"{re.escape(VALUES)}|({GROUP_NAME.pattern})\.safetensors")

Tensors = Mapping[str, Mapping[str, Tensor]]


class DamagedCheckpointError(ValueError):
    """A checkpoint is not as it was saved."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was saved: `tensors` by group and name, and the values."""

    path: Path
    step: int
    metric: float | None
    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    metric: float | None
    files: dict[str, FileRecord]


def check_contents(step: int, tensors: Tensors, values: Mapping[str, Any]) -> None:
    """Refuse what would not come back from a checkpoint as it is."""
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
        raise ValueError(f"values must hold what JSON can hold: {error}") from error
    changed = [name for name in values if name not in returned or returned[name] != values[name]]
    if changed:
        raise ValueError(
            f"values must come back from JSON as they are, but {changed[0]!r} does not; "
            f"use lists in place of tuples, and strings as keys"
        )


def size_of(tensors: Tensors) -> int:
    """How many bytes the tensors of a checkpoint take."""
    every = (tensor for members in tensors.values() for tensor in members.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in every)


def write_folder(
    folder: Path, step: int, tensors: Tensors, values: Mapping[str, Any], metric: float | None
) -> None:
    """Write a checkpoint to a folder that does not exist yet, through to the disk."""
    folder.mkdir()
    files = {
        f"{group}.safetensors": write_new_file(
            folder / f"{group}.safetensors", safetensors_bytes(dict(members))
        )
        for group, members in tensors.items()
    }
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    files[VALUES] = write_new_file(folder / VALUES, [text.encode()])
    contents = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "metric": metric,
        "files": {name: asdict(record) for name, record in files.items()},
    }
    write_new_file(folder / MANIFEST, [_manifest_text(contents)])
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, verified; the files it names are not looked at."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DamagedCheckpointError(f"{path} is missing")
    text = path.read_bytes()
    try:
        contents = json.loads(text)["contents"]
        whole = text == _manifest_text(contents)
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise DamagedCheckpointError(f"{path} is corrupt: it does not have the SHA-256 it records")
    version = contents.get("format_version")
    if version != FORMAT_VERSION:
        raise DamagedCheckpointError(
            f"{path} has format_version {version!r}, and this version of the package reads "
            f"{FORMAT_VERSION}; update scale-invariant-attention"
        )
    match contents:
        case {"step": int(step), "metric": float() | None as metric, "files": dict(files)}:
            records = {name: _record(path, name, record) for name, record in files.items()}
            if VALUES in records:
                return Manifest(step, metric, records)
    raise DamagedCheckpointError(f"{path} does not have what the manifest of a checkpoint has")


def check_files(folder: Path, manifest: Manifest, *, contents: bool = True) -> None:
    """Find the first damage in the files of a checkpoint; without `contents`, by a quick look."""
    for name, record in manifest.files.items():
        damage = damage_of(folder / name, record, MANIFEST, contents=contents)
        if damage:
            raise DamagedCheckpointError(damage)


def read_folder(folder: Path, device: str | torch.device = "cpu") -> Checkpoint:
    """All of a checkpoint, verified to the bit."""
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    try:
        groups = {
            name.removesuffix(".safetensors"): read_safetensors(folder / name, device)
            for name in manifest.files
            if name != VALUES
        }
    except ValueError as error:
        raise DamagedCheckpointError(str(error)) from error
    values = json.loads((folder / VALUES).read_bytes())
    return Checkpoint(folder, manifest.step, manifest.metric, groups, values)


def _manifest_text(contents: object) -> bytes:
    sha256 = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    return (json.dumps({"contents": contents, "sha256": sha256}, indent=2) + "\n").encode()


def _record(path: Path, name: str, record: object) -> FileRecord:
    match record:
        case {"bytes": int(size), "sha256": str(sha256)} if FILE_NAME.fullmatch(name):
            return FileRecord(size, sha256)
    raise DamagedCheckpointError(f"{path} names {name!r}, which is no file of a checkpoint")
