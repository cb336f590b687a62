"""Tables as Markdown has them."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells.

    >>> print(table(("scheme", "loss"), [("rope", "1.5")]))
    | scheme | loss |
    |---|---|
    | rope | 1.5 |
    """
    lines = [_line(header), "|" + "---|" * len(header), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
