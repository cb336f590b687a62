"""The gallery: every scheme of the registry with its formula, its picture and its results."""

import re
from collections.abc import Iterable

from ... import schemes
from ...schemes import NamedScheme
from ..seeds import SeedRow
from ..tables import markdown_table
from .evidence import Size
from .pages import render, unbroken
from .scheme_pictures import CONTEXT, HEADS, TRAIN_LENGTH, scheme_picture


def gallery_and_pictures(size: Size, *, pictures_at: str = "gallery") -> tuple[str, dict[str, str]]:
    """The page as Markdown with the results of one size, and the pictures by file name.

    `pictures_at` is the path from the page to the folder of the pictures.
    """
    rows = [schemes.entry(name) for name in schemes.names()]
    results = {"loss": size.loss_rows, "needles": size.needle_rows}
    columns = [
        (measure, length, found)
        for measure, found in results.items()
        for length in _lengths(found.values())
    ]
    header = ["scheme", "year", *(f"{measure}, {length:,}" for measure, length, _ in columns)]
    table = [
        [
            f"[{row.title}](#{anchor(row.title)})",
            str(row.year or ""),
            *(_cell(found.get(row.name), length) for _, length, found in columns),
        ]
        for row in rows
    ]
    page = render(
        "gallery.md",
        rows=rows,
        table=markdown_table(header, table),
        config=size.losses[0].config,
        title=size.title,
        calls={row.name: _call(row) for row in rows},
        pictures_at=pictures_at,
        picture={"train_length": TRAIN_LENGTH, "context": CONTEXT, "heads": HEADS},
    )
    return unbroken(page), {f"{row.name}.svg": scheme_picture(row) for row in rows}


def anchor(title: str) -> str:
    """The anchor of a heading, as GitHub and the site make it.

    >>> anchor("Scale-inv. p-RoPE"), anchor("LogN+RoPE"), anchor("Spread, gain alone")
    ('scale-inv-p-rope', 'lognrope', 'spread-gain-alone')
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _lengths(rows: Iterable[SeedRow]) -> list[int]:
    return sorted({length for row in rows for length in row.spreads})


def _cell(row: SeedRow | None, length: int) -> str:
    """The mean over seeds, and its standard error if there are several."""
    return "" if row is None or length not in row.spreads else str(row.spreads[length])


def _call(row: NamedScheme) -> str:
    """The line of code that makes the scheme."""
    length = "train_length=4096" if "train_length" in row.options else ""
    return f"schemes.get({', '.join(filter(None, (repr(row.name), length)))})".replace("'", '"')
