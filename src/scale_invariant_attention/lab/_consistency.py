"""Contradictions inside a record: the only sign of damage to records that have no SHA-256."""

import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from ..evaluation.shares import Share
from ..training import TrainingConfig

if TYPE_CHECKING:
    from .measurements import LengthAttention, NeedleTable
    from .records import Record

_SHA256, _COMMIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}( with changes)?|unknown")
# Measurements of attention are rounded to five digits.
_ROUNDING = 1e-3


def contradictions(record: "Record[Any]") -> Iterator[str]:
    """What cannot be true of a record, in words."""
    rows = _rows(record)
    if tuple(row.length for row in rows) != record.evaluation.lengths:
        yield f"its lengths are not those of its evaluation, {list(record.evaluation.lengths)}"
    yield from _losses(record)
    yield from _training(record)
    if record.corpus is not None and not _SHA256.fullmatch(record.corpus):
        yield f"corpus is {record.corpus!r}, which is no SHA-256"
    yield from _provenance(record)
    shares = [*(record.recall or ()), *(record.scores or ()), *(record.strings or ())]
    if record.needles is not None:
        shares += [*record.needles.lengths, *record.needles.cells]
        yield from _needles(record.needles)
    for share in shares:
        interval = Share(share.found, share.count).interval
        if not _equal((share.low, share.high), interval):
            yield f"{share.found} of {share.count} found cannot be {share.low} to {share.high}"
    for attention in record.attention or ():
        yield from _attention(attention)


def _rows(record: "Record[Any]") -> tuple[Any, ...]:
    if record.needles is not None:
        return record.needles.lengths
    several = (record.losses, record.recall, record.scores, record.attention, record.strings)
    return next(filter(None, several), ())


def _losses(record: "Record[Any]") -> Iterator[str]:
    losses, by_position = record.losses or (), record.by_position or ()
    values = chain(
        (row.loss for row in losses),
        (row.loss for row in by_position),
        (row.loss for row in record.strings or ()),
        (row.standard_error or 0.0 for row in losses),
        (row.standard_error or 0.0 for row in by_position),
    )
    yield from _negative("a loss or its error", values)
    if len({row.tokens for row in losses}) > 1 or any(row.tokens < 1 for row in losses):
        yield f"its losses are of {[row.tokens for row in losses]} tokens, not of the same"
    if any(before.stop != after.start for before, after in pairwise(by_position)):
        yield "its losses by position leave out positions"
    if any(row.start >= row.stop or row.documents < 1 for row in by_position):
        yield "its losses by position have an empty range"


def _training(record: "Record[Any]") -> Iterator[str]:
    curve, config = record.training, record.config
    yield from _negative("a loss or a norm of the training", curve.loss + curve.gradient_norm)
    yield from _negative("seconds", [record.seconds])
    if len(curve.loss) != len(curve.gradient_norm):
        yield f"its training has {len(curve.loss)} losses and {len(curve.gradient_norm)} norms"
    if not isinstance(config, TrainingConfig):
        return
    if len(curve.loss) != config.steps:
        yield f"its training has {len(curve.loss)} losses of {config.steps} steps"
    steps = [it.step for it in record.validation or ()]
    if steps != sorted(set(steps)) or (steps and not 0 < steps[0] <= steps[-1] <= config.steps):
        yield f"its validations are at the steps {steps}, of {config.steps}"
    lengths = {tuple(it.validation) for it in record.validation or ()}
    if len(lengths) > 1:
        yield f"its validations are of different lengths: {sorted(lengths)}"
    by_length = (it.validation.values() for it in record.validation or ())
    yield from _negative("a validation loss", chain.from_iterable(by_length))


def _provenance(record: "Record[Any]") -> Iterator[str]:
    origin = record.provenance
    try:
        datetime.fromisoformat(origin.date)
    except ValueError:
        yield f"provenance.date is {origin.date!r}"
    if not _COMMIT.fullmatch(origin.commit):
        yield f"provenance.commit is {origin.commit!r}"
    if not origin.threads.isdecimal():
        yield f"provenance.threads is {origin.threads!r}"


def _needles(table: "NeedleTable") -> Iterator[str]:
    for row in table.lengths:
        cells = [cell for cell in table.cells if cell.length == row.length]
        totals = sum(cell.found for cell in cells), sum(cell.count for cell in cells)
        if cells and totals != (row.found, row.count):
            yield f"by depth {totals[0]} of {totals[1]} needles were found at {row.length}"
        if row.log_probability > 0:
            yield f"the log-probability at {row.length} is {row.log_probability}"


def _attention(attention: "LengthAttention") -> Iterator[str]:
    edges, overall = attention.edges, attention.overall
    if list(edges) != sorted(set(edges)) or edges[0] != 0 or edges[-1] != attention.length:
        yield f"its ranges at {attention.length} are {list(edges)}"
    total = sum(it.mean for it in overall.share)
    if abs(total - 1) > _ROUNDING:
        yield f"the shares of attention at {attention.length} add up to {total:.4f}"
    for layer in attention.layers:
        for shares in layer.share:
            known = [share for share in shares if not math.isnan(share)]
            if abs(sum(known) - 1) > _ROUNDING or min(known) < 0:
                where = f"layer {layer.layer} at {attention.length}"
                yield f"the shares of {where} add up to {sum(known):.4f}"
        yield from _negative("an entropy", chain.from_iterable(layer.entropy))
        if not all(0 <= share <= 1 for share in layer.recent_share):
            yield f"a recent share of layer {layer.layer} is not from 0 to 1"
    if [layer.layer for layer in attention.layers] != list(range(len(attention.layers))):
        yield f"its layers at {attention.length} are not in order"


def _negative(what: str, values: Iterable[float]) -> Iterator[str]:
    lowest = min(values, default=0.0)
    if lowest < 0:
        yield f"{what} is {lowest}"


def _equal(first: Iterable[float], second: Iterable[float]) -> bool:
    return all(
        math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
        for one, other in zip(first, second, strict=True)
    )
