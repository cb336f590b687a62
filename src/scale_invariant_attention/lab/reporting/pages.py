"""Markdown pages from the templates in ``lab/templates``."""

import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .drawing import title_of

LINE = 105


def render(template: str, **values: Any) -> str:
    """A template as Markdown, with at most one blank line between its paragraphs.

    The filter `filled` wraps a paragraph to the width of the page; `title_of` is the title of a scheme,
    `listed` joins words.
    """
    environment = Environment(  # noqa: S701  Markdown, not HTML
        loader=PackageLoader("scale_invariant_attention.lab"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"filled": _filled, "title_of": title_of, "listed": listed}
    text = environment.get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def unbroken(page: str) -> str:
    """A page whose tables keep a mean and its error on one line, however narrow they are.

    >>> ascii(unbroken("| 1.0 ± 0.1 |"))
    "'| 1.0\\\\xa0\\\\xb1\\\\xa00.1 |'"
    """
    return page.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["4x"]), listed(["4x", "16x"]), listed(["1x", "4x", "16x"])
    ('4x', '4x and 16x', '1x, 4x and 16x')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def best_at(best: Mapping[int, str]) -> str:
    """The best at each length in words.

    >>> best_at({256: "YaRN", 1024: "ALiBi", 4096: "ALiBi"})
    'YaRN at 256; ALiBi at 1,024 and 4,096'
    >>> best_at({256: "ALiBi", 1024: "ALiBi", 4096: "ALiBi"})
    'ALiBi at all 3 lengths'
    """
    lengths: dict[str, list[str]] = {}
    for length, name in best.items():
        lengths.setdefault(name, []).append(f"{length:,}")
    if len(lengths) == 1 < len(best):
        return f"{next(iter(lengths))} at all {len(best)} lengths"
    return "; ".join(f"{name} at {listed(found)}" for name, found in lengths.items())


def _filled(text: str) -> str:
    words = " ".join(text.split())
    return fill(words, LINE, break_long_words=False, break_on_hyphens=False) + "\n"
