"""Results of a measurement of one model: a JSON file, and a figure if matplotlib is installed."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..data import TokenStream
from ..files import replace_file
from ..provenance import provenance


def describe_data(name: str, corpus: TokenStream, **more: Any) -> dict[str, Any]:
    """The text of a measurement as its record describes it."""
    return {"name": name, "split": "validation", **more, "fingerprint": corpus.fingerprint()}


def write_results(
    folder: Path,
    names: tuple[str, str],
    measured: Mapping[str, Any],
    draw: Callable[[], bytes] | None,
    *,
    model: Path,
    unfinished: int | None,
    config: Mapping[str, Any],
    data: Mapping[str, Any],
    indent: int = 2,
) -> list[str]:
    """Write the JSON file and the figure of these names; returns lines that say where they are."""
    record, figure = (folder / name for name in names)
    contents = {
        "model": str(model),
        "unfinished_at_step": unfinished,
        "config": dict(config),
        "data": dict(data),
        **measured,
        "provenance": provenance(),
    }
    replace_file(record, (json.dumps(contents, indent=indent, allow_nan=False) + "\n").encode())
    if draw is None:
        # The figure of an earlier measurement would not belong to these results.
        figure.unlink(missing_ok=True)
        return [str(record)]
    missing = write_figure(figure, draw)
    return [str(record), f"No figure: {missing}" if missing else str(figure)]


def write_figure(path: Path, draw: Callable[[], bytes]) -> str | None:
    """Replace the figure of an earlier measurement; returns the reason if it cannot be drawn."""
    path.unlink(missing_ok=True)
    try:
        picture = draw()
    except ModuleNotFoundError as missing:
        return str(missing)
    replace_file(path, picture)
    return None
