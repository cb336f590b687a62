"""An entry of the registry of schemes."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .scheme import ModelScheme

# Related schemes share a colour; colour-blind readers can tell these six apart.
# Each is given for light and for dark backgrounds.
BLACK = ("#000000", "#ffffff")
GREY = ("#555555", "#bdbdbd")
PURPLE = ("#aa4499", "#da8fd0")
ORANGE = ("#d55e00", "#ff9550")
GREEN = ("#009e73", "#38c9a0")
BLUE = ("#0072b2", "#62b6ff")


@dataclass(frozen=True)
class LineStyle:
    """The line of a scheme in figures, in matplotlib's terms."""

    colour: str = BLUE[0]
    dark_colour: str = BLUE[1]  # on dark backgrounds
    dash: str = "-"
    marker: str = "o"
    width: float = 1.5


@dataclass(frozen=True)
class NamedScheme:
    """A scheme in the registry, with everything that tables, figures and reports show of it.

    `build` makes the scheme; its parameters are the scheme's options, all with defaults.
    """

    name: str
    build: Callable[..., ModelScheme]
    title: str = ""
    """The name in tables and figures; by default `name`."""
    sentence: str = ""
    """One sentence for readers who have not met the scheme."""
    reference: str = ""
    """The publication that introduced it."""
    line: LineStyle = field(default_factory=LineStyle)
    trained_as: str = ""
    """The scheme whose training is bit-identical; by default the scheme itself."""
    formula: str = ""
    """What it does to logits, on one line of plain text.

    In it t is the distance from a query back to a key, n the number of keys that the query sees, d the
    size of a head, L the length of the context and T that of training.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not all(map(NAME.fullmatch, self.name.split(COMMA))):
            raise ValueError(
                f"name must be lower-case words joined by hyphens, such as 'p-rope', got {self.name!r}"
            )
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "trained_as", self.trained_as or self.name)

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options that `build` takes."""
        return tuple(self.defaults)

    @property
    def defaults(self) -> dict[str, Any]:
        """The options that `build` takes, and their default values."""
        parameters = inspect.signature(self.build).parameters
        return {name: each.default for name, each in parameters.items()}


# Scheme names are part of folder names.
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Joins the names of a pattern.
COMMA = ","
