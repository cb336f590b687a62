"""A model in a folder: configuration and weights, saved atomically and verified on load.

``config.json`` is the manifest: the configuration, and the weights files with size and hash of each. It
is the last file that a save puts in place. Names of weights files contain their hash, so a save never
touches the files of the previous model. A save first writes hidden partial files; two of them list the
new and the old weights files, so that the files to remove are known however the save ends: those listed
that ``config.json`` does not name.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import integer, json_value, shown
from ..files import FileRecord, locked, partial_path, sync_folder, write_new_file
from ..files.manifest import Manifest, ManifestFormat
from ..files.safetensors_format import check_storable, read_safetensors, safetensors_bytes

MODEL_TYPE = "scale-invariant-gpt"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PARTIAL_NAME = re.compile(rf"\.({re.escape(CONFIG)}|{re.escape(WEIGHTS)})-[0-9a-f]{{16}}")
FLOATING = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
PICKLED = {".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"}


class SavedModelError(ValueError):
    """A folder does not contain a complete model of this package."""


FORMAT = ManifestFormat(
    MODEL_TYPE,
    re.compile(r"model-[0-9a-f]{8,64}(-\d{5,}-of-\d{5,})?\.safetensors"),
    SavedModelError,
)


def save(
    folder: str | os.PathLike[str],
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    shard_bytes: int = 5 * 10**9,
    stored_dtype: torch.dtype | None = None,
) -> None:
    """Save a model to ``folder``, replacing the one in it.

    ``config`` must be JSON (tuples come back as lists). ``tensors`` may be on any device and share
    memory; each is stored in full. Weights go into files of at most ``shard_bytes``, or one tensor.
    With ``stored_dtype`` floating tensors are rounded to it, and loaded in their own dtype. If this
    fails or is killed, the folder still contains the previous model. Files that do not belong to a
    model of this package are left alone, and a folder with another kind of model raises.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, {"layers": 2}, {"tau": torch.tensor(10.0)})
    ...     load(folder)
    ({'layers': 2}, {'tau': tensor(10.)})
    """
    shard_bytes = integer("shard_bytes", shard_bytes, at_least=1)
    if not isinstance(config, dict):
        raise TypeError(f"config must be a dict, got {type(config).__name__}")
    json_value("config", config)
    for name, tensor in tensors.items():
        check_storable(name, tensor)
    contents: dict[str, Any] = {"config": config}
    if stored_dtype is not None:
        contents["dtypes"] = {
            name: str(it.dtype).removeprefix("torch.")
            for name, it in tensors.items()
            if it.is_floating_point()
        }
        tensors = {name: _rounded(name, it, stored_dtype) for name, it in tensors.items()}

    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder, got the file {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)
    with locked(folder):
        old = _files_to_replace(folder)
        _clear_leftovers(folder)
        try:
            _write_and_commit(folder, old, contents, _shards(tensors, shard_bytes))
        finally:
            _clear_leftovers(folder)


def load(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load the configuration and tensors that :func:`save` stored, verified by hash.

    Nothing is unpickled. Raises FileNotFoundError for a missing folder or ``config.json``, and
    :class:`SavedModelError` for anything that has changed since it was saved.
    """
    folder = _existing_folder(folder)
    with locked(folder, exclusive=False):
        manifest = _read_config_file(folder / CONFIG)
        FORMAT.check_files(folder, manifest, CONFIG)
        tensors: dict[str, Tensor] = {}
        for file in manifest.files:
            try:
                tensors |= read_safetensors(folder / file, device)
            except ValueError as error:
                raise SavedModelError(str(error)) from error
    names = manifest.contents["tensors"]
    if missing := sorted(set(names) - tensors.keys()):
        raise SavedModelError(f"{folder} lacks {_some(missing)}, which {CONFIG} records")
    if surplus := sorted(tensors.keys() - set(names)):
        raise SavedModelError(f"{folder} holds {_some(surplus)}, which {CONFIG} does not record")
    config: dict[str, Any] = manifest.contents["config"]
    dtypes = manifest.contents.get("dtypes", {})
    return config, {
        name: tensors[name].to(FLOATING[dtypes[name]] if name in dtypes else tensors[name].dtype)
        for name in names
    }


def _write_and_commit(
    folder: Path,
    old: dict[str, FileRecord],
    contents: dict[str, Any],
    shards: list[dict[str, Tensor]],
) -> None:
    files: dict[str, FileRecord] = {}
    partials: dict[str, Path] = {}
    for number, tensors in enumerate(shards, start=1):
        partial = partial_path(folder / WEIGHTS)
        record = write_new_file(partial, safetensors_bytes(tensors))
        part = f"-{number:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
        file = f"model-{record.sha256[:8]}{part}.safetensors"
        if old.get(file, record).sha256 != record.sha256:
            file = f"model-{record.sha256}{part}.safetensors"
        files[file], partials[file] = record, partial

    new_config = partial_path(folder / CONFIG)
    contents = {**contents, "tensors": [name for tensors in shards for name in tensors]}
    write_new_file(new_config, [FORMAT.text(contents, files)])
    if old:
        no_model: dict[str, Any] = {"config": {}, "tensors": []}
        write_new_file(partial_path(folder / CONFIG), [FORMAT.text(no_model, old)])
    for file, partial in partials.items():
        partial.replace(folder / file)
    # The weights must be on disk before config.json names them, and config.json before old weights go.
    sync_folder(folder)
    new_config.replace(folder / CONFIG)
    sync_folder(folder)


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating tensor in another dtype; any other tensor as it is."""
    if dtype not in FLOATING.values():
        raise ValueError(f"stored_dtype must be one of {', '.join(FLOATING)}, got {dtype}")
    if not tensor.is_floating_point():
        return tensor
    rounded = tensor.to(dtype)
    if not torch.equal(rounded.isfinite(), tensor.isfinite()):
        largest = tensor.abs().max().item()
        raise ValueError(
            f"stored_dtype must hold values as large as {largest:g}, which {name!r} has, got {dtype}"
        )
    return rounded


def _shards(tensors: dict[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    """The tensors of each file, in their order."""
    shards: list[dict[str, Tensor]] = []
    room = 0
    for name, tensor in tensors.items():
        if not shards or tensor.nbytes > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _clear_leftovers(folder: Path) -> None:
    """Remove partial files, and the weights files they list that config.json does not name.

    Files that cannot be read or removed are left to the next save.
    """
    with suppress(OSError, SavedModelError):
        try:
            kept = set(_read_config_file(folder / CONFIG).files)
        except FileNotFoundError:
            kept = set()
        for partial in sorted(folder.glob(".*")):
            if not PARTIAL_NAME.fullmatch(partial.name):
                continue
            with suppress(OSError):
                # A partial configuration may be incomplete, and then lists no files.
                with suppress(SavedModelError):
                    if partial.name.startswith(f".{CONFIG}"):
                        for file in _read_config_file(partial).files.keys() - kept:
                            (folder / file).unlink(missing_ok=True)
                partial.unlink()


def _files_to_replace(folder: Path) -> dict[str, FileRecord]:
    """Weights files of the model in a folder; none if it contains no model."""
    try:
        return _read_config_file(folder / CONFIG).files
    except FileNotFoundError:
        return {}
    except SavedModelError as error:
        raise SavedModelError(
            f"{folder} holds something other than a model of this package, which saving would "
            f"destroy; save to another folder, or remove its {CONFIG} ({error})"
        ) from error


def _existing_folder(folder: str | os.PathLike[str]) -> Path:
    folder, fix = Path(folder), "give the folder a model was saved to"
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {folder}; {fix}")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; {fix}, which holds {CONFIG}")
    if not (folder / CONFIG).exists():
        message = f"{folder} has no {CONFIG}; {fix}"
        if pickled := sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED):
            message += (
                f". It holds {_some(pickled)}, which may be pickled and is never read: pickled files "
                f"can run any code. Load it with the program that wrote it, and save its tensors again"
            )
        raise FileNotFoundError(message)
    return folder


def _read_config_file(path: Path) -> Manifest:
    manifest = FORMAT.read(path)
    match manifest.contents:
        case {"config": dict(), "tensors": list(names)} if all(type(it) is str for it in names):
            pass
        case _:
            raise SavedModelError(
                f"{path} must have an object 'config' and a list 'tensors' of names"
            )
    dtypes = manifest.contents.get("dtypes", {})
    known = isinstance(dtypes, dict) and dtypes.keys() <= set(names)
    if not known or not all(isinstance(it, str) and it in FLOATING for it in dtypes.values()):
        raise SavedModelError(
            f"{path} must have floating dtypes of its tensors in 'dtypes', by name"
        )
    return manifest


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def check_sizes(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a configuration whose sizes are not those of the weights, before anything is built.

    `values` are the fields of a ``GPTConfig``, unchecked: a width of 2**40 would exhaust the memory.
    """
    embedding = tensors.get("embedding.weight")
    if embedding is None or embedding.ndim != 2:
        raise ValueError("its weights do not fit its configuration: embedding.weight is missing")
    vocab_size, width = embedding.shape
    layers = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    for name, size in (("vocab_size", vocab_size), ("width", width), ("layers", layers)):
        given = integer(name, values[name], at_least=1)
        if given != size:
            raise ValueError(
                f"its weights do not fit its configuration: {name} is {shown(given)} in the "
                f"configuration, but {size} in the weights"
            )
