"""A model in a folder: its configuration and weights, replaced whole or not at all, read verified.

``config.json`` says which weights files belong to the model, with the size and the hash of each, and
is the last thing a save puts in place. Names of weights files carry their hash, so a save never
touches the files of the model before it. Whatever a save writes first has a name of its own,
``.saving-...``. Among these are lists of the new and of the old weights files, which tell what to
remove however the save ended: the listed files that ``config.json`` does not name.
"""

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import integer
from ..files import FileRecord, damage_of, locked, sync_folder, write_new_file
from ..files.safetensors_format import check_storable, read_safetensors, safetensors_bytes

MODEL_TYPE = "scale-invariant-gpt"
FORMAT_VERSION = 1
CONFIG = "config.json"
WEIGHTS_NAME = re.compile(r"model-[0-9a-f]{8,64}(-\d{5,}-of-\d{5,})?\.safetensors")
PARTIAL_NAME = re.compile(r"\.saving-[0-9a-f]{16}\.(json|safetensors)")
PICKLED = {".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"}


class SavedModelError(ValueError):
    """A folder does not hold a whole model of this package."""


@dataclass(frozen=True)
class _WeightsFile:
    file: str
    bytes: int
    sha256: str
    tensors: list[str]


@dataclass(frozen=True)
class _SavedModel:
    config: dict[str, Any]
    weights: list[_WeightsFile]

    @property
    def files(self) -> set[str]:
        return {entry.file for entry in self.weights}


def save(
    folder: str | os.PathLike[str],
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Save a model to ``folder``, in the place of the one that is there.

    ``config`` is what JSON can hold (tuples come back as lists). ``tensors`` may be on any device and
    share memory; each is stored whole. Weights go into files of at most ``shard_bytes``, or one tensor.
    If this fails or is killed, the folder still holds the model it held before. Files that are
    not of a model of this package are left alone, and a folder with another model is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, {"layers": 2}, {"tau": torch.tensor(10.0)})
    ...     load(folder)
    ({'layers': 2}, {'tau': tensor(10.)})
    """
    shard_bytes = integer("shard_bytes", shard_bytes, at_least=1)
    if not isinstance(config, dict):
        raise TypeError(f"config must be a dict, got {type(config).__name__}")
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"config must hold what JSON can hold: {error}") from error
    for name, tensor in tensors.items():
        check_storable(name, tensor)

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder, got the file {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)
    with locked(folder):
        old = _model_to_replace(folder)
        _clear_leftovers(folder)
        try:
            _write_and_commit(folder, old, config, tensors, shard_bytes)
        finally:
            _clear_leftovers(folder)


def load(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors that :func:`save` stored, verified to the bit.

    Nothing is unpickled. A missing folder or ``config.json`` is a FileNotFoundError; anything in it
    that is not as it was saved is a :class:`SavedModelError`.
    """
    folder = _existing_folder(folder)
    with locked(folder, exclusive=False):
        model = _read_config_file(folder / CONFIG)
        tensors: dict[str, Tensor] = {}
        for entry in model.weights:
            _verify(folder, entry)
            tensors |= _read_weights(folder, entry, device)
    return model.config, tensors


def _write_and_commit(
    folder: Path,
    old: _SavedModel | None,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    shard_bytes: int,
) -> None:
    hashes = {entry.file: entry.sha256 for entry in old.weights} if old else {}
    shards = _shards(tensors, shard_bytes)
    weights: list[_WeightsFile] = []
    partials: list[Path] = []
    for number, names in enumerate(shards, start=1):
        partial = _partial(folder, ".safetensors")
        pieces = safetensors_bytes({name: tensors[name] for name in names})
        record = write_new_file(partial, pieces)
        part = f"-{number:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
        file = f"model-{record.sha256[:8]}{part}.safetensors"
        if hashes.get(file, record.sha256) != record.sha256:
            file = f"model-{record.sha256}{part}.safetensors"
        weights.append(_WeightsFile(file, record.bytes, record.sha256, names))
        partials.append(partial)

    new_config = _partial(folder, ".json")
    write_new_file(new_config, [_config_text(_SavedModel(config, weights))])
    if old:
        write_new_file(_partial(folder, ".json"), [_config_text(_SavedModel({}, old.weights))])
    for partial, entry in zip(partials, weights, strict=True):
        partial.replace(folder / entry.file)
    # What config.json names must be on disk before it, and it before the old weights are removed.
    sync_folder(folder)
    new_config.replace(folder / CONFIG)
    sync_folder(folder)


def _shards(tensors: dict[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """The names of the tensors of each file, in the order of ``tensors``."""
    shards: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if not shards or size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= size
    return shards


def _partial(folder: Path, suffix: str) -> Path:
    return folder / f".saving-{secrets.token_hex(8)}{suffix}"


def _config_text(model: _SavedModel) -> bytes:
    document = {"model_type": MODEL_TYPE, "format_version": FORMAT_VERSION} | asdict(model)
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def _clear_leftovers(folder: Path) -> None:
    """Remove what saves left behind: partial files, and weights of models that config.json is not.

    What cannot be read or removed now is left to the next save.
    """
    with suppress(OSError, SavedModelError):
        try:
            kept = _read_config_file(folder / CONFIG).files
        except FileNotFoundError:
            kept = set()
        for partial in sorted(folder.glob(".saving-*")):
            if not PARTIAL_NAME.fullmatch(partial.name):
                continue
            with suppress(OSError):
                for file in _named_weights(partial) - kept:
                    (folder / file).unlink(missing_ok=True)
                partial.unlink()


def _named_weights(partial: Path) -> set[str]:
    """The weights files that a partial configuration names; none if it is torn, or weights itself."""
    if partial.suffix == ".json":
        with suppress(SavedModelError):
            return _read_config_file(partial).files
    return set()


def _model_to_replace(folder: Path) -> _SavedModel | None:
    try:
        return _read_config_file(folder / CONFIG)
    except FileNotFoundError:
        return None
    except SavedModelError as error:
        raise SavedModelError(
            f"{folder} holds something else than a model of this package, which saving would "
            f"destroy; save to another folder, or remove its {CONFIG} ({error})"
        ) from error


def _existing_folder(folder: str | os.PathLike[str]) -> Path:
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(
            f"there is no folder {folder}; give the folder a model was saved to"
        )
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{folder} is a file; give the folder a model was saved to, which holds {CONFIG}"
        )
    if not (folder / CONFIG).exists():
        message = f"{folder} has no {CONFIG}; give the folder a model was saved to"
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        if pickled:
            message += (
                f". It holds {_some(pickled)}, which may be pickled and is never read: pickled files "
                f"can run any code. Load it with what wrote it, and save its tensors again"
            )
        raise FileNotFoundError(message)
    return folder


def _read_config_file(path: Path) -> _SavedModel:
    """The checked content of ``config.json``."""
    if path.is_dir():
        raise SavedModelError(f"{path} must be a file, got a folder")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise SavedModelError(
            f"{path} is not JSON ({error}): damaged or foreign; restore it, or save the model again"
        ) from error
    if not isinstance(document, dict):
        raise SavedModelError(f"{path} must hold a JSON object, got {type(document).__name__}")
    model_type, version = document.get("model_type"), document.get("format_version")
    if model_type != MODEL_TYPE:
        raise SavedModelError(
            f"{path} must have the model_type {MODEL_TYPE!r}, got {model_type!r}; "
            f"load such a model with the library it was made for"
        )
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise SavedModelError(
            f"{path} must have a format_version from 1 to {FORMAT_VERSION}, got {version!r}"
        )
    if version > FORMAT_VERSION:
        raise SavedModelError(
            f"{path} has format_version {version}, and this version of the package reads up to "
            f"{FORMAT_VERSION}; update scale-invariant-attention"
        )
    config, weights = document.get("config"), document.get("weights")
    if not isinstance(config, dict) or not isinstance(weights, list):
        raise SavedModelError(f"{path} must have an object 'config' and a list 'weights'")
    model = _SavedModel(config, [_weights_entry(path, entry) for entry in weights])
    names = [name for entry in model.weights for name in entry.tensors]
    if len(model.files) < len(weights) or len(set(names)) < len(names):
        raise SavedModelError(f"{path} names a weights file or a tensor twice")
    return model


def _weights_entry(path: Path, entry: object) -> _WeightsFile:
    match entry:
        case {"file": str(file), "bytes": int(size), "sha256": str(sha256), "tensors": list(names)}:
            if not WEIGHTS_NAME.fullmatch(file):
                raise SavedModelError(
                    f"{path} names the weights file {file!r}; only files "
                    f"model-<hash>.safetensors in the folder itself are read"
                )
            if all(isinstance(name, str) for name in names):
                return _WeightsFile(file, size, sha256, names)
    raise SavedModelError(
        f"{path} must give file, bytes, sha256 and tensors for each of its weights, got {entry!r}"
    )


def _verify(folder: Path, entry: _WeightsFile) -> None:
    damage = damage_of(folder / entry.file, FileRecord(entry.bytes, entry.sha256), CONFIG)
    if damage:
        raise SavedModelError(f"{damage}; copy the whole folder again, or save the model again")


def _read_weights(
    folder: Path, entry: _WeightsFile, device: str | torch.device
) -> dict[str, Tensor]:
    path = folder / entry.file
    try:
        tensors = read_safetensors(path, device)
    except ValueError as error:
        raise SavedModelError(str(error)) from error
    if missing := sorted(set(entry.tensors) - tensors.keys()):
        raise SavedModelError(f"{path} lacks {_some(missing)}, which {CONFIG} records")
    if surplus := sorted(tensors.keys() - set(entry.tensors)):
        raise SavedModelError(f"{path} holds {_some(surplus)}, which {CONFIG} does not record")
    return {name: tensors[name] for name in entry.tensors}


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
