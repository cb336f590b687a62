"""For the site of the documentation: examples in docstrings as code, which Markdown does not see."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Puts a fence around every example: lines from a prompt to the next empty one."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Change the docstring of whatever was found in the package."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
