"""From tokens to text, token by token: characters come when they are whole, and only then."""

import codecs
from collections.abc import Callable
from typing import Any, Protocol

# What stands for bytes that are no UTF-8, and for tokens that a tokenizer does not know.
BROKEN = "\N{REPLACEMENT CHARACTER}"
# An unfinished character has three bytes at most, and decoders show one BROKEN for all or for each.
LONGEST_UNFINISHED = 3
# So many tokens are decoded together while none of them ends with a character.
WINDOW = 64


class Decoder(Protocol):
    """Text from the tokens of one document, in the order in which they are added."""

    def add(self, token: int) -> str:
        """The text that a token completes, which may be none."""
        ...

    def finish(self) -> str:
        """What is left at the end: an unfinished character, as U+FFFD."""
        ...


class BytesDecoder:
    """For tokens that are bytes, or pieces of some.

    Args:
        bytes_of: The bytes of a token; None if it is unknown.

    >>> decoder = BytesDecoder({1: "\u20ac".encode()[:2], 2: "\u20ac".encode()[2:]}.get)
    >>> [decoder.add(token) for token in (1, 2, 3, 1)], decoder.finish()
    (['', '€', '\ufffd', ''], '\ufffd')
    """

    def __init__(self, bytes_of: Callable[[int], bytes | None]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that a token completes, which may be none."""
        piece = self._bytes_of(token)
        # A byte that UTF-8 never has shows as one U+FFFD.
        return self._decoder.decode(b"\xff" if piece is None else piece)

    def finish(self) -> str:
        """What is left at the end: an unfinished character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class TokenizerDecoder:
    """For a tokenizer of the tokenizers library, whatever its way to decode.

    Tokens since the last whole character are decoded behind those before, as many tokenizers have
    another text for the first token. A stream of the library itself would keep what it holds at the end.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._tokens: list[int] = []
        self._told = ""

    def add(self, token: int) -> str:
        """The text that a token completes, which may be none."""
        if self._tokenizer.id_to_token(token) is None:
            return self.finish() + BROKEN
        self._tokens.append(token)
        text = self._text()
        settled = _settled(text)
        new = settled[len(self._told) :]
        self._told += new
        if text and settled == text:
            self._before, self._tokens, self._told = self._tokens, [], ""
        elif len(self._tokens) > WINDOW:
            self._before, self._tokens = [], self._tokens[-WINDOW // 2 :]
            self._told = _settled(self._text())
        return new

    def finish(self) -> str:
        """What is left at the end: an unfinished character, as U+FFFD."""
        left = self._text()[len(self._told) :]
        self._before, self._tokens, self._told = [], [], ""
        return left

    def _text(self) -> str:
        """Of the tokens since the last whole character."""
        before = self._decode(self._before)
        text = self._decode(self._before + self._tokens)
        # Some decoders give up all of a row of bytes when one more byte is wrong.
        return text[len(before) :] if text.startswith(before) else self._decode(self._tokens)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def _settled(text: str) -> str:
    """Text without what may be an unfinished character at its end."""
    broken = len(text) - len(text.rstrip(BROKEN))
    return text[: len(text) - min(broken, LONGEST_UNFINISHED)]
