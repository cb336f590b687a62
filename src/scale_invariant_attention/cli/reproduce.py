"""`sia reproduce`: the paper's tables and figures, one command per experiment."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ..lab.experiments.catalogue import EXPERIMENTS, Experiment
from .commands import COMMANDS
from .errors import INTERRUPTED, plain_errors, resumable
from .options import TRAINING_COMMAND, numbers, or_bad_parameter
from .reproduce_pages import write_images, write_leaderboard, write_page
from .terminal import Page, progress_bars

if TYPE_CHECKING:
    from ..lab.experiments.trials import Trial
    from ..lab.records import Record

# Seconds between two lines about a training that is running.
NEWS_EVERY = 60.0
# The sizes that evaluations have.
SIZES = ("tokens", "examples", "contexts")

app = typer.Typer(
    help=COMMANDS["reproduce"], no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


def _add_command(experiment: Experiment) -> None:
    """Add the command of an experiment, with the options that it has."""

    def command(context: typer.Context, **given: Any) -> None:
        _reproduce(experiment, context, given)

    command.__signature__ = Signature(_parameters(experiment))  # type: ignore[attr-defined]
    settings = TRAINING_COMMAND if experiment.trains_gpts else {}
    app.command(name=experiment.name, help=experiment.help, **settings)(command)


def _parameters(experiment: Experiment) -> list[Parameter]:
    """The parameters of a command, as typer reads them from a function."""

    def text(help_text: str, metavar: str | None = None) -> Any:
        return Annotated[str | None, Option(help=help_text, metavar=metavar)]

    def count(help_text: str) -> Any:
        return Annotated[int | None, Option(min=1, help=help_text)]

    def folder(help_text: str) -> Any:
        return Annotated[Path | None, Option(help=help_text)]

    compared = f"Default: {experiment.default}."
    place = "SCALE" if experiment.scales else experiment.folder
    usual = "the scale's" if experiment.scales else "the experiment's"
    at = experiment.measured_at
    lengths = f"{experiment.length.capitalize()}s"
    options = {
        "scale": text("paper runs on GPUs, the others on CPUs.", "|".join(experiment.scales)),
        "schemes": text(compared, "NAME,NAME"),
        "values": text(compared, "X,X,..."),
        "candidates": text(compared, "NAME,NAME"),
        "families": text("Families of models; default: all.", "NAME,NAME"),
        "tasks": text("Tasks; default: all.", "NAME,NAME"),
        "seeds": count(f"Number of seeds, counted from {experiment.first_seed}."),
        "lengths": text(f"{lengths} to evaluate; default: {usual}.", "N,N,..."),
        "tokens": count(f"Tokens to score {at}; default: {usual}."),
        "examples": count(f"Examples to test {at}; default: {usual}."),
        "contexts": count(f"Contexts to read {at}; default: {usual}."),
        "before": text(
            "Fields of the trainings that fine-tuning starts from; default: as in table1.",
            "'FIELD=VALUE ...'",
        ),
        "workers": count("Small trainings at a time, one core each; default: one per core."),
        "device": text("For the paper's scale; default: a GPU if there is one."),
        "runs": folder(f"Folder for the trainings; default: runs/{place}."),
        "results": folder(f"Folder for the records, one JSON file each; default: results/{place}."),
        "print_config": Annotated[
            bool, Option("--print-config", help="Print every configuration and exit.")
        ],
    }
    defaults = {"scale": "mini", "seeds": experiment.seeds, "print_config": False}
    context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    return [context] + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=option)
        for name, option in options.items()
        if name in experiment.options
    ]


def _reproduce(experiment: Experiment, context: typer.Context, given: Mapping[str, Any]) -> None:
    """Train what is not recorded yet, and print the table of all."""
    with plain_errors(ImportError):
        trials = or_bad_parameter(lambda: _trials(experiment, context.args, given))
    page = Page()
    if given["print_config"]:
        configs = {trial.name: trial.printed_config for trial in trials}
        page.line(json.dumps(configs, indent=2))
        return
    folder = given.get("scale", experiment.folder)
    runs, results = (given[name] or Path(name) / folder for name in ("runs", "results"))
    modules = context.obj or ()
    records = _run(experiment, trials, runs, results, modules, given)
    if records is None:
        return
    from ..lab.seeds import over_seeds, seed_rows
    from ..lab.tables import length_table

    rows = seed_rows(records, experiment.label, experiment.values)
    table = length_table(rows, experiment.heading, lengths=trials[0].evaluation.lengths)
    page.paragraph(f"{experiment.measure} by {experiment.length}, {over_seeds(rows.values())}.")
    page.paragraph(_sizes(experiment, trials))
    page.line("")
    page.table(table.header, table.texts())
    report = " ".join(("sia", *(f"--import {it}" for it in modules), f"report {results} -o report"))
    # Records of other models have no section on that page.
    charts = f" Charts of them on one page: {report}" if experiment.trains_gpts else ""
    page.line(f"\nRecords: {results}.{charts}")
    if experiment.is_ranked:
        _show_standings(page, results)


def _show_standings(page: Page, results: Path) -> None:
    """The ranks of all schemes that are recorded."""
    from ..lab.experiments.leaderboard import read_leaderboard
    from ..lab.experiments.trials import DifferentRecordError
    from ..lab.reporting.leaderboard import contests, standings_table

    try:
        table = standings_table(contests(read_leaderboard(results)))
    except DifferentRecordError:
        page.paragraph("No ranks: these trials have other settings than the leaderboard's.")
        return
    except ValueError as error:
        # Records of a scheme whose module was not imported, or damaged ones.
        page.paragraph(f"No ranks: {error}")
        return
    page.paragraph("\nRank in each task among the schemes that are recorded there:\n")
    page.table(table.header, table.texts())


def _sizes(experiment: Experiment, trials: "Sequence[Trial]") -> str:
    """The size of trainings and evaluation, in a sentence."""
    steps = sorted({sum(trial.training_steps.values()) for trial in trials})
    sizes = {name: getattr(trials[0].evaluation, name, None) for name in SIZES}
    measured = [f"{size:,} {name}" for name, size in sizes.items() if size is not None]
    trained = " or ".join(f"{it:,}" for it in steps)
    where = experiment.measured_at
    return f"Steps of training: {trained}. Measured {where}: {', '.join(measured)}."


def _trials(
    experiment: Experiment, words: Sequence[str], given: Mapping[str, Any]
) -> "list[Trial]":
    """The trials of a command."""
    from .. import schemes
    from ..training.config import parse_fields

    text, compared = given[experiment.compares], tuple[Any, ...]()
    if experiment.compares == "values":
        compared = numbers("--values", text, float)
    elif text is not None:
        compared = tuple(name.strip() for name in text.split(","))
    if experiment.compares == "schemes":
        for name in compared:
            schemes.entry(name)
    changes: dict[str, Any] = {}
    if experiment.trains_gpts:
        fields = parse_fields(words, options=[f"--{name}" for name in (*given, "help")])
        for field, option in (("scheme", "--schemes or the experiment"), ("seed", "--seeds")):
            if field in fields:
                raise ValueError(f"--{field} cannot be given: {option} sets it for each training")
        changes["changes"] = fields
    if experiment.size is not None:
        names = ("lengths", experiment.size)
        sizes = {name: given[name] for name in names if given[name] is not None}
        if "lengths" in sizes:
            sizes["lengths"] = numbers("--lengths", sizes["lengths"])
        changes["evaluation"] = sizes
    for option, has in (("families", experiment.has_families), ("tasks", experiment.has_tasks)):
        if has:
            changes[option] = tuple((given[option] or "").replace(",", " ").split())
    if experiment.starts_from_training:
        before = (given["before"] or "").split()
        changes["before"] = parse_fields([f"--{field}" for field in before])
    return experiment.trials(
        given.get("scale", "mini"), compared, experiment.seed_range(given["seeds"]), **changes
    )


def _run(
    experiment: Experiment,
    trials: "Sequence[Trial]",
    runs: Path,
    results: Path,
    modules: Sequence[str],
    given: Mapping[str, Any],
) -> "list[Record[Any]] | None":
    """Train what is not recorded yet and return all records; None on ranks other than the first."""
    from ..lab.experiments.running import WorkerDiedError, run_in_turn, run_side_by_side
    from ..training.ranks import is_first_rank
    from .train import training_bar, training_errors

    before = {it.name for it in trials if (results / f"{it.name}.json").exists()}
    records: dict[str, Record[Any]] = {}

    def keep(trial: "Trial", record: "Record[Any]", say: Callable[[str], None]) -> None:
        records[trial.name] = record
        if trial.name not in before:
            values = ", ".join(f"{it:.4f} at {n:,}" for n, it in experiment.values(record).items())
            say(f"{trial.name}: {values} ({len(records)} of {len(trials)})")

    def run_small() -> None:
        with _steps_bar(trials) as (update, say):
            say(_before_training(len(before), len(trials), runs, results))
            tell = _news(trials, runs, say)

            def watch(steps: Mapping[str, int]) -> None:
                update(steps)
                tell(steps)

            def done(trial: "Trial", record: "Record[Any]") -> None:
                update({trial.name: sum(trial.training_steps.values())})
                keep(trial, record, say)

            if experiment.in_one_process:
                run_in_turn(
                    *(trials, runs, results),
                    watch=lambda trial, now: watch({trial.name: now.step}),
                    done=done,
                )
            else:
                run_side_by_side(
                    *(trials, runs, results),
                    workers=given["workers"] or os.cpu_count() or 1,
                    modules=modules,
                    watch=watch,
                    notice=say,
                    done=done,
                )

    def run_large() -> None:
        with training_bar() as (show, say):
            if is_first_rank():
                say(_before_training(len(before), len(trials), runs, results))
            run_in_turn(
                *(trials, runs, results),
                device=given["device"],
                watch=lambda trial, now: show(now),
                notice=say,
                done=lambda trial, record: keep(trial, record, say),
            )

    try:
        with training_errors(WorkerDiedError, ImportError):
            (run_large if given.get("scale") == "paper" else run_small)()
    except KeyboardInterrupt as interrupted:
        typer.echo(
            f"Interrupted, with {len(records)} of {len(trials)} recorded in {results}. Rerun the same "
            f"command to resume.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from interrupted
    return [records[trial.name] for trial in trials] if is_first_rank() else None


def _before_training(recorded: int, count: int, runs: Path, results: Path) -> str:
    """Whether anything is left to train, and where."""
    if recorded == count:
        return (
            f"Nothing to train: all {count} are recorded in {results} already. To train them yourself, "
            f"choose other folders: --runs runs/mine --results results/mine"
        )
    already = f"{recorded} of {count} are recorded in {results} already. " if recorded else ""
    return f"{already}Training {count - recorded}, in {runs}; records are written to {results}."


def _news(
    trials: "Sequence[Trial]", runs: Path, say: Callable[[str], None]
) -> Callable[[Mapping[str, int]], None]:
    """A function that is called with steps and says now and then how far each training is."""
    before: dict[str, int] = {}
    last = monotonic()

    def tell(steps: Mapping[str, int]) -> None:
        nonlocal last
        if before and monotonic() < last + NEWS_EVERY:
            return
        last = monotonic()
        # Several trials may share a training.
        moved = {
            it.training_name: it
            for it in trials
            if 0 < steps.get(it.name, 0) < sum(it.training_steps.values())
            and steps[it.name] != before.get(it.name, steps[it.name])
        }
        before.update(steps)
        for name, trial in moved.items():
            say(f"{name}: {trial.news(runs)}")

    return tell


@contextmanager
def _steps_bar(
    trials: "Sequence[Trial]",
) -> Iterator[tuple[Callable[[Mapping[str, int]], None], Callable[[str], None]]]:
    """A progress bar over the steps of all trainings; each training counts once."""
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    from ..lab.experiments.running import steps_done, total_steps

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    steps: dict[str, int] = {}
    with progress_bars("all trainings", *columns) as bar:
        task = bar.add_task("", total=total_steps(trials))

        def update(done: Mapping[str, int]) -> None:
            steps.update(done)
            bar.update(task, completed=steps_done(trials, steps))

        yield update, bar.console.print


for _experiment in EXPERIMENTS.values():
    _add_command(_experiment)


app.command(name="page")(write_page)
app.command(name="leaderboard-page")(write_leaderboard)
app.command(name="images-page")(write_images)


@app.command(name="pretrained")
def package_pretrained(
    models: Annotated[
        str | None, Option(metavar="NAME,NAME", help="Models to package; default: all.")
    ] = None,
    runs: Annotated[Path, Option(help="Folder of the trainings.")] = Path("runs/mini"),
    results: Annotated[Path, Option(help="Folder of the records of these trainings.")] = Path(
        "runs/mini-records"
    ),
    output: Annotated[
        Path, Option("--output", "-o", help="Folder for the folders of the models.")
    ] = Path("pretrained"),
    listed_in: Annotated[
        Path, Option("--list", help="The list of the models and their hashes.")
    ] = Path("src/scale_invariant_attention/model/pretrained.json"),
) -> None:
    """Package runs as pretrained models; missing runs are trained first.

    A model is refused if its stored weights do not reproduce the record of its run. Models that are
    packaged already are measured again.
    """
    with plain_errors(ImportError), resumable():
        import torch

        from ..arguments import did_you_mean
        from ..files import amount
        from ..lab.experiments.pretrained import miniatures, package, write_list
        from ..model import pretrained_models
        from .train import training_bar, training_errors

        known = miniatures()
        names = list(known) if models is None else models.split(",")
        for name in names:
            if name not in known:
                raise typer.BadParameter(
                    f"there is no model {name!r}{did_you_mean(name, known)}",
                    param_hint="'--models'",
                )
        # As many threads as recorded runs have, so that trainings are the same to the bit.
        torch.set_num_threads(1)
        for name in names:
            with training_errors(), training_bar() as (show, say):
                model = package(known[name], runs, results, output, watch=show, notice=say)
                write_list(listed_in, pretrained_models(listed_in) | {name: model})
                values = ", ".join(f"{it:.4f} at {n:,}" for n, it in model.by_length.items())
                say(f"{name}: {model.measured} {values}; {amount(model.bytes)}")
