"""`sia demo`: why scale invariance matters, trained in minutes on a CPU."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from ..files import check_writable, replace_file
from ..lab.experiments.demo import (
    ALIBI,
    ALIBI_SLOPE,
    DecadeMasses,
    decade_masses,
    demo_loss_trials,
    demo_recall_trials,
)
from ..lab.experiments.running import WorkerDiedError, run_side_by_side
from ..lab.experiments.trials import TrainingTrial
from ..lab.records import TrainingRecord
from ..lab.reporting.drawing import title_of
from ..lab.reporting.evaluation_figures import COMPARED_FROM, draw_loss_by_position, middle
from ..lab.reporting.web_page import write_report
from ..training import DivergedError, StoppedError
from .errors import plain_errors
from .terminal import Page, chart

FIGURE = "loss-by-position.png"
REPORT = "Trained on short contexts, read with long ones"
FORMULA = "L = sqrt(1 + 2 log(1 + t/tau)) S - 2 log(1 + t/tau)"
OURS, ROPE, RIVAL = "scale-invariant-p-rope", "rope", "alibi"
LETTERS = {ROPE: "R", RIVAL: "A", OURS: "S"}

# A difference in loss that another seed may turn round.
LEVEL = 0.01
# A share of values that is nearly all of them, and one that is little of what was known.
KNOWN, LOST = 0.9, 0.5

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    output: Annotated[
        Path,
        typer.Option(
            help="The folder for trainings, records, figure and web page; made if it is missing.",
            readable=False,
        ),
    ] = Path("demo-output"),
) -> None:
    """Train small models on short contexts, and test them on long ones. Needs no GPU.

    Takes minutes. What was trained before in the same folder is shown, not trained again.
    """
    with plain_errors(DivergedError, WorkerDiedError, StoppedError):
        check_writable(output)
        page = Page()
        _explain(page, decade_masses())
        text, lookups = demo_loss_trials(), demo_recall_trials()
        _announce(page, text[0])
        records = _train(text, output)
        _print_losses(page, text[0], records)
        _print_positions(page, text[0], records, output / FIGURE)
        _announce_recall(page, lookups[0])
        _print_recall(page, lookups[0], _train(lookups, output))
        files = [output / "records" / f"{trial.name}.json" for trial in (*text, *lookups)]
        _print_next(page, output, write_report(files, output, title=REPORT))


def _explain(page: Page, decades: DecadeMasses) -> None:
    page.heading("1. The idea")
    page.paragraph(
        "Attention learned on short contexts breaks on long ones: distant tokens are few in training "
        "and many afterwards, and drown the near ones. Scale-invariant attention changes the score S "
        "of a token at distance t to"
    )
    page.line(f"\n    {FORMULA},    tau = 10\n")
    page.paragraph(
        f"The bias gives every decade of distances about the same total weight, so that more context "
        f"takes little away from what is near; the gain lets single far tokens stand out of their "
        f"decade all the same. The expected weight of each decade, to be compared within a column "
        f"(ALiBi: slope 1/{1 / ALIBI_SLOPE:.0f}, its farthest-seeing head):\n"
    )
    page.table(
        ("distance", *decades.masses),
        [
            (f"{start:,}-{10 * start - 1:,}", *map(_mass, masses))
            for start, *masses in zip(decades.starts, *decades.masses.values(), strict=True)
        ],
        numbers=True,
    )


def _mass(mass: float) -> str:
    return f"{mass:,.2f}" if mass >= 0.01 else f"{mass:.1e}"


def _announce(page: Page, trial: TrainingTrial) -> None:
    config = trial.config
    page.heading(f"2. Three models, trained on {config.length} bytes at a time")
    page.paragraph(
        f"The source of Python's standard library, byte by byte; the same model ({config.layers} "
        f"layers of width {config.width}), the same {config.steps} batches of {config.batch_size} x "
        f"{config.length} bytes. Only the scheme of positions differs.\n"
    )


def _train(chosen: Sequence[TrainingTrial], output: Path) -> dict[str, TrainingRecord]:
    """The records of trials, by scheme."""
    records: dict[str, TrainingRecord] = {}
    with _bars(chosen) as (bars, watch):

        def done(trial: TrainingTrial, record: TrainingRecord) -> None:
            scheme = trial.config.scheme
            records[scheme] = record
            bars.console.print(f"{title_of(scheme)} is trained and evaluated.")

        # More than there are cores, rather than two and then a third alone.
        run_side_by_side(
            chosen, output / "runs", output / "records", workers=len(chosen), watch=watch, done=done
        )
    return {trial.config.scheme: records[trial.config.scheme] for trial in chosen}


@contextmanager
def _bars(chosen: Sequence[TrainingTrial]) -> Iterator[tuple[Progress, Any]]:
    """A bar for each training, on a terminal."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {
            trial.name: bars.add_task(title_of(trial.config.scheme), total=trial.config.steps)
            for trial in chosen
        }

        def watch(steps: Mapping[str, int]) -> None:
            for name, made in steps.items():
                bars.update(tasks[name], completed=made)

        yield bars, watch


def _print_losses(page: Page, trial: TrainingTrial, records: Mapping[str, TrainingRecord]) -> None:
    trained = trial.config.length
    losses = {scheme: record.losses_by_length() for scheme, record in records.items()}
    longest = max(trial.evaluation.lengths)
    page.heading("3. The loss when they read more than they were trained on")
    page.paragraph("In nats a byte, the same bytes in every column; less is better.\n")
    page.table(
        (
            "scheme",
            *(f"{n:,}" + (" (trained)" if n == trained else "") for n in trial.evaluation.lengths),
            f"change to {longest // trained} times",
        ),
        [
            (
                title_of(scheme),
                *(f"{loss:.3f}" for loss in row.values()),
                f"{row[longest] - row[trained]:+.3f}",
            )
            for scheme, row in losses.items()
        ],
        numbers=True,
    )
    for sentence in _findings(losses, trained, longest):
        page.paragraph(f"\n{sentence}")


def _findings(
    losses: Mapping[str, Mapping[int, float]], trained: int, longest: int
) -> Iterator[str]:
    """What the numbers say, whatever they are."""
    rise = {scheme: row[longest] - row[trained] for scheme, row in losses.items()}
    times = longest // trained
    yield (
        f"At {times} times the trained length RoPE {_change(rise[ROPE])}, scale-invariant p-RoPE "
        f"{_change(rise[OURS])}."
    )
    ahead = losses[OURS][longest] - losses[RIVAL][longest]
    if rise[RIVAL] < LEVEL and ahead <= -LEVEL:
        yield (
            f"ALiBi holds too, {-ahead:.3f} behind. How they compare after longer training is in "
            f"REPRODUCTION.md."
        )
    elif rise[RIVAL] < LEVEL:
        far = decade_masses((100, 1000)).masses[ALIBI]
        yield (
            f"ALiBi holds too, and is {'level' if ahead < LEVEL else f'{ahead:.3f} ahead'} on loss. "
            f"Most bytes are decided by what is near, and that is all ALiBi looks at: of its "
            f"farthest-seeing head distances 1,000-9,999 get {far[1] / far[0]:.0%} of the weight of "
            f"100-999, and beyond that nothing. What separates the two is finding something far "
            f"away: see 5."
        )


def _change(rise: float) -> str:
    if abs(rise) < LEVEL:
        return f"stays where it was ({rise:+.3f})"
    return f"{'loses' if rise > 0 else 'gains'} {abs(rise):.3f} nats a byte"


def _print_positions(
    page: Page, trial: TrainingTrial, records: Mapping[str, TrainingRecord], figure: Path
) -> None:
    by_scheme = {scheme: record.measured("by_position") for scheme, record in records.items()}
    documents = next(iter(by_scheme.values()))[0].documents
    page.heading("4. The same by position")
    page.paragraph(
        f"The loss of a byte with so many before it, in {documents} files of the validation split: "
        + ", ".join(f"{letter} {title_of(scheme)}" for scheme, letter in LETTERS.items())
        + ". The dots mark the trained length.\n"
    )
    shown = {
        LETTERS[scheme]: [(middle(row), row.loss) for row in rows if row.start >= COMPARED_FROM]
        for scheme, rows in by_scheme.items()
    }
    lengths = trial.evaluation.lengths
    for line in chart(shown, labels_at=(32, 128, *lengths), marked=trial.config.length):
        page.line(line)
    try:
        picture = draw_loss_by_position(
            by_scheme,
            title=f"Loss by position, trained at {trial.config.length} bytes",
            train_length=trial.config.length,
        )
    except ModuleNotFoundError as missing:
        page.line(f"\nNot drawn as a picture: {missing}")
    else:
        replace_file(figure, picture)
        page.line(f"\nAs a picture: {figure}")


def _announce_recall(page: Page, trial: TrainingTrial) -> None:
    config = trial.config
    task = config.task_options
    page.heading("5. Finding something far away")
    page.paragraph(
        f"Loss hides whether a model can still look up one thing. So three smaller models "
        f"({config.layers} layers of width {config.width}) learn nothing else: {task['pairs']} pairs "
        f"of a key and a value stand somewhere in noise, and at the end the values of keys are asked "
        f"for. They learn it on {config.length} tokens, in {config.steps} steps.\n"
    )


def _print_recall(page: Page, trial: TrainingTrial, records: Mapping[str, TrainingRecord]) -> None:
    trained = trial.config.length
    lengths = trial.evaluation.lengths
    recalled = {scheme: record.recall_by_length() for scheme, record in records.items()}
    page.paragraph(
        f"The share of values that they know; 1 in {trial.config.task_options['values']} is chance.\n"
    )
    page.table(
        ("scheme", *(f"{n:,}" + (" (trained)" if n == trained else "") for n in lengths)),
        [
            (title_of(scheme), *(f"{row[length]:.3f}" for length in lengths))
            for scheme, row in recalled.items()
        ],
        numbers=True,
    )
    page.paragraph(f"\n{' '.join(_recall_findings(recalled, trained, max(lengths)))}")


def _recall_findings(
    recalled: Mapping[str, Mapping[int, float]], trained: int, longest: int
) -> Iterator[str]:
    """What the shares say of each scheme, whatever they are."""
    for scheme, row in recalled.items():
        learned, left = row[trained], row[longest]
        at = f"at {longest // trained} times the trained length"
        start = "has learned it" if learned >= KNOWN else f"has learned {learned:.0%} of it"
        if left < LOST * learned:
            yield f"{title_of(scheme)} {start}, and {at} knows {left:.0%}."
        else:
            yield f"{title_of(scheme)} {start}, and {at} still knows {left:.0%}."


def _print_next(page: Page, output: Path, report: Path) -> None:
    page.heading("6. Where to go next")
    page.line(f"    {report}\n        all of this as a web page, and an explorer of attention")
    # In an environment that is not activated, `sia` alone would not be found.
    sia = "sia" if shutil.which("sia") else sys.argv[0]
    for command, purpose in (
        (f"{sia} generate {output / 'runs' / OURS}-seed-0", "what the third model writes"),
        (f"{sia} train --help", "models of your own, up to the paper's recipes on GPUs"),
        (
            f"{sia} reproduce table1",
            "every scheme with three seeds, in about two hours on two cores",
        ),
    ):
        page.line(f"    {command}\n        {purpose}")
    page.paragraph(
        "\nWhat came of that table is in REPRODUCTION.md, beside the paper's figures. README.md has the "
        "attention function, which is called like scaled_dot_product_attention."
    )
