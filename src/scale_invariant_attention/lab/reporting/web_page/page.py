"""The HTML page, with styles, scripts and data embedded: it loads nothing from outside."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..drawing import TITLES
from .entries import Entry, flat, shown, title_of
from .loss_sections import loss_section, position_section, training_section
from .parts import Chart, Section, further_look, scheme_look
from .scheme_sentences import SENTENCES
from .share_sections import attention_section, needle_section, recall_section

SECTIONS = (
    *(loss_section, position_section, needle_section),
    *(recall_section, attention_section, training_section),
)

# The schemes of the explorer, with the named schemes whose looks they have.
EXPLORED = {
    "Plain": "rope",
    "LogN": "logn-rope",
    "ALiBi": "alibi",
    "Scale-invariant": "scale-invariant-p-rope",
}

STYLES = ("vendor/uPlot.min.css", "page.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js", "explorer_math.js", "explorer.js", "page.js")


def render_page(entries: Sequence[Entry], *, title: str) -> str:
    """A whole page of HTML, which a browser opens without a network; the explorer is on it always.

    >>> page = render_page([], title="Explorer")
    >>> page.startswith("<!doctype html>"), "<title>Explorer</title>" in page
    (True, True)
    """
    entries = sorted(entries, key=_place)
    sections = [section for make in SECTIONS for section in make(entries)]
    looks = _looks(sections, entries)
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
        explored=explored,
        schemes={TITLES[it]: SENTENCES[it] for it in TITLES if it in {e.scheme for e in entries}},
        runs=details_of(entries),
        common=fields_in_common(entries),
        unfinished=sum(entry.state is not None for entry in entries),
        swatch=_swatch,
    )


def _place(entry: Entry) -> int:
    names = list(TITLES)
    return names.index(entry.scheme) if entry.scheme in names else len(names)


def _looks(sections: Sequence[Section], entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """The look of every line that can be switched, by its label."""
    titles = {TITLES[it.scheme]: it.scheme for it in entries if it.scheme in TITLES}
    keys = dict.fromkeys(
        line.key
        for chart in _all_charts(sections)
        for panel in chart.panels
        for line in panel.lines
        if line.key not in chart.looks
    )
    others = [key for key in keys if key not in titles]
    return {
        key: scheme_look(titles[key]) if key in titles else further_look(others.index(key))
        for key in keys
    }


def _all_charts(sections: Sequence[Section]) -> list[Chart]:
    return [chart for section in sections for block in section.blocks for chart in block.charts]


def _charts(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """What scripts draw; the words are on the page itself."""
    words = ("alternative", "note")
    return [
        {name: value for name, value in asdict(chart).items() if name not in words}
        for chart in _all_charts(sections)
    ]


def _embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that can stand inside a script element, whatever names are in it.

    >>> _embedded({"name": "</script><!--"})
    Markup('{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}')
    """
    text = json.dumps(_rounded(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704  what HTML would read is escaped


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as are shown, and one to spare: pages are sent around."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(it) for name, it in value.items()}
    return [_rounded(it) for it in value] if isinstance(value, list | tuple) else value


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """What a browser may do with the page: run what it was written with, and ask for nothing."""
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


@dataclass(frozen=True)
class RunDetails:
    """A run or record, and the fields of its configuration that others have otherwise."""

    name: str
    source: str
    title: str
    seed: int
    state: str
    facts: Mapping[str, str]
    fields: Mapping[str, str]


def fields_in_common(entries: Sequence[Entry]) -> dict[str, str]:
    """Those that every configuration has with the same value."""
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


def details_of(entries: Sequence[Entry]) -> list[RunDetails]:
    """One for each entry."""
    common = fields_in_common(entries)
    return [
        RunDetails(
            entry.name,
            entry.source,
            title_of(entry.scheme),
            entry.seed,
            entry.state or "finished",
            _facts(entry),
            {name: shown(it) for name, it in flat(entry.config) if name not in common},
        )
        for entry in entries
    ]


def _facts(entry: Entry) -> dict[str, str]:
    """Where it was made; a run that was resumed has each of its places."""
    facts: dict[str, str] = {}
    for origin in entry.origins:
        for name, value in origin.items():
            seen = facts.get(name)
            new = shown(value)
            facts[name] = new if seen is None or new in seen.split("; ") else f"{seen}; {new}"
    if entry.seconds is not None:
        facts["seconds of training"] = f"{entry.seconds:,.0f}"
    if entry.trained_as:
        facts["trained as"] = entry.trained_as
    return facts
