"""`sia needle`: what a trained model retrieves from long contexts, by length and depth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from .errors import plain_errors
from .options import (
    AsJson,
    Data,
    Device,
    Lengths,
    ModelFolder,
    check_data_option,
    device_named,
    numbers,
    or_bad_parameter,
)
from .terminal import Page, counted, progress_bar

if TYPE_CHECKING:
    from ..data.needles import NeedleFormat
    from ..evaluation.retrieval import NeedleResult
    from ..training import TrainedModel


def needle(
    folder: ModelFolder,
    lengths: Lengths = None,
    depths: Annotated[
        str,
        Option(
            metavar="N|P,P,...",
            help="Number of equal ranges of depth, or their edges in percent: 0,10,50,90,100.",
        ),
    ] = "10",
    examples: Annotated[int, Option(min=1, help="Number of texts at each length.")] = 50,
    options: Annotated[
        str | None,
        Option(
            "--options",
            metavar="NAME=VALUE,...",
            help="Fields of NeedleFormat, such as needles=3,digits=7,with_question=true,distractors=2; "
            "by default those that the run was trained with.",
        ),
    ] = None,
    data: Data = None,
    device: Device = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Folder for the results; by default RUN/needles."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hide sentences in text, ask a model for them, and show how many it finds by length and depth.

    The model must be fine-tuned for the question first: sia train --start RUN --task needles. All
    models with the same encoding get the same texts. Writes needles.json, and needles.png if matplotlib
    is installed.
    """
    page = Page(quiet=as_json)
    with plain_errors():
        from ..data.needles import NeedleTask
        from ..evaluation.retrieval import find_needles, needle_table
        from ..files import check_writable
        from ..lab.measurements import NeedleCell
        from ..lab.reporting.evaluation_figures import draw_needles
        from ..lab.trained_models import results_folder, subject_of
        from ..training import open_trained
        from ..training.training_data import HELD_OUT, corpus_encoding

        where = device_named(device)
        check_data_option(data)
        edges = _edges(depths)
        trained = open_trained(folder, device=where)
        results = output or results_folder(folder, "needles")
        subject = subject_of(trained, numbers("--lengths", lengths, at_least=1), data, results)
        encoding = corpus_encoding(subject.data).open()
        task = NeedleTask(subject.corpus, encoding, _format(trained, options), HELD_OUT)
        for length in subject.lengths:
            # Fail now if a length is too short for the needles or longer than the text.
            or_bad_parameter(partial(task.example, length, 0), "--lengths")
        check_writable(results)
        page.line(subject.description)
        page.line(
            f"{counted(examples, 'text')} at each length, with {_describe_format(task.format)}\n"
        )
        found: list[NeedleResult] = []
        for length in subject.lengths:
            with progress_bar(f"{length:,} tokens", examples) as progress:
                found += find_needles(
                    trained.model, task, length, examples, device=where, progress=progress
                )
        table = needle_table(found, edges)
        _print_lengths(page, table["lengths"])
        _print_depths(page, table["cells"], edges)
        config = trained.model.config
        lines = subject.write_results(
            ("needles.json", "needles.png"),
            {"format": asdict(task.format), "trained_length": config.train_length, **table},
            lambda: draw_needles(
                [NeedleCell(**cell) for cell in table["cells"]],
                title=f"Needles found, {config.scheme_name or 'a custom scheme'}",
                train_length=config.train_length,
            ),
        )
        page.line("\n" + "\n".join(lines))
        if as_json:
            typer.echo((results / "needles.json").read_text(encoding="utf-8"), nl=False)


def _edges(given: str) -> list[float]:
    from ..evaluation.retrieval import depth_edges

    try:
        numbers = [float(word) for word in given.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"--depths must be a whole number, or percentages separated by commas, got {given!r}"
        ) from error
    if len(numbers) == 1:
        if numbers[0] != int(numbers[0]) or numbers[0] < 1:
            raise typer.BadParameter(
                f"--depths must be a whole number of at least 1, got {given!r}"
            )
        return depth_edges(int(numbers[0]))
    increasing = all(low < high for low, high in pairwise(numbers))
    if not increasing or numbers[0] < 0 or numbers[-1] > 100:
        raise typer.BadParameter(
            f"--depths must be increasing percentages from 0 to 100, got {given!r}"
        )
    return [number / 100 for number in numbers]


def _format(trained: "TrainedModel", options: str | None) -> "NeedleFormat":
    from ..arguments import check_field_names
    from ..data.needles import NeedleFormat
    from ..training.config import parse_options
    from ..training.training_data import NEEDLES

    of_run: Mapping[str, Any] = {}
    if trained.training is not None and trained.training.task == NEEDLES:
        of_run = trained.training.task_options

    def build() -> NeedleFormat:
        given = {} if options is None else parse_options("--options", options)
        check_field_names(NeedleFormat, given)
        return NeedleFormat(**{**of_run, **given})

    return or_bad_parameter(build, "--options")


def _describe_format(form: "NeedleFormat") -> str:
    distractors = f" and {counted(form.distractors, 'distractor')}" if form.distractors else ""
    question = ", asked for by name" if form.with_question else ""
    needles, digits = counted(form.needles, "needle"), counted(form.digits, "digit")
    return f"{needles} of {digits}{distractors}{question}"


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
        "\nThe log-probability, in nats, is that of a needle's part of the answer, given that the "
        "answer is correct up to there.\n"
    )


def _print_depths(page: Page, cells: Sequence[Mapping[str, Any]], edges: Sequence[float]) -> None:
    from ..evaluation.shares import Share

    page.heading("By depth")
    lengths = list(dict.fromkeys(cell["length"] for cell in cells))
    shares = {
        (cell["length"], cell["start"]): str(Share(cell["found"], cell["count"])) for cell in cells
    }
    rows = [
        (f"{start:.0%}-{stop:.0%}", *(shares.get((length, start), "") for length in lengths))
        for start, stop in pairwise(edges)
    ]
    page.table(("depth", *(f"{length:,}" for length in lengths)), rows, numbers=True)
