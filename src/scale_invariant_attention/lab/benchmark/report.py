"""The documentation page on speed and memory, from records alone."""

from collections.abc import Sequence

from ..reporting.pages import render
from . import figures
from .problem import DECODE
from .records import ModelTiming, Ratio, Timing, held_to_targets

# The backend that is held to the targets when no ratios are recorded.
BACKEND = "cpu"


def page(
    origin: dict[str, str],
    timings: Sequence[Timing],
    ratio_origin: dict[str, str] | None = None,
    ratios: Sequence[Ratio] = (),
    model_origin: dict[str, str] | None = None,
    models: Sequence[ModelTiming] = (),
) -> str:
    """The page as Markdown."""
    backend = (ratio_origin or {}).get("backend", BACKEND)
    tables: dict[tuple[str, str], list[Timing]] = {}
    for row in sorted(timings, key=lambda row: (row.heads, row.length)):
        tables.setdefault((row.pass_name, row.shape), []).append(row)
    return render(
        "benchmark.md",
        origin=origin,
        figures=figures,
        whole=any(row.pass_name != DECODE for row in timings),
        decode=any(row.pass_name == DECODE for row in timings),
        backend=backend,
        targets=[*held_to_targets(timings, backend), *ratios],
        models=models,
        tables=tables,
        sources={
            "attention.csv": origin,
            "ratios.csv": ratio_origin,
            "models.csv": model_origin,
        },
    )
