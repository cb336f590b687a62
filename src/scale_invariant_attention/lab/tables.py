"""Tables of values by context length, for Markdown, for the web page and for the terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .seeds import SeedRow, Spread

# Chooses the best of a column: ``min`` for losses, ``max`` for shares.
Best = Callable[[Iterable[float]], float]


@dataclass(frozen=True)
class Cell:
    """A value in a table; `note` stands small beside it, `best` marks it in its column."""

    text: str
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A line of a table; `key` is the label of the line that a chart has for it, if one has."""

    head: str
    cells: Sequence[Cell]
    key: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a header whose first entry is the header of their heads."""

    header: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""

    def texts(self) -> list[tuple[str, ...]]:
        """The cells of each row as plain text, its head first."""
        return [(row.head, *(cell.text for cell in row.cells)) for row in self.rows]

    def beside(self, other: "Table") -> "Table":
        """This table with the columns of another to its right; cells are empty where it has no row."""
        found = {row.key: row.cells for row in other.rows}
        empty = [Cell("")] * (len(other.header) - 1)
        rows = [replace(row, cells=[*row.cells, *found.get(row.key, empty)]) for row in self.rows]
        return replace(self, header=[*self.header, *other.header[1:]], rows=rows)


def length_table(
    rows: Mapping[str, SeedRow],
    head: str,
    best: Best | None = None,
    *,
    lengths: Sequence[int] | None = None,
    titles: Mapping[str, str] | None = None,
    column: Callable[[int], str] = "{:,}".format,
    change: bool = False,
    note: Callable[[str, int, Spread], str] = lambda key, length, spread: "",
    caption: str = "",
) -> Table:
    """Mean and standard error over seeds: one row per key of `rows`, one column per length.

    The key is the head of a row unless `titles` has another; `head` is the header of the heads, `column`
    that of a length. `best` marks the best of each column in which means differ, as printed. `lengths`
    are all that were measured by default, ascending. `change` adds a column with the change from the
    first length to the last. `note` is the text beside a value.

    >>> rows = {"rope": SeedRow("rope", {0: {256: 1.5}}), "alibi": SeedRow("alibi", {0: {256: 1.2}})}
    >>> print(markdown(length_table(rows, "scheme", min)))
    | scheme | 256 |
    |---|---|
    | rope | 1.500 |
    | alibi | **1.200** |
    """
    spreads = {key: row.spreads for key, row in rows.items()}
    lengths = lengths or sorted({length for mine in spreads.values() for length in mine})
    columns = {n: {mine[n].printed for mine in spreads.values() if n in mine} for n in lengths}
    marked = {n: best(means) for n, means in columns.items() if best and len(means) > 1}

    def cell(key: str, length: int) -> Cell:
        spread = spreads[key].get(length)
        if spread is None:
            return Cell("", "not measured")
        return Cell(str(spread), note(key, length, spread), spread.printed == marked.get(length))

    built = []
    for key, mine in spreads.items():
        cells = [cell(key, length) for length in lengths]
        if change:
            known = [mine[length].mean for length in lengths if length in mine]
            cells.append(Cell(f"{known[-1] - known[0]:+.3f}"))
        built.append(Row((titles or {}).get(key, key), cells, key))
    header = [head, *map(column, lengths), *(["change"] if change else [])]
    return Table(header, built, caption)


def markdown(table: Table) -> str:
    """A table as Markdown, the best of each column in bold: see :func:`length_table`."""
    lines = (
        [row.head, *(f"**{it.text}**" if it.best else it.text for it in row.cells)]
        for row in table.rows
    )
    return markdown_table(table.header, lines)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are text already.

    >>> print(markdown_table(("scheme", "loss"), [("rope", "1.5")]))
    | scheme | loss |
    |---|---|
    | rope | 1.5 |
    """
    return "\n".join((_line(header), "|" + "---|" * len(header), *map(_line, rows)))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
