"""`sia reproduce page`, `leaderboard-page` and `images-page`: pages written from records."""

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from .errors import plain_errors
from .terminal import Page


def write_page(
    results: Annotated[Path, Option(help="Folder of the folders of records.")] = Path("results"),
    output: Annotated[Path, Option("--output", "-o", help="The page.")] = Path("REPRODUCTION.md"),
    figures: Annotated[Path, Option(help="Folder for its figures.")] = Path("docs"),
    readme: Annotated[
        Path | None, Option(help="Also update the sections of this page that show results.")
    ] = None,
    gallery: Annotated[
        Path | None,
        Option(help="Also write the gallery of schemes, with pictures in a folder of its name."),
    ] = None,
) -> None:
    """Write REPRODUCTION.md and its figures from the records that there are."""
    with plain_errors(ImportError):
        from ..files import check_writable, replace_file
        from ..lab.reporting.evidence import Evidence
        from ..lab.reporting.reproduction import (
            page_and_figures,
            readme_extensions,
            readme_results,
            with_section,
        )
        from ..lab.reporting.scheme_gallery import gallery_and_pictures

        evidence = Evidence.read(results)
        check_writable(figures)
        figures_at = Path(os.path.relpath(figures, output.parent)).as_posix()
        text, drawn = page_and_figures(evidence, figures_at=figures_at)
        pages = {output: text}
        if readme is not None:
            figures_at = Path(os.path.relpath(figures, readme.parent)).as_posix()
            section = readme_results(evidence, figures_at=figures_at)
            shown = with_section(readme.read_text(), "results", section)
            pages[readme] = with_section(shown, "extensions", readme_extensions(evidence))
        files = {figures / name: picture for name, picture in drawn.items()}
        if gallery is not None:
            folder = gallery.with_suffix("")
            pages[gallery], pictures = gallery_and_pictures(evidence.mini, pictures_at=folder.name)
            files |= {folder / name: picture.encode() for name, picture in pictures.items()}
            folder.mkdir(exist_ok=True)
        for path, content in files.items():
            replace_file(path, content)
        for path, page in pages.items():
            replace_file(path, page.encode())
    Page().line(str(output))


def write_leaderboard(
    results: Annotated[Path, Option(help="Folder of the records.")] = Path("results/leaderboard"),
    output: Annotated[Path, Option("--output", "-o", help="The page.")] = Path(
        "docs/leaderboard.md"
    ),
) -> None:
    """Write the page of the leaderboard from the records that there are."""
    with plain_errors():
        from ..files import replace_file
        from ..lab.experiments.leaderboard import read_leaderboard
        from ..lab.reporting.leaderboard import leaderboard_page

        replace_file(output, leaderboard_page(read_leaderboard(results)).encode())
    Page().line(str(output))


def write_images(
    results: Annotated[
        Path, Option(help="Folder of the folders `images` and `masked` of records.")
    ] = Path("results"),
    output: Annotated[Path, Option("--output", "-o", help="The page.")] = Path("docs/images.md"),
) -> None:
    """Write the page of encoders and images from the records that there are."""
    with plain_errors():
        from ..files import replace_file
        from ..lab.experiments.catalogue import EXPERIMENTS
        from ..lab.reporting.images import images_page

        images, masked = (EXPERIMENTS[name].records(results) for name in ("images", "masked"))
        replace_file(output, images_page(images, masked).encode())
    Page().line(str(output))
