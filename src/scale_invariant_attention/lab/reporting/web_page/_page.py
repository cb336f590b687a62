"""The HTML page, with styles, scripts and data embedded: it loads nothing from outside."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from .... import schemes
from ....files import check_writable, replace_file
from ..drawing import title_of
from ._entries import Entry, flat, shown
from ._extension_section import extension_section
from ._inputs import find_conversions, read_entries
from ._loss_sections import loss_section, position_section, training_section
from ._parts import Chart, Section, further_looks, scheme_look, scheme_looks
from ._share_sections import attention_section, needle_section, recall_section
from ._variants import Variant, variants_of

NAME = "index.html"
TITLE, EXPLORER_TITLE = "Position schemes side by side", "Attention explorer"

SECTIONS = (
    *(loss_section, position_section, needle_section),
    *(recall_section, attention_section, training_section),
)

# The schemes of the explorer, and the named schemes whose looks they share.
EXPLORED = {
    "Plain": "rope",
    "LogN": "logn-rope",
    "ALiBi": "alibi",
    "Scale-invariant": "scale-invariant-p-rope",
}

# The lines that a reader can tell apart, and the schemes to begin with if there are more.
FEW = 8
MAIN = (
    *("rope", "p-rope", "yarn", "logn-p-rope", "alibi"),
    *("scale-invariant-p-rope", "scale-invariant-spread"),
)

STYLES = ("vendor/uPlot.min.css", "page.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js", "explorer_math.js", "explorer.js", "page.js")


def render_page(entries: Sequence[Entry], *, title: str, conversions: Sequence[Path] = ()) -> str:
    """The whole HTML page, which needs no network; it always has the explorer.

    `conversions` are the files of records of converted models.

    >>> page = render_page([], title="Explorer")
    >>> page.startswith("<!doctype html>"), "<title>Explorer</title>" in page
    (True, True)
    """
    # Patterns of schemes come last.
    order = {name: index for index, name in enumerate(schemes.names())}
    entries = sorted(entries, key=lambda entry: order.get(entry.scheme, len(order)))
    rows = [schemes.entry(name) for name in dict.fromkeys(entry.scheme for entry in entries)]
    common = fields_in_common(entries)
    sections = [section for make in SECTIONS for section in make(entries)]
    sections += extension_section(conversions)
    variants = {it.label: it for it in variants_of(entries)}
    looks = _looks(sections, variants)
    explored = {name: scheme_look(scheme) for name, scheme in EXPLORED.items()}
    styles, scripts = ([Markup(_asset(name)) for name in names] for names in (STYLES, SCRIPTS))  # noqa: S704  our own
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_asset("page.html")).render(
        title=title,
        policy=_policy(styles, scripts),
        styles=styles,
        scripts=scripts,
        data=_embedded({"charts": _charts(sections), "looks": looks, "explorer": explored}),
        sections=sections,
        looks=looks,
        first=_shown_first(looks, variants),
        explored=explored,
        schemes={row.title: row.sentence for row in rows},
        runs=[
            (
                entry,
                _facts(entry),
                {name: shown(it) for name, it in flat(entry.config) if name not in common},
            )
            for entry in entries
        ],
        common=common,
        unfinished=sum(entry.state is not None for entry in entries),
        swatch=_swatch,
        title_of=title_of,
    )


def write_report(runs: Sequence[Path], folder: Path, *, title: str | None = None) -> Path:
    """Write the page of runs and records into a folder; returns its path."""
    entries, conversions = read_entries(runs), find_conversions(runs)
    check_writable(folder)
    title = title or (TITLE if entries or conversions else EXPLORER_TITLE)
    text = render_page(entries, title=title, conversions=conversions)
    replace_file(folder / NAME, text.encode())
    return folder / NAME


def _looks(
    sections: Sequence[Section], variants: Mapping[str, Variant]
) -> dict[str, dict[str, Any]]:
    """The look of every line that can be switched on and off, by its label; no two look alike."""
    charts = [
        {line.key for panel in chart.panels for line in panel.lines} - chart.looks.keys()
        for chart in _all_charts(sections)
    ]
    drawn = set().union(*charts)
    keys = sorted((it for it in variants if it in drawn), key=lambda it: variants[it].task)
    looks: dict[str, dict[str, Any]] = {}
    # Those whose settings are the usual ones come first: they look like their schemes elsewhere.
    for key in sorted(keys, key=lambda it: not variants[it].is_plain):
        scheme = variants[key].scheme
        beside = set().union(*(chart for chart in charts if key in chart))
        alone = not any(variants[it].scheme == scheme for it in beside if it in looks)
        own = scheme_looks(scheme) if alone else ()
        looks[key] = next(it for it in chain(own, further_looks()) if it not in looks.values())
    return {key: looks[key] for key in keys}


def _shown_first(looks: Mapping[str, Any], variants: Mapping[str, Variant]) -> list[str]:
    """The lines that are shown at first: all, or of many the main schemes'."""
    main = [it for it in looks if variants[it].is_plain and variants[it].scheme in MAIN]
    return list(looks) if len(looks) <= FEW or not main else main


def _all_charts(sections: Sequence[Section]) -> list[Chart]:
    return [chart for section in sections for block in section.blocks for chart in block.charts]


def _charts(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """The charts as the scripts draw them; their texts are in the HTML."""
    words = ("alternative", "note")
    return [
        {name: value for name, value in asdict(chart).items() if name not in words}
        for chart in _all_charts(sections)
    ]


def _embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that can stand inside a script element, whatever names it holds.

    >>> _embedded({"name": "</script><!--"})
    Markup('{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}')
    """
    text = json.dumps(_rounded(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704  what HTML would read is escaped


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as are shown, and one to spare, to keep pages small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(it) for name, it in value.items()}
    return [_rounded(it) for it in value] if isinstance(value, list | tuple) else value


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The content security policy: run the embedded scripts and styles, load nothing."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _swatch(look: Mapping[str, Any]) -> Mapping[str, str]:
    """A short line with its marker, as attributes of SVG."""
    points = " ".join(f"{17 + 4 * x:.1f},{7 + 4 * y:.1f}" for x, y in look["marker"])
    return {
        "light": look["light"],
        "dark": look["dark"],
        "dash": " ".join(map(str, look["dash"])) or "none",
        "width": f"{look['width']:g}",
        "points": points,
    }


def fields_in_common(entries: Sequence[Entry]) -> dict[str, str]:
    """The fields that have the same value in every configuration."""
    configs = [dict(flat(entry.config)) for entry in entries]
    if not configs:
        return {}
    first, *others = configs
    missing = object()
    return {
        name: shown(value)
        for name, value in first.items()
        if all(other.get(name, missing) == value for other in others)
    }


def _facts(entry: Entry) -> dict[str, str]:
    """The provenance of an entry; a resumed run has that of each of its parts."""
    facts: dict[str, str] = {}
    for origin in entry.origins:
        for name, value in origin.items():
            seen = facts.get(name)
            new = shown(value)
            facts[name] = new if seen is None or new in seen.split("; ") else f"{seen}; {new}"
    if entry.seconds is not None:
        facts["training seconds"] = f"{entry.seconds:,.0f}"
    if entry.trained_as:
        facts["trained as"] = entry.trained_as
    return facts
