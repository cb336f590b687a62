"""Tables and paragraphs as Markdown has them."""

from collections.abc import Iterable, Sequence
from textwrap import fill

LINE = 105


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells.

    >>> print(table(("scheme", "loss"), [("rope", "1.5")]))
    | scheme | loss |
    |---|---|
    | rope | 1.5 |
    """
    lines = [_line(header), "|" + "---|" * len(header), *map(_line, rows)]
    return "\n".join(lines)


def bold(text: str, is_bold: bool) -> str:
    """A text, in bold where it should be."""
    return f"**{text}**" if is_bold else text


def filled(text: str) -> str:
    """A paragraph in lines of the page's width."""
    return fill(text, LINE, break_long_words=False, break_on_hyphens=False)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
