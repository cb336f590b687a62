"""What `sia reproduce table4` does with its conversions: training them, and what it prints."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..lab.reporting.conversion_section import conversion_of
from ..lab.reporting.losses import Record, losses_of, seed_rows
from .errors import INTERRUPTED, plain_errors
from .reproducing import steps_bar
from .terminal import Page

if TYPE_CHECKING:
    from ..lab.experiments.table4 import Conversion


def print_configurations(trials: "Sequence[Conversion]") -> None:
    """Every configuration by its name, as JSON."""
    configs = {trial.name: asdict(trial) | {"options": trial.options} for trial in trials}
    Page().line(json.dumps(configs, indent=2))


def reproduce_conversions(trials: "Sequence[Conversion]", runs: Path, results: Path) -> None:
    """Train what is not recorded, and print the table of all."""
    from transformers.utils.logging import disable_progress_bar

    from ..lab.experiments.conversions import run

    disable_progress_bar()
    records: list[Record] = []
    whole = {name: steps for trial in trials for name, steps in trial.trainings.items()}
    made: dict[str, int] = {}
    try:
        with plain_errors(), steps_bar(sum(whole.values())) as (bar, update):

            def watch(name: str, step: int, loss: float) -> None:
                made[name] = step
                update(sum(made.values()))

            def done(trial: "Conversion", record: Record) -> None:
                made.update(trial.trainings)
                update(sum(made.values()))
                records.append(record)
                losses = ", ".join(f"{it:.4f} at {n:,}" for n, it in losses_of(record).items())
                bar.console.print(f"{trial.name}: {losses} ({len(records)} of {len(trials)})")

            run(trials, runs, results, watch=watch, done=done)
    except KeyboardInterrupt as interrupted:
        typer.echo(
            f"Broken off, with {len(records)} of {len(trials)} recorded in {results}. Run the same "
            f"command again to go on.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from interrupted
    Page().table(
        ("scheme", *(f"{length:,}" for length in losses_of(records[0]))),
        [(row.label, *map(str, row.spreads.values())) for row in seed_rows(records, conversion_of)],
    )
