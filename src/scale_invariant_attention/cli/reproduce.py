"""`sia reproduce`: tables of the paper, trained anew."""

import os
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .. import schemes
from ..experiments import table1
from ..experiments.trials import Trial, run_trials
from ..theory.arguments import did_you_mean
from .errors import plain_errors
from .page import Page

app = typer.Typer(
    help="Tables of the paper, trained anew.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _reproduce() -> None:
    # With a callback a single command keeps its name.
    pass


@app.command(name="table1")
def reproduce_table1(
    chosen: Annotated[
        list[str] | None,
        typer.Option("--schemes", metavar="NAME,NAME", help="By default all twelve."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")] = 3,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trainings at a time, each on one core; all cores.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="The folder for the trainings.")] = Path(
        "runs/table1-mini"
    ),
    results: Annotated[
        Path, typer.Option(help="The folder for the records, one JSON file a training.")
    ] = Path("results/table1-mini"),
) -> None:
    """Table 1 in miniature: loss at the trained length, and at 4 and 16 times it.

    Broken off, it goes on when it is run again; what is recorded is not trained again.
    """
    names = tuple(name for word in chosen or () for name in word.split(",") if name)
    for name in names:
        if name not in schemes.names():
            hint = did_you_mean(name, schemes.names())
            raise typer.BadParameter(f"there is no scheme {name!r}{hint}", param_hint="'--schemes'")
    trials = table1.mini_trials(names, tuple(range(seeds)))
    records: list[dict[str, Any]] = []
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    total = sum(trial.config.steps for trial in trials)
    with (
        plain_errors(),
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task(f"0 of {len(trials)} trainings", total=total)

        def done(trial: Trial, record: dict[str, Any]) -> None:
            records.append(record)
            losses = ", ".join(
                f"{row['loss']:.4f} at {row['length']:,}" for row in record["losses"]
            )
            bar.console.print(f"{trial.name}: {losses}", highlight=False)
            bar.update(task, description=f"{len(records)} of {len(trials)} trainings")

        run_trials(
            trials,
            runs,
            results,
            workers=workers or os.cpu_count() or 1,
            watch=lambda steps: bar.update(task, completed=steps),
            done=done,
        )
    page = Page()
    header = ("scheme", *(f"{length:,}" for length in table1.MINI_LENGTHS))
    page.table(
        header, ((row.scheme, *map(_cell, row.losses.values())) for row in table1.rows(records))
    )


def _cell(losses: list[float]) -> str:
    if len(losses) == 1:
        return f"{losses[0]:.4f}"
    return f"{mean(losses):.4f} +/- {stdev(losses) / len(losses) ** 0.5:.4f}"
