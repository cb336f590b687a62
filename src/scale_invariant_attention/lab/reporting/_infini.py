"""The section on Infini-attention in REPRODUCTION.md: Table 3, by the length of segments."""

from collections.abc import Mapping, Sequence

from ..experiments.catalogue import EXPERIMENTS
from ..records import TrainingRecord
from ..seeds import SeedRow, over_seeds, seed_rows
from ..tables import length_table, markdown
from . import paper
from ._claims import INFINI_CLAIMS, judged
from .drawing import title_of
from .pages import render
from .paper import OURS


def infini_section(records: Sequence[TrainingRecord], others: Mapping[str, SeedRow]) -> str:
    """Table 3, if any of it is recorded; `others` are the rows of Table 1 by scheme."""
    if not records:
        return ""
    # As the paper, beside RoPE and ours.
    beside = {name: others[name] for name in ("rope", OURS) if name in others}
    titles = {name: title_of(name) for name in beside} | _titles(records)
    rows = beside | seed_rows(records, _key, TrainingRecord.losses_by_length)
    table = length_table(rows, "scheme", min, titles=titles, change=True)
    printed = paper.printed_table(paper.TABLE3, min, paper.ERRORS3, change=True)
    return render(
        "table3.md",
        seeds=over_seeds(rows.values()),
        table=markdown(table.beside(printed)),
        judgements=judged(rows, INFINI_CLAIMS, paper.TABLE3),
    )


def _key(record: TrainingRecord) -> str:
    """The scheme, whose figures in the paper stand beside segments of half the training length."""
    memory = record.config.model_config().scheme.of_layer(0).memory
    assert memory is not None
    if 2 * memory.tokens_per_segment == record.config.length:
        return record.scheme
    return f"{record.scheme} {memory.tokens_per_segment}"


def _titles(records: Sequence[TrainingRecord]) -> dict[str, str]:
    return {_key(record): EXPERIMENTS["table3"].label(record) for record in records}
