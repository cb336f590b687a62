"""Checks a transformers folder before it is opened: safetensors, whole, and inside the folder.

transformers itself follows names in the index of the weights wherever they lead, and reads pickled
weights, which can run any code.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..files.json_files import read_json_object

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


def check_folder(folder: Path) -> dict[str, Any]:
    """The configuration in a transformers folder whose weights may be read; an error otherwise.

    Raises FileNotFoundError for missing files, and ValueError for everything else.
    """
    config = read_json_object(inside(folder, CONFIG))
    if "transformers_weights" in config:
        raise ValueError(
            f"{folder / CONFIG} names the weights {config['transformers_weights']!r}; only {WEIGHTS} "
            f"and the files of {INDEX} are read: remove transformers_weights"
        )
    names = [name for name in (WEIGHTS, INDEX) if (folder / name).exists()]
    if not names:
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        reason = ""
        if pickled:
            reason = f"; {pickled[0]} may be pickled and can run any code, so it is not read"
        raise FileNotFoundError(f"{folder} has no {WEIGHTS}{reason}: save the model as safetensors")
    if INDEX in names:
        names = [*names, *_indexed(folder)]
    for name in names:
        path = inside(folder, name)
        if name != INDEX:
            _check_whole(path)
    return config


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder; it may be a link inside it, or into the blobs of a hub's cache."""
    path, root = folder / name, folder.resolve()
    if Path(name).name != name:
        raise ValueError(
            f"{folder} names the file {name!r}; only files in the folder itself are read"
        )
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    target = path.resolve()
    # The hub's cache: models--NAME/snapshots/REVISION/FILE links to models--NAME/blobs/HASH.
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    if not target.is_relative_to(root) and target.parent != blobs:
        raise ValueError(
            f"{path} is a link to {target}, outside of the folder, and is not followed"
        )
    if not target.is_file():
        raise ValueError(f"{path} must be a file")
    return path


def _indexed(folder: Path) -> list[str]:
    """Names of the weights files in the index."""
    path = inside(folder, INDEX)
    names = read_json_object(path).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path} must have an object 'weight_map' with names of files")
    found = sorted(set(names.values()))
    for name in found:
        if not name.endswith(".safetensors"):
            raise ValueError(f"{path} names {name!r}; only safetensors files are read")
    return found


def _check_whole(path: Path) -> None:
    """Refuse a file that is no safetensors file, or is truncated; its header says how long it is."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}); copy or export it again"
        ) from error
