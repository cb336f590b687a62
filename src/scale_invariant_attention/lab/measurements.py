"""Measurements of one model, as records and the results of single commands hold them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..evaluation import LengthLoss, PositionLoss
from ..evaluation.task_scores import TaskScore
from ._schema import NullableFloat, omitted_if_none


@dataclass(frozen=True)
class Provenance:
    """When, from which commit, with which versions and on which machine something was measured."""

    date: str
    commit: str
    version: str
    torch: str
    python: str
    cpu: str
    threads: str
    load: str
    transformers: str | None = omitted_if_none()


class _Counted:
    """A share: `found` of `count`, from `low` to `high` with 95% confidence."""

    found: int
    count: int
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.found <= self.count or self.count == 0:
            raise ValueError(f"found must be from 0 to count, got {self.found} of {self.count}")

    @property
    def share(self) -> float:
        """Found, of all."""
        return self.found / self.count


@dataclass(frozen=True)
class RecallShare(_Counted):
    """Values recalled at one context length."""

    length: int
    found: int
    count: int
    low: float
    high: float


@dataclass(frozen=True)
class TaskScores(_Counted):
    """Scores in a task at one length: scored tokens that are right, and examples entirely right.

    `loss` is the mean over scored tokens, in nats; `excess` is the mean over examples of the loss above
    that of the best possible prediction, if that is known, and `excess_error` its standard error.
    """

    length: int
    found: int
    count: int
    low: float
    high: float
    examples: int
    whole: int
    loss: float
    excess: float | None = omitted_if_none()
    excess_error: float | None = omitted_if_none()

    @classmethod
    def of(cls, score: TaskScore, length: int) -> "TaskScores":
        """The scores of an evaluation."""
        answers, whole = score.answers, score.whole
        shares = length, answers.hits, answers.count, *answers.interval, whole.count, whole.hits
        if score.excess is None:
            return cls(*shares, score.loss)
        error = score.excess.standard_error if whole.count > 1 else None
        return cls(*shares, score.loss, score.excess.mean, error)

    @property
    def score(self) -> float:
        """The excess, the lower the better, if there is one; else the share of tokens right."""
        return self.share if self.excess is None else self.excess

    @property
    def whole_share(self) -> float:
        """Examples entirely right, of all."""
        return self.whole / self.examples


@dataclass(frozen=True)
class ImageScores:
    """Scores on square canvases of `length` patches along a side.

    `score` is the share of images classified right, or of the variance of hidden pixels explained;
    `loss` is the mean over examples, in nats or as the mean square of the error.
    """

    length: int
    examples: int
    score: float
    loss: float
    loss_error: float | None

    def __post_init__(self) -> None:
        if not self.score <= 1:
            raise ValueError(f"score must be at most 1, got {self.score}")


@dataclass(frozen=True)
class StringShare(_Counted):
    """Letters of repeated strings predicted at one context length, and their mean loss in nats."""

    length: int
    found: int
    count: int
    low: float
    high: float
    loss: float


@dataclass(frozen=True)
class NeedleShare(_Counted):
    """Needles found at one context length; `log_probability` is the mean over needles, in nats."""

    length: int
    examples: int
    found: int
    count: int
    low: float
    high: float
    log_probability: float


@dataclass(frozen=True)
class NeedleCell(_Counted):
    """Needles found at one context length, between the depths `start` and `stop`."""

    length: int
    start: float
    stop: float
    found: int
    count: int
    low: float
    high: float


@dataclass(frozen=True)
class NeedleTable:
    """Needles found by length, and by length and depth."""

    lengths: tuple[NeedleShare, ...]
    cells: tuple[NeedleCell, ...]


@dataclass(frozen=True)
class Mean:
    """A mean over contexts and its standard error, None for a single context."""

    mean: NullableFloat
    standard_error: float | None


@dataclass(frozen=True)
class AttentionMeans:
    """Means over contexts, layers and heads: one for each range of distance, or a single one."""

    share: tuple[Mean, ...]
    entropy: tuple[Mean, ...]
    global_entropy: tuple[Mean, ...]
    recent_share: tuple[Mean, ...]


@dataclass(frozen=True)
class ScoreMoments:
    """Moments and quantiles of the scores of each head of a layer."""

    mean: tuple[NullableFloat, ...]
    variance: tuple[NullableFloat, ...]
    skewness: tuple[NullableFloat, ...]
    kurtosis: tuple[NullableFloat, ...]
    quantiles: tuple[tuple[NullableFloat, ...], ...]
    normal_quantiles: tuple[float, ...]
    pairs: int


@dataclass(frozen=True)
class LayerAttention:
    """Attention of one layer, by head, or by head and range; `unrotated_scores` are None if unknown."""

    layer: int
    share: tuple[tuple[NullableFloat, ...], ...]
    entropy: tuple[tuple[NullableFloat, ...], ...]
    keys: tuple[NullableFloat, ...]
    global_entropy: tuple[NullableFloat, ...]
    recent_share: tuple[NullableFloat, ...]
    scores: ScoreMoments
    unrotated_scores: ScoreMoments | None


@dataclass(frozen=True)
class LengthAttention:
    """Attention at one context length, by the ranges of distance between `edges`."""

    length: int
    edges: tuple[int, ...]
    overall: AttentionMeans
    layers: tuple[LayerAttention, ...]

    @property
    def recent_share(self) -> Mean:
        """Share of attention on the nearest tokens."""
        [mean] = self.overall.recent_share
        return mean

    @property
    def global_entropy(self) -> Mean:
        """Entropy of all attention, in nats."""
        [mean] = self.overall.global_entropy
        return mean

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each range of distance."""
        return tuple(pairwise(self.edges))

    def entropy_inside(self, start: int, stop: int) -> Mean | None:
        """Entropy inside a range, None unless the context holds the whole of it."""
        return dict(zip(self.ranges, self.overall.entropy, strict=True)).get((start, stop))


@dataclass(frozen=True)
class EvaluatedData:
    """The corpus that something was measured on."""

    name: str
    split: str
    fingerprint: str
    tokens: int | None = omitted_if_none()


@dataclass(frozen=True)
class Results:
    """The file that a command writes about one model."""

    model: str
    unfinished_at_step: int | None
    config: Mapping[str, Any]
    data: EvaluatedData
    provenance: Provenance


@dataclass(frozen=True)
class EvaluationResults(Results):
    """The file that `sia evaluate` writes."""

    by_length: tuple[LengthLoss, ...]
    by_position: tuple[PositionLoss, ...]


@dataclass(frozen=True)
class NeedleResults(Results, NeedleTable):
    """The file that `sia needle` writes; `format` has the fields of a ``NeedleFormat``."""

    format: Mapping[str, Any]
    trained_length: int | None


@dataclass(frozen=True)
class DiagnosisResults(Results):
    """The file that `sia diagnose` writes."""

    contexts: int
    recent: int
    diagnosis: tuple[Any, ...]
    attention: tuple[LengthAttention, ...]
