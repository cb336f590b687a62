"""Tables of values by context length, for Markdown, for the web page and for the terminal."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

    Args:
        rows: by key, which is the head of a row unless `titles` has another.
        head: header of the first column.
        best: marks the best of each column; nothing is marked where all are alike.
        lengths: of the columns; by default all that were measured, ascending.
        titles: heads of rows by key.
        column: header of a length.
        change: whether to add a column with the change from the first length to the last.
        note: text beside a value.
        caption: of the table.

    >>> rows = {"rope": SeedRow("rope", {0: {256: 1.5}}), "alibi": SeedRow("alibi", {0: {256: 1.2}})}
    >>> print(markdown(length_table(rows, "scheme", min)))
    | scheme | 256 |
    |---|---|
    | rope | 1.500 |
    | alibi | **1.200** |
    """
    spreads = {key: row.spreads for key, row in rows.items()}
    lengths = lengths or sorted({length for mine in spreads.values() for length in mine})
    marked = _marked(spreads.values(), lengths, best)

    def cell(key: str, length: int) -> Cell:
        spread = spreads[key].get(length)
        if spread is None:
            return Cell("", "not measured")
        return Cell(str(spread), note(key, length, spread), spread.mean == marked.get(length))

    built = []
    for key, mine in spreads.items():
        cells = [cell(key, length) for length in lengths]
        if change:
            means = [mine[length].mean for length in lengths if length in mine]
            cells.append(Cell(f"{means[-1] - means[0]:+.3f}"))
        built.append(Row((titles or {}).get(key, key), cells, key))
    header = [head, *map(column, lengths), *(["change"] if change else [])]
    return Table(header, built, caption)


def _marked(
    rows: Collection[Mapping[int, Spread]], lengths: Iterable[int], best: Best | None
) -> dict[int, float]:
    """The best mean of each column in which means differ."""
    if best is None:
        return {}
    columns = {length: {it[length].mean for it in rows if length in it} for length in lengths}
    return {length: best(means) for length, means in columns.items() if len(means) > 1}


def markdown(table: Table) -> str:
    """A table as Markdown, the best of each column in bold.

    >>> print(markdown(Table(("scheme", "loss"), [Row("rope", [Cell("1.5", best=True)])])))
    | scheme | loss |
    |---|---|
    | rope | **1.5** |
    """
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
