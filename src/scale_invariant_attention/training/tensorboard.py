"""Writes the metrics of a run as event files for TensorBoard.

The files are rebuilt from `metrics.jsonl` each time the run starts or resumes, and grow from there. So
they show every step once, wherever the run was interrupted, and also steps made without them.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from time import time
from typing import Any, Self

from .config import TrainingConfig
from .loop import Progress
from .runs import TENSORBOARD, read_metrics

# Seconds after which added values become visible.
FLUSH_AFTER = 10
TAGS = {
    "loss": "training/loss",
    "gradient_norm": "training/gradient_norm",
    "factor": "training/learning_rate_factor",
    "tokens_per_second": "training/tokens_per_second",
}


class TensorBoard:
    """Writes event files as the `watch` of a training, called after every step on rank 0.

    Existing files are replaced at the first step, or at the end if no step was left; a training that is
    refused leaves them alone. `folder` is that of the run.
    """

    def __init__(self, folder: str | PathLike[str], config: TrainingConfig) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as missing:
            fix = 'install it with: pip install "scale-invariant-attention[tensorboard]"'
            message = f"event files need tensorboard; {fix}"
            raise ModuleNotFoundError(message, name=missing.name) from missing
        self._new_writer = SummaryWriter
        self._writer: Any = None
        self._run = Path(folder)
        self._tokens = config.batch_size * config.length

    def __call__(self, now: Progress) -> None:
        """Add a step."""
        if self._writer is None:
            self._start(before=now.step)
        self._add(vars(now), time())
        if now.validation is not None:
            self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._writer is None and kind is None:
            self._start()
        if self._writer is not None:
            self._writer.close()

    def _start(self, before: int | None = None) -> None:
        """Write the recorded steps, those before step `before` if given."""
        folder = self._run / TENSORBOARD
        for outdated in folder.glob("events.out.tfevents.*"):
            outdated.unlink()
        self._writer = self._new_writer(str(folder), flush_secs=FLUSH_AFTER)
        lines = [
            line for line in read_metrics(self._run) if before is None or line["step"] < before
        ]
        # Only durations were recorded: let the steps end now, without gaps between them.
        timestamp = time() - sum(line.get("seconds", 0.0) for line in lines)
        for line in lines:
            timestamp += line.get("seconds", 0.0)
            rate = (
                {"tokens_per_second": self._tokens / line["seconds"]} if "seconds" in line else {}
            )
            self._add(line | rate, timestamp)
        self._writer.flush()

    def _add(self, line: Mapping[str, Any], timestamp: float) -> None:
        """Add a line of the metrics, of a step or of a validation, or both at once."""
        values = {tag: line[name] for name, tag in TAGS.items() if name in line}
        losses = line.get("validation") or {}
        values |= {f"validation_loss/{length}": loss for length, loss in losses.items()}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, line["step"], walltime=timestamp)
