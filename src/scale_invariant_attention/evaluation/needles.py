"""Needles in a haystack: what a model finds, by length and by depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.needles import NeedleExample, NeedleTask
from ..model import left_padded
from .needle_scores import Share, found
from .scoring import Scored, rows_at_once, token_losses

# Tokens that an answer may have more than it should: enough to see that it runs on.
OVERRUN = 4


class Writing(Scored, Protocol):
    """A model that can also write on, as a GPT can."""

    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        *,
        token_mask: Tensor | None,
        stop_tokens: Sequence[int],
    ) -> Tensor:
        """The prompts and the likeliest tokens behind them."""
        ...


@dataclass(frozen=True)
class NeedleResult:
    """What came of one needle: whether it was found, and how likely its part of the answer was.

    `log_probability` is that of its entry, in nats, given the text and the right answer before it.
    """

    length: int
    example: int
    depth: float
    found: bool
    log_probability: float
    tokens: int


@dataclass(frozen=True)
class DepthShare:
    """The needles that lay between two depths, and how many of them were found."""

    start: float
    stop: float
    share: Share | None


def find_needles(
    model: Writing,
    task: NeedleTask,
    length: int,
    examples: int,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda done: None,
) -> list[NeedleResult]:
    """Let a model answer the examples 0 to `examples - 1` of a length; a result for every needle.

    Answers are written greedily, with a cache; probabilities are those of the right answer, read
    along with the text. `progress` is called with the number of examples done.
    """
    results = []
    at_once = rows_at_once(length)
    for first in range(0, examples, at_once):
        numbers = range(first, min(first + at_once, examples))
        rows = [task.example(length, number) for number in numbers]
        answers = _answers(model, task, rows, device)
        losses = token_losses(model, *task.batch(length, numbers), device)
        for number, row, (answer, ended), loss in zip(numbers, rows, answers, losses, strict=True):
            hits = found(answer, ended, row.needles, task.format)
            for needle, hit in zip(row.needles, hits, strict=True):
                start, stop = needle.answer_span
                # The loss at i is that of token i + 1.
                log_probability = -float(loss[start - 1 : stop - 1].sum())
                results.append(
                    NeedleResult(
                        length, number, row.depth(needle), hit, log_probability, stop - start
                    )
                )
        progress(numbers.stop)
    return results


def accuracy(results: Sequence[NeedleResult]) -> Share:
    """The share of needles that were found."""
    return Share(sum(result.found for result in results), len(results))


def depth_edges(ranges: int) -> list[float]:
    """The edges of so many equal ranges of depth.

    >>> depth_edges(4)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    edges: list[float] = np.linspace(0, 1, ranges + 1).tolist()
    return edges


def accuracy_by_depth(results: Sequence[NeedleResult], edges: Sequence[float]) -> list[DepthShare]:
    """The same for each range of depth between two edges; None where no needle lay."""
    shares = []
    for start, stop in pairwise(edges):
        # A needle of depth 1 stands right before the question.
        inside = [it for it in results if start <= it.depth < stop or it.depth == stop == 1]
        shares.append(DepthShare(start, stop, accuracy(inside) if inside else None))
    return shares


def needle_table(
    results: Sequence[NeedleResult], edges: Sequence[float]
) -> dict[str, list[dict[str, Any]]]:
    """What is recorded of results, as JSON can hold it: the shares by length, and by length and depth.

    `log_probability` is the mean over needles, each of its whole entry.
    """
    lengths = sorted({result.length for result in results})
    by_length = {n: [result for result in results if result.length == n] for n in lengths}
    return {
        "lengths": [
            {
                "length": length,
                "examples": len({result.example for result in mine}),
                **accuracy(mine).to_dict(),
                "log_probability": sum(it.log_probability for it in mine) / len(mine),
            }
            for length, mine in by_length.items()
        ],
        "cells": [
            {"length": length, "start": cell.start, "stop": cell.stop, **cell.share.to_dict()}
            for length, mine in by_length.items()
            for cell in accuracy_by_depth(mine, edges)
            if cell.share is not None
        ],
    }


def _answers(
    model: Writing, task: NeedleTask, rows: Sequence[NeedleExample], device: torch.device | str
) -> list[tuple[str, bool]]:
    """What a model writes behind each text, and whether it came to an end."""
    end = task.encoding.document_start
    prompts, mask = left_padded([row.tokens[: row.answer_start].tolist() for row in rows])
    longest = max(len(row.tokens) - row.answer_start for row in rows)
    written = model.generate(
        prompts.to(device), longest + OVERRUN, token_mask=mask.to(device), stop_tokens=[end]
    )
    return [_text(task, tokens) for tokens in written[:, prompts.shape[1] :].tolist()]


def _text(task: NeedleTask, tokens: list[int]) -> tuple[str, bool]:
    end = task.encoding.document_start
    ended = end in tokens
    decoder = task.encoding.decoder()
    text = [decoder.add(token) for token in (tokens[: tokens.index(end)] if ended else tokens)]
    return "".join([*text, decoder.finish()]), ended
