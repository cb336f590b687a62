"""REPRODUCTION.md and its figures, from records alone."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from ... import schemes
from ...evaluation import PositionLoss
from ...schemes.named import CONTROLS, PAPER_SCHEMES, RIVALS, SPREAD
from ..experiments.catalogue import EXPERIMENTS
from ..experiments.evaluations import LossEvaluation
from ..records import Record, TrainingRecord
from ..seeds import (
    SeedRow,
    lowest,
    option_value,
    over_seeds,
    scheme_of,
    seed_counts,
    seed_rows,
    with_common_seeds,
)
from ..tables import length_table, markdown
from . import _summary, paper
from ._claims import CONVERSION_CLAIMS, NEEDLE_CLAIMS, STUDENT, judged
from ._extension import extension_section, extension_summary
from ._infini import infini_section
from ._summary import RECOMMENDED
from .attention_figures import heads_figure
from .drawing import as_png, title_of
from .evaluation_figures import curves_figure, draw_loss_by_position, sweep_figure
from .evidence import Evidence, Records, Size
from .pages import best_at, listed, render, unbroken
from .paper import OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..experiments.conversions import ConversionConfig

HEADLINE_FIGURE = "reproduction-headline.png"
CURVES_FIGURE = "reproduction-curves.png"
POSITION_FIGURE = "reproduction-position.png"
HEADS_FIGURE = "reproduction-heads.png"

# The share that a model finds at the training length, if it has learned the task.
LEARNED = 0.9


def page_and_figures(
    evidence: Evidence, *, figures_at: str = "docs"
) -> tuple[str, dict[str, bytes]]:
    """The page as Markdown, and its figures by file name.

    `figures_at` is the path from the page to the folder of the figures.
    """
    mini, rows = evidence.mini, evidence.mini.loss_rows
    if OURS not in rows:
        raise ValueError(f"records must include trainings of {OURS}, got those of {list(rows)}")
    ours = next(record for record in mini.losses if record.scheme == OURS)
    config, sizes = ours.config, [it for it in (mini, evidence.small) if it.losses]
    position_title = f"Loss by position, trained at {config.length:,} tokens"
    figures = {
        HEADLINE_FIGURE: as_png(_summary.headline_figure(sizes)),
        CURVES_FIGURE: as_png(_curves(mini.losses)),
        POSITION_FIGURE: draw_loss_by_position(
            _by_position(mini.losses), title=position_title, train_length=config.length
        ),
    }
    heads = _heads(evidence.attention, figures)
    minutes = [record.seconds / 60 for record in mini.losses if record.is_own_training]
    page = render(
        "reproduction.md",
        ours=ours,
        config=config,
        parameters=mini.parameters,
        seeds=seed_counts(rows.values()),
        over_seeds=over_seeds(rows.values()),
        recommended=RECOMMENDED,
        sizes=[{"size": it, "table": _summary.headline_table(it)} for it in sizes],
        verdicts=_summary.verdicts(sizes),
        left_out=_summary.left_out(sizes),
        table1=_beside_paper(rows, paper.TABLE1, errors=paper.ERRORS1),
        lowest=_lowest(rows),
        missing=_missing(rows),
        borrowed=any(not record.is_own_training for record in mini.losses),
        judgements=judged(rows),
        decisive=(_summary.DECISIVE, STUDENT[1]),
        passing=_summary.passing_table(mini.losses),
        copying=(_summary.COPYING_STEPS, _summary.COPYING_LOSS),
        parts=_summary.contributions(mini),
        position_title=position_title,
        choice=_choice(evidence.spread, evidence.spread_needles),
        table2=needle_section(mini.needles),
        table3=infini_section(evidence.infini, rows),
        small=_small(evidence.small),
        lengths=_trained_lengths(evidence.lengths),
        heads=heads,
        short=_short(evidence, figures),
        table4=conversion_section(evidence.extensions.losses),
        extension=extension_section(evidence.extensions),
        recall=recall_section(evidence.recall),
        source=_source(evidence.trainings),
        median_minutes=median(minutes),
        headline_figure=HEADLINE_FIGURE,
        curves_figure=CURVES_FIGURE,
        position_figure=POSITION_FIGURE,
        figures_at=figures_at,
    )
    return unbroken(page), figures


def readme_results(evidence: Evidence, *, figures_at: str) -> str:
    """The README's section on the records."""
    sizes = [it for it in (evidence.mini, evidence.small) if it.losses]
    return unbroken(_summary.readme_section(sizes, figure=HEADLINE_FIGURE, figures_at=figures_at))


def readme_extensions(evidence: Evidence) -> str:
    """The README's section on extended models."""
    return unbroken(extension_summary(evidence.extensions))


def with_section(page: str, name: str, section: str) -> str:
    """A page with the text between its two marks replaced.

    >>> with_section("a <!-- results --> old <!-- end of results --> b", "results", "new")
    'a <!-- results -->\\n\\nnew\\n<!-- end of results --> b'
    """
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(start) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must contain {start} and {end} once each, around its {name}")
    before, _, rest = page.partition(start)
    return f"{before}{start}\n\n{section}\n{end}{rest.partition(end)[2]}"


def _curves(records: Records) -> "Figure":
    """Training loss through training, of the schemes that are trained themselves."""
    trained = [record for record in records if record.is_own_training]
    names = list(dict.fromkeys(record.scheme for record in trained))
    return curves_figure(trained, names)


def _heads(records: Records, figures: dict[str, bytes]) -> dict[str, Any] | None:
    """The figure of the heads of the recommended scheme, if its attention is recorded."""
    found = [record for record in records if record.scheme == RECOMMENDED]
    if not found:
        return None
    length = found[0].measured("attention")[-1].length
    figures[HEADS_FIGURE] = as_png(heads_figure(found[0], length))
    return {"figure": HEADS_FIGURE, "length": length}


def _choice(losses: Records, needles: Records) -> dict[str, Any] | None:
    """The tables by which the spread of tau was chosen, if candidates are recorded."""
    if not losses:
        return None
    tables, evaluation = {}, losses[0].evaluation
    assert isinstance(evaluation, LossEvaluation)
    for name, records, best in (("spread", losses, min), ("spread-needles", needles, max)):
        experiment = EXPERIMENTS[name]
        by_length: dict[int, list[TrainingRecord]] = {}
        for record in records:
            by_length.setdefault(record.config.length, []).append(record)
        tables[name] = [
            markdown(
                length_table(seed_rows(group, experiment.label, experiment.values), "tau", best)
            )
            for _, group in sorted(by_length.items())
        ]
    return {
        "losses": tables["spread"],
        "needles": tables["spread-needles"],
        "seeds": sorted({record.seed for record in losses}),
        "skip": evaluation.skip,
        "tokens": losses[0].measured("losses")[0].tokens,
    }


def _small(size: Size) -> dict[str, Any] | None:
    """The tables of the second size, if any of it is recorded."""
    if not size.losses:
        return None
    losses, needles = size.loss_rows, size.needle_rows
    return {
        "config": size.losses[0].config,
        "parameters": size.parameters,
        "seeds": over_seeds(losses.values()),
        "losses": markdown(length_table(losses, "scheme", min, titles=_titles(losses))),
        "needles": needles
        and markdown(length_table(needles, "scheme", max, titles=_titles(needles))),
    }


def _trained_lengths(records: Records) -> str:
    """Loss by training length, if several are recorded."""
    if len({record.config.length for record in records}) < 2:
        return ""
    rows = seed_rows(
        records,
        lambda it: f"{title_of(it.scheme)}, trained at {it.config.length:,}",
        TrainingRecord.losses_by_length,
    )
    return markdown(length_table(rows, "scheme", min))


def _short(evidence: Evidence, figures: dict[str, bytes]) -> dict[str, Any] | None:
    """The tables of 500 steps, if they are recorded."""
    size = evidence.short
    if not size.losses:
        return None
    rows, needles, config = size.loss_rows, size.needle_rows, size.losses[0].config
    sections = (
        _sweep(option, records, config.length, figures)
        for option, records in evidence.sweeps.items()
    )
    return {
        "config": config,
        "seeds": over_seeds(rows.values()),
        "table1": markdown(length_table(rows, "scheme", min, titles=_titles(rows))),
        "passing": _summary.passing_table(size.losses),
        "table2": needles
        and markdown(length_table(needles, "scheme", max, titles=_titles(needles))),
        "sweeps": [section for section in sections if section],
        "pi": math.pi,
    }


def needle_section(records: Sequence[TrainingRecord]) -> str:
    """Table 2, if any of it is recorded."""
    if not records:
        return ""
    rows = seed_rows(records, scheme_of, TrainingRecord.needles_by_length)
    table = length_table(rows, "scheme", max, titles=_titles(rows))
    return render(
        "table2.md",
        seeds=over_seeds(rows.values()),
        table=markdown(table.beside(paper.printed_table(paper.TABLE2, max, paper.ERRORS2))),
        config=records[0].config,
        task=records[0].config.task_options,
        examples=records[0].measured("needles").lengths[0].examples,
        learned=LEARNED,
        not_learned=_not_learned(records, TrainingRecord.needles_by_length),
        judgements=judged(rows, NEEDLE_CLAIMS, paper.TABLE2),
    )


def recall_section(records: Sequence[TrainingRecord]) -> str:
    """Associative recall, if any of it is recorded."""
    if not records:
        return ""
    rows = seed_rows(records, scheme_of, TrainingRecord.recall_by_length)
    return render(
        "recall.md",
        seeds=over_seeds(rows.values()),
        table=markdown(length_table(rows, "scheme", max, titles=_titles(rows))),
        config=records[0].config,
        task=records[0].config.task_options,
        learned=LEARNED,
        not_learned=_not_learned(records, TrainingRecord.recall_by_length),
    )


def conversion_section(records: "Sequence[Record[ConversionConfig]]") -> str:
    """Table 4, if our scheme is recorded."""
    if not records:
        return ""
    from ..experiments.extension import TABLE4

    scheme_by_row = {row: scheme for scheme, row in TABLE4.items()}

    def scheme(record: "Record[ConversionConfig]") -> str | None:
        config = record.config
        is_llama = config.family == "llama"
        return scheme_by_row.get((config.variant, config.share)) if is_llama else None

    main = [record for record in records if scheme(record)]
    found = seed_rows(main, lambda it: str(scheme(it)), Record.losses_by_length)
    rows = {name: found[name] for name in TABLE4 if name in found}
    if OURS not in rows:
        return ""
    ours = next(record for record in main if scheme(record) == OURS)
    in_paper = {
        length: title_of(min(paper.TABLE4, key=lambda name: paper.TABLE4[name][index]))
        for index, length in enumerate(paper.LENGTHS)
    }
    return render(
        "table4.md",
        ours=ours,
        first=ours.config.first,
        continued=ours.config.continued,
        parameters=_llama_parameters(ours.config.model),
        seeds=over_seeds(rows.values()),
        table=_beside_paper(rows, paper.TABLE4, starred=paper.NOT_CONTINUED),
        lowest=_lowest(rows),
        lowest_in_paper=best_at(in_paper),
        judgements=judged(rows, CONVERSION_CLAIMS, paper.TABLE4),
        source=_source(main),
    )


def _titles(rows: Mapping[str, SeedRow], starred: Sequence[str] = ()) -> dict[str, str]:
    return {scheme: title_of(scheme) + "*" * (scheme in starred) for scheme in rows}


def _beside_paper(
    rows: Mapping[str, SeedRow],
    printed: paper.PrintedTable,
    errors: paper.Errors | None = None,
    starred: Sequence[str] = (),
) -> str:
    table = length_table(rows, "scheme", min, titles=_titles(rows, starred), change=True)
    return markdown(table.beside(paper.printed_table(printed, min, errors, change=True)))


def _lowest(rows: Mapping[str, SeedRow]) -> str:
    """The schemes with the lowest loss at each length."""
    return best_at(
        {n: listed([title_of(it) for it in lowest(rows, n)]) for n in rows[OURS].spreads}
    )


def _by_position(main: Sequence[TrainingRecord]) -> dict[str, list[PositionLoss]]:
    """Means over seeds, by scheme."""
    by_scheme: dict[str, list[Sequence[PositionLoss]]] = {}
    for record in main:
        by_scheme.setdefault(record.scheme, []).append(record.measured("by_position"))
    return {
        scheme: [
            replace(bins[0], loss=sum(it.loss for it in bins) / len(bins))
            for bins in zip(*seeds, strict=True)
        ]
        for scheme, seeds in by_scheme.items()
    }


def _sweep(
    option: str, records: Sequence[TrainingRecord], length: int, figures: dict[str, bytes]
) -> dict[str, Any] | None:
    """The values of a section, if there are several settings to compare."""
    found = seed_rows(records, lambda it: option_value(it, option), TrainingRecord.losses_by_length)
    if len(found) < 2:
        return None
    rows = dict(sorted(with_common_seeds(found).items()))
    title = f"Scale-invariant p-RoPE by {option}, trained at {length:,} tokens"
    figure = f"reproduction-{option}.png"
    figures[figure] = as_png(sweep_figure(option, rows, title=title, train_length=length))
    first = next(iter(rows.values()))
    best = {n: min(rows, key=lambda value: rows[value].spreads[n].mean) for n in first.spreads}
    return {
        "option": option,
        "title": title,
        "figure": figure,
        "table": markdown(length_table({f"{it:g}": row for it, row in rows.items()}, option)),
        "seeds": list(first.seeds),
        "lowest": best_at({n: f"{option} {value:g}" for n, value in best.items()}),
        "longest_best": list(best.values())[-1],
    }


def _missing(recorded: Collection[str]) -> str:
    """The schemes that are not recorded, by group, as sentences."""
    groups = {"the paper's": PAPER_SCHEMES, "ours": (SPREAD, *CONTROLS), "the rivals": RIVALS}
    sentences = []
    for group, members in groups.items():
        titles = [it.title for it in members if it.name not in recorded]
        if titles:
            which = "all" if len(titles) == len(members) else "; ".join(titles)
            sentences.append(f"{group}, {which}")
    return f"of {'. Of '.join(sentences)}" if sentences else ""


def _not_learned(
    records: Sequence[TrainingRecord], shares: Callable[[TrainingRecord], Mapping[int, float]]
) -> dict[str, list[str]]:
    """The trainings that ended before the model had learned the task, even at the training length."""
    by_scheme: dict[str, list[str]] = {scheme: [] for scheme in schemes.names()}
    for record in records:
        share = shares(record)[record.config.length]
        if share < LEARNED and record.scheme in by_scheme:
            by_scheme[record.scheme].append(f"{share:.2f} in seed {record.seed}")
    return {scheme: seeds for scheme, seeds in by_scheme.items() if seeds}


def _llama_parameters(model: Mapping[str, Any]) -> int:
    width, layers = model["hidden_size"], model["num_hidden_layers"]
    layer = 4 * width**2 + 3 * width * model["intermediate_size"] + 2 * width
    return int(2 * model["vocab_size"] * width + layers * layer + width)


def _source(records: Sequence[Record[Any]]) -> dict[str, str]:
    """Number of records and of trainings, first day, and the provenance of all of them."""
    origins = [record.provenance for record in records]
    names = ("version", "torch", "transformers", "python", "cpu")
    return {
        "counts": f"{len(records)} records of {len({it.trained_as for it in records})} trainings",
        "date": min(it.date for it in origins)[:10],
        **{
            name: " and ".join(sorted({str(getattr(it, name)) for it in origins})) for name in names
        },
    }
