"""Needles in a haystack as an lm-eval task, with the texts and scores of `sia needle`.

Lengths are in bytes. A text that was cut inside a character shows U+FFFD there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import datasets

from ...data import get_encoding, standard_library
from ...data.needles import Needle, NeedleFormat, NeedleTask
from ...evaluation.retrieval import needles_found

# The same number as in `sia needle`.
EXAMPLES = 50


def examples(length: int, examples: int = EXAMPLES, **options: Any) -> dict[str, datasets.Dataset]:
    """The first examples of a length; `options` may hold fields of ``NeedleFormat``, others are ignored.

    >>> row = examples(512, examples=2, needles=1)["test"][0]
    >>> row["prompt"].endswith("\\n"), len(row["cities"])
    (True, 1)
    """
    known = {field.name for field in fields(NeedleFormat)}
    given = {name: value for name, value in options.items() if name in known}
    task = NeedleTask(standard_library("validation"), get_encoding("bytes"), NeedleFormat(**given))
    rows = []
    for number in range(examples):
        example = task.example(length, number)
        prompt = bytes(example.tokens[: example.answer_start].tolist())
        rows.append(
            {
                "prompt": prompt.decode(errors="replace"),
                "cities": [needle.city for needle in example.needles],
                "numbers": [needle.number for needle in example.needles],
                "between": task.format.between,
                "entry": task.format.entry,
            }
        )
    return {"test": datasets.Dataset.from_list(rows)}


def score(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Number of needles in an answer, and number of needles asked for."""
    needles = [
        Needle(city, number, (0, 0), (0, 0))
        for city, number in zip(doc["cities"], doc["numbers"], strict=True)
    ]
    form = NeedleFormat(between=doc["between"], entry=doc["entry"])
    # An answer that runs on spoils its own last entry, so every answer counts as ended.
    hits = needles_found(results[0], True, needles, form)
    return {"found": (sum(hits), len(hits))}


def share(scored: Iterable[tuple[int, int]]) -> float:
    """Share of needles found.

    >>> share([(1, 3), (2, 3)])
    0.5
    """
    hits, counts = zip(*scored, strict=True)
    return float(sum(hits) / sum(counts))
