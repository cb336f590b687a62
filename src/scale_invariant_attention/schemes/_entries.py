"""An entry of the registry of schemes, and how a choice of slots becomes a scheme with options."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .rotary import ProportionalRoPE, Rotary, TruncatedRoPE
from .scheme import ModelScheme, Scheme

# Related schemes share a colour; colour-blind readers can tell these apart.
# Each is given for light and for dark backgrounds.
BLACK = ("#000000", "#ffffff")
GREY = ("#555555", "#bdbdbd")
PURPLE = ("#aa4499", "#da8fd0")
ORANGE = ("#d55e00", "#ff9550")
GREEN = ("#009e73", "#38c9a0")
BLUE = ("#0072b2", "#62b6ff")
OLIVE = ("#777711", "#cfcf5f")
WINE = ("#882255", "#e08cb4")

PRESS = "Press et al., 2021, arXiv:2108.12409"
SCALE_INVARIANT = "Anson et al., 2025, arXiv:2505.17083"


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
    """The publication that introduced it: authors, year and where to find it."""
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

    @property
    def year(self) -> int | None:
        """The year of the publication, if `reference` has one.

        >>> from scale_invariant_attention import schemes
        >>> schemes.entry("yarn").reference, schemes.entry("yarn").year
        ('Peng et al., 2023, arXiv:2309.00071', 2023)
        """
        found = re.search(r", (\d{4}), ", self.reference)
        return None if found is None else int(found[1])


# Scheme names are part of folder names.
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Joins the names of a pattern.
COMMA = ","
WINDOW = inspect.Parameter("window", inspect.Parameter.KEYWORD_ONLY, default=None)


class Slots:
    """Builds a scheme from the classes that fill its slots, whose options are the scheme's.

    An option that two slots have, such as `train_length`, is one option of the scheme. Every scheme
    takes a `window`, but those with a memory, which have segments.
    """

    def __init__(self, **slots: Callable[..., Any]) -> None:
        self.options = {slot: inspect.signature(fill).parameters for slot, fill in slots.items()}
        self.slots = slots
        merged = {name: each for options in self.options.values() for name, each in options.items()}
        keywords = (each.replace(kind=WINDOW.kind) for each in merged.values())
        self.__signature__ = inspect.Signature(
            [*keywords, *([] if "memory" in slots else [WINDOW])]
        )

    def __call__(self, **options: Any) -> Scheme:
        given = self.__signature__.bind(**options).arguments
        filled = {
            slot: fill(**{name: given[name] for name in self.options[slot] if name in given})
            for slot, fill in self.slots.items()
        }
        return Scheme(**filled, window=given.get(WINDOW.name))


def p_rope_of(
    base: float | None = None, fraction: float | None = None, rotating: float | None = None
) -> Rotary:
    """The paper's frequencies, or a `fraction` of RoPE's if one is given."""
    if fraction is not None and rotating is not None:
        raise ValueError(
            f"fraction and rotating exclude each other, got {fraction} and {rotating}: give fraction "
            f"for a part of RoPE's frequencies, rotating for the paper's in a part of the pairs"
        )
    options = {"base": base, "fraction": fraction, "rotating": rotating}
    given = {name: value for name, value in options.items() if value is not None}
    return TruncatedRoPE(**given) if fraction is None else ProportionalRoPE(**given)
