"""`sia train`: train a recipe, with any of its fields changed, in a folder."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ..training import DivergedError, StoppedError, TrainingConfig, recipe, train
from ..training.config import parse_fields
from ..training.loop import Progress as TrainingProgress
from ..training.ranks import FirstRankFailedError, is_first_rank
from ..training.recipes import RECIPES
from ..training.runs import MODEL
from ..training.tensorboard import TensorBoard
from .errors import INTERRUPTED, plain_errors
from .options import TRAINING_COMMAND, Device, or_bad_parameter
from .terminal import Page, counted

# Seconds over which the remaining time is estimated: steps with validation take longer.
ESTIMATED_OVER = 600.0

OPTIONS = ("--recipe", "--output", "--device", "--tensorboard", "--print-config", "--help")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(name="train", **TRAINING_COMMAND)
def train_command(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Option("--recipe", metavar="NAME", help=f"One of {', '.join(RECIPES)}."),
    ] = "mini",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the run; by default runs/RECIPE-SCHEME."),
    ] = None,
    device: Device = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Also write the measurements for TensorBoard, to RUN/tensorboard.",
        ),
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the whole configuration and exit.")
    ] = False,
) -> None:
    """Train a model, or resume a run that was stopped or killed.

    Every field that --print-config shows can be set, for example: --scheme rope --steps 1000
    --clip-norm 1 --scheme-options tau=1,learn_tau=true. To train with several processes: torchrun
    --nproc-per-node 2 -m scale_invariant_attention.cli train, with the same options.
    """
    config = or_bad_parameter(lambda: recipe(name, **parse_fields(context.args, options=OPTIONS)))
    if print_config:
        Page().line(json.dumps(config.to_dict(), indent=2))
        return
    folder = output or Path("runs") / f"{name}-{config.scheme}"
    if is_first_rank():
        _train_with_output(config, folder, device, tensorboard)
    else:
        _train_silently(config, folder, device)


def _train_with_output(
    config: TrainingConfig, folder: Path, device: str | None, tensorboard: bool
) -> None:
    page = Page()
    page.line(f"{_describe(config)}, in {folder}")
    try:
        with plain_errors(DivergedError), ExitStack() as opened:
            watchers: list[Callable[[TrainingProgress], object]] = []
            if tensorboard:
                watchers.append(opened.enter_context(TensorBoard(folder, config)))
            show, notice = opened.enter_context(training_bar())
            watchers.append(show)

            def watch(now: TrainingProgress) -> None:
                for watcher in watchers:
                    watcher(now)

            train(config, folder, device=device, watch=watch, notice=notice)
    except StoppedError as stopped:
        typer.echo(str(stopped), err=True)
        raise typer.Exit(INTERRUPTED) from stopped
    page.line(f"Trained. The model is in {folder / MODEL}")


def _train_silently(config: TrainingConfig, folder: Path, device: str | None) -> None:
    """Train on a rank other than the first, which alone prints."""
    try:
        train(config, folder, device=device)
    except StoppedError as stopped:
        raise typer.Exit(INTERRUPTED) from stopped
    except (FirstRankFailedError, DivergedError) as error:
        raise typer.Exit(1) from error


def _describe(config: TrainingConfig) -> str:
    return (
        f"{config.scheme}: {counted(config.layers, 'layer')} of width {config.width}, "
        f"{counted(config.steps, 'step')} of {config.batch_size} x {config.length:,} tokens"
    )


@contextmanager
def training_bar() -> Iterator[tuple[Callable[[TrainingProgress], None], Callable[[str], None]]]:
    """A bar with loss, speed and remaining time, and a line per validation; only lines in a pipe."""
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    tasks: list[TaskID] = []
    with Progress(
        *columns,
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=ESTIMATED_OVER,
    ) as bar:

        def watch(now: TrainingProgress) -> None:
            description = f"loss {now.loss:.3f}, {now.tokens_per_second:,.0f} tokens/s"
            if not tasks:
                # Not earlier, or the steps of an interrupted run would count towards the speed.
                tasks.append(bar.add_task(description, total=now.steps, completed=now.step))
            bar.update(tasks[0], completed=now.step, description=description)
            if now.validation is not None:
                losses = ", ".join(f"{loss:.4f} at {n:,}" for n, loss in now.validation.items())
                console.print(f"step {now.step:,}: loss {now.loss:.4f}; validation {losses}")

        yield watch, console.print
