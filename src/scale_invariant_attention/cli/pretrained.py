"""`sia pretrained`: the pretrained models, what was measured of them, and where they are."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .errors import plain_errors
from .options import AsJson
from .terminal import Page

if TYPE_CHECKING:
    from ..model import PretrainedModel

HEADINGS = {
    "loss": "Loss by context length, trained at",
    "needles": "Share of needles found by context length, fine-tuned at",
}


def pretrained(
    name: Annotated[
        str | None,
        Argument(
            metavar="NAME",
            help="A model to show the card of; it is downloaded if it is not on this machine.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        Option(
            "--from",
            metavar="FOLDER|URL",
            help="Folder or address of the models; by default $SIA_PRETRAINED, pretrained/ here or in "
            "the repository, the cache, or the release of this version.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the pretrained models, or show the card of one.

    Their names can be given wherever a command takes the folder of a run: sia generate, evaluate,
    needle, diagnose and export, and sia train --start. In Python: GPT.from_pretrained(NAME). Every file
    is verified by its SHA-256 before it is used. Results of sia evaluate and the like go to runs/NAME.
    """
    page = Page(quiet=as_json)
    with plain_errors():
        from ..arguments import did_you_mean
        from ..model import find_pretrained, pretrained_models
        from ..model.pretrained import CARD

        models = pretrained_models()
        if name is not None:
            if name not in models:
                hint = did_you_mean(name, models)
                raise typer.BadParameter(
                    f"there is no pretrained model {name!r}{hint}; the models are: {', '.join(models)}"
                )
            folder = find_pretrained(name, source=source, notice=_notice)
            models = {name: models[name]}
            page.line((folder / CARD).read_text(encoding="utf-8"))
            page.line(f"Verified, in {folder}")
        else:
            _print_tables(page, list(models.values()))
            _print_places(page, list(models.values()), source)
        if as_json:
            listed = [
                asdict(it) | {"bytes": it.bytes, "folder": _folder(it, source)}
                for it in models.values()
            ]
            typer.echo(json.dumps(listed, indent=2))


def _print_tables(page: Page, models: "Sequence[PretrainedModel]") -> None:
    from ..files import amount

    for measured, heading in HEADINGS.items():
        shown = [it for it in models if it.measured == measured]
        if not shown:
            continue
        page.heading(f"{heading} {shown[0].train_length} tokens")
        lengths = list(shown[0].by_length)
        page.table(
            ("name", "scheme", *(f"{length:,}" for length in lengths), "size"),
            [
                (
                    it.name,
                    it.scheme,
                    *(f"{it.by_length[length]:.3f}" for length in lengths),
                    amount(it.bytes),
                )
                for it in shown
            ],
        )


def _print_places(page: Page, models: "Sequence[PretrainedModel]", source: str | None) -> None:
    from ..model.pretrained import download_address

    address = download_address(source)
    elsewhere = "Not found" if address is None else f"Downloaded on first use, from {address}"
    by_place: dict[str, list[str]] = {}
    for it in models:
        folder = it.found_in(source)
        place = elsewhere if folder is None else f"In {folder.parent}"
        by_place.setdefault(place, []).append(it.name)
    page.line("")
    for place, names in by_place.items():
        page.line(f"{place}: {', '.join(names)}")


def _folder(model: "PretrainedModel", source: str | None) -> str | None:
    folder = model.found_in(source)
    return None if folder is None else str(folder)


def _notice(text: str) -> None:
    typer.echo(text, err=True)
