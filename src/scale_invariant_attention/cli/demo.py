"""`sia demo`: why scale invariance matters, shown with small models trained in minutes on a CPU."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from typer import Option

from ..files import check_writable
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
from ..lab.trained_models import write_figure
from ..training import DivergedError, StoppedError
from .errors import plain_errors
from .terminal import Page, chart, program, progress_bars

FIGURE = "loss-by-position.png"
REPORT = "Trained on short contexts, read with long ones"
FORMULA = "L = sqrt(1 + 2 log(1 + t/tau)) S - 2 log(1 + t/tau)"
OURS, ROPE, RIVAL = "scale-invariant-p-rope", "rope", "alibi"
LETTERS = {ROPE: "R", RIVAL: "A", OURS: "S"}

# A difference in loss that another seed may reverse.
LEVEL = 0.01
# A share of values that counts as nearly all of them, and one that counts as mostly forgotten.
KNOWN, LOST = 0.9, 0.5


def demo(
    output: Annotated[
        Path,
        Option(
            help="Folder for runs, records, figure and web page; created if it is missing.",
            readable=False,
        ),
    ] = Path("demo-output"),
) -> None:
    """Train small models on short contexts and test them on long ones. Needs no GPU.

    Takes minutes. Models already trained in the folder are shown without training them again.
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
        "Attention learned on short contexts breaks on long ones: distant tokens, few in training, "
        "become many and drown out the near ones. Scale-invariant attention changes the score S of a "
        "token at distance t to"
    )
    page.line(f"\n    {FORMULA},    tau = 10\n")
    page.paragraph(
        f"The bias gives every decade of distances about the same total weight, so that more context "
        f"takes little away from near tokens; the gain still lets single distant tokens stand out "
        f"within their decade. The expected weight of each decade, to be compared within a column "
        f"(ALiBi: slope 1/{1 / ALIBI_SLOPE:.0f}, that of its farthest-seeing head):\n"
    )
    page.table(
        ("distance", *decades.masses),
        [
            (
                f"{start:,}-{10 * start - 1:,}",
                *(f"{mass:,.2f}" if mass >= 0.01 else f"{mass:.1e}" for mass in masses),
            )
            for start, *masses in zip(decades.starts, *decades.masses.values(), strict=True)
        ],
        numbers=True,
    )


def _announce(page: Page, trial: TrainingTrial) -> None:
    config = trial.config
    page.heading(f"2. Three models, trained on contexts of {config.length} bytes")
    page.paragraph(
        f"They read the source of Python's standard library, byte by byte. Each has {config.layers} "
        f"layers of width {config.width} and sees the same {config.steps} batches of "
        f"{config.batch_size} x {config.length} bytes; only the position scheme differs. So short a "
        f"training shows what breaks beyond the training length, but not which scheme is best in the "
        f"end: REPRODUCTION.md has that, from trainings many times as long.\n"
    )


def _train(chosen: Sequence[TrainingTrial], output: Path) -> dict[str, TrainingRecord]:
    """Train what is not recorded yet; returns the records by scheme."""
    records: dict[str, TrainingRecord] = {}
    columns = (BarColumn(), MofNCompleteColumn(), "steps", TimeElapsedColumn())
    with progress_bars("{task.description:<18}", *columns) as bars:
        tasks = {
            trial.name: bars.add_task(title_of(trial.config.scheme), total=trial.config.steps)
            for trial in chosen
        }

        def watch(steps: Mapping[str, int]) -> None:
            for name, step in steps.items():
                bars.update(tasks[name], completed=step)

        def done(trial: TrainingTrial, record: TrainingRecord) -> None:
            records[trial.config.scheme] = record
            bars.console.print(f"{title_of(trial.config.scheme)} is trained and evaluated.")

        # All at once even on fewer cores, rather than two and then a third alone.
        run_side_by_side(
            chosen, output / "runs", output / "records", workers=len(chosen), watch=watch, done=done
        )
    return {trial.config.scheme: records[trial.config.scheme] for trial in chosen}


def _print_by_length(
    page: Page, trial: TrainingTrial, values: Mapping[str, Mapping[int, float]], *, change: bool
) -> None:
    """A row per scheme, a column per length, and the change from the training length to the last."""
    trained, lengths = trial.config.length, trial.evaluation.lengths
    longest = max(lengths)
    header = ["scheme", *(f"{n:,}" + (" (trained)" if n == trained else "") for n in lengths)]
    if change:
        header.append(f"change at {longest // trained} times")
    rows = []
    for scheme, row in values.items():
        changes = [f"{row[longest] - row[trained]:+.3f}"] if change else []
        rows.append((title_of(scheme), *(f"{row[n]:.3f}" for n in lengths), *changes))
    page.table(header, rows, numbers=True)


def _print_losses(page: Page, trial: TrainingTrial, records: Mapping[str, TrainingRecord]) -> None:
    losses = {scheme: record.losses_by_length() for scheme, record in records.items()}
    page.heading("3. Loss on contexts longer than those of training")
    page.paragraph("In nats per byte, on the same bytes in every column; lower is better.\n")
    _print_by_length(page, trial, losses, change=True)
    for sentence in _findings(losses, trial.config.length, max(trial.evaluation.lengths)):
        page.paragraph(f"\n{sentence}")


def _findings(
    losses: Mapping[str, Mapping[int, float]], trained: int, longest: int
) -> Iterator[str]:
    """Sentences about the losses, whatever they turn out to be."""
    rise = {scheme: row[longest] - row[trained] for scheme, row in losses.items()}
    times = longest // trained
    yield (
        f"At {times} times the training length, RoPE {_change(rise[ROPE])} and scale-invariant p-RoPE "
        f"{_change(rise[OURS])}."
    )
    ahead = losses[OURS][longest] - losses[RIVAL][longest]
    if rise[RIVAL] < LEVEL and ahead <= -LEVEL:
        yield (
            f"ALiBi holds up too, {-ahead:.3f} behind. REPRODUCTION.md compares them after longer "
            f"training."
        )
    elif rise[RIVAL] < LEVEL:
        far = decade_masses((100, 1000)).masses[ALIBI]
        yield (
            f"ALiBi holds up too, and is {'level' if ahead < LEVEL else f'{ahead:.3f} ahead'} on loss. "
            f"Near tokens decide most bytes, and ALiBi sees little else: its farthest-seeing head gives "
            f"distances 1,000-9,999 {far[1] / far[0]:.0%} of the weight of 100-999, and larger ones "
            f"nothing. The two differ when something distant must be found: see 5."
        )


def _change(rise: float) -> str:
    if abs(rise) < LEVEL:
        return f"does not change ({rise:+.3f})"
    return f"{'loses' if rise > 0 else 'gains'} {abs(rise):.3f} nats per byte"


def _print_positions(
    page: Page, trial: TrainingTrial, records: Mapping[str, TrainingRecord], figure: Path
) -> None:
    by_scheme = {scheme: record.measured("by_position") for scheme, record in records.items()}
    documents = next(iter(by_scheme.values()))[0].documents
    page.heading("4. Loss by position")
    page.paragraph(
        f"By the number of bytes before the predicted one, in {documents} files of the validation "
        f"split: {', '.join(f'{letter} {title_of(scheme)}' for scheme, letter in LETTERS.items())}. The "
        f"dots mark the training length.\n"
    )
    shown = {
        LETTERS[scheme]: [(middle(row), row.loss) for row in rows if row.start >= COMPARED_FROM]
        for scheme, rows in by_scheme.items()
    }
    lengths = trial.evaluation.lengths
    for line in chart(shown, labels_at=(32, 128, *lengths), marked=trial.config.length):
        page.line(line)
    missing = write_figure(
        figure,
        lambda: draw_loss_by_position(
            by_scheme,
            title=f"Loss by position, trained at {trial.config.length} bytes",
            train_length=trial.config.length,
        ),
    )
    page.line(f"\nNo figure: {missing}" if missing else f"\nAs a figure: {figure}")


def _announce_recall(page: Page, trial: TrainingTrial) -> None:
    config = trial.config
    task = config.task_options
    page.heading("5. Finding something far away")
    page.paragraph(
        f"Loss does not show whether a model can still look something up. So three smaller models "
        f"({config.layers} layers of width {config.width}) learn only that: {task['pairs']} pairs of a "
        f"key and a value are scattered in noise, and at the end the values of the keys are asked for. "
        f"They train on {config.length} tokens, for {config.steps} steps.\n"
    )


def _print_recall(page: Page, trial: TrainingTrial, records: Mapping[str, TrainingRecord]) -> None:
    recalled = {scheme: record.recall_by_length() for scheme, record in records.items()}
    chance = f"1 in {trial.config.task_options['values']}"
    page.paragraph(f"Share of values recalled; chance is {chance}.\n")
    _print_by_length(page, trial, recalled, change=False)
    findings = _recall_findings(recalled, trial.config.length, max(trial.evaluation.lengths))
    page.paragraph(f"\n{' '.join(findings)}")


def _recall_findings(
    recalled: Mapping[str, Mapping[int, float]], trained: int, longest: int
) -> Iterator[str]:
    """A sentence about each scheme's shares, whatever they turn out to be."""
    for scheme, row in recalled.items():
        learned, left = row[trained], row[longest]
        start = "learns the task" if learned >= KNOWN else f"learns {learned:.0%} of it"
        still = "only" if left < LOST * learned else "still"
        yield (
            f"{title_of(scheme)} {start}, and {still} recalls {left:.0%} at {longest // trained} times "
            f"the training length."
        )


def _print_next(page: Page, output: Path, report: Path) -> None:
    page.heading("6. Where to go next")
    page.line(f"    {report}\n        these results as a web page, with an attention explorer")
    sia = program()
    for command, purpose in (
        (f"{sia} generate {output / 'runs' / OURS}-seed-0", "text generated by the third model"),
        (f"{sia} train --help", "train your own models, up to the paper's recipes on GPUs"),
        (
            f"{sia} reproduce table1",
            "all schemes with three seeds, in about two hours on two cores",
        ),
    ):
        page.line(f"    {command}\n        {purpose}")
    page.paragraph(
        "\nREPRODUCTION.md shows that table next to the paper's numbers. README.md introduces the "
        "attention function, which is called like scaled_dot_product_attention."
    )
