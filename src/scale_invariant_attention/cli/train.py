"""`sia train`: train a recipe, with any of its fields changed, in a folder."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TimeRemainingColumn
from typer import Option

from ..data import ShardError
from ..training import DivergedError, StoppedError, TrainingConfig, recipe, train
from ..training.config import parse_fields
from ..training.loop import Progress as TrainingProgress
from ..training.ranks import FirstRankFailedError, check_divides, is_first_rank, process_count
from ..training.recipes import RECIPES
from ..training.runs import MODEL
from ..training.tensorboard import TensorBoard
from ..training.training_data import NEEDLES, STANDARD_LIBRARY, TEXT, open_training_data
from .errors import INTERRUPTED, plain_errors
from .options import TRAINING_COMMAND, Device, device_named, or_bad_parameter
from .terminal import Page, counted, program, progress_bars

# Seconds over which the remaining time is estimated: steps with validation take longer.
ESTIMATED_OVER = 600.0

OPTIONS = (
    *("--recipe", "--output", "--device", "--context-parallel", "--tensorboard"),
    *("--print-config", "--help"),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(name="train", **TRAINING_COMMAND)
def train_command(
    context: typer.Context,
    name: Annotated[
        str, Option("--recipe", metavar="NAME", help=f"One of {', '.join(RECIPES)}.")
    ] = "mini",
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Folder of the run; by default runs/RECIPE-SCHEME."),
    ] = None,
    device: Device = None,
    context_parallel: Annotated[
        int,
        Option(min=1, help="Processes that share each sequence, for lengths beyond one device."),
    ] = 1,
    tensorboard: Annotated[
        bool,
        Option(
            "--tensorboard", help="Also write the measurements for TensorBoard, to RUN/tensorboard."
        ),
    ] = False,
    print_config: Annotated[
        bool, Option("--print-config", help="Show the whole configuration and exit.")
    ] = False,
) -> None:
    """Train a model, or resume a run that was stopped or killed.

    Every field that --print-config shows can be set, for example: --scheme rope --steps 1000
    --clip-norm 1 --scheme-options tau=1,learn_tau=true. To train with several processes: torchrun
    --nproc-per-node 2 -m scale_invariant_attention.cli train, with the same options. They share each
    batch by rows or, in groups of --context-parallel, by parts of each row.
    """
    config = or_bad_parameter(lambda: recipe(name, **parse_fields(context.args, options=OPTIONS)))
    if print_config:
        Page().line(json.dumps(config.to_dict(), indent=2))
        return
    device_named(device)
    or_bad_parameter(lambda: _check_arguments(config, context_parallel))
    folder = output or Path("runs") / f"{name}-{config.scheme}"
    with training_errors():
        if is_first_rank():
            _train_with_output(config, folder, device, context_parallel, tensorboard)
        else:
            train(config, folder, device=device, context_parallel=context_parallel)


def _check_arguments(config: TrainingConfig, context_parallel: int) -> None:
    """Refuse arguments that do not suit the data or the number of processes."""
    check_divides(context_parallel, process_count())
    # Missing or damaged data is not a wrong argument: the training reports it.
    with suppress(OSError, ShardError):
        # Some tasks refuse lengths only when they draw an example.
        _ = open_training_data(config).batches[0]


@contextmanager
def training_errors(*others: type[Exception]) -> Iterator[None]:
    """Print errors of trainings, and exit; of several ranks, the first alone reports how they ended."""
    first = (DivergedError,) if is_first_rank() else ()
    try:
        with plain_errors(*first, *others):
            yield
    except StoppedError as stopped:
        if is_first_rank():
            typer.echo(str(stopped), err=True)
        raise typer.Exit(INTERRUPTED) from stopped
    except (FirstRankFailedError, DivergedError) as error:
        raise typer.Exit(1) from error


def _train_with_output(
    config: TrainingConfig,
    folder: Path,
    device: str | None,
    context_parallel: int,
    tensorboard: bool,
) -> None:
    page = Page()
    page.line(
        f"{config.scheme}: {counted(config.layers, 'layer')} of width {config.width}, "
        f"{counted(config.steps, 'step')} of {config.batch_size} x {config.length:,} tokens, in {folder}"
    )
    board = TensorBoard(folder, config) if tensorboard else nullcontext()
    trained = "Already trained"
    with board as log, training_bar() as (show, notice):

        def watch(now: TrainingProgress) -> None:
            nonlocal trained
            trained = "Trained"
            if log is not None:
                log(now)
            show(now)

        train(
            config,
            folder,
            device=device,
            context_parallel=context_parallel,
            watch=watch,
            notice=notice,
        )
    page.line(f"{trained}. The model is in {folder / MODEL}")
    page.line("\nNext:")
    for command in _next_commands(config, folder):
        page.line(f"  {program()} {command}")


def _next_commands(config: TrainingConfig, folder: Path) -> Iterator[str]:
    run = shlex.quote(str(folder))
    if config.task == TEXT:
        prompt = ' --prompt "def "' if config.data == STANDARD_LIBRARY else ""
        yield f"generate {run}{prompt}"
        yield f"evaluate {run} --lengths {','.join(map(str, config.validation_lengths))}"
    elif config.task == NEEDLES:
        yield f"needle {run}"
    yield f"report {run}"


@contextmanager
def training_bar() -> Iterator[tuple[Callable[[TrainingProgress], None], Callable[[str], None]]]:
    """A bar with loss, speed and remaining time, and a line per validation."""
    tasks: list[TaskID] = []
    columns = (MofNCompleteColumn(), BarColumn(), "{task.description}", TimeRemainingColumn())
    with progress_bars(*columns, speed_estimate_period=ESTIMATED_OVER) as bar:

        def watch(now: TrainingProgress) -> None:
            description = f"loss {now.loss:.3f}, {now.tokens_per_second:,.0f} tokens/s"
            if not tasks:
                # Not earlier, or the steps of an interrupted run would count towards the speed.
                tasks.append(bar.add_task(description, total=now.steps, completed=now.step))
            bar.update(tasks[0], completed=now.step, description=description)
            if now.validation is not None:
                losses = ", ".join(f"{loss:.4f} at {n:,}" for n, loss in now.validation.items())
                bar.console.print(f"step {now.step:,}: loss {now.loss:.4f}; validation {losses}")

        yield watch, bar.console.print
