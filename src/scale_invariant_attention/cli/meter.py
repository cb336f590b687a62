"""A bar on a terminal for work that takes a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def meter(unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that leaves no trace; what is given is called with how much is done."""
    console = Console(stderr=True)
    columns = (TextColumn(unit), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
