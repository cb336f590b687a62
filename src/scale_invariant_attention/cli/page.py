"""How commands print, whole to a terminal and to a pipe: headings, paragraphs and tables."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

_LINE = 88
_UNBOUNDED = 10_000


class Page:
    """Prints to standard output; tables wrap at a terminal's edge, and nowhere in a pipe."""

    def __init__(self) -> None:
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._width = min(self._console.width, _LINE)
        if not self._console.is_terminal:
            self._console.width = _UNBOUNDED

    def heading(self, text: str) -> None:
        """A line of its own, set off from what came before."""
        self._console.print(f"\n{text}", style="bold")

    def paragraph(self, text: str) -> None:
        """Prose, wrapped to a comfortable width."""
        self._console.print(text, width=self._width)

    def line(self, text: str) -> None:
        """Text that a reader may copy, such as a path: never wrapped."""
        self._console.print(text, soft_wrap=True)

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
    ) -> None:
        """Columns under a header; of `numbers` all but the first are aligned to the right."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for place, name in enumerate(header):
            right = numbers and place > 0
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Names with their values, one a line."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts:
            table.add_row(name, value)
        self._console.print(table)
