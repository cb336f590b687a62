"""Random damage to the bytes of a file, and to the fields of a JSON file."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Content = bytes | None  # None: the file is missing


@dataclass(frozen=True)
class Damage:
    """What was done to which file, in words, and its new content."""

    path: Path
    description: str
    content: Content


def draw_damage(files: dict[Path, bytes], draw: random.Random) -> Damage:
    """Random damage to one of several files; small files are as likely as large ones."""
    path = draw.choice(sorted(files))
    kinds = [*BYTES, *([_field] * len(BYTES) if path.suffix == ".json" else [])]
    while True:
        kind = draw.choice(kinds)
        try:
            content = kind(files[path], draw)
        except ValueError:
            continue
        if content != files[path]:
            return Damage(path, kind.__name__.strip("_").replace("_", " "), content)


def _flipped_bit(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    # Headers are a small part of most files.
    end = draw.choice([min(len(content), 2000), len(content)])
    changed[draw.randrange(end)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _changed_byte(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + draw.randbytes(1) + content[place + 1 :]


def _truncated(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.choice([0, len(content) - 1, draw.randrange(len(content))])]


def _extended(content: bytes, draw: random.Random) -> bytes:
    return content + draw.choice([b"\0", b"\n", b" ", b"{}", draw.randbytes(100), content])


def _range(content: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(content))
    return start, min(len(content), start + draw.choice([1, 2, 8, 64, 1000, len(content)]))


def _removed_range(content: bytes, draw: random.Random) -> bytes:
    start, stop = _range(content, draw)
    return content[:start] + content[stop:]


def _duplicated_range(content: bytes, draw: random.Random) -> bytes:
    start, stop = _range(content, draw)
    return content[:stop] + content[start:]


def _zeroed_range(content: bytes, draw: random.Random) -> bytes:
    start, stop = _range(content, draw)
    return content[:start] + bytes(stop - start) + content[stop:]


def _swapped_ranges(content: bytes, draw: random.Random) -> bytes:
    """Two ranges of the same length, without overlap, in each other's place."""
    length = min(draw.choice([1, 4, 64, 1000]), len(content) // 2)
    first = draw.randrange(len(content) - 2 * length + 1)
    second = draw.randrange(first + length, len(content) - length + 1)
    one, other = content[first : first + length], content[second : second + length]
    between = content[first + length : second]
    return content[:first] + other + between + one + content[second + length :]


def _removed_line(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def _missing(content: bytes, draw: random.Random) -> None:
    return None


BYTES: list[Callable[[bytes, random.Random], Content]] = [
    *[_flipped_bit] * 4,
    _changed_byte,
    _truncated,
    _extended,
    *[_removed_range] * 2,
    _duplicated_range,
    _zeroed_range,
    _swapped_ranges,
    _removed_line,
    _missing,
]


def _field(content: bytes, draw: random.Random) -> bytes:
    """A JSON field that was edited, removed, renamed, or given another type."""
    document = json.loads(content)
    parents = list(_containers(document))
    parent = draw.choice([it for it in parents if it] or parents)
    key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    action = draw.choice([_edit, _edit, _edit, _replace, _remove, _rename])
    action(parent, key, draw)
    return (json.dumps(document, indent=draw.choice([None, 1, 2])) + "\n").encode()


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)


def _edit(parent: Any, key: Any, draw: random.Random) -> None:
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = value + draw.choice([-1, 1, 10**6, -(2**40)])
    elif isinstance(value, float):
        parent[key] = draw.choice([value * 9, -value, value + 1e-6, float("inf"), float("nan")])
    elif isinstance(value, str) and value:
        place = draw.randrange(len(value))
        parent[key] = value[:place] + draw.choice("0aZ/\0\u00e4") + value[place + 1 :]
    else:
        _replace(parent, key, draw)


def _replace(parent: Any, key: Any, draw: random.Random) -> None:
    parent[key] = draw.choice([None, 0, -1, 10**400, 1e308, "", "x", [], {}, [[]], True, _nested()])


def _nested() -> Any:
    value: Any = []
    for _ in range(900):
        value = [value]
    return value


def _remove(parent: Any, key: Any, draw: random.Random) -> None:
    del parent[key]


def _rename(parent: Any, key: Any, draw: random.Random) -> None:
    if isinstance(parent, dict):
        parent[f"{key}_"] = parent.pop(key)
    else:
        parent.insert(key, parent[key])
