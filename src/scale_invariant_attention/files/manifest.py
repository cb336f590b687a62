"""JSON with a SHA-256 of itself: signed objects, and manifests, which also record those of files.

A manifest describes a folder. It is what makes files a model or a checkpoint, and is written after all:

    {"model_type": ..., "format_version": 1, ..., "files": {name: {"bytes": ..., "sha256": ...}},
     "sha256": of everything before}
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ._durable import FileRecord
from .json_files import checked_json_object, read_small_file

FORMAT_VERSION = 1
# The field of an object that is the SHA-256 of the others.
KEY = "sha256"


def signed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its SHA-256; one that it already has is replaced.

    >>> list(signed({"tau": 10.0}))
    ['tau', 'sha256']
    """
    return {**_unsigned(document), KEY: digest(document)}


def signed_text(document: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """The bytes of a file that holds a JSON object with its SHA-256."""
    return (json.dumps(signed(document), indent=indent, allow_nan=False) + "\n").encode()


def verified(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a signed JSON object; ValueError if they have changed since it was signed.

    An object without a SHA-256 is returned as it is.

    >>> verified(signed({"tau": 10.0}) | {"tau": 90.0})
    Traceback (most recent call last):
    ValueError: its SHA-256 is ..., but it records ...
    """
    if KEY in document and document[KEY] != (found := digest(document)):
        raise ValueError(f"its SHA-256 is {found}, but it records {document[KEY]!r}")
    return _unsigned(document)


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of all fields but the SHA-256 itself; ValueError for what JSON cannot hold."""
    text = json.dumps(_unsigned(document), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _unsigned(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != KEY}


@dataclass(frozen=True)
class Manifest:
    """The checked content of a manifest: what describes the folder, and the files in it."""

    contents: dict[str, Any]
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class ManifestFormat:
    """One kind of folder with a manifest.

    Attributes:
        model_type: what the folder holds, as the manifest says.
        file_name: pattern of the names that files may have; nothing else is ever read.
        error: raised for a manifest that is damaged or of another kind, and for damaged files.
    """

    model_type: str
    file_name: re.Pattern[str]
    error: type[ValueError]

    def text(self, contents: Mapping[str, Any], files: Mapping[str, FileRecord]) -> bytes:
        """The bytes of a manifest."""
        kind = {"model_type": self.model_type, "format_version": FORMAT_VERSION}
        records = {name: asdict(record) for name, record in files.items()}
        return signed_text({**kind, **contents, "files": records})

    def read(self, path: Path) -> Manifest:
        """A manifest, verified; its files are not looked at. FileNotFoundError if there is none."""
        try:
            text = read_small_file(path)
            document = checked_json_object(path, text)
        except ValueError as error:
            raise self.error(f"{error}; restore it, or save again") from error
        kind, version = document.get("model_type"), document.get("format_version")
        if kind != self.model_type:
            raise self.error(
                f"{path} must have the model_type {self.model_type!r}, got {kind!r}; load such a "
                f"model with the library it was made for"
            )
        if type(version) is not int or version != FORMAT_VERSION:
            raise self.error(
                f"{path} must have format_version {FORMAT_VERSION}, got {version!r}; if that is "
                f"newer, update scale-invariant-attention"
            )
        if not _is_intact(text, document):
            raise self.error(f"{path} is corrupt: its SHA-256 differs; restore it, or save again")
        files = document["files"]
        if not isinstance(files, dict):
            raise self.error(f"{path} must have an object 'files', got {files!r}")
        return Manifest(document, {name: self._record(path, name, files[name]) for name in files})

    def check_files(
        self, folder: Path, manifest: Manifest, name: str, *, quick: bool = False
    ) -> None:
        """Raise for the first file that is not as the manifest, a file `name`, records it."""
        for file, record in manifest.files.items():
            damage = damage_of(folder / file, record, name, quick=quick)
            if damage:
                raise self.error(f"{damage}; copy the whole folder again, or save again")

    def _record(self, path: Path, name: str, entry: object) -> FileRecord:
        if not self.file_name.fullmatch(name):
            allowed = f"only files {self.file_name.pattern} in the folder itself are read"
            raise self.error(f"{path} names the file {name!r}; {allowed}")
        match entry:
            case {"bytes": int(size), "sha256": str(sha256)}:
                return FileRecord(size, sha256)
        raise self.error(f"{path} must give bytes and sha256 of {name!r}, got {entry!r}")


def damage_of(
    path: Path, record: FileRecord, recorded_in: str, *, quick: bool = False
) -> str | None:
    """Description of the damage to a file, or None; `quick` checks only that it exists and its size.

    A file that cannot be read now is an OSError: nothing is known of it.
    """
    if not path.is_file():
        return f"{path} is missing, but {recorded_in} names it"
    size = path.stat().st_size
    if size != record.bytes:
        reason = "it was truncated" if size < record.bytes else "something was added to it"
        return f"{path} has {size} bytes, but {recorded_in} records {record.bytes}: {reason}"
    if not quick:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != record.sha256:
            recorded = f"{recorded_in} records {record.sha256}"
            return f"{path} is corrupt: its SHA-256 is {sha256}, but {recorded}"
    return None


def _is_intact(text: bytes, document: dict[str, Any]) -> bool:
    try:
        return "files" in document and text == signed_text(document)
    except (ValueError, RecursionError):
        return False
