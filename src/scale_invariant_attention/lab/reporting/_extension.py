"""The section of REPRODUCTION.md on extended models: tables, and whether the goals are met."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean
from typing import TYPE_CHECKING, Any

from ..records import Record
from ..seeds import SeedRow, Spread, over_seeds, with_common_seeds
from ..tables import Best, Cell, Row, Table, length_table, markdown
from ._summary import DECISIVE, paired
from .evidence import Extensions
from .pages import render

if TYPE_CHECKING:
    from ..experiments.conversions import ConversionConfig

    ConversionRecords = Sequence[Record[ConversionConfig]]

FAMILY_TITLES = {"llama": "Llama", "qwen3": "Qwen 3", "gpt_neox": "GPT-NeoX"}
# What extending should achieve: nats below YaRN at the longest length, and the most it may cost at 1x.
GAIN, COST = 0.3, 0.03


def extension_section(found: Extensions) -> str:
    """The study of extensions, if the recommended one is recorded."""
    from ..experiments import extension

    variants = extension.VARIANTS
    losses = [it for it in found.losses if variants[it.config.variant].compared]
    if not any(_is_recommended(it) for it in losses):
        return ""
    whole = [it for it in losses if it.config.factor == extension.LONGEST_FACTOR]
    short = [it for it in losses if it.config.factor != extension.LONGEST_FACTOR]
    titles = {name: it.title for name, it in variants.items()}
    by_share = {
        share: _table([it for it in whole if it.config.share == share], titles)
        for share in extension.SHARES
    }
    return render(
        "extension.md",
        recommended=_by_title({it: titles[extension.RECOMMENDED[it]] for it in FAMILY_TITLES}),
        recommended_tuned=_by_title(
            {it: titles[extension.RECOMMENDED_TUNED[it]] for it in FAMILY_TITLES}
        ),
        config=losses[0].config,
        seeds=over_seeds(_seed_counts(losses)),
        tokens=losses[0].measured("losses")[0].tokens,
        by_share={share: table for share, table in by_share.items() if table},
        short=_table(short, titles),
        goals=goals(whole),
        gain=GAIN,
        cost=COST,
        decisive=DECISIVE,
        strings=found.strings
        and {
            "shares": _table(found.strings, titles, Record.strings_by_length, max),
            "losses": _table(found.strings, titles, Record.string_losses_by_length),
            "evaluation": found.strings[0].evaluation,
            "learned": _learned(found.strings),
        },
        needles=found.needles
        and {
            "table": _table(found.needles, titles, Record.needles_by_length, max),
            "tuning": found.needles[0].config.needles,
            "examples": found.needles[0].measured("needles").lengths[0].examples,
        },
        choice=_choice(found.choices),
    )


def _learned(records: "ConversionRecords") -> float:
    """The highest share of letters that the models of a family predict as trained, at 1x."""
    from ..experiments.extension import AS_TRAINED

    shares: dict[str, list[float]] = {}
    for it in (it for it in records if it.config.variant == AS_TRAINED):
        by_length = it.strings_by_length()
        shares.setdefault(it.config.family, []).append(by_length[min(by_length)])
    return max(map(mean, shares.values()), default=1.0)


def extension_summary(found: Extensions) -> str:
    """The recommended extension against YaRN, as the README shows it; empty without records.

    The rows of a family are means over the seeds that all of them have.
    """
    from ..experiments.extension import (
        AS_TRAINED,
        LENGTHS,
        LONGEST_FACTOR,
        YARN,
        recommended,
    )

    fixed, by_length = YARN
    wanted: dict[str, tuple[float, Callable[[str], str]]] = {
        "as trained": (0.0, lambda family: AS_TRAINED),
        "YaRN by length": (0.0, lambda family: by_length),
        "the transform": (0.0, lambda family: recommended(family, 0.0)),
        "YaRN, fine-tuned": (0.1, lambda family: fixed),
        "the transform, fine-tuned": (0.1, lambda family: recommended(family, 0.1)),
    }
    shown = (LENGTHS[0], LENGTHS[-1])
    cells: dict[str, list[Cell]] = {title: [] for title in wanted}
    counts, header = set(), []
    for family, name in FAMILY_TITLES.items():
        rows = with_common_seeds(
            {
                title: _seed_row(found.losses, family, variant(family), share)
                for title, (share, variant) in wanted.items()
            }
        )
        count = len(rows["as trained"].seeds)
        if count == 0:
            continue
        counts.add(count)
        header += [f"{name}, {length // LENGTHS[0]}x" for length in shown]
        for title, row in rows.items():
            cells[title] += [Cell(f"{row.spreads[length].mean:.3f}") for length in shown]
    if not counts:
        return ""
    table = Table(["loss", *header], [Row(title, mine) for title, mine in cells.items()])
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return render(
        "readme_extension.md",
        table=markdown(table),
        length=LENGTHS[0],
        factor=LONGEST_FACTOR,
        seeds=f"{seeds} seed{'' if seeds == '1' else 's'}",
    )


def _seed_row(records: "ConversionRecords", family: str, variant: str, share: float) -> SeedRow:
    """The losses of a variant of a family by seed."""
    wanted = (family, variant, share)
    seeds = {
        it.seed: it.losses_by_length()
        for it in records
        if (it.config.family, it.config.variant, it.config.share) == wanted
    }
    return SeedRow(variant, seeds)


def _is_recommended(record: "Record[ConversionConfig]") -> bool:
    from ..experiments.extension import recommended

    config = record.config
    return config.variant == recommended(config.family, config.share)


def _by_title(chosen: Mapping[str, str]) -> str:
    """Titles, each with the families that it is chosen for.

    >>> _by_title({"llama": "slow, tau 3", "qwen3": "slow, tau 3", "gpt_neox": "own, tau 10"})
    'slow, tau 3 (Llama and Qwen 3); own, tau 10 (GPT-NeoX)'
    """
    families: dict[str, list[str]] = {}
    for family, title in chosen.items():
        families.setdefault(title, []).append(FAMILY_TITLES[family])
    return "; ".join(f"{title} ({' and '.join(it)})" for title, it in families.items())


def _table(
    records: "ConversionRecords",
    titles: Mapping[str, str],
    values: Callable[[Record[Any]], Mapping[int, float]] = Record.losses_by_length,
    best: Best = min,
) -> str:
    """The table as Markdown; empty without records."""
    return markdown(extension_table(records, titles, values, best)) if records else ""


def extension_table(
    records: "ConversionRecords",
    titles: Mapping[str, str],
    values: Callable[[Record[Any]], Mapping[int, float]],
    best: Best,
    *,
    caption: str = "",
) -> Table:
    """One row per variant, in the order of their `titles`, one column per family and length."""
    rows, columns = _rows(records, titles, values)
    named = {name: titles[name] for name in rows}
    return length_table(
        rows, "model", best, titles=named, column=columns.__getitem__, caption=caption
    )


def _rows(
    records: "ConversionRecords",
    titles: Iterable[str],
    values: Callable[[Record[Any]], Mapping[int, float]],
) -> tuple[dict[str, SeedRow], list[str]]:
    """Rows by variant in the order of `titles`, with the index of a column for a length; the columns."""
    families = [it for it in FAMILY_TITLES if any(it == one.config.family for one in records)]
    lengths = sorted({length for record in records for length in values(record)})
    index = {pair: i for i, pair in enumerate((family, n) for family in families for n in lengths)}
    shortest = records[0].config.first.length
    columns = [f"{FAMILY_TITLES[family]}, {length // shortest}x" for family, length in index]
    rows: dict[str, SeedRow] = {}
    for name in titles:
        seeds: dict[int, dict[int, float]] = {}
        for record in (it for it in records if it.config.variant == name):
            mine = seeds.setdefault(record.seed, {})
            mine |= {index[record.config.family, n]: it for n, it in values(record).items()}
        if seeds:
            rows[name] = SeedRow(name, seeds)
    return rows, columns


def _seed_counts(records: "ConversionRecords") -> list[SeedRow]:
    """The rows of all cells: a family, a variant and a share each."""
    keys = {(it.config.family, it.config.variant, it.config.share) for it in records}
    return [_seed_row(records, *key) for key in sorted(keys)]


@dataclass(frozen=True)
class Goal:
    """A difference of the recommended extension from another row, seed by seed, and its bound.

    The goal is met where the difference is at most `bound`, beyond the spread over seeds.
    """

    text: str
    family: str
    against: str
    difference: Spread
    bound: float

    @property
    def verdict(self) -> str:
        """Whether it is met, missed, or neither beyond the spread over seeds."""
        error = self.difference.standard_error
        if error is None:
            return "not decided: one seed"
        excess = self.difference.mean - self.bound
        if excess <= 0 and -excess >= DECISIVE * error:
            return "met"
        return "**missed**" if excess > DECISIVE * error else "not decided"


def goals(records: "ConversionRecords") -> list[Goal]:
    """The goals, family by family, as far as both rows of a comparison are recorded.

    After fine-tuning the rivals are all rows without the calibrated transform.
    """
    from ..experiments.extension import AS_TRAINED, LENGTHS, VARIANTS, YARN, recommended

    rivals = [name for name, it in VARIANTS.items() if it.compared and not it.calibrated]
    short, middle, longest = LENGTHS
    wanted = (
        (f"{GAIN} nats below YaRN at 16x, untrained", 0.0, longest, YARN, -GAIN),
        (f"at most {COST} at 1x, untrained", 0.0, short, (AS_TRAINED,), COST),
        ("lowest at 4x, after 10 %", 0.1, middle, rivals, 0.0),
        ("lowest at 16x, after 10 %", 0.1, longest, rivals, 0.0),
    )
    found = []
    for text, share, length, others, bound in wanted:
        for family, title in FAMILY_TITLES.items():
            chosen = recommended(family, share)
            rows = {name: _seed_row(records, family, name, share) for name in (chosen, *others)}
            ours = rows.pop(chosen)
            common = {
                name: row for name, row in rows.items() if ours.seeds.keys() & row.seeds.keys()
            }
            if not common:
                continue
            best = min(common, key=lambda name: common[name].spreads[length].mean)
            difference = paired(ours, common[best], length)
            found.append(Goal(text, title, VARIANTS[best].title, difference, bound))
    return found


def _choice(records: "ConversionRecords") -> dict[str, Any] | None:
    """The tables by which the recommended extensions were chosen, if candidates are recorded."""
    if not records:
        return None
    from ..experiments.extension import CHOICES, LONGEST_FACTOR, SHARES

    titles = {name: it.title for name, it in CHOICES.items()}
    tables = {}
    for factor in sorted({it.config.factor for it in records}, reverse=True):
        for share in sorted({it.config.share for it in records}):
            chosen = [
                it for it in records if (it.config.factor, it.config.share) == (factor, share)
            ]
            tables[f"factor {factor:g}, fine-tuned for {share:.0%} of the tokens"] = _table(
                chosen, titles
            )
    longest = [it for it in records if it.config.factor == LONGEST_FACTOR]

    def picked(rule: Callable[["ConversionRecords"], str | None], share: float) -> str:
        mine = [it for it in longest if it.config.share == share]
        found = {
            family: rule([it for it in mine if it.config.family == family])
            for family in FAMILY_TITLES
        }
        return _by_title({family: titles[name] for family, name in found.items() if name})

    return {
        "tables": {name: table for name, table in tables.items() if table},
        "seeds": sorted({record.seed for record in records}),
        "skip": getattr(records[0].evaluation, "skip", None),
        "untrained": picked(cheap_and_lowest, 0.0),
        "tuned": picked(lowest, SHARES[-1]),
    }


def cheap_and_lowest(records: "ConversionRecords") -> str | None:
    """The :func:`lowest` extension of those that cost at most `COST` at 1x; None if none is.

    The cost is the difference from the model as trained, which must be recorded too.
    """
    from ..experiments.extension import BASELINE

    def short(record: "Record[ConversionConfig]") -> float:
        by_length = record.losses_by_length()
        return by_length[min(by_length)]

    plain = {_model(it): short(it) for it in records if it.config.variant == BASELINE}
    dear = {it.config.variant for it in records if short(it) - plain.get(_model(it), -inf) > COST}
    return lowest([it for it in records if it.config.variant not in dear])


def lowest(records: "ConversionRecords") -> str | None:
    """The extension with the lowest mean loss over models and lengths, each of which counts the same.

    Only those with the calibrated transform, recorded for every model, are candidates.
    """
    from ..experiments.extension import CHOICES

    losses: dict[str, dict[tuple[str, int], list[float]]] = {}
    for it in records:
        by_model = losses.setdefault(it.config.variant, {})
        by_model[_model(it)] = list(it.losses_by_length().values())
    models = {_model(it) for it in records}
    means = {
        name: mean(loss for by_length in mine.values() for loss in by_length)
        for name, mine in losses.items()
        if CHOICES[name].calibrated and mine.keys() == models
    }
    return min(means, key=means.__getitem__) if means else None


def _model(record: "Record[ConversionConfig]") -> tuple[str, int]:
    return record.config.family, record.seed
