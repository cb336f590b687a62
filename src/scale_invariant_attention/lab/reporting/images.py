"""The page of encoders and images, from records alone: scores by size, and what the transform does."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ...data.images import IMAGE_TASKS
from ..experiments.images import EVALUATION, TRAINED_SIZES, VARIANTS, ImageConfig
from ..experiments.masked import EVALUATION as MASKED_EVALUATION
from ..experiments.masked import RECIPE as MASKED_RECIPE
from ..records import Record, TrainingRecord
from ..seeds import SeedRow, Spread, over_seeds, scheme_of, seed_rows
from ..tables import length_table, markdown
from ._summary import DECISIVE, paired
from .drawing import title_of
from .leaderboard import has_transform
from .pages import listed, render, unbroken

ImageRecord = Record[ImageConfig]

# What each task asks, for the page.
QUESTIONS = {
    "digits": (
        "Digits among distractors",
        "Which of scikit-learn's digits is on the canvas? It lies among pieces of other digits, whose "
        "number grows with the canvas. Share of canvases right; chance is 0.1.",
    ),
    "textures": (
        "Textures",
        "Half of the patches of a random texture are hidden. Its amplitudes are one over the frequency, "
        "as those of nature. Share of the variance of hidden pixels explained.",
    ),
    "photographs": (
        "Photographs",
        "Half of the patches of a photograph are hidden; scikit-learn and scikit-image ship the "
        "photographs, and those of the test are not trained on. Share of the variance of hidden pixels "
        "explained.",
    ),
}


@dataclass(frozen=True)
class Verdict:
    """The best variant with the transform against the best without it, at one size.

    `difference` is positive where the transform is better: it compares seeds one by one.
    """

    task: str
    size: int
    ours: str
    rival: str
    difference: Spread

    @property
    def text(self) -> str:
        """Whether the transform is better, worse, or neither beyond doubt."""
        if self.difference.standard_error is None:
            return "one seed"
        if abs(self.difference.mean) <= DECISIVE * self.difference.standard_error:
            return "not decided"
        return "better" if self.difference.mean > 0 else "**worse**"


def images_page(images: Sequence[ImageRecord], masked: Sequence[TrainingRecord]) -> str:
    """The page as Markdown, also of few records, or none."""
    tasks = []
    for task in IMAGE_TASKS:
        rows = variant_rows(images, task)
        titles = {name: VARIANTS[name].title for name in rows}
        table = length_table(rows, "scheme", max, titles=titles, column=_column) if rows else None
        title, question = QUESTIONS[task]
        shown = markdown(table) if table else ""
        over = over_seeds(rows.values()) if rows else ""
        tasks.append({"title": title, "question": question, "table": shown, "over": over})
    rows = seed_rows(masked, scheme_of, TrainingRecord.scores_by_length)
    titles = {name: title_of(name) for name in rows}
    records: list[Record[Any]] = [*images, *masked]
    return unbroken(
        render(
            "images.md",
            tasks=tasks,
            variants=VARIANTS.values(),
            verdicts=verdicts(images),
            decisive=DECISIVE,
            trained=listed([str(size) for size in TRAINED_SIZES]),
            tested=listed([str(size) for size in EVALUATION.lengths]),
            examples=EVALUATION.examples,
            config=ImageConfig("digits", "nope", 0, "nope", {}, None),
            minutes=median(it.seconds / 60 for it in images) if images else None,
            masked=markdown(length_table(rows, "scheme", max, titles=titles)) if rows else "",
            masked_over=over_seeds(rows.values()) if rows else "",
            masked_recipe=MASKED_RECIPE,
            masked_lengths=listed([f"{length:,}" for length in MASKED_EVALUATION.lengths]),
            cpus=listed(sorted({it.provenance.cpu for it in records})) if records else "",
        )
    )


def variant_rows(records: Sequence[ImageRecord], task: str) -> dict[str, SeedRow]:
    """Scores in a task by variant, seed and size, in the order of the variants."""
    order = list(VARIANTS)
    its = [record for record in records if record.config.task == task]
    its.sort(key=lambda record: (order.index(record.config.variant), record.seed))
    return seed_rows(its, lambda record: record.config.variant, Record.images_by_size)


def verdicts(records: Sequence[ImageRecord]) -> list[Verdict]:
    """What the transform helps with, and what not, at the training size and at the largest."""
    made = []
    for task in IMAGE_TASKS:
        rows = variant_rows(records, task)
        for size in (EVALUATION.lengths[0], EVALUATION.lengths[-1]):
            means = {name: row.spreads[size].mean for name, row in rows.items()}
            ours, others = (
                [name for name in means if has_transform(VARIANTS[name].scheme) == ours_]
                for ours_ in (True, False)
            )
            if not ours or not others:
                continue
            one, rival = (max(them, key=means.__getitem__) for them in (ours, others))
            if rows[one].seeds.keys() & rows[rival].seeds.keys():
                titles = VARIANTS[one].title, VARIANTS[rival].title
                made.append(Verdict(task, size, *titles, paired(rows[one], rows[rival], size)))
    return made


def _column(size: int) -> str:
    return f"{size / TRAINED_SIZES[-1]:g}x ({size} x {size})"
