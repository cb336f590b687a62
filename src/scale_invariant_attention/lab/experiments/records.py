"""The one JSON file that is kept of an experiment: written whole, and read back where it is the same."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...files import replace_file
from ...training.runs import differences

# Of what is recorded of every step: a curve needs no more.
DIGITS = 5

Record = dict[str, Any]


class DifferentRecordError(ValueError):
    """What is recorded under a name is something else."""


def read_record(path: Path, wanted: Record, asked_for: Callable[[Record], Record]) -> Record | None:
    """The record at a path, if there is one; that of another experiment is never overwritten.

    `asked_for` takes from a record what has to be the same as in `wanted`.
    """
    if not path.exists():
        return None
    try:
        record: Record = json.loads(path.read_text())
        there = asked_for(record)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no record of an experiment ({type(error).__name__}: {error}); remove it, and "
            f"it will be made again"
        ) from error
    different = list(differences(there, json.loads(json.dumps(wanted))))
    if different:
        raise DifferentRecordError(
            f"{path} records something else: {'; '.join(different)}. Give another folder for the "
            f"results, or remove the file"
        )
    return record


def write_record(path: Path, record: Record) -> Record:
    """Write a record, and return it as it would be read: the same whether it was just made or not."""
    # A line a name: short enough to keep, and to compare.
    lines = (
        f" {json.dumps(name)}: {json.dumps(it, allow_nan=False)}" for name, it in record.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    replace_file(path, text.encode())
    again: Record = json.loads(text)
    return again


def shortened(values: Iterable[float]) -> list[float]:
    """A curve in the digits that are kept.

    >>> shortened([1.23456789, 1e-9])
    [1.2346, 1e-09]
    """
    return [float(f"{value:.{DIGITS}g}") for value in values]
