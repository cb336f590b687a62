"""JSON objects that carry a SHA-256 of their other fields, last, so that damage to them is found."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "sha256"


def signed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its SHA-256; one that it already has is replaced.

    >>> list(signed({"tau": 10.0}))
    ['tau', 'sha256']
    """
    return {**_unsigned(document), KEY: digest(document)}


def signed_text(document: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """The bytes of a file that holds a JSON object with its SHA-256."""
    return (json.dumps(signed(document), indent=indent, allow_nan=False) + "\n").encode()


def verified(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a signed JSON object; ValueError if they have changed since it was signed.

    An object without a SHA-256 is returned as it is.

    >>> verified(signed({"tau": 10.0}) | {"tau": 90.0})
    Traceback (most recent call last):
    ValueError: its SHA-256 is ..., but it records ...
    """
    if KEY in document and document[KEY] != (found := digest(document)):
        raise ValueError(f"its SHA-256 is {found}, but it records {document[KEY]!r}")
    return _unsigned(document)


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of all fields but the SHA-256 itself; ValueError for what JSON cannot hold."""
    text = json.dumps(_unsigned(document), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _unsigned(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != KEY}
