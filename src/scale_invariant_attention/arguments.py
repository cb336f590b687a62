"""Argument checks: return the value in the type that is needed, or raise an error that names the fix."""

import json
import math
import operator
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from numbers import Real
from typing import Any


def shown(value: object) -> str:
    """A value for an error, in brief if it is long.

    >>> shown(10.0), shown(10**400)
    ('10.0', 'an integer of 1329 bits')
    """
    # Python refuses to print the longest ones.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def real_number(name: str, value: object, at_least: float | None = None) -> float:
    """Return `value` as a finite float, no smaller than `at_least`; errors call it `name`.

    >>> real_number("tau", 10)
    10.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {value!r}; pass an int or a float")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {shown(value)}; pass a finite number")
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least:g}, got {value!r}")
    return number


def positive_number(name: str, value: object) -> float:
    """Return `value` as a finite float above zero.

    >>> positive_number("tau", 0)
    Traceback (most recent call last):
    ValueError: tau must be greater than 0, got 0
    """
    number = real_number(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be greater than 0, got {value!r}")
    return number


def ratio_above_one(ratio: object) -> float:
    """Return `ratio` as a finite float above one, the width of a range `[t, ratio * t)`.

    >>> ratio_above_one(10)
    10.0
    """
    number = real_number("ratio", ratio)
    if number <= 1:
        raise ValueError(
            f"ratio must be greater than 1, got {ratio!r}: otherwise [t, ratio * t) is empty"
        )
    return number


def integer(name: str, value: object, at_least: int | None = None) -> int:
    """Return `value` as an int, no smaller than `at_least`.

    >>> integer("samples", 64, at_least=2)
    64
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}; pass an int")
    number = operator.index(value)
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {shown(number)}")
    return number


def json_value(name: str, value: object) -> Any:
    """Return `value` as JSON gives it back, with lists for tuples.

    >>> json_value("config", {"lengths": (64, 128)})
    {'lengths': [64, 128]}
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from error


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Suggestion for an error about an unknown name: the closest known one, if any is close.

    >>> did_you_mean("head", ["heads", "layers"]), did_you_mean("colour", ["heads", "layers"])
    (" (did you mean 'heads'?)", '')
    """
    close = get_close_matches(str(given).lower(), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_field_names(kind: type, names: Iterable[str]) -> None:
    """Raise an error for a name that is not a field of a dataclass."""
    known = [field.name for field in fields(kind)]
    for name in names:
        if name not in known:
            raise TypeError(
                f"{kind.__name__} has no field {name!r}{did_you_mean(name, known)}; "
                f"its fields are: {', '.join(known)}"
            )


def distance_range(start: object, stop: object) -> tuple[int, int]:
    """Return the bounds of the non-empty range `[start, stop)` of integer distances.

    >>> distance_range(10, 100)
    (10, 100)
    """
    first = integer("start", start, at_least=0)
    end = integer("stop", stop)
    if end <= first:
        raise ValueError(f"stop must be greater than start, got stop={end} and start={first}")
    return first, end
