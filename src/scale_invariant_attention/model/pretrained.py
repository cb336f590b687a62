"""Pretrained miniatures by name: found in a folder or downloaded, and verified before use.

``pretrained.json`` lists them, with what was measured and with size and SHA-256 of every file. The
folder of a model has its name, and contains a saved model, its card and the record of its training.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from ..arguments import did_you_mean
from ..files import FileRecord, cache_folder, locked
from ..files.download import FetchError, Notice, check_address, download
from ..files.manifest import damage_of
from .storage import CONFIG, SavedModelError

LIST = Path(__file__).with_name("pretrained.json")
# The folder of the models' folders, in the repository and in the user's cache.
FOLDER = "pretrained"
CARD = "README.md"
RECORD = "record.json"
# All names start with it, so that a misspelt one is not taken for a path.
PREFIX = "sia-"
# An environment variable: the folder or the address of the models.
SOURCE = "SIA_PRETRAINED"


@dataclass(frozen=True)
class PretrainedModel:
    """A model that can be opened by name.

    Attributes:
        name: as ``GPT.from_pretrained`` takes it.
        scheme: name of its scheme.
        train_length: its training length.
        parameters: number of its weights.
        measured: "loss", or "needles" for the share of needles found.
        by_length: what was measured, by context length.
        files: size and SHA-256 of its files, by name.
    """

    name: str
    scheme: str
    train_length: int
    parameters: int
    measured: str
    by_length: Mapping[int, float]
    files: Mapping[str, FileRecord]

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.files.values())

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "PretrainedModel":
        """A model from its entry in the list."""
        by_length = {int(length): value for length, value in entry["by_length"].items()}
        files = {name: FileRecord(**record) for name, record in entry["files"].items()}
        return cls(**{**entry, "by_length": by_length, "files": files})

    def found_in(self, source: str | os.PathLike[str] | None = None) -> Path | None:
        """Its folder on this machine, not verified; `source` is that of :func:`find_pretrained`."""
        places = _places(_source(source))
        return next((it / self.name for it in places if (it / self.name / CONFIG).exists()), None)


def pretrained_models(listed_in: Path | None = None) -> dict[str, PretrainedModel]:
    """The pretrained models by name, from the list in a file: by default that of the package.

    >>> pretrained_models()["sia-mini-spread"].train_length
    256
    """
    entries = json.loads((listed_in or LIST).read_bytes())
    return {entry["name"]: PretrainedModel.from_dict(entry) for entry in entries}


def find_pretrained(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    notice: Notice = lambda _: None,
) -> Path:
    """The folder of a pretrained model, whose files were verified now; downloads it where necessary.

    Args:
        name: one of ``pretrained_models()``.
        source: a folder that contains the folder of the model, or an ``https://`` address to download
            its files from. By default the environment variable ``SIA_PRETRAINED``. If neither is given,
            the model is looked for in ``pretrained/``, here and in the repository, and in the user's
            cache, and then downloaded from the release of this version.
        notice: called with a sentence before a download, and about retries.
    """
    models = pretrained_models()
    if name not in models:
        raise ValueError(
            f"there is no folder and no pretrained model {name!r}{did_you_mean(name, models)}; the "
            f"models are: {', '.join(models)}"
        )
    model, source = models[name], _source(source)
    folder, cache = model.found_in(source), _cache()
    if folder is not None and folder.parent != cache:
        for damage in _damages(model, folder).values():
            raise SavedModelError(
                f"{name} is not the model that this version of the package knows: {damage}. Restore "
                f"{folder}, or remove it"
            )
        return folder
    if cache is None or (source is not None and not _is_address(source)):
        raise _not_found(name, source, "nowhere else was searched")
    if _damages(model, cache / name):
        address = download_address(source)
        if address is None:
            raise _not_found(name, source, "this package has no address to download it from")
        try:
            _download(model, cache / name, address, notice)
        except FetchError as error:
            raise _not_found(name, source, f"its download failed: {error}") from error
    return cache / name


def model_folder(given: str | os.PathLike[str]) -> Path:
    """A path as it is, or the folder of the pretrained model of that name."""
    return find_pretrained(str(given)) if is_pretrained_name(given) else Path(given)


def is_pretrained_name(given: str | os.PathLike[str]) -> bool:
    """Whether this is a name and no path: it looks like one, and there is no such file or folder."""
    path = Path(given)
    return path.name == str(given) and path.name.startswith(PREFIX) and not path.exists()


def download_address(source: str | os.PathLike[str] | None = None) -> str | None:
    """Address that missing models are downloaded from, if any; `source` as for `find_pretrained`."""
    given = _source(source)
    if given is None:
        return release_url()
    return check_address(SOURCE, given) if _is_address(given) else None


def release_url() -> str | None:
    """Address of this version's release files; None as long as the package names no repository."""
    about = metadata("scale-invariant-attention")
    for entry in about.get_all("Project-URL") or ():
        label, _, url = entry.partition(", ")
        if label == "Repository":
            return f"{url.rstrip('/')}/releases/download/v{about['Version']}"
    return None


def release_file(name: str, file: str) -> str:
    """The name of a model's file among the files of a release, which have no folders.

    >>> release_file("sia-mini-rope", "config.json")
    'sia-mini-rope-config.json'
    """
    return f"{name}-{file}"


def _source(given: str | os.PathLike[str] | None) -> str | None:
    return os.fspath(given) if given is not None else os.environ.get(SOURCE) or None


def _is_address(source: str) -> bool:
    return "://" in source


def _cache() -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / FOLDER


def _places(source: str | None) -> list[Path]:
    """Folders in which the folder of a model may be, in the order in which they are searched."""
    if source is not None and not _is_address(source):
        return [Path(source)]
    places = [it for it in [_cache()] if it is not None]
    if source is None:
        root = Path(__file__).parents[3]
        repository = [root / FOLDER] if (root / "pyproject.toml").exists() else []
        places = [Path(FOLDER).absolute(), *repository, *places]
    return places


def _damages(model: PretrainedModel, folder: Path) -> dict[str, str]:
    """Problems of files of a model, by their names."""
    damages = {
        name: damage_of(folder / name, record, LIST.name) for name, record in model.files.items()
    }
    return {name: damage for name, damage in damages.items() if damage is not None}


def _download(model: PretrainedModel, folder: Path, address: str, notice: Notice) -> None:
    """Download the files of a model that are missing or damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for name in _damages(model, folder):
            url = f"{address}/{release_file(model.name, name)}"
            fault = partial(_fault, record=model.files[name])
            notice(f"Downloading {url}")
            download(url, folder / name, fault, attempts=3, notice=notice)


def _fault(path: Path, *, whole: bool, record: FileRecord) -> str | None:
    if whole:
        return damage_of(path, record, LIST.name)
    size = path.stat().st_size
    return f"more than the {record.bytes} bytes in {LIST.name}" if size > record.bytes else None


def _not_found(name: str, source: str | None, reason: str) -> FileNotFoundError:
    searched = " or ".join(map(str, _places(source)))
    return FileNotFoundError(
        f"the pretrained model {name} is not in {searched}, and {reason}. Get the folder {FOLDER}/ of "
        f"the repository, and set {SOURCE} to its path"
    )
