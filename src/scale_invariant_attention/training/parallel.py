"""How the ranks hold the model that they train: one alone, each a copy, or each a part."""

import gc
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..model import GPT
from .ranks import Ranks
from .sharding import shard


class Alone:
    """One process has the whole model.

    `model` has the parameters and is what validation calls; `called` is what a step calls.
    """

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        self.model = self._placed(model, ranks)
        self.called: nn.Module = self.model
        if compiled:
            self.called = cast(nn.Module, torch.compile(self.model))

    def _placed(self, model: GPT, ranks: Ranks) -> GPT:
        return model.to(ranks.device)

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """For a part of a batch, the last of them or not: whether ranks exchange its gradients."""
        return nullcontext()

    def trained(self, saved: str | PathLike[str]) -> GPT:
        """The whole model, once it is trained and `saved` is its folder."""
        return self.model

    def leave(self) -> None:
        """Let go of what may not outlive the process group."""


class Replicated(Alone):
    """Every rank has a copy of the model, and they exchange gradients."""

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        super().__init__(model, ranks, compiled=compiled)
        self._wrapper = DistributedDataParallel(self.called)
        self.called = self._wrapper

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Once a step, with the last of its parts."""
        return nullcontext() if last else self._wrapper.no_sync()

    def leave(self) -> None:
        """Drop the wrapper, whose destructor would deadlock.

        It would destroy the group while it holds Python's lock, for which threads of the group wait.
        """
        del self._wrapper
        self.called = self.model
        gc.collect()


class Sharded(Alone):
    """Every rank has a part of each weight, and of its gradient and of the optimisers' state.

    Gradients are exchanged with every part of a batch: to wait for the last, each rank would have to
    hold all of them.
    """

    def _placed(self, model: GPT, ranks: Ranks) -> GPT:
        shard(model, ranks)
        return model

    def trained(self, saved: str | PathLike[str]) -> GPT:
        """Read from its folder, to the CPU: a device may have no room for it."""
        return GPT.from_pretrained(
            saved,
            backend=self.model.backend,
            checkpoint_activations=self.model.checkpoint_activations,
        )


# What each of several ranks may have.
PARALLEL: dict[str, type[Alone]] = {"replicate": Replicated, "shard": Sharded}


def hold_model(model: GPT, ranks: Ranks, parallel: str, *, compiled: bool) -> Alone:
    """Bring a model, which is the same on all ranks, to where they train it.

    `parallel` is one of ``PARALLEL``; for one rank alone it does not matter.
    """
    held = Alone if ranks.size == 1 else PARALLEL[parallel]
    return held(model, ranks, compiled=compiled)
