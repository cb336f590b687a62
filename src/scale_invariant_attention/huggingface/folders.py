"""Checks a transformers folder before it is opened: safetensors, whole, and inside the folder.

transformers itself follows names in the index of the weights wherever they lead, and reads pickled
weights, which can run any code.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..arguments import shown
from ..files.json_files import read_json_object

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
# The names of the number of layers, by family.
LAYERS = {"num_hidden_layers", "num_layers", "n_layers", "n_layer"}
# The folder of the model in a run.
RUN_MODEL = "model"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")


def check_folder(folder: Path) -> dict[str, Any]:
    """The configuration in a transformers folder whose weights may be read; an error otherwise.

    Raises FileNotFoundError for missing files, and ValueError for everything else.
    """
    config = read_json_object(inside(folder, CONFIG))
    if not isinstance(config.get("model_type", ""), str):
        raise ValueError(
            f"{folder / CONFIG} must have a string as model_type, got {shown(config['model_type'])}"
        )
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
        fix = "save the model as safetensors"
        if (folder / RUN_MODEL / CONFIG).exists():
            fix = f"it is a run of sia train; export its model with: sia export {folder} --to hf"
        raise FileNotFoundError(f"{folder} has no {WEIGHTS}{reason}: {fix}")
    if INDEX in names:
        names = [*names, *_indexed(folder)]
    paths = [inside(folder, name) for name in names if name != INDEX]
    _check_layers(folder / CONFIG, config, sum(map(_tensors_in, paths)))
    return config


def _check_layers(path: Path, config: dict[str, Any], tensors: int) -> None:
    """Refuse a number of layers that the weights cannot have, before any layer is built."""
    for part in (config, *(it for it in config.values() if isinstance(it, dict))):
        for name in LAYERS & part.keys():
            given = part[name]
            if isinstance(given, int) and given > tensors:
                raise ValueError(
                    f"the weights beside {path} do not fit it: {name} is {shown(given)}, but they "
                    f"have {tensors} tensors"
                )


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


def _tensors_in(path: Path) -> int:
    """The number of tensors in a safetensors file; one that is truncated is refused."""
    try:
        # Its header says how long it is.
        with safe_open(path, framework="pt") as file:
            return len(file.keys())
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}); copy or export it again"
        ) from error
