"""Output that a terminal shows and never obeys: names, texts and replies may contain its commands."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

# Controls other than tabs and ends of lines, marks that reorder or hide text, and bytes that are not
# UTF-8. Kept are the joiners of scripts and emoji, U+200C and U+200D.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return the text with a replacement character for everything that a terminal would obey.

    >>> printable("red\x1b[31m")
    'red�[31m'
    """
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


class PrintableStream:
    """A text stream that writes printable text alone, and is the stream it wraps otherwise.

    With `bars`, a carriage return that begins a write is kept: the progress bars of other libraries
    start so.
    """

    def __init__(self, stream: TextIO, *, bars: bool) -> None:
        # What a console that styles its text, and has made it printable, writes to.
        self.unfiltered = stream
        self._bars = bars

    def write(self, text: str) -> int:
        """Write a text, made printable."""
        start = "\r" if self._bars and text.startswith("\r") else ""
        self.unfiltered.write(start + printable(text.removeprefix(start)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, made printable."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def unfiltered(stream: TextIO) -> TextIO:
    """The stream below a PrintableStream; any other stream itself."""
    return stream.unfiltered if isinstance(stream, PrintableStream) else stream


def use_printable_streams() -> None:
    """Make everything printable that is written to standard output and standard error from here on."""
    if not isinstance(sys.stdout, PrintableStream):
        sys.stdout = cast(TextIO, PrintableStream(sys.stdout, bars=False))
    if not isinstance(sys.stderr, PrintableStream):
        sys.stderr = cast(TextIO, PrintableStream(sys.stderr, bars=True))


@contextmanager
def printable_streams() -> Iterator[None]:
    """The same inside a block."""
    before = sys.stdout, sys.stderr
    use_printable_streams()
    used = sys.stdout, sys.stderr
    try:
        yield
    finally:
        # Click replaces a stream whose reader has closed the pipe; that one stays.
        if (sys.stdout, sys.stderr) == used:
            sys.stdout, sys.stderr = before
