"""What the commands of `sia reproduce` have in common: their options, training, and what they print."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .. import schemes
from ..arguments import did_you_mean
from ..lab.experiments.evaluations import Evaluation
from ..lab.experiments.running import run_in_turn, run_side_by_side
from ..lab.experiments.scales import SCALES
from ..lab.experiments.trials import Trial
from ..lab.experiments.workers import WorkerDiedError
from ..lab.reporting.losses import Record, seed_rows
from ..training import DivergedError, StoppedError, TrainingConfig
from ..training.config import parse_fields
from ..training.ranks import FirstRankFailedError, is_first_rank
from .errors import INTERRUPTED, plain_errors
from .terminal import Page
from .train import training_bar

OPTIONS = (
    *("--scale", "--schemes", "--values", "--seeds", "--lengths", "--tokens", "--examples"),
    *("--contexts", "--before", "--workers", "--device", "--runs", "--results"),
    *("--print-config", "--help"),
)

# How typer is to make the commands: what they do not know is a field of the configuration.
SETTINGS: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "options_metavar": "[OPTIONS] [--FIELD VALUE]...",
    "epilog": "Fields: " + ", ".join(field.name for field in fields(TrainingConfig)) + ".",
}

ScaleName = Annotated[
    str,
    typer.Option("--scale", metavar="mini|paper", help="On CPUs, or the paper's own on GPUs."),
]
Schemes = Annotated[
    str | None, typer.Option("--schemes", metavar="NAME,NAME", help="By default all twelve.")
]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")]
Lengths = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="To evaluate at, if not those of the scale.")
]
Tokens = Annotated[
    int | None, typer.Option(min=1, help="To score at each length, if not those of the scale.")
]
Examples = Annotated[
    int | None, typer.Option(min=1, help="To test at each length, if not those of the scale.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Small trainings at a time, each on one core; by default all cores."),
]
Device = Annotated[
    str | None, typer.Option(help="For the paper's scale; by default a GPU if there is one.")
]
Runs = Annotated[
    Path | None, typer.Option(help="The folder for the trainings; by default runs/SCALE.")
]
Results = Annotated[
    Path | None,
    typer.Option(help="The folder for the records, a JSON file each; by default results/SCALE."),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Show every configuration, and do nothing.")
]


SomeEvaluation = TypeVar("SomeEvaluation", bound=Evaluation)


@dataclass(frozen=True)
class Request:
    """What the commands have in common, as given: a scale by name, and changes of its recipe."""

    scale: str
    changes: dict[str, Any]
    lengths: tuple[int, ...] | None
    workers: int | None
    device: str | None
    runs: Path
    results: Path
    print_config: bool

    def measuring(self, evaluation: SomeEvaluation, **given: int | None) -> SomeEvaluation:
        """An evaluation with the lengths and numbers that were given, and its own otherwise."""
        wanted = {"lengths": self.lengths, **given}
        changes: dict[str, Any] = {name: it for name, it in wanted.items() if it is not None}
        return replace(evaluation, **changes)


@dataclass(frozen=True)
class Shown:
    """What a command shows of its records, by length: a line when each is done, the table of all."""

    heading: str
    label: Callable[[Record], str]
    values: Callable[[Record], Mapping[int, float]]


def read_request(context: typer.Context, given: Mapping[str, Any]) -> Request:
    """What is common of the arguments of a command, checked."""
    name = given.get("scale", "mini")
    if name not in SCALES:
        raise typer.BadParameter(
            f"there is no scale {name!r}{did_you_mean(name, SCALES)}; the scales are: "
            f"{', '.join(SCALES)}",
            param_hint="'--scale'",
        )
    changes = made(lambda: parse_fields(context.args, options=OPTIONS))
    for field, option in (("scheme", "--schemes, or the experiment"), ("seed", "--seeds")):
        if field in changes:
            raise typer.BadParameter(f"--{field} cannot be set: {option} sets it for each training")
    lengths = given["lengths"]
    return Request(
        scale=name,
        changes=changes,
        lengths=None if lengths is None else numbers("--lengths", lengths, int),
        workers=given["workers"],
        device=given["device"],
        runs=given["runs"] or Path("runs") / name,
        results=given["results"] or Path("results") / name,
        print_config=given["print_config"],
    )


def scheme_names(given: str | None) -> tuple[str, ...]:
    """Those of a list with commas; none means all."""
    names = () if given is None else tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in schemes.names():
            hint = did_you_mean(name, schemes.names())
            raise typer.BadParameter(f"there is no scheme {name!r}{hint}", param_hint="'--schemes'")
    return names


def numbers(option: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Those of a list with commas."""
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError as error:
        raise typer.BadParameter(
            f"must be numbers with commas between them, got {text!r}", param_hint=f"'{option}'"
        ) from error


def made(make: Callable[[], Any]) -> Any:
    """What is made; what is wrong with it is a wrong argument."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error


def reproduce(request: Request, trials: Sequence[Trial], shown: Shown) -> None:
    """Train what is not recorded, and print the table of all."""
    page = Page()
    if request.print_config:
        configs = {trial.name: trial.config.to_dict() for trial in trials}
        page.line(json.dumps(configs, indent=2))
        return
    records: dict[str, Record] = {}

    def keep(trial: Trial, record: Record) -> str:
        records[trial.name] = record
        values = ", ".join(f"{it:.4f} at {n:,}" for n, it in shown.values(record).items())
        return f"{trial.name}: {values} ({len(records)} of {len(trials)})"

    try:
        with plain_errors(DivergedError, WorkerDiedError):
            if request.scale == "mini":
                _side_by_side(request, trials, keep)
            else:
                _in_turn(request, trials, keep)
    except StoppedError as stopped:
        if is_first_rank():
            typer.echo(str(stopped), err=True)
        raise typer.Exit(INTERRUPTED) from stopped
    except FirstRankFailedError as failed:
        raise typer.Exit(1) from failed
    except KeyboardInterrupt as interrupted:
        typer.echo(
            f"Broken off, with {len(records)} of {len(trials)} recorded in {request.results}. Run the "
            f"same command again to go on.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from interrupted
    if is_first_rank():
        lengths = trials[0].evaluation.lengths
        rows = seed_rows((records[trial.name] for trial in trials), shown.label, shown.values)
        page.table(
            (shown.heading, *(f"{length:,}" for length in lengths)),
            [(row.label, *map(str, row.spreads.values())) for row in rows],
        )


def _side_by_side(
    request: Request, trials: Sequence[Trial], keep: Callable[[Trial, Record], str]
) -> None:
    with steps_bar(sum(trial.steps for trial in trials)) as (bar, update):
        run_side_by_side(
            trials,
            request.runs,
            request.results,
            workers=request.workers or os.cpu_count() or 1,
            watch=lambda steps: update(sum(steps.values())),
            done=lambda trial, record: bar.console.print(keep(trial, record)),
        )


def _in_turn(
    request: Request, trials: Sequence[Trial], keep: Callable[[Trial, Record], str]
) -> None:
    with training_bar() as (watch, notice):
        run_in_turn(
            trials,
            request.runs,
            request.results,
            device=request.device,
            watch=watch,
            notice=notice,
            done=lambda trial, record: notice(keep(trial, record)),
        )


@contextmanager
def steps_bar(total: int) -> Iterator[tuple[Progress, Callable[[int], None]]]:
    """A bar over all steps of all trainings."""
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    columns = (
        TextColumn("all trainings"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield bar, lambda steps: bar.update(task, completed=steps)
