"""The section on extended models of transformers: losses, repeated strings and needles."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...records import Record, read_record
from ...tables import Best, Table
from .._extension import extension_table
from ._parts import Block, Section

if TYPE_CHECKING:
    from ...experiments.conversions import ConversionConfig

NAME, TITLE = "extensions", "Extended models"

Values = Callable[[Record[Any]], Mapping[int, float]]
# What each kind of evaluation measured: a title, the values by length, and which are best.
KINDS: Mapping[str, tuple[str, Values, Best]] = {
    "losses": ("Loss in nats per token", Record.losses_by_length, min),
    "strings": ("Share of repeated letters predicted", Record.strings_by_length, max),
    "needles": ("Share of needles found", Record.needles_by_length, max),
}


def extension_section(paths: Sequence[Path]) -> Iterator[Section]:
    """Tables of the records of converted models, if there are any."""
    if not paths:
        return
    try:
        from ...experiments.conversions import ConversionConfig
        from ...experiments.extension import CHOICES, VARIANTS
    except ImportError as missing:
        text = f"Records of converted models that are not shown: {len(paths)}. {missing}."
        yield Section(NAME, TITLE, [Block("", [text])])
        return
    titles = {name: it.title for name, it in (*VARIANTS.items(), *CHOICES.items())}
    records = [read_record(path, ConversionConfig) for path in paths]
    _check_different(paths, records)
    blocks = []
    for kind, (title, values, best) in KINDS.items():
        measured = [it for it in records if getattr(it, kind) is not None]
        tables = [
            _table([it for it in measured if _circumstances(it) == shared], titles, values, best)
            for shared in sorted({_circumstances(it) for it in measured})
        ]
        blocks += [Block(title, [], tables)] if tables else []
    text = "Models trained with RoPE and extended in several ways. A column is a family of models and a "
    text += "context length, in training lengths; cells are means and standard errors over seeds."
    yield Section(NAME, TITLE, [Block("", [text]), *blocks])


def _check_different(paths: Sequence[Path], records: "Sequence[Record[ConversionConfig]]") -> None:
    """Raise ValueError if two files record the same trial: a table has room for one."""
    seen: dict[tuple[Any, ...], Path] = {}
    for path, record in zip(paths, records, strict=True):
        trial = (record.name, *_circumstances(record))
        if trial in seen:
            raise ValueError(f"{seen[trial]} and {path} record the same trial; give one of them")
        seen[trial] = path


def _circumstances(record: "Record[ConversionConfig]") -> tuple[Any, ...]:
    """Whatever must agree between the records of a table."""
    config, asked = record.config, record.evaluation
    amount = getattr(asked, "tokens", None) or getattr(asked, "examples", 0)
    skip = getattr(asked, "skip", None) or 0
    return skip, config.share, -config.factor, config.needles is not None, amount


def _table(
    records: "Sequence[Record[ConversionConfig]]",
    titles: Mapping[str, str],
    values: Values,
    best: Best,
) -> Table:
    skip, share, factor, found_needles, amount = _circumstances(records[0])
    tuned = f"After {share:.0%} of the tokens" if share else "Without training"
    tuned += " and fine-tuning on needles" if found_needles else ""
    noun = "tokens" if hasattr(records[0].evaluation, "tokens") else "texts"
    text = f"{amount:,} {noun}{f' after the first {skip:,}' if skip else ''}"
    extreme = "lowest" if best is min else "highest"
    caption = f"{tuned}, factor {-factor:g}, {text}; the {extreme} in each column is marked"
    unknown = {it.config.variant for it in records} - titles.keys()
    named = {**titles, **{name: name for name in sorted(unknown)}}
    return extension_table(records, named, values, best, caption=caption)
