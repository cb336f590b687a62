"""Encodings of text as tokens: plain bytes, a file of the tokenizers library, or tiktoken.

Decoding is incremental: a character appears when its last byte has arrived.
"""

import codecs
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..files import clear_partial, replace_file
from ..files.json_files import read_small_file
from .tokens import TokenArray, TokenStream

# The usual name in tokenizer files of the token between documents.
DOCUMENT_START = "<|endoftext|>"
# The name of the tokenizer file in a folder of shards, whatever it was called before.
KEPT = "tokenizer.json"
# The name of a tokenizer file's encoding: the file, a hash of its content, and the document start.
_FILE_NAME = re.compile(r".*\.json ([0-9a-f]{16}) (.*)", re.DOTALL)

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

    def finish(self) -> str:
        """End the document and return what is left: an unfinished character, as U+FFFD."""


class Encoding(Protocol):
    """Turns documents into tokens and tokens into text."""

    # Identifies the encoding: the same name means the same tokens.
    name: str
    # Tokens are 0 to `vocab_size - 1`.
    vocab_size: int
    # The token before every document.
    document_start: int

    def encode(self, texts: Sequence[bytes]) -> list[TokenArray]:
        """The tokens of each text, without `document_start`."""

    def decoder(self) -> Decoder:
        """A new decoder for the tokens of one document."""

    def keep(self, folder: Path) -> None:
        """Store in a folder what is needed to reopen the encoding, if its name is not enough."""


class BytesDecoder:
    """Decoder for tokens that stand for one or more bytes; `bytes_of` is None for an unknown token.

    >>> decoder = BytesDecoder({1: "\u20ac".encode()[:2], 2: "\u20ac".encode()[2:]}.get)
    >>> [decoder.add(token) for token in (1, 2, 3, 1)], decoder.finish()
    (['', '€', '\ufffd', ''], '\ufffd')
    """

    def __init__(self, bytes_of: Callable[[int], bytes | None]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """Add a token and return the text that it completes."""
        piece = self._bytes_of(token)
        # A byte that never occurs in UTF-8 is shown as one U+FFFD.
        return self._decoder.decode(b"\xff" if piece is None else piece)

    def finish(self) -> str:
        """End the document and return what is left."""
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
        """Add a token and return the text that it completes."""
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
        """End the document and return what is left."""
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


class Bytes:
    """Every byte is a token. Byte 0, which no text contains, starts a document.

    >>> encode_documents(Bytes(), [("a.txt", "caf\u00e9".encode())])[0].tolist()
    [0, 99, 97, 102, 195, 169]
    """

    name = "bytes"
    vocab_size = 256
    document_start = 0

    def encode(self, texts: Sequence[bytes]) -> list[TokenArray]:
        """The bytes of each text."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decoder(self) -> Decoder:
        """Decoder of UTF-8."""
        return BytesDecoder(lambda token: bytes([token]) if token < self.vocab_size else None)

    def keep(self, folder: Path) -> None:
        """Store nothing: the name is enough."""


class TokenizerFile:
    """A tokenizer stored as JSON by the tokenizers library, in one self-contained file."""

    def __init__(self, path: Path, document_start: str) -> None:
        tokenizers = import_extra("tokenizers", "tokenizers", needed_by=str(path))
        try:
            self._content = read_small_file(path)
        except FileNotFoundError as missing:
            raise FileNotFoundError(f"there is no tokenizer file {str(path)!r}") from missing
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(self._content)
        except Exception as problem:  # the library raises bare Exceptions
            raise ValueError(
                f"{str(path)!r} is not a JSON file of the tokenizers library: {problem}"
            ) from problem
        # Special tokens spelled out in a text are text: a document cannot forge a boundary.
        self._tokenizer.encode_special_tokens = True
        # Documents are neither truncated nor padded.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        start = self._tokenizer.token_to_id(document_start)
        if start is None:
            raise ValueError(
                f"document_start must be a token of {str(path)!r}, got {document_start!r}; "
                f"name the token that the file has for the start or the end of a text"
            )
        self.document_start = int(start)
        digest = hashlib.sha256(self._content).hexdigest()
        self.name = f"{path.name} {digest[:16]} {document_start}"
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, texts: Sequence[bytes]) -> list[TokenArray]:
        """The tokens of each text, which must be UTF-8."""
        decoded = [text.decode() for text in texts]
        encoded = self._tokenizer.encode_batch(decoded, add_special_tokens=False)
        return [np.array(one.ids, smallest_dtype(self.vocab_size)) for one in encoded]

    def decoder(self) -> Decoder:
        """Decoder by the tokenizer itself; special tokens are shown by their names."""
        return TokenizerDecoder(self._tokenizer)

    def keep(self, folder: Path) -> None:
        """Copy the file to `tokenizer.json`."""
        path = folder / KEPT
        if path.exists() and path.read_bytes() != self._content:
            raise FileExistsError(
                f"{path} is another tokenizer, and the shards' tokenizer would replace it; choose "
                f"another folder, or move the file away"
            )
        clear_partial(folder, KEPT)
        replace_file(path, self._content)


class Tiktoken:
    """An encoding of the tiktoken library, by a name such as "gpt2"."""

    def __init__(self, name: str) -> None:
        tiktoken = import_extra("tiktoken", "tokenizers", needed_by=f"the encoding {name!r}")
        known = tiktoken.list_encoding_names()
        if name not in known:
            raise ValueError(
                f"encoding must be 'bytes', a tokenizer file ending in .json or an encoding of "
                f"tiktoken ({', '.join(known)}), got {name!r}"
            )
        try:
            self._encoding: Any = tiktoken.get_encoding(name)
        except OSError as problem:  # errors of the requests library included
            raise ConnectionError(
                f"tiktoken could not download the ranks of {name!r}, which it does on first use. "
                f"Without a network, set TIKTOKEN_CACHE_DIR to a folder that holds them, or give "
                f"a tokenizer file ending in .json. ({problem})"
            ) from problem
        self.name = f"tiktoken {name}"
        self.vocab_size = int(self._encoding.n_vocab)
        self.document_start = int(self._encoding.eot_token)

    def encode(self, texts: Sequence[bytes]) -> list[TokenArray]:
        """The tokens of each text, which must be UTF-8; spelled-out special tokens are text."""
        encoded = self._encoding.encode_ordinary_batch([text.decode() for text in texts])
        return [np.array(ids, smallest_dtype(self.vocab_size)) for ids in encoded]

    def decoder(self) -> Decoder:
        """Decoder of UTF-8; special tokens are shown by their names."""
        return BytesDecoder(self._bytes_of)

    def keep(self, folder: Path) -> None:
        """Store nothing: tiktoken knows the encoding by its name."""

    def _bytes_of(self, token: int) -> bytes | None:
        try:
            return bytes(self._encoding.decode_single_token_bytes(token))
        except KeyError:
            return None


def import_extra(library: str, extra: str, *, needed_by: str) -> Any:
    """Import a library that an extra of this package installs; the error names both."""
    try:
        return import_module(library)
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{needed_by} needs the {library} library; install it with: "
            f'pip install "scale-invariant-attention[{extra}]"'
        ) from missing


def get_encoding(name: str = "bytes", *, document_start: str = DOCUMENT_START) -> Encoding:
    """Open an encoding: "bytes", a tokenizer file ending in .json, or an encoding of tiktoken.

    Args:
        name: "bytes", a path, or a name such as "gpt2".
        document_start: the token of a tokenizer file to put before every document.

    >>> get_encoding("bytes").vocab_size
    256
    """
    if name == "bytes":
        return Bytes()
    if name.endswith(".json"):
        return TokenizerFile(Path(name), document_start)
    return Tiktoken(name)


def recorded_document_start(name: str) -> str | None:
    """The document start named in the name of a tokenizer file's encoding; None for other encodings.

    >>> recorded_document_start("gpt2.json 0123456789abcdef <|endoftext|>")
    '<|endoftext|>'
    """
    found = _FILE_NAME.fullmatch(name)
    return found[2] if found else None


def may_be_same(first: str, second: str) -> bool:
    """Whether two names may refer to one encoding: always, unless both are files that differ.

    A file may hold an encoding of tiktoken, and tiktoken has some under several names.

    >>> may_be_same("a.json 0123456789abcdef <s>", "b.json 0123456789abcdef <s>")
    True
    """
    files = [_FILE_NAME.fullmatch(name) for name in (first, second)]
    return len({found[1] for found in files if found}) < 2


def encode_documents(
    encoding: Encoding, documents: Sequence[tuple[str, bytes]]
) -> list[TokenArray]:
    """The tokens of each document, given with its name, after the token that starts it."""
    try:
        encoded = encoding.encode([text for _, text in documents])
    except UnicodeDecodeError as problem:
        name = next(name for name, text in documents if text == problem.object)
        raise ValueError(
            f"{name} is not UTF-8: {problem.reason} at byte {problem.start}; convert it, leave it "
            f"out, or use the encoding 'bytes'"
        ) from problem
    start = encoding.document_start
    for (name, _), tokens in zip(documents, encoded, strict=True):
        if (tokens == start).any():
            raise ValueError(
                f"{name} contains token {start}, which in the encoding {encoding.name!r} starts a "
                f"document and must not occur inside one. In bytes that is a zero byte, and the "
                f"file is not text: leave it out, for example by selecting suffixes"
            )
    kind = smallest_dtype(encoding.vocab_size)
    return [np.concatenate([[start], tokens]).astype(kind) for tokens in encoded]


def encoded_stream(encoding: Encoding, documents: Sequence[tuple[str, bytes]]) -> TokenStream:
    """Documents, given with their names, as one stream of tokens in memory."""
    return TokenStream(
        encode_documents(encoding, documents),
        vocab_size=encoding.vocab_size,
        document_start=encoding.document_start,
    )


def smallest_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest of uint8, uint16 and uint32 that can hold every token."""
    return np.min_scalar_type(vocab_size - 1)
