"""The leaderboard page, from records alone: rank per task, scores by length, and training cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from ... import schemes
from ...data.tasks import SEQUENCE_TASKS, ProcessTask
from ...schemes.distance import ScaleInvariant
from ..experiments.leaderboard import DISCIPLINES, EVALUATION, LENGTH, RECIPE, SCALE, SCHEMES
from ..measurements import TaskScores
from ..records import TrainingRecord
from ..seeds import SeedRow, Spread, scheme_of, seed_rows
from ..tables import Cell, Row, Table, length_table, markdown
from ._summary import DECISIVE, RECOMMENDED, decision, paired, rivals
from .drawing import title_of
from .pages import listed, render, unbroken

Rows = Mapping[str, SeedRow]


@dataclass(frozen=True)
class Contest:
    """The records of one task, and the scores of schemes in it.

    A score is a share of answers right, the higher the better, or a loss above the optimum.
    """

    task: str
    records: Sequence[TrainingRecord]

    @property
    def counts_answers(self) -> bool:
        """Whether scores are shares, not losses."""
        return not issubclass(SEQUENCE_TASKS[self.task], ProcessTask)

    @property
    def rows(self) -> dict[str, SeedRow]:
        """Scores by scheme, seed and length."""
        return seed_rows(self.records, scheme_of, TrainingRecord.scores_by_length)

    @property
    def ranks(self) -> dict[str, float]:
        """The rank of each scheme by its mean score beyond the training length; ties share one.

        Each length counts the same. Scores that are printed alike are ties.
        """
        scores = {
            scheme: round(mean(it.mean for n, it in row.spreads.items() if n > LENGTH), 3)
            for scheme, row in self.rows.items()
        }
        sign = -1 if self.counts_answers else 1
        ordered = sorted(sign * score for score in scores.values())
        return {
            scheme: ordered.index(sign * score) + (1 + ordered.count(sign * score)) / 2
            for scheme, score in scores.items()
        }

    def table(self) -> str:
        """Scores by length, and shares of examples entirely right, as Markdown."""
        best, titles = max if self.counts_answers else min, {it: title_of(it) for it in self.rows}
        table = length_table(self.rows, "scheme", best, titles=titles, note=self._interval)
        if self.counts_answers:
            whole = seed_rows(self.records, scheme_of, _whole_by_length)
            table = table.beside(
                length_table(whole, "scheme", best, column="all right, {:,}".format)
            )
        ranks = self.ranks
        rows = [
            Row(row.head, [*map(_with_note, row.cells), Cell(_rank(ranks[str(row.key)]))])
            for row in sorted(table.rows, key=lambda row: ranks[str(row.key)])
        ]
        return markdown(Table([*table.header, "rank"], rows))

    def _interval(self, scheme: str, length: int, spread: Spread) -> str:
        """The interval of a single seed, which has no standard error."""
        if spread.count > 1:
            return ""
        [scores] = (
            it
            for record in self.records
            if record.scheme == scheme
            for it in record.measured("scores")
            if it.length == length
        )
        assert isinstance(scores, TaskScores)
        if self.counts_answers:
            return f"{scores.low:.3f} to {scores.high:.3f}"
        return "" if scores.excess_error is None else f"± {scores.excess_error:.3f} over examples"


@dataclass(frozen=True)
class Standing:
    """The ranks of a scheme by task, and the minutes that a training took."""

    scheme: str
    ranks: Mapping[str, float]
    minutes: float | None

    @property
    def mean_rank(self) -> float:
        """Mean over the tasks in which it is recorded."""
        return mean(self.ranks.values())


def contests(records: Sequence[TrainingRecord]) -> list[Contest]:
    """The tasks, in the order of the page, with their records, in the order of the schemes."""
    order = {name: place for place, name in enumerate(schemes.names())}
    records = sorted(records, key=lambda record: (order[record.scheme], record.seed))
    return [
        Contest(task, [record for record in records if record.config.task == task])
        for task in DISCIPLINES
    ]


def standings(found: Sequence[Contest]) -> list[Standing]:
    """All schemes: those of most tasks first, of as many tasks those with the lowest mean rank."""
    ranks: dict[str, dict[str, float]] = {}
    for contest in found:
        for scheme, rank in contest.ranks.items():
            ranks.setdefault(scheme, {})[contest.task] = rank
    by_scheme = {
        scheme: [
            record.seconds / 60
            for contest in found
            for record in contest.records
            if record.scheme == scheme and record.is_own_training
        ]
        for scheme in ranks
    }
    rows = [
        Standing(scheme, its, median(by_scheme[scheme]) if by_scheme[scheme] else None)
        for scheme, its in ranks.items()
    ]
    return sorted(rows, key=lambda row: (-len(row.ranks), row.mean_rank))


def standings_table(found: Sequence[Contest]) -> Table:
    """Mean rank, training cost, and the rank in every task."""
    rows = [
        Row(
            title_of(it.scheme),
            [
                Cell(f"{it.mean_rank:.1f}" + _of_tasks(it)),
                Cell("" if it.minutes is None else f"{it.minutes:.1f}"),
                *(Cell(_rank(it.ranks[task]) if task in it.ranks else "") for task in DISCIPLINES),
            ],
        )
        for it in standings(found)
    ]
    return Table(["scheme", "mean rank", "minutes", *DISCIPLINES], rows)


def leaderboard_page(records: Sequence[TrainingRecord]) -> str:
    """The page as Markdown, also of few records, or none."""
    found = contests(records)
    missing = [name for name in SCHEMES if name not in {record.scheme for record in records}]
    return unbroken(
        render(
            "leaderboard.md",
            contests=[
                {
                    "task": it.task,
                    "discipline": DISCIPLINES[it.task],
                    "chance": SEQUENCE_TASKS[it.task](**DISCIPLINES[it.task].options).chance,
                    "table": it.table() if it.records else "",
                }
                for it in found
            ],
            standings=markdown(standings_table(found)) if records else "",
            seeds=_seeds(records),
            missing=[title_of(it) for it in missing],
            recorded=bool(records),
            verdicts=verdicts(found),
            decisive=DECISIVE,
            recommended=RECOMMENDED,
            recipe=RECIPE,
            options=SCALE,
            evaluation=EVALUATION,
            lengths=listed([f"{length:,}" for length in EVALUATION.lengths]),
            cpus=listed(sorted({it.provenance.cpu for it in records})) if records else "",
        )
    )


@dataclass(frozen=True)
class Verdict:
    """The recommended scheme against the best one without the transform, at the greatest length.

    `difference` is positive where the recommended scheme is better: it compares seeds one by one.
    """

    task: str
    length: int
    rival: str
    difference: Spread

    @property
    def text(self) -> str:
        """Whether it is better, worse, or not decided."""
        return decision(self.difference)


def verdicts(found: Sequence[Contest]) -> list[Verdict]:
    """What the transform helps with, and what not, in all tasks in which both are recorded."""
    made = []
    for contest in found:
        rows, length = contest.rows, max(EVALUATION.lengths)
        # A user's own scheme may be the transform under another name.
        plain = {it: rows[it] for it in rows if it in SCHEMES and not has_transform(it)}
        ours = rows.get(RECOMMENDED)
        others = rivals(ours, plain) if ours else {}
        if ours is None or not others:
            continue
        sign = 1 if contest.counts_answers else -1
        rival = max(others, key=lambda scheme: sign * others[scheme].spreads[length].mean)
        difference = paired(ours, others[rival], length, sign)
        made.append(Verdict(contest.task, length, rival, difference))
    return made


def has_transform(scheme: str) -> bool:
    """Whether any layer has the transform."""
    pattern = schemes.get(scheme).pattern
    return any(isinstance(each.distance, ScaleInvariant) for each in pattern)


def _whole_by_length(record: TrainingRecord) -> dict[int, float]:
    return {row.length: row.whole_share for row in record.measured("scores")}


def _with_note(cell: Cell) -> Cell:
    return Cell(f"{cell.text} ({cell.note})" if cell.note else cell.text, best=cell.best)


def _rank(rank: float) -> str:
    return f"{rank:g}"


def _of_tasks(standing: Standing) -> str:
    count = len(standing.ranks)
    return "" if count == len(DISCIPLINES) else f" ({count} of {len(DISCIPLINES)} tasks)"


def _seeds(records: Sequence[TrainingRecord]) -> str:
    counts: dict[Any, int] = {}
    for record in records:
        key = record.config.task, record.scheme
        counts[key] = counts.get(key, 0) + 1
    several = sorted(set(counts.values()))
    if not several:
        return ""
    return f"{' or '.join(map(str, several))} {'seed' if several == [1] else 'seeds'}"
