"""How the ranks hold the model that they train: one of them alone, or each a copy."""

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..model import GPT
from .ranks import Ranks


class Alone:
    """One process has the whole model.

    `model` has the parameters and is what validation calls; `called` is what a step calls.
    """

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        self.model = model.to(ranks.device)
        self.called: nn.Module = self.model
        if compiled:
            self.called = cast(nn.Module, torch.compile(self.model))

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """For a part of a batch: ranks exchange gradients once a step, with the last of its parts."""
        return nullcontext()

    def leave(self) -> None:
        """Let go of what may not outlive the process group."""


class Replicated(Alone):
    """Every rank has a copy of the model, and they exchange gradients."""

    def __init__(self, model: GPT, ranks: Ranks, *, compiled: bool) -> None:
        super().__init__(model, ranks, compiled=compiled)
        self._wrapper = DistributedDataParallel(self.called)
        self.called = self._wrapper

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """As for one alone, but that there is somebody to exchange them with."""
        return nullcontext() if last else self._wrapper.no_sync()

    def leave(self) -> None:
        """Drop the wrapper, whose destructor would deadlock.

        It would destroy the group while it holds Python's lock, for which threads of the group wait.
        """
        del self._wrapper
        self.called = self.model
        gc.collect()


def hold_model(model: GPT, ranks: Ranks, *, compiled: bool) -> Alone:
    """Bring a model, which is the same on all ranks, to where they train it."""
    held = Alone if ranks.size == 1 else Replicated
    return held(model, ranks, compiled=compiled)
