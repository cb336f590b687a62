"""Griffe extension for the documentation site: fence doctests, so that Markdown renders them as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Fence every example: the lines from a prompt to the next blank line."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
