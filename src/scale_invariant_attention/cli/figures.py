"""`sia figures`: the paper's figures made anew, from records and from theory."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import check_writable, replace_file
from ..lab.experiments import theory_numbers
from ..lab.experiments.catalogue import EXPERIMENTS
from ..lab.reporting.drawing import as_png, as_svg
from ..lab.reporting.gallery import Drawing, Recorded, Records, TheoryNumbers, figure_page, gallery
from ..theory import Plain, ScaleInvariantTransform
from .errors import plain_errors
from .terminal import Page

# Wide figures: as many pixels as a page shows.
FORMATS: dict[str, Callable[[Any], bytes]] = {"png": partial(as_png, dpi=110), "svg": as_svg}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def figures(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the figures.")
    ] = Path("figures"),
    results: Annotated[
        Path, typer.Option(help="The folder of the records of the miniature.")
    ] = Path("results/mini"),
    formats: Annotated[
        str, typer.Option(metavar="png,svg", help="The kinds of files, with commas between them.")
    ] = "png,svg",
    page: Annotated[
        Path | None, typer.Option(help="Also write a page of all figures, as Markdown.")
    ] = None,
) -> None:
    """Draw the paper's figures from what is recorded, and from theory.

    Figures whose records are missing are left out, with the command that makes them.
    """
    out = Page()
    with plain_errors():
        kinds = _formats(formats)
        if page is not None and "png" not in kinds:
            raise ValueError(f"--formats must have png for a page to show, got {formats!r}")
        check_writable(output)
        found = Recorded(
            main=_records("table1", results),
            tau=_records("tau", results, seeds=range(3)),
            attention=_records("attention", results),
        )
        made = list(gallery(_theory(), found))
        for it in made:
            if isinstance(it, Drawing):
                for kind in kinds:
                    path = output / f"{it.name}.{kind}"
                    replace_file(path, FORMATS[kind](it.figure))
                    out.line(str(path))
                for ratio, fit in it.fits.items():
                    out.line(f"  Delta {ratio}: {fit}")
            else:
                out.line(f"{it.title}: left out, for want of records; {it.command} makes them")
        if page is not None:
            place = Path(os.path.relpath(output, page.parent)).as_posix()
            length = EXPERIMENTS["table1"].trials()[0].config.length
            text = figure_page(made, length=length, figures_at=place)
            replace_file(page, text.encode())
            out.line(str(page))


def _formats(given: str) -> list[str]:
    kinds = [kind.strip() for kind in given.split(",")]
    for kind in kinds:
        if kind not in FORMATS:
            raise ValueError(f"--formats must be some of {', '.join(FORMATS)}, got {kind!r}")
    return kinds


def _records(name: str, results: Path, seeds: Sequence[int] = ()) -> Records:
    """The records of an experiment, by name."""
    return {it.name: it.to_dict() for it in EXPERIMENTS[name].records(results, seeds)}


def _theory() -> TheoryNumbers:
    return TheoryNumbers(
        against_length=theory_numbers.against_length(),
        transformed=theory_numbers.range_entropies(ScaleInvariantTransform()),
        plain=theory_numbers.range_entropies(Plain()),
        transform=theory_numbers.transform_tables(),
        samples=theory_numbers.SAMPLES,
    )
