"""Records: the one JSON file that is kept of a trial, with its configuration and its measurements.

Tables and figures are made from records alone; the folder of the training may be deleted. The last field
of a record is the SHA-256 of the others.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import schemes
from ..evaluation import LengthLoss, PositionLoss
from ..files import replace_file
from ..files.json_files import read_json_object
from ..files.manifest import KEY, signed, verified
from ..training import TrainingConfig
from ._consistency import contradictions
from ._schema import from_json, to_json
from .experiments.evaluations import (
    AttentionEvaluation,
    Evaluation,
    ImageEvaluation,
    LossEvaluation,
    NeedleEvaluation,
    RecallEvaluation,
    StringEvaluation,
    TaskEvaluation,
)
from .measurements import (
    ImageScores,
    LengthAttention,
    NeedleTable,
    Provenance,
    RecallShare,
    StringShare,
    TaskScores,
)

if TYPE_CHECKING:
    from .experiments.conversions import ConversionConfig
    from .experiments.images import ImageConfig

# The measurement that a record is about, and the evaluation that made it.
EVALUATIONS: Mapping[str, type[Any]] = {
    "losses": LossEvaluation,
    "needles": NeedleEvaluation,
    "recall": RecallEvaluation,
    "scores": TaskEvaluation,
    "images": ImageEvaluation,
    "attention": AttentionEvaluation,
    "strings": StringEvaluation,
}

T = TypeVar("T")
ConfigT_co = TypeVar(
    "ConfigT_co", bound="TrainingConfig | ConversionConfig | ImageConfig", covariant=True
)


@dataclass(frozen=True)
class TrainingCurve:
    """Loss and gradient norm of every step."""

    loss: tuple[float, ...]
    gradient_norm: tuple[float, ...]

    @classmethod
    def rounded(cls, *curves: Iterable[float]) -> "TrainingCurve":
        """Loss and gradient norm in the five significant digits that records keep.

        >>> TrainingCurve.rounded([1.23456789], [1e-9])
        TrainingCurve(loss=(1.2346,), gradient_norm=(1e-09,))
        """
        return cls(*(tuple(float(f"{value:.5g}") for value in curve) for curve in curves))


@dataclass(frozen=True)
class Validation:
    """Validation losses by length at a step of the training."""

    step: int
    validation: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Record(Generic[ConfigT_co]):
    """Configuration and measurements of one trial; `name` is that of its file.

    `trained_as` names the trial whose weights were measured: mostly itself. Of `losses` (which come
    with `by_position`), `needles`, `recall`, `scores`, `images`, `attention` and `strings`, it has the
    one that `evaluation` measures.
    """

    # In the order in which they are written.
    config: ConfigT_co
    evaluation: Evaluation
    trained_as: str
    losses: tuple[LengthLoss, ...] | None = None
    by_position: tuple[PositionLoss, ...] | None = None
    needles: NeedleTable | None = None
    recall: tuple[RecallShare, ...] | None = None
    scores: tuple[TaskScores, ...] | None = None
    images: tuple[ImageScores, ...] | None = None
    attention: tuple[LengthAttention, ...] | None = None
    strings: tuple[StringShare, ...] | None = None
    corpus: str | None = None
    training: TrainingCurve
    validation: tuple[Validation, ...] | None = None
    seconds: float
    provenance: Provenance

    # Not written: `read_from` is the JSON object of the file that the record was read from. Files from
    # before a field existed are written back without it.
    name: str
    read_from: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.losses is not None and not self.losses:
            raise ValueError("losses must have at least one length")

    @property
    def scheme(self) -> str:
        """Name of the scheme."""
        return self.config.scheme

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.config.seed

    @property
    def is_own_training(self) -> bool:
        """Whether the weights are those of the trial itself, not of another scheme's."""
        return self.trained_as == self.name

    def losses_by_length(self) -> dict[int, float]:
        """Loss by context length."""
        return {row.length: row.loss for row in self.measured("losses")}

    def needles_by_length(self) -> dict[int, float]:
        """Share of needles found by context length."""
        return {row.length: row.share for row in self.measured("needles").lengths}

    def recall_by_length(self) -> dict[int, float]:
        """Share of values recalled by context length."""
        return {row.length: row.share for row in self.measured("recall")}

    def scores_by_length(self) -> dict[int, float]:
        """By length, the share of answers right, or the loss above the optimum where that is known."""
        return {row.length: row.score for row in self.measured("scores")}

    def images_by_size(self) -> dict[int, float]:
        """By patches along a side, the share of images right, or of hidden variance explained."""
        return {row.length: row.score for row in self.measured("images")}

    def strings_by_length(self) -> dict[int, float]:
        """Share of the letters of repeated strings that were predicted, by context length."""
        return {row.length: row.share for row in self.measured("strings")}

    def string_losses_by_length(self) -> dict[int, float]:
        """Loss of the letters of repeated strings by context length."""
        return {row.length: row.loss for row in self.measured("strings")}

    def recent_share_by_length(self) -> dict[int, float]:
        """Share of attention on the nearest tokens by context length."""
        return {it.length: it.recent_share.mean for it in self.measured("attention")}

    def measured(self, name: str) -> Any:
        """A measurement that the record must have, or an error that says which it lacks."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"the record {self.name} has no {name}")
        return value

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the file."""
        parts = {it.name: to_json(getattr(self, it.name)) for it in fields(self)}
        del parts["name"], parts["read_from"]
        if self.read_from is None:
            return {name: part for name, part in parts.items() if part is not None}
        parts["config"] = {name: parts["config"][name] for name in self.read_from["config"]}
        return {name: parts[name] for name in self.read_from if name != KEY}

    @property
    def is_signed(self) -> bool:
        """Whether its file has a SHA-256, as all have but those from before there was one."""
        return self.read_from is None or KEY in self.read_from


TrainingRecord = Record[TrainingConfig]


def read_record(path: Path, kind: type[ConfigT_co]) -> Record[ConfigT_co]:
    """The record in a file, verified by its SHA-256; `kind` is the class of its configuration.

    A record without one must not contradict itself.
    """
    values = _json_object(path)
    _check_scheme(path, values.get("config"))
    try:
        measured = [it for it in EVALUATIONS if it in values]
        if len(measured) != 1:
            known, found = ", ".join(EVALUATIONS), " and ".join(measured) or "none"
            raise ValueError(f"it must have one of {known}, got {found}")
        evaluation = EVALUATIONS[measured[0]]
        parts = {name: part for name, part in values.items() if name != KEY}
        parts |= {"name": path.stem, "read_from": values}
        record = from_json(Record, parts, config=kind, evaluation=evaluation, read_from=Any)
        # After the fields, whose errors say more.
        verified(values)
        for contradiction in () if record.is_signed else contradictions(record):
            raise ValueError(contradiction)
        return record
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is not a record: {error}; restore it, or move it elsewhere to have sia reproduce "
            f"write it again"
        ) from error


def write_record(record: Record[ConfigT_co], folder: Path) -> None:
    """Write the file of a record, whole or not at all."""
    values = record.to_dict()
    text = record_text(signed(values) if record.is_signed else values)
    replace_file(folder / f"{record.name}.json", text)


def record_text(values: Mapping[str, Any]) -> bytes:
    """The bytes of a record: one line per field, short enough to keep, and to compare."""
    lines = (
        f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
        for name, value in values.items()
    )
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_results(path: Path, kind: type[T]) -> T:
    """The results that a single command wrote, such as ``EvaluationResults``, verified likewise."""
    values = _json_object(path)
    try:
        results = from_json(kind, {name: part for name, part in values.items() if name != KEY})
        verified(values)
        return results
    except ValueError as error:
        message = f"{path} cannot be read: {error}; rerun the command that wrote it"
        raise ValueError(message) from error


def _check_scheme(path: Path, config: Any) -> None:
    """Refuse the record of a scheme that nobody has registered: nothing is wrong with the file."""
    scheme = config.get("scheme") if isinstance(config, dict) else None
    if isinstance(scheme, str) and not schemes.is_known(scheme):
        raise ValueError(
            f"{path} is a record of the scheme {scheme!r}, which is not registered here; import the "
            f"module that registers it: sia --import MODULE ..."
        )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except ValueError as error:
        raise ValueError(f"{error}; restore it, or remove it and make it again") from error
