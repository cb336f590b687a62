"""Needles in a haystack as a task of lm-eval: the texts and the scores of `sia needle`.

Texts are made of bytes, and lengths count them. Where one was cut inside a character, that is shown as
U+FFFD.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import datasets

from ...data import get_encoding, standard_library
from ...data.needles import Needle, NeedleFormat, NeedleTask
from ...evaluation.retrieval import found

# As many as `sia needle` takes.
EXAMPLES = 50


def examples(length: int, examples: int = EXAMPLES, **options: Any) -> dict[str, datasets.Dataset]:
    """The first examples of a length; of `options` the fields of ``NeedleFormat`` count.

    >>> row = examples(512, examples=2, needles=1)["test"][0]
    >>> row["prompt"].endswith("\\n"), len(row["cities"])
    (True, 1)
    """
    known = {field.name for field in fields(NeedleFormat)}
    form = {name: value for name, value in options.items() if name in known}
    task = NeedleTask(standard_library("validation"), get_encoding("bytes"), NeedleFormat(**form))
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
    """How many needles an answer tells, of how many."""
    needles = [
        Needle(city, number, (0, 0), (0, 0))
        for city, number in zip(doc["cities"], doc["numbers"], strict=True)
    ]
    form = NeedleFormat(between=doc["between"], entry=doc["entry"])
    # An answer that did not end has run on, and its last entry with it.
    hits = found(results[0], True, needles, form)
    return {"found": (sum(hits), len(hits))}


def share(scored: Iterable[tuple[int, int]]) -> float:
    """Of all needles.

    >>> share([(1, 3), (2, 3)])
    0.5
    """
    hits, counts = zip(*scored, strict=True)
    return float(sum(hits) / sum(counts))
