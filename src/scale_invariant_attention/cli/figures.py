"""`sia figures`: the paper's figures redrawn from records and from theory."""

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from .errors import plain_errors
from .options import or_bad_parameter
from .terminal import Page


def figures(
    output: Annotated[Path, Option("--output", "-o", help="Folder for the figures.")] = Path(
        "figures"
    ),
    results: Annotated[Path, Option(help="Folder of the folders of records.")] = Path("results"),
    formats: Annotated[
        str, Option(metavar="png,svg", help="File formats, separated by commas.")
    ] = "png,svg",
    page: Annotated[
        Path | None, Option(help="Also write a Markdown page with all figures.")
    ] = None,
) -> None:
    """Draw the paper's figures from records and from theory.

    For a figure whose records are missing, the command that makes them is shown instead.
    """
    from ..files import check_writable, replace_file
    from ..lab.reporting import gallery

    out = Page()
    with plain_errors():
        kinds = or_bad_parameter(lambda: gallery.parse_formats(formats))
        if page is not None and "png" not in kinds:
            raise typer.BadParameter(f"--formats must include png for --page, got {formats!r}")
        check_writable(output)
        recorded = gallery.Recorded.read(results)
        drawn = list(gallery.gallery(gallery.TheoryNumbers.computed(), recorded))
        for it in drawn:
            if isinstance(it, gallery.Missing):
                out.line(
                    f"{it.title}: not drawn, its records are missing; make them with {it.command}"
                )
                continue
            for kind in kinds:
                path = output / f"{it.name}.{kind}"
                replace_file(path, gallery.FORMATS[kind](it.figure))
                out.line(str(path))
            for ratio, fit in it.fits.items():
                out.line(f"  Delta {ratio}: {fit}")
        if page is not None:
            figures_at = Path(os.path.relpath(output, page.parent)).as_posix()
            replace_file(page, gallery.figure_page(drawn, figures_at=figures_at).encode())
            out.line(str(page))
