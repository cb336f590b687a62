"""`shards.json`, the record beside token shards: their encoding, and size and SHA-256 of each."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import FileRecord, replace_file
from ..files.json_files import read_json_object
from ..files.manifest import KEY, damage_of, signed_text, verified

RECORD = "shards.json"
_REQUIRED: Mapping[str, type] = {"vocab_size": int, "document_start": int, "complete": bool}
_OPTIONAL: Mapping[str, type | tuple[type, ...]] = {
    "source": str,
    "encoding": str,
    "validation": (int, float),
    "shard_tokens": int,
    "documents": int,
    "tokens": dict,
    "files": dict,
}
_KINDS = {
    int: "an integer",
    bool: "true or false",
    str: "text",
    (int, float): "a number",
    dict: "an object",
}
# Tokens are stored in 16 bits.
LARGEST_VOCABULARY = 2**16


class ShardError(ValueError):
    """A file is not a whole shard; the message names it and says what is wrong."""


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of the shards in a folder, verified by its own SHA-256; None if there is none."""
    path = folder / RECORD
    try:
        record = read_json_object(path)
        _check_fields(record)
        return verified(record)
    except FileNotFoundError:
        return None
    except ValueError as problem:
        raise ValueError(
            f"{path} cannot be read ({problem}); delete the folder and make the shards again"
        ) from problem


def write_record(
    folder: Path, contents: Mapping[str, Any], files: Mapping[str, FileRecord]
) -> None:
    """Write the record of shards, with the hashes of those that are whole."""
    records = {name: asdict(record) for name, record in files.items()}
    replace_file(folder / RECORD, signed_text({**contents, "files": records}))


def recorded_files(record: Mapping[str, Any] | None) -> dict[str, FileRecord]:
    """Size and SHA-256 of shards by name; shards of earlier versions have none."""
    files = {} if record is None else record.get("files", {})
    return {name: FileRecord(**entry) for name, entry in files.items()}


def find_recorded(shards: Iterable[Path]) -> dict[Path, FileRecord]:
    """Size and SHA-256 of those shards that are recorded in their folders."""
    shards = list(shards)
    folders = {shard.parent for shard in shards}
    files = {folder: recorded_files(read_record(folder)) for folder in folders}
    return {it: files[it.parent][it.name] for it in shards if it.name in files[it.parent]}


def check_recorded(path: Path, record: FileRecord | None, *, quick: bool = False) -> None:
    """Raise :class:`ShardError` if a shard is not as recorded, by size alone if `quick`."""
    if record is not None and (damage := damage_of(path, record, RECORD, quick=quick)):
        raise ShardError(f"{damage}; fetch or make it again")


def check_complete(folder: Path) -> None:
    """Raise :class:`ShardError` if a recorded shard is missing."""
    for name in recorded_files(read_record(folder)):
        if not (folder / name).is_file():
            raise ShardError(
                f"{folder / name} is missing, but {RECORD} names it; fetch or make it again"
            )


def _check_fields(record: Mapping[str, Any]) -> None:
    lacking = sorted(_REQUIRED.keys() - record.keys())
    if lacking:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    known = {**_REQUIRED, **_OPTIONAL, KEY: str}
    for name, value in record.items():
        if name not in known:
            raise ValueError(f"it has the unknown field {name!r}")
        # To Python, True is an integer.
        if not isinstance(value, known[name]) or (
            isinstance(value, bool) and known[name] is not bool
        ):
            raise ValueError(f"{name} must be {_KINDS[known[name]]}, got {value!r}")
    size, start = record["vocab_size"], record["document_start"]
    if not 1 <= size <= LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size must be 1 to {LARGEST_VOCABULARY}, got {size}")
    if not 0 <= start < size:
        raise ValueError(f"document_start must be 0 to {size - 1}, got {start}")
    for name, count in record.get("tokens", {}).items():
        if type(count) is not int or count < 0:
            raise ValueError(f"tokens.{name} must be an integer of at least 0, got {count!r}")
    for name, entry in record.get("files", {}).items():
        match entry:
            case {"bytes": int(), "sha256": str()} if len(entry) == 2 and Path(name).name == name:
                continue
        raise ValueError(f"it describes the file {name!r} by {entry!r}")
