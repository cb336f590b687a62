"""Fields of a configuration from text, as a command line gives them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from .config import TrainingConfig

SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_fields(words: Sequence[str], *, options: Sequence[str] = ()) -> dict[str, Any]:
    """Values from ``--field value`` and ``--field=value``, dashes for underscores.

    `options` are others that the command has: what a misspelt word may have meant.

    >>> parse_fields(["--steps", "100", "--clip-norm=1", "--validation-lengths", "256,1024"])
    {'steps': 100, 'clip_norm': 1.0, 'validation_lengths': (256, 1024)}
    >>> parse_fields(["--scheme-options", "tau=1,learn_tau=true"])
    {'scheme_options': {'tau': 1, 'learn_tau': True}}
    """
    kinds = {option_of(field.name): (field.name, field.type) for field in fields(TrainingConfig)}
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        option, given, text = left.pop(0).partition("=")
        option = option.replace("_", "-")
        if option not in kinds:
            close = get_close_matches(option, [*kinds, *options], n=1)
            hint = f"did you mean {close[0]}?" if close else "see --print-config for all fields"
            raise ValueError(f"there is no option {option!r}; {hint}")
        name, kind = kinds[option]
        meaning, read = READERS[kind]
        if not given:
            if not left or left[0].startswith("--"):
                raise ValueError(f"{option} needs a value: {meaning}")
            text = left.pop(0)
        if name in values:
            raise ValueError(f"{option} is given twice")
        try:
            values[name] = read(text)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{option} must be {meaning}, got {text!r}") from error
    return values


def option_of(name: str) -> str:
    """The option that sets a field.

    >>> option_of("batch_size")
    '--batch-size'
    """
    return "--" + name.replace("_", "-")


def parse_options(option: str, text: str) -> dict[str, Any]:
    """Names with values, or a JSON object, from the text of an option.

    >>> parse_options("--options", "needles=1,order=alphabet")
    {'needles': 1, 'order': 'alphabet'}
    """
    meaning, read = READERS[Mapping[str, Any]]
    try:
        found: dict[str, Any] = read(text)
    except ValueError as error:
        raise ValueError(f"{option} must be {meaning}, got {text!r}") from error
    return found


def _options(text: str) -> dict[str, Any]:
    """A JSON object, or names with values, which are JSON where they can be, and text otherwise."""
    if text.startswith("{"):
        return dict(json.loads(text))
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not (name and equals):
            raise ValueError(part)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.lower() == "none" else read(text)


READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    str: ("a word", str),
    int: ("a whole number", int),
    float: ("a number", float),
    bool: ("true or false", lambda text: SWITCHES[text.lower()]),
    str | None: ("a word or none", _or_none(str)),
    int | None: ("a whole number or none", _or_none(int)),
    float | None: ("a number or none", _or_none(float)),
    tuple[int, ...]: (
        "whole numbers with commas between them",
        lambda text: tuple(map(int, text.split(","))),
    ),
    Mapping[str, Any]: ("name=value,name=value", _options),
}
