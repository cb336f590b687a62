"""Dataclasses from JSON and back, by the types of their fields; errors name the field."""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..arguments import did_you_mean

_OMITTED = "omitted if None"
_NULL = "null in JSON, NaN in Python"

# A number that may not exist, such as the entropy of a range that no query sees.
NullableFloat = Annotated[float, _NULL]

# The values that a field of each type takes, and their name in errors.
_SCALARS: Mapping[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    str: (str, "text"),
    int: (int, "an integer"),
    float: ((int, float), "a number"),
}

T = TypeVar("T")


def omitted_if_none() -> Any:
    """A dataclass field that JSON has only where it is not None."""
    return field(default=None, metadata={_OMITTED: True})


def from_json(kind: type[T], value: Any, _name: str = "", **types: Any) -> T:
    """An instance of a dataclass from what ``json.loads`` returned.

    Fields with a default may be missing; unknown fields are an error. `types` replace those of fields.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Curve:
    ...     loss: tuple[float, ...]
    >>> from_json(Curve, {"loss": [2.5, 2.0]})
    Curve(loss=(2.5, 2.0))
    >>> from_json(Curve, {"loss": [2.5, "2"]})
    Traceback (most recent call last):
    ValueError: loss[1] must be a number, got '2'
    """
    _check(isinstance(value, dict), _name or "it", "an object", value)
    within = f"{_name}." if _name else ""
    schema: Any = kind
    known, hints = _fields(schema)
    for key in value:
        if key not in known:
            raise ValueError(f"{within}{key} is no field of it{did_you_mean(key, known)}")
    parts = {}
    for name, each in known.items():
        if name in value:
            parts[name] = _value((hints | types)[name], value[name], within + name)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{within}{name} is missing")
    try:
        return kind(**parts)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_name}: {error}" if _name else str(error)) from error


def to_json(value: Any) -> Any:
    """A dataclass, or a value that one holds, as ``json.dumps`` takes it."""
    if is_dataclass(value):
        kind: Any = type(value)
        known, hints = _fields(kind)
        parts = {name: getattr(value, name) for name in known}
        return {
            name: _null_for_nan(to_json(part)) if _has_nulls(hints[name]) else to_json(part)
            for name, part in parts.items()
            if part is not None or not known[name].metadata.get(_OMITTED)
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, tuple | list) else value


def _value(kind: Any, value: Any, name: str) -> Any:
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return from_json(kind, value, name)
    if get_origin(kind) is Annotated:
        return math.nan if value is None else _value(get_args(kind)[0], value, name)
    if get_origin(kind) in (Union, types.UnionType):
        [inner] = [it for it in get_args(kind) if it is not type(None)]
        return None if value is None else _value(inner, value, name)
    if get_origin(kind) is tuple:
        _check(isinstance(value, list), name, "a list", value)
        inner = get_args(kind)[0]
        return tuple(_value(inner, part, f"{name}[{place}]") for place, part in enumerate(value))
    if get_origin(kind) is Mapping:
        _check(isinstance(value, dict), name, "an object", value)
        to_key, inner = get_args(kind)
        return {
            _key(to_key, key, name): _value(inner, part, f"{name}.{key}")
            for key, part in value.items()
        }
    return _scalar(kind, value, name)


@cache
def _fields(kind: Any) -> tuple[dict[str, Field[Any]], dict[str, Any]]:
    return {each.name: each for each in fields(kind)}, get_type_hints(kind, include_extras=True)


def _scalar(kind: Any, value: Any, name: str) -> Any:
    if kind not in _SCALARS:
        raise TypeError(f"{name} has a type that JSON cannot have: {kind!r}")
    accepted, what = _SCALARS[kind]
    # To Python, True is an integer.
    fits = isinstance(value, accepted) and (kind is bool) == isinstance(value, bool)
    _check(fits, name, what, value)
    _check(kind is not float or _is_finite(value), name, "a finite number", value)
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _key(kind: type, key: str, name: str) -> Any:
    try:
        return kind(key)
    except ValueError as error:
        raise ValueError(f"{name} must have integers as names, got {key!r}") from error


def _check(holds: bool, name: str, what: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {what}, got {value!r}")


def _has_nulls(kind: Any) -> bool:
    return get_origin(kind) is Annotated or any(map(_has_nulls, get_args(kind)))


def _null_for_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_null_for_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
