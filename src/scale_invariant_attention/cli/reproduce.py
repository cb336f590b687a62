"""`sia reproduce`: the paper's tables and figures, one command per experiment."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from ..lab.experiments.catalogue import EXPERIMENTS, Experiment
from .errors import INTERRUPTED, plain_errors
from .terminal import Page

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..lab.experiments.trials import Trial
    from ..lab.records import Record

T = TypeVar("T")

app = typer.Typer(
    help="Reproduce the paper's tables and figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


class _TrainingCommand(TyperCommand):
    """A command that takes fields of ``TrainingConfig`` too, and lists them at the end of its help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from dataclasses import fields

        from ..training import TrainingConfig

        self.epilog = "Fields: " + ", ".join(field.name for field in fields(TrainingConfig)) + "."
        super().format_epilog(ctx, formatter)


def _add_command(experiment: Experiment) -> None:
    """Add the command of an experiment, with the options that it has."""

    def command(context: typer.Context, **given: Any) -> None:
        _reproduce(experiment, context.args, given)

    command.__signature__ = Signature(_parameters(experiment))  # type: ignore[attr-defined]
    settings: dict[str, Any] = {}
    if not experiment.in_one_process:
        settings = {
            "cls": _TrainingCommand,
            # Unknown options are fields of the configuration.
            "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
            "options_metavar": "[OPTIONS] [--FIELD VALUE]...",
        }
    app.command(name=experiment.name, help=experiment.help, **settings)(command)


def _parameters(experiment: Experiment) -> list[Parameter]:
    """The parameters of a command, as typer reads them from a function."""
    options: dict[str, tuple[Any, Any, Any]] = {}
    if experiment.scales:
        help_text = "On CPUs, or the paper's own on GPUs."
        if len(experiment.scales) == 1:
            help_text = "In miniature, on CPUs."
        metavar = "|".join(experiment.scales)
        options["scale"] = (str, "mini", typer.Option(metavar=metavar, help=help_text))
    metavar = "NAME,NAME" if experiment.compares == "schemes" else "X,X,..."
    default = f"Default: {experiment.default}."
    options[experiment.compares] = (
        str | None,
        None,
        typer.Option(metavar=metavar, help=default),
    )
    options["seeds"] = (
        int,
        experiment.seeds,
        typer.Option(min=1, help="Number of seeds, from 0 on."),
    )
    if experiment.size is not None:
        options["lengths"] = (
            str | None,
            None,
            typer.Option(
                metavar="N,N,...", help="Context lengths to evaluate; default: the scale's."
            ),
        )
        options[experiment.size] = (
            int | None,
            None,
            typer.Option(
                min=1, help=f"{SIZES[experiment.size]} each length; default: the scale's."
            ),
        )
    if experiment.starts_from_training:
        help_text = (
            "Fields of the trainings that fine-tuning starts from; default: those of table1."
        )
        options["before"] = (
            str | None,
            None,
            typer.Option(metavar="'FIELD=VALUE ...'", help=help_text),
        )
    if not experiment.in_one_process:
        help_text = "Small trainings at a time, each on one core; default: one per core."
        options["workers"] = (int | None, None, typer.Option(min=1, help=help_text))
        help_text = "Device for the paper's scale; default: a GPU if there is one."
        options["device"] = (str | None, None, typer.Option(help=help_text))
    help_text = "Folder for the trainings; default: runs/SCALE."
    options["runs"] = (Path | None, None, typer.Option(help=help_text))
    help_text = "Folder for the records, one JSON file each; default: results/SCALE."
    options["results"] = (Path | None, None, typer.Option(help=help_text))
    help_text = "Print every configuration and exit."
    options["print_config"] = (bool, False, typer.Option("--print-config", help=help_text))
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    return [context] + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[kind, option])
        for name, (kind, value, option) in options.items()
    ]


# The options that set the size of an evaluation.
SIZES = {
    "tokens": "Tokens to score at",
    "examples": "Examples to test at",
    "contexts": "Contexts to read at",
}


def _reproduce(experiment: Experiment, words: Sequence[str], given: Mapping[str, Any]) -> None:
    """Train what is not recorded yet, and print the table of all."""
    with plain_errors(ImportError):
        trials = _or_bad_parameter(lambda: _trials(experiment, words, given))
    page = Page()
    if given["print_config"]:
        configs = {trial.name: trial.printed_config for trial in trials}
        page.line(json.dumps(configs, indent=2))
        return
    records = _run(experiment, trials, given)
    if records is None:
        return
    from ..lab.seeds import seed_rows
    from ..lab.tables import length_table

    rows = seed_rows(records, experiment.label, experiment.values)
    table = length_table(rows, experiment.heading, lengths=trials[0].evaluation.lengths)
    page.table(table.header, table.texts())


def _trials(
    experiment: Experiment, words: Sequence[str], given: Mapping[str, Any]
) -> "list[Trial[Any]]":
    """The trials that a command asks for."""
    from ..training.config import parse_fields

    compared: tuple[Any, ...] = ()
    text = given[experiment.compares]
    if experiment.compares == "values" and text:
        compared = _numbers("--values", text, float)
    elif experiment.compares == "schemes" and text is not None:
        compared = _scheme_names(text)
    changes: dict[str, Any] = {}
    if not experiment.in_one_process:
        fields = parse_fields(words, options=[f"--{name}" for name in (*given, "help")])
        for field, option in (("scheme", "--schemes, or the experiment"), ("seed", "--seeds")):
            if field in fields:
                raise ValueError(f"--{field} cannot be set: {option} sets it for each training")
        changes["changes"] = fields
    if experiment.size is not None:
        lengths = given["lengths"]
        evaluation = {
            "lengths": None if lengths is None else _numbers("--lengths", lengths, int),
            experiment.size: given[experiment.size],
        }
        changes["evaluation"] = {name: it for name, it in evaluation.items() if it is not None}
    if experiment.starts_from_training:
        before = (given["before"] or "").split()
        changes["before"] = parse_fields([f"--{field}" for field in before])
    return experiment.trials(
        given.get("scale", "mini"), compared, tuple(range(given["seeds"])), **changes
    )


def _scheme_names(text: str) -> tuple[str, ...]:
    """Names of schemes from a list with commas."""
    from .. import schemes

    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        try:
            schemes.entry(name)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="'--schemes'") from error
    return names


def _numbers(option: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Numbers from a list with commas."""
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError as error:
        raise typer.BadParameter(
            f"must be numbers with commas between them, got {text!r}", param_hint=f"'{option}'"
        ) from error


def _or_bad_parameter(make: Callable[[], T]) -> T:
    """The result of a function whose errors are the fault of an option."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error


def _run(
    experiment: Experiment, trials: "Sequence[Trial[Any]]", given: Mapping[str, Any]
) -> "list[Record[Any]] | None":
    """Train what is not recorded yet and return all records; None on ranks other than the first."""
    from ..lab.experiments.running import WorkerDiedError
    from ..training import DivergedError, StoppedError
    from ..training.ranks import FirstRankFailedError, is_first_rank

    scale = given.get("scale", "mini")
    results = given["results"] or Path("results") / scale
    folders = (given["runs"] or Path("runs") / scale, results)
    records: dict[str, Record[Any]] = {}

    def keep(trial: "Trial[Any]", record: "Record[Any]") -> str:
        records[trial.name] = record
        values = ", ".join(f"{it:.4f} at {n:,}" for n, it in experiment.values(record).items())
        return f"{trial.name}: {values} ({len(records)} of {len(trials)})"

    try:
        with plain_errors(DivergedError, WorkerDiedError):
            if experiment.in_one_process:
                _run_in_one_process(trials, folders, keep)
            elif scale == "mini":
                _run_side_by_side(trials, folders, given["workers"], keep)
            else:
                _run_in_turn(trials, folders, given["device"], keep)
    except StoppedError as stopped:
        if is_first_rank():
            typer.echo(str(stopped), err=True)
        raise typer.Exit(INTERRUPTED) from stopped
    except FirstRankFailedError as failed:
        raise typer.Exit(1) from failed
    except KeyboardInterrupt as interrupted:
        typer.echo(
            f"Interrupted, with {len(records)} of {len(trials)} recorded in {results}. Rerun the same "
            f"command to resume.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from interrupted
    return [records[trial.name] for trial in trials] if is_first_rank() else None


Keep = Callable[["Trial[Any]", "Record[Any]"], str]


def _run_side_by_side(
    trials: "Sequence[Trial[Any]]", folders: tuple[Path, Path], workers: int | None, keep: Keep
) -> None:
    from ..lab.experiments.running import run_side_by_side, steps_done

    with _steps_bar(trials) as (bar, update):
        run_side_by_side(
            trials,
            *folders,
            workers=workers or os.cpu_count() or 1,
            watch=lambda steps: update(steps_done(trials, steps)),
            done=lambda trial, record: bar.console.print(keep(trial, record)),
        )


def _run_in_one_process(
    trials: "Sequence[Trial[Any]]", folders: tuple[Path, Path], keep: Keep
) -> None:
    from ..lab.experiments.running import run_in_turn, steps_done

    steps: dict[str, int] = {}
    with _steps_bar(trials) as (bar, update):

        def watch(trial: "Trial[Any]", step: int) -> None:
            steps[trial.name] = step
            update(steps_done(trials, steps))

        def done(trial: "Trial[Any]", record: "Record[Any]") -> None:
            watch(trial, sum(trial.training_steps.values()))
            bar.console.print(keep(trial, record))

        run_in_turn(trials, *folders, watch=lambda trial, now: watch(trial, now.step), done=done)


def _run_in_turn(
    trials: "Sequence[Trial[Any]]", folders: tuple[Path, Path], device: str | None, keep: Keep
) -> None:
    from ..lab.experiments.running import run_in_turn
    from .train import training_bar

    with training_bar() as (watch, notice):
        run_in_turn(
            trials,
            *folders,
            device=device,
            watch=lambda trial, now: watch(now),
            notice=notice,
            done=lambda trial, record: notice(keep(trial, record)),
        )


@contextmanager
def _steps_bar(
    trials: "Sequence[Trial[Any]]",
) -> "Iterator[tuple[Progress, Callable[[int], None]]]":
    """A progress bar over all steps of all trainings."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    from ..lab.experiments.running import total_steps

    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    columns = (
        TextColumn("all trainings"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total_steps(trials))
        yield bar, lambda steps: bar.update(task, completed=steps)


for _experiment in EXPERIMENTS.values():
    _add_command(_experiment)


@app.command(name="page")
def write_page(
    results: Annotated[Path, typer.Option(help="Folder of the miniature's records.")] = Path(
        "results/mini"
    ),
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path(
        "REPRODUCTION.md"
    ),
    figures: Annotated[Path, typer.Option(help="Folder for its figures.")] = Path("docs"),
) -> None:
    """Write REPRODUCTION.md and its figures from the records that there are."""
    with plain_errors(ImportError):
        from ..files import check_writable, replace_file
        from ..lab.reporting.reproduction import page_and_figures

        seeds = range(EXPERIMENTS["table1"].seeds)
        main = EXPERIMENTS["table1"].records(results)
        if not main:
            raise FileNotFoundError(
                f"there is no record of Table 1 in {results}; sia reproduce table1 writes them"
            )
        swept = {name: EXPERIMENTS[name].records(results, seeds) for name in ("tau", "base")}
        needles = EXPERIMENTS["table2"].records(results)
        recalled = EXPERIMENTS["recall"].records(results)
        # Only these need transformers.
        has_conversions = any(results.glob("table4-*.json"))
        converted = EXPERIMENTS["table4"].records(results, seeds) if has_conversions else []
        check_writable(figures)
        text, drawn = page_and_figures(
            main,
            swept,
            needles,
            recalled,
            converted,
            figures_at=Path(os.path.relpath(figures, output.parent)).as_posix(),
        )
        for name, picture in drawn.items():
            replace_file(figures / name, picture)
        replace_file(output, text.encode())
    Page().line(str(output))
