"""`sia report`: runs and records as one web page, to look at and to send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..files import check_writable, replace_file
from ..lab.reporting.web_page import render_page
from .errors import plain_errors
from .report_inputs import read_entries
from .terminal import Page

NAME = "index.html"
TITLE, ALONE = "Position schemes side by side", "Attention explorer"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...",
            help="Folders of runs, records of sia reproduce, or folders of these; without any the page "
            "is the explorer alone.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the page, index.html.")
    ] = Path("report"),
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
) -> None:
    """Write a web page of runs: tables, charts, heat maps, where they come from, and an explorer.

    The page is one file that needs no network. What sia evaluate, sia needle and sia diagnose have left
    in the folder of a run is shown with it.
    """
    with plain_errors():
        Page().line(str(write_report(runs or [], output, title=title)))


def write_report(runs: Sequence[Path], folder: Path, *, title: str | None = None) -> Path:
    """Write the page of runs and records into a folder; returns its path."""
    entries = read_entries(runs)
    check_writable(folder)
    text = render_page(entries, title=title or (TITLE if entries else ALONE))
    replace_file(folder / NAME, text.encode())
    return folder / NAME
