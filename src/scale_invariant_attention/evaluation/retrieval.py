"""Retrieval: needles that a model finds in a haystack, by length and depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..data.needles import Needle, NeedleExample, NeedleFormat, NeedleTask
from ..model import GPT, left_padded
from .losses import rows_at_once, token_losses
from .shares import Share

# Extra tokens that an answer may have: enough to see that it runs on.
OVERRUN = 4


def needles_found(
    answer: str, ended: bool, needles: Sequence[Needle], form: NeedleFormat
) -> list[bool]:
    """Whether an answer contains each of the needles.

    An answer is cut at the separator into as many entries as there are needles, and no more: anything
    further belongs to the last. A needle is found if exactly one entry names its city, and that entry is
    right to the letter. The last entry of an answer that did not end is wrong.

    >>> needles = [Needle("Rome", "12", (0, 1), (0, 1)), Needle("Oslo", "34", (1, 2), (1, 2))]
    >>> needles_found("Rome=12;Oslo=34", True, needles, NeedleFormat())
    [True, True]
    >>> needles_found("Rome=12;Oslo=34;Oslo=35", True, needles, NeedleFormat())
    [True, False]
    """
    entries = answer.split(form.between, len(needles) - 1)
    # An unfinished last entry cannot be right, but naming a city still counts against that city.
    whole = entries if ended else entries[:-1]
    return [
        sum(needle.city in entry for entry in entries) == 1
        and form.entry.format(city=needle.city, number=needle.number) in whole
        for needle in needles
    ]


@dataclass(frozen=True)
class NeedleResult:
    """Result of one needle.

    `log_probability` is of its entry in the answer, in nats, given the text and the right answer before.
    """

    length: int
    example: int
    depth: float
    found: bool
    log_probability: float
    tokens: int


@dataclass(frozen=True)
class DepthShare:
    """The share of needles found between two depths; None if there were none."""

    start: float
    stop: float
    share: Share | None


def find_needles(
    model: GPT,
    task: NeedleTask,
    length: int,
    examples: int,
    *,
    device: torch.device | str = "cpu",
    progress: Callable[[int], object] = lambda done: None,
) -> list[NeedleResult]:
    """Let a model answer the examples 0 to `examples - 1` of a length; one result per needle.

    Answers are generated greedily, with a cache; log-probabilities are of the right answer, scored
    together with the text. `progress` is called with the number of examples done.
    """
    results = []
    at_once = rows_at_once(length)
    for first in range(0, examples, at_once):
        numbers = range(first, min(first + at_once, examples))
        rows = [task.example(length, number) for number in numbers]
        answers = _answers(model, task, rows, device)
        losses = token_losses(model, *task.batch(length, numbers), device)
        for number, row, (answer, ended), loss in zip(numbers, rows, answers, losses, strict=True):
            hits = needles_found(answer, ended, row.needles, task.format)
            for needle, hit in zip(row.needles, hits, strict=True):
                start, stop = needle.answer_span
                # The loss at i is that of token i + 1.
                likely = -float(loss[start - 1 : stop - 1].sum())
                depth = row.depth(needle)
                results.append(NeedleResult(length, number, depth, hit, likely, stop - start))
        progress(numbers.stop)
    return results


def accuracy(results: Sequence[NeedleResult]) -> Share:
    """The share of needles that were found."""
    return Share(sum(result.found for result in results), len(results))


def depth_edges(ranges: int) -> list[float]:
    """Edges of `ranges` equal ranges of depth.

    >>> depth_edges(4)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    return [float(edge) for edge in np.linspace(0, 1, ranges + 1)]


def accuracy_by_depth(results: Sequence[NeedleResult], edges: Sequence[float]) -> list[DepthShare]:
    """The share of needles found in each range of depth between two edges."""
    shares = []
    for start, stop in pairwise(edges):
        # A needle of depth 1 is right before the question.
        inside = [it for it in results if start <= it.depth < stop or it.depth == stop == 1]
        shares.append(DepthShare(start, stop, accuracy(inside) if inside else None))
    return shares


def needle_table(
    results: Sequence[NeedleResult], edges: Sequence[float]
) -> dict[str, list[dict[str, Any]]]:
    """Results as JSON by length, and by length and depth; `log_probability` is the mean over needles."""
    lengths = sorted({result.length for result in results})
    by_length = {n: [result for result in results if result.length == n] for n in lengths}
    return {
        "lengths": [
            {
                "length": length,
                "examples": len({result.example for result in group}),
                **accuracy(group).to_dict(),
                "log_probability": sum(it.log_probability for it in group) / len(group),
            }
            for length, group in by_length.items()
        ],
        "cells": [
            {"length": length, "start": cell.start, "stop": cell.stop, **cell.share.to_dict()}
            for length, group in by_length.items()
            for cell in accuracy_by_depth(group, edges)
            if cell.share is not None
        ],
    }


def _answers(
    model: GPT, task: NeedleTask, rows: Sequence[NeedleExample], device: torch.device | str
) -> list[tuple[str, bool]]:
    """The answer generated after each text, and whether it ended."""
    end = task.encoding.document_start
    prompts, mask = left_padded([row.tokens[: row.answer_start].tolist() for row in rows])
    longest = max(len(row.tokens) - row.answer_start for row in rows)
    written = model.generate(
        prompts.to(device), longest + OVERRUN, token_mask=mask.to(device), stop_tokens=[end]
    )
    answers = []
    for tokens in written[:, prompts.shape[1] :].tolist():
        ended = end in tokens
        decoder = task.encoding.decoder()
        text = [decoder.add(token) for token in (tokens[: tokens.index(end)] if ended else tokens)]
        answers.append(("".join([*text, decoder.finish()]), ended))
    return answers
