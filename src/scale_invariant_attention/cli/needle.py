"""`sia needle`: what a trained model finds in long contexts, by length and depth."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from ..arguments import check_field_names
from ..data import TokenStream
from ..data.needles import NeedleFormat, NeedleTask
from ..evaluation.retrieval import NeedleResult, Share, depth_edges, find_needles, needle_table
from ..files import check_writable, replace_file
from ..lab.reporting.evaluation_figures import draw_needles
from ..provenance import provenance
from ..training import TrainedModel, open_trained
from ..training.config import parse_options
from ..training.ranks import find_device
from ..training.training_data import HELD_OUT, NEEDLES, corpus_encoding, open_corpus
from .errors import plain_errors
from .meter import meter
from .page import Page
from .subject import (
    Data,
    Device,
    Lengths,
    Subject,
    beside,
    chosen_lengths,
    described,
    own_data,
    own_lengths,
)

RESULTS = "needles.json"
FIGURE = "needles.png"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def needle(
    folder: Subject,
    lengths: Lengths = None,
    depths: Annotated[
        str,
        typer.Option(
            metavar="N|P,P,...",
            help="How many equal ranges of depth, or their edges in percent: 0,10,50,90,100.",
        ),
    ] = "10",
    examples: Annotated[int, typer.Option(min=1, help="How many texts at each length.")] = 50,
    options: Annotated[
        str | None,
        typer.Option(
            "--options",
            metavar="NAME=VALUE,...",
            help="Fields of NeedleFormat: needles=3,digits=7,with_question=true,distractors=2 and "
            "others; by default those that the run was trained with.",
        ),
    ] = None,
    data: Data = None,
    device: Device = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder for the results; by default RUN/needles."),
    ] = None,
) -> None:
    """Hide sentences in text, ask a model for them, and show what it found by length and depth.

    A model has to be trained for the question first: sia train --start RUN --task needles. The texts
    are the same for every model with the same encoding. What was found is written to needles.json, and
    drawn in needles.png, where matplotlib is there.
    """
    page = Page()
    with plain_errors():
        where = find_device(device)
        trained = open_trained(folder, device=where)
        wanted = chosen_lengths(lengths, own_lengths(trained))
        edges = _edges(depths)
        name = data or own_data(trained)
        corpus = open_corpus(name, "validation", trained.model.config.vocab_size)
        task = NeedleTask(corpus, corpus_encoding(name).open(), _format(trained, options), HELD_OUT)
        for length in wanted:
            # Too short for the needles, or longer than the text: better told before than after.
            task.example(length, 0)
        results = output or beside(folder, "needles")
        check_writable(results)
        page.line(described(trained))
        page.line(f"{examples} texts at each length, with {_asked(task.format)}\n")
        found: list[NeedleResult] = []
        for length in wanted:
            with meter(f"{length:,} tokens", examples) as progress:
                found += find_needles(
                    trained.model, task, length, examples, device=where, progress=progress
                )
        table = needle_table(found, edges)
        _print_lengths(page, table["lengths"])
        _print_depths(page, table["cells"], edges)
        _write(results / RESULTS, trained, name, corpus, task.format, table)
        page.line(f"\n{results / RESULTS}")
        _draw(page, results / FIGURE, trained, table["cells"])


def _edges(given: str) -> list[float]:
    try:
        numbers = [float(word) for word in given.split(",")]
    except ValueError as error:
        raise ValueError(
            f"--depths must be a whole number, or percents with commas between them, got {given!r}"
        ) from error
    if len(numbers) == 1:
        if numbers[0] != int(numbers[0]) or numbers[0] < 1:
            raise ValueError(f"--depths must be a whole number of at least 1, got {given!r}")
        return depth_edges(int(numbers[0]))
    rising = all(low < high for low, high in pairwise(numbers))
    if not rising or numbers[0] < 0 or numbers[-1] > 100:
        raise ValueError(f"--depths must be rising percents from 0 to 100, got {given!r}")
    return [number / 100 for number in numbers]


def _format(trained: TrainedModel, options: str | None) -> NeedleFormat:
    own: Mapping[str, Any] = {}
    if trained.training is not None and trained.training.task == NEEDLES:
        own = trained.training.task_options
    given = {} if options is None else parse_options("--options", options)
    check_field_names(NeedleFormat, given)
    return NeedleFormat(**{**own, **given})


def _asked(form: NeedleFormat) -> str:
    distractors = f" and {form.distractors} distractors" if form.distractors else ""
    question = ", asked for by name" if form.with_question else ""
    noun = "needle" if form.needles == 1 else "needles"
    return f"{form.needles} {noun} of {form.digits} digits{distractors}{question}"


def _print_lengths(page: Page, rows: Sequence[Mapping[str, Any]]) -> None:
    page.table(
        ("length", "found", "of", "share", "95% interval", "log-probability"),
        [
            (
                f"{row['length']:,}",
                f"{row['found']:,}",
                f"{row['count']:,}",
                f"{row['found'] / row['count']:.3f}",
                f"{row['low']:.3f} to {row['high']:.3f}",
                f"{row['log_probability']:.2f}",
            )
            for row in rows
        ],
        numbers=True,
    )
    page.paragraph(
        "\nThe log-probability is that of a needle's whole part of the answer, in nats, if all before "
        "it is right.\n"
    )


def _print_depths(page: Page, cells: Sequence[Mapping[str, Any]], edges: Sequence[float]) -> None:
    page.heading("By depth")
    lengths = list(dict.fromkeys(cell["length"] for cell in cells))
    shares = {
        (cell["length"], cell["start"]): Share(cell["found"], cell["count"]) for cell in cells
    }
    rows = [
        (
            f"{start:.0%}-{stop:.0%}",
            *(_share(shares.get((length, start))) for length in lengths),
        )
        for start, stop in pairwise(edges)
    ]
    page.table(("depth", *(f"{length:,}" for length in lengths)), rows, numbers=True)


def _share(share: Share | None) -> str:
    return "" if share is None else str(share)


def _write(
    path: Path,
    trained: TrainedModel,
    data: str,
    corpus: TokenStream,
    form: NeedleFormat,
    table: Mapping[str, Any],
) -> None:
    contents = {
        "model": str(trained.path),
        "unfinished_at_step": trained.unfinished,
        "config": trained.model.config.to_dict(),
        "data": {
            "name": data,
            "split": "validation",
            "fingerprint": corpus.fingerprint(),
        },
        "format": asdict(form),
        "trained_length": trained.model.config.train_length,
        **table,
        "provenance": provenance(),
    }
    replace_file(path, (json.dumps(contents, indent=2, allow_nan=False) + "\n").encode())


def _draw(
    page: Page, path: Path, trained: TrainedModel, cells: Sequence[Mapping[str, Any]]
) -> None:
    config = trained.model.config
    # That of an earlier test would not belong to these results.
    path.unlink(missing_ok=True)
    try:
        picture = draw_needles(
            cells,
            title=f"Needles found, {config.scheme or 'a scheme of its own'}",
            train_length=config.train_length,
        )
    except ModuleNotFoundError as missing:
        page.line(f"No figure: {missing}")
    else:
        replace_file(path, picture)
        page.line(str(path))
