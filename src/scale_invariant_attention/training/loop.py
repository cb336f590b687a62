"""The training loop: steps, validation and checkpoints, resumed exactly wherever it was stopped."""

import math
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..attention import run_self_checks
from ..data import SameTokens
from ..data.tasks import NOT_SCORED, TaskExamples
from ..evaluation.losses import Scored, rows_at_once, token_losses
from ..files import check_writable
from ..model import GPT, WholeLosses
from ._optimisers import build_optimisers, fast_in_bfloat16
from ._parallel import hold_model, load_whole, whole, whole_on_first
from .checkpoints import (
    capture_random_state,
    clear_torn_checkpoints,
    find_checkpoints,
    latest_checkpoint,
    restore_random_state,
    save_checkpoint,
)
from .config import TrainingConfig
from .ranks import Ranks, open_ranks
from .runs import CHECKPOINTS, MODEL, Run, open_run
from .trained import starting_weights
from .training_data import open_training_data

# A loss this many times that of guessing does not recover.
EXPLODED = 4.0


class DivergedError(RuntimeError):
    """The loss, the gradients or the weights are not finite, or the loss is far beyond guessing."""


class StoppedError(RuntimeError):
    """Training was asked to stop, and has saved a checkpoint."""


@dataclass(frozen=True)
class Progress:
    """The state of a training after a step; the speed does not include validation."""

    step: int
    steps: int
    loss: float
    gradient_norm: float
    factor: float
    tokens_per_second: float
    validation: Mapping[int, float] | None


def train(
    config: TrainingConfig,
    folder: str | PathLike[str],
    *,
    device: torch.device | str | None = None,
    context_parallel: int = 1,
    watch: Callable[[Progress], object] = lambda progress: None,
    notice: Callable[[str], object] = lambda text: None,
) -> GPT:
    """Train a model in the folder of a run, or resume the run in it.

    The folder gets the configuration, a line of metrics for every step and every validation, and
    checkpoints; at the end the model itself, in ``model/``, for ``GPT.from_pretrained``. A run that was
    killed resumes from its last checkpoint and ends with the weights of an uninterrupted one. SIGTERM
    and Ctrl-C save a checkpoint and raise :class:`StoppedError`.

    Processes started by torchrun share every batch, and may be more or fewer when the run resumes. All
    must use the same folder. Each returns the whole model; with ``parallel="shard"`` it is read from
    ``model/``, to the CPU. With `context_parallel`, as many of them share each row of a batch, for rows
    that do not fit on one device; it changes nothing but rounding, and may change when the run resumes.

    `device` None takes a GPU if there is one, a different one per process. Rank 0 calls `watch` after
    every step, and `notice` with sentences for the user.
    """
    folder = Path(folder)
    with open_ranks(device, context_parallel=context_parallel) as ranks, ExitStack() as opened:
        notify = notice if ranks.rank == 0 else lambda text: None
        training = _Training(config, folder, ranks)
        opened.callback(training.held.leave)
        training.run = ranks.on_first(lambda: opened.enter_context(training.open_run()))
        stop = opened.enter_context(StopRequest(notify))
        training.resume()
        if 0 < training.step < config.steps:
            notify(f"Resuming from step {training.step:,} of {config.steps:,}.")
        while training.step < config.steps:
            progress = training.advance()
            (requests,) = ranks.sum(stop.requested)
            stopping = requests > 0 and progress.step < config.steps
            if stopping or training.is_due(config.checkpoint_every):
                training.save(progress.validation)
            if ranks.rank == 0:
                watch(progress)
            if stopping:
                saved = f"saved at step {progress.step:,} of {config.steps:,}, in {folder}"
                raise StoppedError(f"Stopped and {saved}. Rerun the same command to resume.")
        return training.finish()


def _scored(targets: Tensor) -> int:
    return int((targets != NOT_SCORED).sum())


class _Training:
    """The state of a training between two steps."""

    def __init__(self, config: TrainingConfig, folder: Path, ranks: Ranks) -> None:
        self.config, self.folder, self.ranks, self.device = config, folder, ranks, ranks.device
        # Only rank 0 writes, and has a run.
        self.run: Run | None = None
        self.step = 0
        if config.precision == "bfloat16" and not fast_in_bfloat16(self.device):
            reason = "which has no units for bfloat16 (AVX512-BF16, AMX or those of a GPU)"
            raise ValueError(
                f"precision must be float32 on {self.device}, {reason}, got 'bfloat16'"
            )
        if config.compile and ranks.context_parallel is not None:
            raise ValueError(
                f"compile must be false with context_parallel, got {config.compile} with "
                f"context_parallel {ranks.sharing}: messages between ranks cannot be compiled"
            )
        self.data = open_training_data(config, ranks.reader, ranks.readers)
        torch.manual_seed(config.seed)
        checkpointing = config.checkpoint_activations
        model = GPT(
            config.model_config(), backend=config.backend, checkpoint_activations=checkpointing
        )
        if config.compile and config.backend == "auto":
            # A compiled model cannot check a backend at its first call.
            run_self_checks(self.device)
        self.held = hold_model(model, ranks, config.parallel, compiled=config.compile)
        self.model = self.held.model
        # The tensors that the optimisers update: a sharded model shows gathered ones for a while.
        self.parameters = list(self.model.parameters())
        rates = config.learning_rates()
        self.optimisers = build_optimisers(self.model, rates, precision=config.precision)
        self.schedule = config.learning_schedule()

    def open_run(self) -> AbstractContextManager[Run]:
        """Open the run, if its folder has room for all checkpoints that exist at the same time."""
        weights = sum(p.numel() * p.element_size() for p in self.parameters)
        # Those kept, the best, and the one being saved.
        needed = (self.config.keep_checkpoints + 2) * (weights + self.optimisers.state_bytes)
        existing = sum(file.stat().st_size for file in self.folder.rglob("*.safetensors"))
        check_writable(self.folder, max(0, needed - existing))
        return open_run(self.folder, self.config.to_dict(), defaults=TrainingConfig().to_dict())

    def resume(self) -> None:
        """Resume from the last good checkpoint, if any, or start from the configured weights."""
        if self.run is not None:
            clear_torn_checkpoints(self.folder / CHECKPOINTS)
        checkpoint = latest_checkpoint(self.folder / CHECKPOINTS)
        if checkpoint is None and self.config.start is not None:
            load_whole(self.model, starting_weights(self.config))
        if checkpoint is not None:
            tensors, values = checkpoint.tensors, checkpoint.values
            if changes := self.data.changes(values):
                raise ValueError(
                    f"data {self.config.data!r} has changed since {checkpoint.path} was saved: "
                    f"{'; '.join(changes)}. Restore it, or start again in another folder"
                )
            load_whole(self.model, tensors["model"])
            self.optimisers.load_state(tensors["optimisers"], values["optimisers"])
            restore_random_state(tensors["random"], values["random"])
            self.step = checkpoint.step
        (total,) = self.ranks.sum(self.step)
        if total != self.step * self.ranks.size:
            raise ValueError(
                f"rank {self.ranks.rank} finds step {self.step} in {self.folder}, and other ranks find "
                f"another; the folder must be on a disk that all ranks share"
            )
        if self.run is not None:
            on_gpu = self.device.type == "cuda"
            device = torch.cuda.get_device_name(self.device) if on_gpu else "cpu"
            facts = {"seed": self.config.seed, "device": device, "ranks": self.ranks.size}
            facts |= {"context_parallel": self.ranks.sharing}
            self.run.start(self.step, **facts, **self.data.identity())

    def is_due(self, every: int) -> bool:
        """Whether this step is the last, or a multiple of `every`."""
        return self.step == self.config.steps or (every > 0 and self.step % every == 0)

    def advance(self) -> Progress:
        """Make a step, validate if that is due, and record both."""
        start = perf_counter()
        factor = self.schedule.factor(self.step, self.config.steps)
        self.optimisers.set_schedule_factor(factor)
        tokens, targets = self.data.batches[self.step]
        loss, norm = self._gradients(tokens, targets)
        self._check_sound(loss, norm)
        self.optimisers.step()
        self.optimisers.zero_grad()
        self.step += 1
        seconds = perf_counter() - start
        validation = None
        if self.is_due(self.config.validate_every):
            with self.config.autocast(self.device):
                validation = validation_losses(self.model, self.data.validation, self.ranks)
        if self.run is not None:
            record = {"loss": loss, "gradient_norm": norm, "factor": factor, "seconds": seconds}
            self.run.record(self.step, record)
            if validation is not None:
                by_length = {str(length): loss for length, loss in validation.items()}
                self.run.record(self.step, {"validation": by_length})
        rate = self.config.batch_size * tokens.shape[1] / seconds
        return Progress(self.step, self.config.steps, loss, norm, factor, rate, validation)

    def save(self, validation: Mapping[int, float] | None) -> None:
        """Save a checkpoint of this step, ranked by its validation loss, if there is one."""
        metric = None if validation is None else validation[self.config.validation_lengths[0]]
        # All ranks must gather together before rank 0 writes alone.
        norm = self._weight_norm()
        tensors = {
            "model": whole_on_first(self.model.state_dict(), self.ranks),
            "optimisers": whole_on_first(self.optimisers.state_tensors(), self.ranks),
        }

        def write() -> None:
            if not math.isfinite(norm):
                problem = f"step {self.step}: the weights are not finite"
                raise DivergedError(f"{problem}. {self._remedy()}")
            if self.run is not None:
                self.run.sync()
            random, optimisers = capture_random_state(), self.optimisers.state_values()
            save_checkpoint(
                self.folder / CHECKPOINTS,
                self.step,
                tensors | {"random": random.tensors},
                {"optimisers": optimisers, "random": random.values, **self.data.identity()},
                metric=metric,
                keep_last=self.config.keep_checkpoints,
            )

        self.ranks.on_first(write)

    def finish(self) -> GPT:
        """Save the model and return it whole."""
        folder = self.folder / MODEL
        weights = whole_on_first(self.model.state_dict(), self.ranks)
        self.ranks.on_first(lambda: self.model.save_pretrained(folder, state_dict=weights))
        return self.held.trained(folder)

    def _gradients(self, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
        """Compute the gradients of the mean loss; return that loss and the norm before clipping."""
        rows = self.config.micro_batch_size or len(tokens)
        parts = list(zip(torch.split(tokens, rows), torch.split(targets, rows), strict=True))
        # Gradients are averaged over ranks, so each part is weighted by its share of all scored tokens.
        (scored,) = self.ranks.sum(self._scored_here(targets))
        mean = 0.0
        for number, (inputs, expected) in enumerate(parts, start=1):
            share = self._scored_here(expected) * self.ranks.size / scored
            with self.held.exchanging(last=number == len(parts)):
                with self.config.autocast(self.device):
                    batch = inputs.to(self.device), expected.to(self.device)
                    ranks = self.ranks.context_parallel
                    loss: Tensor = self.held.called(*batch, context_parallel=ranks)
                (loss * share).backward()  # type: ignore[no-untyped-call]
            mean += share * loss.item()
        (total,) = self.ranks.sum(mean)
        parameters = [p for p in self.parameters if p.grad is not None]
        norm = whole(get_total_norm([p.grad for p in parameters if p.grad is not None]))
        if self.config.clip_norm is not None:
            clip_grads_with_norm_(parameters, self.config.clip_norm, norm)
        return total / self.ranks.size, float(norm)

    def _scored_here(self, targets: Tensor) -> int:
        """Number of scored tokens of rows that this rank holds itself."""
        ranks = self.ranks.context_parallel
        return _scored(targets if ranks is None else ranks.part(targets))

    def _check_sound(self, loss: float, norm: float) -> None:
        guessing = math.log(self.config.vocab_size)
        if math.isfinite(loss) and math.isfinite(norm) and loss <= EXPLODED * guessing:
            return
        raise DivergedError(
            f"step {self.step + 1}: the loss is {loss:.4g} (guessing: {guessing:.4g}), the norm of its "
            f"gradient {norm:.4g}, the norm of the weights {self._weight_norm():.4g}. {self._remedy()}"
        )

    def _weight_norm(self) -> float:
        return float(whole(get_total_norm([p.detach() for p in self.parameters])))

    def _remedy(self) -> str:
        checkpoints = find_checkpoints(self.folder / CHECKPOINTS)
        good = next((found.path for found in checkpoints if found.damage is None), None)
        saved = f"The last good checkpoint is {good}" if good else "There is no earlier checkpoint"
        return f"{saved}. Lower the learning rates or set clip_norm, and train in another folder"


def validation_losses(
    model: Scored, tokens: SameTokens | TaskExamples, ranks: Ranks
) -> dict[int, float]:
    """Mean loss per length, in nats, the same on every rank; all ranks must call this.

    All call the model equally often, because ranks that hold a part of the weights need the others in
    each call. A reader that has no batch left repeats another's, and does not count it.

    >>> from scale_invariant_attention.data import standard_library
    >>> from scale_invariant_attention.model import GPTConfig
    >>> tokens = SameTokens(standard_library("validation"), (32, 64), at_most=128)
    >>> model, alone = GPT(GPTConfig.preset("mini")), Ranks(0, 1, torch.device("cpu"))
    >>> {length: round(loss, 3) for length, loss in validation_losses(model, tokens, alone).items()}
    {32: 5.545, 64: 5.545}
    """
    losses = {}
    if ranks.context_parallel is not None:
        model = WholeLosses(model, ranks.context_parallel)
    for length in tokens.lengths:
        batches = tokens.batches(length, batch_size=rows_at_once(length))
        own, scored = 0.0, 0
        while turn := list(islice(batches, ranks.readers)):
            inputs, targets = turn[min(ranks.reader, len(turn) - 1)]
            loss = float(token_losses(model, inputs, targets, ranks.device).sum())
            if ranks.reader < len(turn) and ranks.speaks_for_reader:
                own += loss
                scored += _scored(targets)
        total, count = ranks.sum(own, scored)
        losses[length] = total / count
    return losses


class StopRequest:
    """Context in which SIGTERM and SIGINT request a stop; a second SIGINT interrupts as usual.

    >>> with StopRequest(notice=print) as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    Stopping after this step, with a checkpoint.
    True
    """

    def __init__(self, notice: Callable[[str], object] = lambda text: None) -> None:
        self.requested = False
        self._notice = notice
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Only the main thread receives signals; a training in another thread is stopped otherwise.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested = True
            self._notice("Stopping after this step, with a checkpoint.")
