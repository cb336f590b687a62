"""`sia reproduce`: tables and figures of the paper, trained anew."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .. import schemes
from ..experiments import sweeps, table1
from ..experiments.running import run_in_turn, run_side_by_side
from ..experiments.scales import SCALES, Scale
from ..experiments.trials import Trial, recorded
from ..experiments.workers import WorkerDiedError
from ..files import check_writable, replace_file
from ..reporting.losses import Record, loss_rows, option_of, scheme_of
from ..reporting.reproduction import page_and_figures
from ..theory.arguments import did_you_mean
from ..training import DivergedError, StoppedError, TrainingConfig
from ..training.fields import parse_fields
from ..training.ranks import FirstRankFailedError, is_first_rank
from .errors import plain_errors
from .page import Page
from .train import STOPPED, training_bar

app = typer.Typer(
    help="Tables and figures of the paper, trained anew.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OPTIONS = (
    *("--scale", "--schemes", "--values", "--seeds", "--lengths", "--tokens", "--workers"),
    *("--device", "--runs", "--results", "--print-config", "--help"),
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
Lengths = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="To evaluate at, if not those of the scale.")
]
Tokens = Annotated[
    int | None, typer.Option(min=1, help="To score at each length, if not those of the scale.")
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


@dataclass(frozen=True)
class Request:
    """What the commands have in common, as given."""

    scale: Scale
    changes: dict[str, Any]
    workers: int | None
    device: str | None
    runs: Path
    results: Path
    print_config: bool
    side_by_side: bool


@app.command(name="table1", **SETTINGS)
def reproduce_table1(
    context: typer.Context,
    scale: ScaleName = "mini",
    chosen: Annotated[
        str | None,
        typer.Option("--schemes", metavar="NAME,NAME", help="By default all twelve."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")] = 3,
    lengths: Lengths = None,
    tokens: Tokens = None,
    workers: Workers = None,
    device: Device = None,
    runs: Runs = None,
    results: Results = None,
    print_config: PrintConfig = False,
) -> None:
    """Table 1: loss at the trained length, and at 4 and 16 times it, for every scheme.

    Broken off, it goes on when it is run again; what is recorded is not trained again. Fields of the
    configuration can be set as for sia train. On several GPUs: torchrun --nproc-per-node 8 -m
    scale_invariant_attention.cli reproduce table1 --scale paper --data shards:FOLDER.
    """
    request = _request(context, locals())
    names = () if chosen is None else tuple(name.strip() for name in chosen.split(","))
    for name in names:
        if name not in schemes.names():
            hint = did_you_mean(name, schemes.names())
            raise typer.BadParameter(f"there is no scheme {name!r}{hint}", param_hint="'--schemes'")
    trials = _made(
        lambda: table1.trials(request.scale, names, tuple(range(seeds)), request.changes)
    )
    _reproduce(request, trials, "scheme", scheme_of)


def _sweep(option: str, help_text: str) -> None:
    """Make the command that changes one option of scale-invariant p-RoPE."""

    @app.command(name=option, help=help_text, **SETTINGS)
    def reproduce_sweep(
        context: typer.Context,
        scale: ScaleName = "mini",
        values: Annotated[
            str | None,
            typer.Option(
                metavar="X,X,...",
                help=f"By default {', '.join(f'{value:g}' for value in sweeps.VALUES[option])}.",
            ),
        ] = None,
        seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")] = 1,
        lengths: Lengths = None,
        tokens: Tokens = None,
        workers: Workers = None,
        device: Device = None,
        runs: Runs = None,
        results: Results = None,
        print_config: PrintConfig = False,
    ) -> None:
        request = _request(context, locals())
        chosen = _numbers("--values", values, float) if values else ()
        trials = _made(
            lambda: sweeps.trials(
                request.scale, option, chosen, tuple(range(seeds)), request.changes
            )
        )
        _reproduce(request, trials, option, lambda record: option_of(record, option))


_sweep(
    "tau",
    "Figure 5: scale-invariant p-RoPE with other values of tau.\n\n"
    "Goes on and is recorded as table1 is; the training with the scale's own tau is the same.",
)
_sweep(
    "base",
    "Scale-invariant p-RoPE with other bases, by which the one of the miniature was found.\n\n"
    "Goes on and is recorded as table1 is; the training with the scale's own base is the same.",
)


@app.command(name="page")
def write_page(
    results: Annotated[
        Path, typer.Option(help="The folder of the records of the miniature.")
    ] = Path("results/mini"),
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path(
        "REPRODUCTION.md"
    ),
    figures: Annotated[Path, typer.Option(help="The folder of its figures.")] = Path("docs"),
) -> None:
    """Write REPRODUCTION.md and its figures from what is recorded, trained or not."""
    scale = SCALES["mini"]
    with plain_errors():
        main = _recorded(table1.trials(scale), results)
        if not main:
            raise FileNotFoundError(
                f"there is no record of Table 1 in {results}; sia reproduce table1 makes them"
            )
        swept = {
            option: _recorded(sweeps.trials(scale, option, seeds=table1.SEEDS), results)
            for option in sweeps.VALUES
        }
        check_writable(figures)
        place = os.path.relpath(figures, output.parent)
        text, drawn = page_and_figures(main, swept, figures_at=Path(place).as_posix())
        for name, picture in drawn.items():
            replace_file(figures / name, picture)
        replace_file(output, text.encode())
    Page().line(str(output))


def _recorded(trials: Sequence[Trial], results: Path) -> list[Record]:
    """The records of those trials that are done."""
    return [record for trial in trials if (record := recorded(trial, results)) is not None]


def _request(context: typer.Context, given: Mapping[str, Any]) -> Request:
    name = given["scale"]
    if name not in SCALES:
        raise typer.BadParameter(
            f"there is no scale {name!r}{did_you_mean(name, SCALES)}; the scales are: "
            f"{', '.join(SCALES)}",
            param_hint="'--scale'",
        )
    scale = SCALES[name]
    evaluation = scale.evaluation
    if given["lengths"] is not None:
        chosen = _numbers("--lengths", given["lengths"], int)
        evaluation = replace(evaluation, lengths=chosen)
    if given["tokens"] is not None:
        evaluation = replace(evaluation, tokens=given["tokens"])
    changes = _made(lambda: parse_fields(context.args, options=OPTIONS))
    for field, option in (("scheme", "--schemes, or the experiment"), ("seed", "--seeds")):
        if field in changes:
            raise typer.BadParameter(f"--{field} cannot be set: {option} sets it for each training")
    return Request(
        scale=replace(scale, evaluation=evaluation),
        changes=changes,
        workers=given["workers"],
        device=given["device"],
        runs=given["runs"] or Path("runs") / name,
        results=given["results"] or Path("results") / name,
        print_config=given["print_config"],
        side_by_side=name == "mini",
    )


def _numbers(option: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError as error:
        raise typer.BadParameter(
            f"must be numbers with commas between them, got {text!r}", param_hint=f"'{option}'"
        ) from error


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error


def _reproduce(
    request: Request, trials: Sequence[Trial], heading: str, label: Callable[[Record], str]
) -> None:
    """Train what is not recorded, and print the table of all."""
    page = Page()
    if request.print_config:
        configs = {trial.name: trial.config.to_dict() for trial in trials}
        page.line(json.dumps(configs, indent=2))
        return
    records: dict[str, Record] = {}

    def keep(trial: Trial, record: Record) -> str:
        records[trial.name] = record
        losses = ", ".join(f"{row['loss']:.4f} at {row['length']:,}" for row in record["losses"])
        return f"{trial.name}: {losses} ({len(records)} of {len(trials)})"

    try:
        with plain_errors(DivergedError, WorkerDiedError):
            if request.side_by_side:
                _side_by_side(request, trials, keep)
            else:
                _in_turn(request, trials, keep)
    except StoppedError as stopped:
        if is_first_rank():
            typer.echo(str(stopped), err=True)
        raise typer.Exit(STOPPED) from stopped
    except FirstRankFailedError as failed:
        raise typer.Exit(1) from failed
    except KeyboardInterrupt as interrupted:
        typer.echo(
            f"Broken off, with {len(records)} of {len(trials)} recorded in {request.results}. Run the "
            f"same command again to go on.",
            err=True,
        )
        raise typer.Exit(STOPPED) from interrupted
    if is_first_rank():
        lengths = request.scale.evaluation.lengths
        rows = loss_rows((records[trial.name] for trial in trials), label)
        page.table(
            (heading, *(f"{length:,}" for length in lengths)),
            [(row.label, *map(str, row.losses.values())) for row in rows],
        )


def _side_by_side(
    request: Request, trials: Sequence[Trial], keep: Callable[[Trial, Record], str]
) -> None:
    with _bar(sum(trial.config.steps for trial in trials)) as (bar, update):
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
def _bar(total: int) -> Iterator[tuple[Progress, Callable[[int], None]]]:
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
