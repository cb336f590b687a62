"""Terminal output: headings, paragraphs, tables, progress bars, and charts drawn in characters."""

import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .printable import printable, printable_streams, unfiltered

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task, TaskID

_LINE = 88
_UNBOUNDED = 10_000

Point = tuple[float, float]


class Page:
    """Prints to standard output; tables wrap at the edge of a terminal, and never in a pipe.

    If quiet, it prints nothing: for commands that print JSON instead.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = _console(sys.stdout, quiet=quiet)
        self._width = min(self._console.width, _LINE)
        if not self._console.is_terminal:
            self._console.width = _UNBOUNDED

    def heading(self, text: str) -> None:
        """Print a line set off from what came before."""
        self._console.print(f"\n{text}", style="bold")

    def paragraph(self, text: str) -> None:
        """Print prose, wrapped to a comfortable width."""
        self._console.print(text, width=self._width)

    def line(self, text: str) -> None:
        """Print text that a reader may copy, such as a path, without wrapping it."""
        self._console.print(text, soft_wrap=True)

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
    ) -> None:
        """Print columns under a header; `numbers` aligns all but the first to the right."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for column, name in enumerate(header):
            right = numbers and column > 0
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Print names with their values, one per line."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts:
            table.add_row(name, value)
        self._console.print(table)


@cache
def _printable_console() -> "type[Console]":
    """The class of consoles, defined when needed: importing rich takes long."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        """A console whose text is printable; its own styles and cursor movements are not touched."""

        def render_str(self, text: str, **settings: Any) -> Any:
            """Make strings printable before they are measured for tables."""
            return super().render_str(printable(text), **settings)

        def render(self, *arguments: Any, **settings: Any) -> Iterator[Segment]:
            """Make all other text printable, such as the descriptions of progress bars."""
            for segment in super().render(*arguments, **settings):
                text = segment.text if segment.control else printable(segment.text)
                yield Segment(text, segment.style, segment.control)

    return PrintableConsole


def _console(stream: TextIO, **settings: Any) -> "Console":
    file = unfiltered(stream)
    return _printable_console()(file=file, markup=False, highlight=False, emoji=False, **settings)


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "shard"), counted(2000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextmanager
def progress_bars(*columns: "str | ProgressColumn", **settings: Any) -> Iterator["Progress"]:
    """Bars on standard error; its console prints above them. Without a terminal, a line now and then."""
    from rich.progress import BarColumn, Progress, Task

    class Lines(Progress):
        """Progress that prints its columns as a line, soon after the start and then less often."""

        def __init__(self, *columns: "str | ProgressColumn", **settings: Any) -> None:
            super().__init__(*columns, **settings)
            self._start = self._last = self.get_time()

        def update(self, task_id: "TaskID", **fields: Any) -> None:
            super().update(task_id, **fields)
            now = self.get_time()
            if self.disable and now - self._last >= seconds_between_lines(now - self._start):
                self._last = now
                tasks = [task for task in self.tasks if task.visible and not task.finished]
                if tasks:
                    self.console.print("; ".join(map(self._line, tasks)))

        def _line(self, task: Task) -> str:
            parts = [f"{task.percentage:.0f}%"] if task.total else []
            for column in self.columns:
                if not isinstance(column, BarColumn):
                    parts.append(_plain(column, task))
            return " ".join(filter(None, parts))

    console = _console(sys.stderr, soft_wrap=True)
    bars = Lines(*columns, console=console, disable=not console.is_terminal, **settings)
    # What others print meanwhile goes through rich, which would read colours and links in it.
    with bars, printable_streams():
        yield bars


def seconds_between_lines(elapsed: float) -> float:
    """The time from one line of progress to the next, in a log that may grow for days.

    >>> [seconds_between_lines(elapsed) for elapsed in (0, 200, 86_400)]
    [5.0, 20.0, 60.0]
    """
    return min(60.0, max(5.0, elapsed / 10))


def _plain(column: "str | ProgressColumn", task: "Task") -> str:
    """The text of a column, empty if there is none yet."""
    from rich.progress import TimeRemainingColumn

    if isinstance(column, str):
        return column.format(task=task)
    text = str(column(task)).strip()
    if isinstance(column, TimeRemainingColumn):
        return f"{text} left" if "-" not in text else ""
    return text


@contextmanager
def progress_bar(unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that disappears at the end; yields a function that sets how much is done."""
    from rich.progress import BarColumn, TimeRemainingColumn

    with progress_bars(unit, BarColumn(), TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def program() -> str:
    """The command to type for this program, for advice on what to run next."""
    # `sia` alone is not found if the environment is not activated.
    if shutil.which("sia"):
        return "sia"
    called = Path(sys.argv[0])
    return str(called) if called.name == "sia" else "python -m scale_invariant_attention.cli"


def chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    labels_at: Sequence[float],
    marked: float | None = None,
    width: int = 64,
    height: int = 16,
) -> list[str]:
    """Draw lines, by character, over a logarithmic x axis; later ones cover earlier ones.

    Points run from left to right. A vertical line stands at the x value `marked`.

    >>> print("\\n".join(chart({"a": [(1, 0), (8, 2)]}, labels_at=[1, 8], width=8, height=3)))
      2.00 |      aa
      1.00 |  aaaa
      0.00 |aa
           +--------
            1      8
    """
    points = [point for line in lines.values() for point in line]
    left, right = (math.log(pick(x for x, _ in points)) for pick in (min, max))
    bottom, top = (pick(y for _, y in points) for pick in (min, max))

    def column(x: float) -> int:
        return round((math.log(x) - left) / (right - left) * (width - 1))

    def row(y: float) -> int:
        return round((top - y) / ((top - bottom) or 1.0) * (height - 1))

    canvas = [[" "] * width for _ in range(height)]
    if marked is not None:
        for cells in canvas:
            cells[column(marked)] = ":"
    for character, line in lines.items():
        for index in range(width):
            x = math.exp(left + (right - left) * index / (width - 1))
            y = _between(line, x)
            if y is not None:
                canvas[row(y)][index] = character
    drawn = []
    for number, cells in enumerate(canvas):
        value = top - (top - bottom) * number / (height - 1)
        drawn.append(f"{value:>6.2f} |{''.join(cells)}".rstrip())
    drawn.append(f"{'':>7}+{'-' * width}")
    drawn.append(f"{'':>8}{_labels(labels_at, column, width)}")
    return drawn


def _between(line: Sequence[Point], x: float) -> float | None:
    """The height of a line at x, straight between its points on the logarithmic axis."""
    tolerance = 1 + 1e-9
    for (x0, y0), (x1, y1) in pairwise(line):
        if x0 / tolerance <= x <= x1 * tolerance:
            share = (math.log(x) - math.log(x0)) / (math.log(x1) - math.log(x0))
            return y0 + share * (y1 - y0)
    return None


def _labels(at: Sequence[float], column: Callable[[float], int], width: int) -> str:
    cells = [" "] * (width + 1)
    for x in at:
        text = f"{x:,.0f}"
        start = min(column(x), width - len(text))
        cells[start : start + len(text)] = text
    return "".join(cells).rstrip()
