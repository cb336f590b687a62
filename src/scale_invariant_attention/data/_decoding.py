"""Incremental decoding of tokens to text: a character appears when its last byte has arrived."""

import codecs
from collections.abc import Callable
from typing import Any, Protocol

# Stands for bytes that are not UTF-8, and for tokens that a tokenizer does not know.
BROKEN = "\N{REPLACEMENT CHARACTER}"
# An unfinished character has at most three bytes, shown as one BROKEN for all or one for each.
LONGEST_UNFINISHED = 3
# At most this many tokens are decoded together while no character is complete.
WINDOW = 64


class Decoder(Protocol):
    """Turns the tokens of one document, added in order, into text."""

    def add(self, token: int) -> str:
        """Add a token and return the text that it completes, which may be empty."""
        ...

    def finish(self) -> str:
        """End the document and return what is left: an unfinished character, as U+FFFD."""
        ...


class BytesDecoder:
    """Decoder for tokens that stand for one or more bytes.

    Args:
        bytes_of: the bytes of a token; None for an unknown token.

    >>> decoder = BytesDecoder({1: "\u20ac".encode()[:2], 2: "\u20ac".encode()[2:]}.get)
    >>> [decoder.add(token) for token in (1, 2, 3, 1)], decoder.finish()
    (['', '€', '\ufffd', ''], '\ufffd')
    """

    def __init__(self, bytes_of: Callable[[int], bytes | None]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """Add a token and return the text that it completes, which may be empty."""
        piece = self._bytes_of(token)
        # A byte that never occurs in UTF-8 is shown as one U+FFFD.
        return self._decoder.decode(b"\xff" if piece is None else piece)

    def finish(self) -> str:
        """End the document and return what is left: an unfinished character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class TokenizerDecoder:
    """Decoder for any tokenizer of the tokenizers library.

    Tokens since the last whole character are decoded together with those before, because many
    tokenizers treat the first token differently. The library's own stream would never return an
    unfinished character at the end.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._tokens: list[int] = []
        self._returned = ""

    def add(self, token: int) -> str:
        """Add a token and return the text that it completes, which may be empty."""
        if self._tokenizer.id_to_token(token) is None:
            return self.finish() + BROKEN
        self._tokens.append(token)
        text = self._text()
        settled = _settled(text)
        new = settled[len(self._returned) :]
        self._returned += new
        if text and settled == text:
            self._before, self._tokens, self._returned = self._tokens, [], ""
        elif len(self._tokens) > WINDOW:
            self._before, self._tokens = [], self._tokens[-WINDOW // 2 :]
            self._returned = _settled(self._text())
        return new

    def finish(self) -> str:
        """End the document and return what is left: an unfinished character, as U+FFFD."""
        left = self._text()[len(self._returned) :]
        self._before, self._tokens, self._returned = [], [], ""
        return left

    def _text(self) -> str:
        """Text of the tokens since the last whole character."""
        before = self._decode(self._before)
        text = self._decode(self._before + self._tokens)
        # Some decoders discard a whole run of bytes when one more byte is wrong.
        return text[len(before) :] if text.startswith(before) else self._decode(self._tokens)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def _settled(text: str) -> str:
    """Text without a possibly unfinished character at its end."""
    broken = len(text) - len(text.rstrip(BROKEN))
    return text[: len(text) - min(broken, LONGEST_UNFINISHED)]
