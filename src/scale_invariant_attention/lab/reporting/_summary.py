"""The recommended scheme in the records of both sizes: the head of REPRODUCTION.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from ...schemes.named import SPREAD
from ..records import TrainingRecord
from ..seeds import SeedRow, Spread
from ..tables import Cell, Row, Table, length_table, markdown, markdown_table
from .drawing import Point, draw_points, new_figure, style, title_of
from .evidence import Size
from .pages import listed, render
from .paper import OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECOMMENDED = SPREAD.name
# The schemes of the first figure and table.
COMPARED = ("rope", "p-rope", "logn-p-rope", "alibi", OURS, RECOMMENDED)
# What each of these lacks of the recommended scheme, or has in its place.
CONTROLS = {
    OURS: "the paper's, with one tau and half of the pairs rotating",
    "scale-invariant-quarter": "one tau in all heads",
    "spread-half": "half of the pairs rotate",
    "spread-without-gain": "no gain: a logarithmic bias alone",
    "spread-without-bias": "no bias: a gain alone",
    "alibi-p-rope": "ALiBi's bias instead",
}
# A difference decides if it is larger than this many standard errors.
DECISIVE = 2.0
# Height of the loss panels, in nats above the lowest loss: schemes that break leave the panel.
LOSS_SPAN = 0.45
# A model copies from its context once the mean loss of this many steps is below this many nats.
COPYING_STEPS, COPYING_LOSS = 50, 1.2


def headline_table(size: Size) -> str:
    """Loss and needles of the compared schemes, as Markdown."""
    losses, needles = _compared(size.loss_rows), _compared(size.needle_rows)
    titles = {scheme: title_of(scheme) for scheme in losses}
    lengths = sorted(next(iter(losses.values())).spreads)
    left = length_table(losses, "scheme", min, titles=titles, column=_column("loss", lengths))
    if not needles:
        return markdown(left)
    right = length_table(needles, "scheme", max, titles=titles, column=_column("needles", lengths))
    return markdown(left.beside(right))


def _column(measure: str, lengths: Sequence[int]) -> Callable[[int], str]:
    return lambda length: f"{measure}, {length // lengths[0]}x"


def _compared(rows: Mapping[str, SeedRow]) -> dict[str, SeedRow]:
    return {scheme: rows[scheme] for scheme in COMPARED if scheme in rows}


def headline_figure(sizes: Sequence[Size]) -> "Figure":
    """Loss and needles by length, two panels per size, with error bars over seeds."""
    # One above the other, and the legend below: legible on a phone.
    figure = new_figure(6, 0.5 + 4.8 * len(sizes))
    grid = figure.subplots(2 * len(sizes), 1)
    for loss, needles, size in zip(grid[::2], grid[1::2], sizes, strict=True):
        _draw_rows(loss, _compared(size.loss_rows))
        _draw_rows(needles, _compared(size.needle_rows))
        rows = _compared(size.loss_rows).values()
        lowest = min(it.mean for row in rows for it in row.spreads.values())
        loss.set_ylim(lowest - 0.03, lowest + LOSS_SPAN)
        needles.set_ylim(-0.03, 1.03)
        loss.set_ylabel("loss in nats")
        needles.set_ylabel("share of needles found")
        loss.set_title(size.title)
    handles = grid[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, handlelength=4, frameon=False)
    return figure


def _draw_rows(axes: Any, rows: Mapping[str, SeedRow]) -> None:
    for scheme, row in rows.items():
        lengths = sorted(row.spreads)
        points = [
            Point(length / lengths[0], row.spreads[length].mean, row.spreads[length].standard_error)
            for length in lengths
        ]
        draw_points(axes, points, style(scheme))
        axes.set_xscale("log", base=2)
        axes.set_xticks([it.x for it in points], [f"{it.x:.0f}x" for it in points])
    axes.set_xlabel("context, in training lengths")
    axes.grid(alpha=0.3)


# How the README words each verdict.
OUTCOMES = {
    ("loss", "better"): "its loss is lower at {where}",
    ("loss", "worse"): "its loss is higher at {where}, than that of {rival}",
    (
        "loss",
        "not decided",
    ): "its loss at {where} does not differ significantly from that of {rival}",
    ("needles", "better"): "it finds more needles at {where}",
    ("needles", "worse"): "it finds fewer needles at {where}, than {rival}",
    (
        "needles",
        "not decided",
    ): "the needles it finds at {where} do not differ significantly from those of {rival}",
}


@dataclass(frozen=True)
class Verdict:
    """The recommended scheme against the best other one, at one length.

    `difference` is positive where the recommended scheme is better: it compares seeds one by one.
    """

    size: str
    measure: str
    multiple: int
    recommended: Spread
    rival: str
    rival_spread: Spread
    difference: Spread

    @property
    def text(self) -> str:
        """Whether it is better, worse, or not decided."""
        return decision(self.difference)


def verdicts(sizes: Sequence[Size]) -> list[Verdict]:
    """The recommended scheme against the best other one: loss at 1x, 4x, 16x; needles beyond 1x.

    Schemes with one seed in common are left out, as long as there are others with several.
    """
    found = []
    for size in sizes:
        for measure, rows, sign in (("loss", size.loss_rows, -1), ("needles", size.needle_rows, 1)):
            if RECOMMENDED not in rows:
                continue
            lengths = sorted(rows[RECOMMENDED].spreads)
            for length in lengths if measure == "loss" else lengths[1:]:
                verdict = _verdict(size.name, measure, rows, sign, length, length // lengths[0])
                found += [verdict] if verdict else []
    return found


def _verdict(
    size: str, measure: str, rows: Mapping[str, SeedRow], sign: int, length: int, multiple: int
) -> Verdict | None:
    ours = rows[RECOMMENDED]
    others = {it: row for it, row in rivals(ours, rows).items() if length in row.spreads}
    if not others:
        return None
    rival = max(others, key=lambda scheme: sign * others[scheme].spreads[length].mean)
    difference = paired(ours, others[rival], length, sign)
    spreads = ours.spreads[length], others[rival].spreads[length]
    return Verdict(size, measure, multiple, spreads[0], rival, spreads[1], difference)


def rivals(ours: SeedRow, rows: Mapping[str, SeedRow]) -> dict[str, SeedRow]:
    """The rows to compare with ours: those with several seeds in common or, without any, with one.

    A row with one seed decides nothing, and so should not displace one that does.
    """
    return _with_seeds_of(ours, rows, several=True) or _with_seeds_of(ours, rows, several=False)


def _with_seeds_of(
    ours: SeedRow, rows: Mapping[str, SeedRow], *, several: bool
) -> dict[str, SeedRow]:
    common = {it: len(ours.seeds.keys() & row.seeds.keys()) for it, row in rows.items()}
    return {
        it: rows[it]
        for it, seeds in common.items()
        if rows[it] is not ours and seeds and (seeds > 1) == several
    }


def left_out(sizes: Sequence[Size]) -> list[str]:
    """The schemes that verdicts leave out, because others have several seeds."""
    found = [
        scheme
        for size in sizes
        for rows in (size.loss_rows, size.needle_rows)
        if RECOMMENDED in rows and _with_seeds_of(rows[RECOMMENDED], rows, several=True)
        for scheme in _with_seeds_of(rows[RECOMMENDED], rows, several=False)
    ]
    return [title_of(scheme) for scheme in dict.fromkeys(found)]


def readme_section(sizes: Sequence[Size], *, figure: str, figures_at: str) -> str:
    """The README's section on the records."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    found = verdicts(sizes)
    # One seed decides nothing.
    for it in (it for it in found if (it.measure, it.text) in OUTCOMES):
        at = f" ({it.size})" if len(sizes) > 1 else ""
        rival = "" if it.text == "better" else title_of(it.rival)
        outcomes.setdefault((it.measure, it.text, rival), []).append(f"{it.multiple}x{at}")
    sentences = [
        OUTCOMES[measure, text].format(where=listed(where), rival=rival)
        for (measure, text, rival), where in outcomes.items()
    ]
    described = []
    for size in sizes:
        seeds = [len(row.seeds) for row in _compared(size.loss_rows).values()]
        described.append(
            {"size": size, "table": headline_table(size), "fewest": min(seeds), "most": max(seeds)}
        )
    return render(
        "readme.md",
        sizes=described,
        outcomes=sentences,
        undecided=bool(found) and not outcomes,
        has_gaps=any("|  |" in headline_table(size) for size in sizes),
        decisive=DECISIVE,
        paper=OURS,
        recommended=RECOMMENDED,
        figure=figure,
        figures_at=figures_at,
    )


def paired(one: SeedRow, other: SeedRow, length: int, sign: int = 1) -> Spread:
    """The difference of two rows at a length, one minus the other times `sign`, seed by seed."""
    seeds = sorted(one.seeds.keys() & other.seeds.keys())
    values = [sign * (one.seeds[seed][length] - other.seeds[seed][length]) for seed in seeds]
    return Spread.over(values)


def decision(difference: Spread) -> str:
    """The verdict on a difference, which is positive where one is better than the other.

    >>> decision(Spread(0.3, 0.1, 3)), decision(Spread(0.1, 0.1, 3)), decision(Spread(0.3, None, 1))
    ('better', 'not decided', 'one seed')
    """
    if difference.standard_error is None:
        return "one seed"
    if abs(difference.mean) <= DECISIVE * difference.standard_error:
        return "not decided"
    return "better" if difference.mean > 0 else "worse"


def contributions(size: Size) -> str:
    """Change of loss and needles when the recommended scheme lacks one of its parts."""
    losses, needles = size.loss_rows, size.needle_rows
    if RECOMMENDED not in losses or not any(it in losses for it in CONTROLS):
        return ""
    lengths = sorted(losses[RECOMMENDED].spreads)
    rows = []
    for control, what in CONTROLS.items():
        cells = []
        for table in (losses, needles):
            both = control in table and RECOMMENDED in table
            common = both and table[control].seeds.keys() & table[RECOMMENDED].seeds.keys()
            for length in lengths:
                cells.append(
                    Cell(_signed(paired(table[control], table[RECOMMENDED], length)))
                    if common
                    else Cell("")
                )
        if any(cell.text for cell in cells):
            rows.append(Row(f"{title_of(control)}: {what}", cells))
    header = [_column(measure, lengths)(n) for measure in ("loss", "needles") for n in lengths]
    return markdown(Table(["in its place", *header], rows))


def _signed(spread: Spread) -> str:
    return f"{'+' if spread.mean >= 0 else ''}{spread}"


def passing_table(records: Sequence[TrainingRecord]) -> str:
    """The step at which each training begins to copy from its context, by scheme and seed."""
    trained = [record for record in records if record.is_own_training]
    seeds = sorted({record.seed for record in trained})
    steps = {(record.scheme, record.seed): passing_step(record.training.loss) for record in trained}
    schemes = list(dict.fromkeys(record.scheme for record in trained))
    rows = [
        (title_of(scheme), *(_step(steps, scheme, seed) for seed in seeds)) for scheme in schemes
    ]
    return markdown_table(("scheme", *(f"seed {seed}" for seed in seeds)), rows)


def passing_step(losses: Sequence[float]) -> int | None:
    """The first step whose last `COPYING_STEPS` losses have a mean below `COPYING_LOSS`.

    >>> passing_step([2.0] * 100 + [1.0] * 100)
    141
    """
    for step in range(COPYING_STEPS, len(losses) + 1):
        if mean(losses[step - COPYING_STEPS : step]) < COPYING_LOSS:
            return step
    return None


def _step(steps: Mapping[tuple[str, int], int | None], scheme: str, seed: int) -> str:
    if (scheme, seed) not in steps:
        return ""
    step = steps[scheme, seed]
    return "never" if step is None else f"{step:,}"
