"""The metrics of a run as event files, for TensorBoard.

They are made from `metrics.jsonl` anew each time the run is started or resumed, and grow from there. So
they show every step once, wherever the run was broken off, and those made without them too.
"""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from time import time
from types import TracebackType
from typing import Any, Self

from .config import TrainingConfig
from .loop import Progress
from .runs import TENSORBOARD, read_metrics

# Seconds after which what was added is there to be seen.
FLUSH_AFTER = 10


class TensorBoard:
    """Called after every step of a training, as its `watch`, on the rank that writes.

    Files that are there are replaced at the first step, or at the end if the run had none left; a
    training that is refused leaves them alone.

    Args:
        folder: of the run.
        config: what is trained.
    """

    def __init__(self, folder: str | PathLike[str], config: TrainingConfig) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                "event files need tensorboard; "
                'pip install "scale-invariant-attention[tensorboard]" adds it',
                name=missing.name,
            ) from missing
        self._new_writer = SummaryWriter
        self._writer: Any = None
        self._run = Path(folder)
        self._tokens = config.batch_size * config.length

    def __call__(self, now: Progress) -> None:
        """Add a step."""
        if self._writer is None:
            self._start(before=now.step)
        values = _of_step(now.loss, now.gradient_norm, now.factor, now.tokens_per_second)
        self._add(now.step, values | _by_length(now.validation or {}), time())
        if now.validation is not None:
            self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is None and kind is None:
            self._start()
        if self._writer is not None:
            self._writer.close()

    def _start(self, before: int | None = None) -> None:
        """Write the steps that are recorded, up to one that is yet to be added."""
        folder = self._run / TENSORBOARD
        for outdated in folder.glob("events.out.tfevents.*"):
            outdated.unlink()
        self._writer = self._new_writer(str(folder), flush_secs=FLUSH_AFTER)
        lines = [
            line for line in read_metrics(self._run) if before is None or line["step"] < before
        ]
        # No time was recorded but what steps took: they end now, as if nothing had come between.
        moment = time() - sum(line.get("seconds", 0.0) for line in lines)
        for line in lines:
            moment += line.get("seconds", 0.0)
            self._add(line["step"], self._recorded(line), moment)
        self._writer.flush()

    def _recorded(self, line: Mapping[str, Any]) -> dict[str, float]:
        """The values of a line of the metrics, which is that of a step or of a validation."""
        if "validation" in line:
            return _by_length(line["validation"])
        rate = self._tokens / line["seconds"]
        return _of_step(line["loss"], line["gradient_norm"], line["factor"], rate)

    def _add(self, step: int, values: Mapping[str, float], moment: float) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=moment)


def _of_step(
    loss: float, gradient_norm: float, factor: float, tokens_per_second: float
) -> dict[str, float]:
    return {
        "training/loss": loss,
        "training/gradient_norm": gradient_norm,
        "training/learning_rate_factor": factor,
        "training/tokens_per_second": tokens_per_second,
    }


def _by_length(losses: Mapping[Any, float]) -> dict[str, float]:
    return {f"validation_loss/{length}": loss for length, loss in losses.items()}
