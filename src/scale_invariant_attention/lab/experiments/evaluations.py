"""Evaluations of a trained model: what a trial measures and its record keeps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import torch

from ...analysis import attention_by_length, gpt_scores
from ...analysis.ranges import DECADE
from ...data import SameTokens, TokenStream, document_spans, spread_windows
from ...data.masked_text import MaskedTextTask
from ...data.needles import NeedleTask
from ...data.strings import RepeatedStringTask
from ...data.tasks import SEQUENCE_TASKS, RecallTask, Task
from ...evaluation import loss_by_length, loss_by_position
from ...evaluation.image_scores import image_scores
from ...evaluation.retrieval import depth_edges, find_needles, needle_table
from ...evaluation.task_scores import score_task
from ...model import GPT
from ...training.training_data import (
    HELD_OUT,
    MASKED,
    TaskConfig,
    corpus_encoding,
    open_corpus,
    open_task,
)
from .._schema import from_json, omitted_if_none
from ..measurements import (
    ImageScores,
    LengthAttention,
    NeedleTable,
    RecallShare,
    StringShare,
    TaskScores,
)

TaskT = TypeVar("TaskT", NeedleTask, RecallTask)


@dataclass(frozen=True)
class Evaluation(ABC):
    """A measurement at several context lengths; its fields are recorded."""

    lengths: tuple[int, ...]

    @abstractmethod
    def check(self, config: TaskConfig) -> None:
        """Refuse what could not be measured of a model trained like this, before hours of training."""

    @abstractmethod
    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """The measurements, by the names of their fields in a ``Record``."""

    def changed(self, changes: Mapping[str, Any] | None) -> Self:
        """The same evaluation with some fields changed."""
        return replace(self, **(changes or {}))


@dataclass(frozen=True)
class LossEvaluation(Evaluation):
    """Loss at `lengths` on the same `tokens`, and by position up to the longest.

    The tokens are the first of the validation text after `skip`.
    """

    tokens: int
    skip: int | None = omitted_if_none()

    def check(self, config: TaskConfig) -> None:
        """See :class:`Evaluation`."""
        self._same_tokens(_corpus(config))

    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`; there are no losses by position if no document is long enough."""
        corpus, longest = _corpus(config), max(self.lengths)
        losses = loss_by_length(model, self._same_tokens(corpus), device=device)
        by_position = []
        if len(document_spans(corpus, at_least=longest + 1)):
            at_most = max(1, self.tokens // longest)
            by_position = loss_by_position(model, corpus, longest, at_most=at_most, device=device)
        return {
            "losses": tuple(losses),
            "by_position": tuple(by_position),
            "corpus": corpus.fingerprint(),
        }

    def _same_tokens(self, corpus: TokenStream) -> SameTokens:
        return SameTokens(corpus, self.lengths, at_most=self.tokens, skip=self.skip or 0)


@dataclass(frozen=True)
class AttentionEvaluation(Evaluation):
    """Attention in contexts of `lengths` tokens that end with the same ones: see `analysis`.

    `ratio` is that of the ranges of distance, `recent` the number of tokens that count as nearest.
    """

    contexts: int
    ratio: float = DECADE
    recent: int = 100

    def check(self, config: TaskConfig) -> None:
        """See :class:`Evaluation`."""
        spread_windows(_corpus(config), max(self.lengths), 1)

    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`."""
        corpus, source = _corpus(config), partial(gpt_scores, model)
        contexts = spread_windows(corpus, max(self.lengths), self.contexts).to(device)
        found = attention_by_length(
            source, contexts, self.lengths, ratio=self.ratio, recent=self.recent
        )
        return {
            "attention": tuple(from_json(LengthAttention, it.to_dict()) for it in found),
            "corpus": corpus.fingerprint(),
        }


@dataclass(frozen=True)
class NeedleEvaluation(Evaluation):
    """Needles found at `lengths` in `examples` texts each, by length and by ranges of depth.

    The texts are from a `split` of the data, by default "validation".
    """

    examples: int
    depths: int = 10
    split: str | None = omitted_if_none()

    def check(self, config: TaskConfig) -> None:
        """See :class:`Evaluation`."""
        task = _task(config, NeedleTask, self.split)
        for length in self.lengths:
            task.example(length, 0)

    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`."""
        task = _task(config, NeedleTask, self.split)
        results = [
            result
            for length in self.lengths
            for result in find_needles(model, task, length, self.examples, device=device)
        ]
        return {
            "needles": from_json(NeedleTable, needle_table(results, depth_edges(self.depths))),
            "corpus": _corpus(config, self.split).fingerprint(),
        }


@dataclass(frozen=True)
class RecallEvaluation(Evaluation):
    """Values recalled at `lengths` in `examples` sequences each."""

    examples: int

    def check(self, config: TaskConfig) -> None:
        """See :class:`Evaluation`."""
        for length in self.lengths:
            _task(config, RecallTask).batch(length, [0])

    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`."""
        task, rows = _task(config, RecallTask), []
        for length in self.lengths:
            share = score_task(model, task, length, self.examples, device=device).answers
            rows.append(RecallShare(length, share.hits, share.count, *share.interval))
        return {"recall": tuple(rows)}


@dataclass(frozen=True)
class TaskEvaluation(Evaluation):
    """Scores at `lengths` in `examples` sequences each, of masked text or a task that needs no text.

    Of masked text `examples` is the number at the greatest length: shorter ones have as many tokens.
    """

    examples: int

    def check(self, config: TaskConfig) -> None:
        """See :class:`Evaluation`."""
        task = self._task(config)
        for length in self.lengths:
            task.batch(length, [0])
        if isinstance(task, MaskedTextTask):
            most = (len(task.source) - 1) // max(self.lengths)
            if self.examples > most:
                right = f"at most {most}, as many as the text has of {max(self.lengths)} tokens"
                raise ValueError(f"examples must be {right}, got {self.examples}")

    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`."""
        task, rows = self._task(config), []
        for length in self.lengths:
            examples = self.examples
            if isinstance(task, MaskedTextTask):
                examples = examples * max(self.lengths) // length
            score = score_task(model, task, length, examples, device=device)
            rows.append(TaskScores.of(score, length))
        found: dict[str, Any] = {"scores": tuple(rows)}
        if isinstance(task, MaskedTextTask):
            found["corpus"] = _corpus(config).fingerprint()
        return found

    def _task(self, config: TaskConfig) -> Task:
        if config.task not in (MASKED, *SEQUENCE_TASKS):
            known = ", ".join((MASKED, *SEQUENCE_TASKS))
            raise ValueError(f"task must be one of {known}, got {config.task!r}")
        return open_task(config, "validation", HELD_OUT)


@dataclass(frozen=True)
class ImageEvaluation(Evaluation):
    """Scores on `examples` canvases of each size; `lengths` are the patches of their sides."""

    examples: int

    def check(self, config: Any) -> None:
        """See :class:`Evaluation`."""
        for size in self.lengths:
            config.data.batch(size, [0])

    def measure(self, model: Any, config: Any, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`."""
        rows = []
        for size in self.lengths:
            found = image_scores(model, config.data, size, self.examples, device)
            error = found.loss.standard_error if self.examples > 1 else None
            rows.append(ImageScores(size, self.examples, found.share, found.loss.mean, error))
        return {"images": tuple(rows), "corpus": config.data.fingerprint()}


@dataclass(frozen=True)
class StringEvaluation(Evaluation):
    """Repeated strings continued at `lengths` in `examples` texts each: see ``RepeatedStringTask``."""

    examples: int
    letters: int
    prefix: int

    def check(self, config: TaskConfig) -> None:
        """See :class:`Evaluation`."""
        for length in self.lengths:
            self._task(config).example(length, 0)

    def measure(self, model: GPT, config: TaskConfig, device: torch.device) -> dict[str, Any]:
        """See :class:`Evaluation`."""
        task, rows = self._task(config), []
        # Ascending: dynamic NTK remembers the longest text.
        for length in sorted(self.lengths):
            score = score_task(model, task, length, self.examples, device=device)
            share = score.answers
            rows.append(StringShare(length, share.hits, share.count, *share.interval, score.loss))
        return {"strings": tuple(rows), "corpus": _corpus(config).fingerprint()}

    def _task(self, config: TaskConfig) -> RepeatedStringTask:
        encoding = corpus_encoding(config.data).open()
        return RepeatedStringTask(_corpus(config), encoding, self.letters, self.prefix, HELD_OUT)


def _corpus(config: TaskConfig, split: str | None = None) -> TokenStream:
    return open_corpus(config.data, split or "validation", config.vocab_size)


def _task(config: TaskConfig, kind: type[TaskT], split: str | None = None) -> TaskT:
    task = open_task(config, split or "validation", HELD_OUT)
    if not isinstance(task, kind):
        raise ValueError(
            f"task must be the one that is measured, a {kind.__name__}, got {config.task!r}"
        )
    return task
