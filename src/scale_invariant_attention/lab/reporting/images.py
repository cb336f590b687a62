"""The page of encoders and images, from records alone: scores by size, and what the transform does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ...data.images import IMAGE_TASKS
from ..experiments.images import EVALUATION, TRAINED_SIZES, VARIANTS, ImageConfig
from ..experiments.masked import EVALUATION as MASKED_EVALUATION
from ..experiments.masked import RECIPE as MASKED_RECIPE
from ..experiments.masked import SCALE as MASKED_SCALE
from ..records import Record, TrainingRecord
from ..seeds import SeedRow, Spread, over_seeds, scheme_of, seed_rows
from ..tables import length_table, markdown
from ._summary import DECISIVE, decision, paired, rivals
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
        "as in natural images. Share of the variance of hidden pixels explained.",
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
    """The best scheme with the transform against the best without it, at one size.

    `difference` is positive where the transform is better: it compares seeds one by one.
    """

    task: str
    size: int
    unit: str
    ours: str
    rival: str
    difference: Spread

    @property
    def text(self) -> str:
        """Whether the transform is better, worse, or neither beyond doubt."""
        return decision(self.difference)


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
    rows = masked_rows(masked)
    titles = {name: title_of(name) for name in rows}
    records: list[Record[Any]] = [*images, *masked]
    return unbroken(
        render(
            "images.md",
            tasks=tasks,
            variants=VARIANTS.values(),
            recorded=bool(records),
            verdicts=verdicts(images, masked),
            decisive=DECISIVE,
            trained=listed([str(size) for size in TRAINED_SIZES]),
            tested=listed([str(size) for size in EVALUATION.lengths]),
            examples=EVALUATION.examples,
            config=ImageConfig("digits", "nope", 0, "nope", {}, None),
            minutes=median(it.seconds / 60 for it in images) if images else None,
            masked=markdown(length_table(rows, "scheme", max, titles=titles)) if rows else "",
            masked_over=over_seeds(rows.values()) if rows else "",
            masked_recipe=MASKED_RECIPE,
            masked_options=MASKED_SCALE,
            masked_lengths=listed([f"{length:,}" for length in MASKED_EVALUATION.lengths]),
            cpus=listed(sorted({it.provenance.cpu for it in records})) if records else "",
        )
    )


def masked_rows(records: Sequence[TrainingRecord]) -> dict[str, SeedRow]:
    """Shares of hidden bytes that are right, by scheme, seed and length."""
    return seed_rows(records, scheme_of, TrainingRecord.scores_by_length)


def variant_rows(records: Sequence[ImageRecord], task: str) -> dict[str, SeedRow]:
    """Scores in a task by variant, seed and size, in the order of the variants."""
    order = list(VARIANTS)
    its = [record for record in records if record.config.task == task]
    its.sort(key=lambda record: (order.index(record.config.variant), record.seed))
    return seed_rows(its, lambda record: record.config.variant, Record.images_by_size)


def verdicts(images: Sequence[ImageRecord], masked: Sequence[TrainingRecord]) -> list[Verdict]:
    """Where the transform helps, and where not, at the training size and at the largest."""
    variants = {name: (it.title, it.scheme) for name, it in VARIANTS.items()}
    made = []
    for task in IMAGE_TASKS:
        rows = variant_rows(images, task)
        made += _verdicts(task, "patches", rows, variants, EVALUATION.lengths)
    rows = masked_rows(masked)
    named = {name: (title_of(name), name) for name in rows}
    return made + _verdicts("masked bytes", "bytes", rows, named, MASKED_EVALUATION.lengths)


def _verdicts(
    task: str,
    unit: str,
    rows: Mapping[str, SeedRow],
    about: Mapping[str, tuple[str, str]],
    sizes: Sequence[int],
) -> list[Verdict]:
    """The verdicts on a task; `about` has the title and the scheme of each row."""
    ours = [name for name in rows if has_transform(about[name][1])]
    others = {name: row for name, row in rows.items() if name not in ours}
    made = []
    for size in (sizes[0], sizes[-1]) if ours else ():
        one = max(ours, key=lambda name: rows[name].spreads[size].mean)
        comparable = rivals(rows[one], others)
        if comparable:
            rival = max(comparable, key=lambda name: comparable[name].spreads[size].mean)
            difference = paired(rows[one], rows[rival], size)
            made.append(Verdict(task, size, unit, about[one][0], about[rival][0], difference))
    return made


def _column(size: int) -> str:
    return f"{size / TRAINED_SIZES[-1]:g}x ({size} x {size})"
