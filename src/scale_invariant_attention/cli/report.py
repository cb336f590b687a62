"""`sia report`: runs and records as one web page."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .errors import plain_errors
from .terminal import Page


def report(
    runs: Annotated[
        list[Path] | None,
        Argument(
            metavar="RUNS",
            help="Folders of runs, records of sia reproduce, names of pretrained models, or folders of "
            "these; without any, the page is the explorer alone.",
        ),
    ] = None,
    output: Annotated[
        Path, Option("--output", "-o", help="Folder for the page, index.html.")
    ] = Path("report"),
    title: Annotated[str | None, Option(help="Title of the page.")] = None,
) -> None:
    """Write a web page about runs: tables, charts, heat maps, provenance, and an explorer.

    The page is a single file that needs no network. It includes the results that sia evaluate,
    sia needle and sia diagnose saved in the folder of a run.
    """
    from ..lab.reporting.web_page import write_report

    with plain_errors():
        Page().line(str(write_report(runs or [], output, title=title)))
