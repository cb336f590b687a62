"""Griffe extension for the documentation site: what the sources do not spell out for its parser."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod):(?=`)")
EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)


class ReadableSources(griffe.Extension):
    """Fence doctests, so that Markdown renders them as code, and show the keywords of the op."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Fence every example of a docstring, from a prompt to the next blank line; drop roles."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub("", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **others: Any) -> None:
        """Replace ``**visibility`` in the signatures of the op by the fields of a Visibility."""
        fields = pkg["attention.visibility.Visibility"].attributes.values()
        keywords = [
            griffe.Parameter(
                field.name,
                annotation=field.annotation,
                kind=griffe.ParameterKind.keyword_only,
                default=field.value,
            )
            for field in fields
            if "property" not in field.labels
        ]
        for function in pkg["attention.api"].functions.values():
            if "visibility" in function.parameters and function.name != "attend":
                del function.parameters["visibility"]
                for keyword in keywords:
                    function.parameters.add(keyword)
