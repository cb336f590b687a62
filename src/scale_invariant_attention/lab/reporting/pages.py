"""Markdown pages from the templates in ``lab/templates``."""

import re
from textwrap import fill
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from .drawing import title_of

LINE = 105


def render(template: str, **values: Any) -> str:
    """A template as Markdown, with at most one blank line between its paragraphs.

    The filter `filled` wraps a paragraph to the width of the page; `title_of` is the title of a scheme.
    """
    environment = Environment(  # noqa: S701  Markdown, not HTML
        loader=PackageLoader("scale_invariant_attention.lab"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"filled": _filled, "title_of": title_of}
    text = environment.get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _filled(text: str) -> str:
    words = " ".join(text.split())
    return fill(words, LINE, break_long_words=False, break_on_hyphens=False) + "\n"
