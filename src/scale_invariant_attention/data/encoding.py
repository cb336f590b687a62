"""Encodings of text as tokens: plain bytes, a file of the tokenizers library, or tiktoken."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..files import clear_partial, replace_file
from ._decoding import BytesDecoder, Decoder, TokenizerDecoder
from .tokens import TokenArray

# The usual name in tokenizer files of the token between documents.
DOCUMENT_START = "<|endoftext|>"
# The name of the tokenizer file in a folder of shards, whatever it was called before.
KEPT = "tokenizer.json"

_INSTALL = 'install it with: pip install "scale-invariant-attention[tokenizers]"'
# The name of a tokenizer file's encoding: the file, a hash of its content, and the document start.
_FILE_NAME = re.compile(r".*\.json ([0-9a-f]{16}) (.*)", re.DOTALL)


class Encoding(Protocol):
    """Turns documents into tokens and tokens into text."""

    @property
    def name(self) -> str:
        """Identifies the encoding: the same name means the same tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens are 0 to `vocab_size - 1`."""
        ...

    @property
    def document_start(self) -> int:
        """The token before every document."""
        ...

    def encode(self, texts: Sequence[bytes]) -> list[TokenArray]:
        """The tokens of each text, without `document_start`."""
        ...

    def decoder(self) -> Decoder:
        """A new decoder for the tokens of one document."""
        ...

    def keep(self, folder: Path) -> None:
        """Store in a folder what is needed to reopen the encoding, if its name is not enough."""
        ...


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
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"{path} needs the tokenizers library; {_INSTALL}"
            ) from missing
        try:
            content = path.read_bytes()
            self._tokenizer: Any = Tokenizer.from_buffer(content)
        except FileNotFoundError as missing:
            raise FileNotFoundError(f"there is no tokenizer file {str(path)!r}") from missing
        except Exception as problem:  # the library raises bare Exceptions
            if isinstance(problem, OSError):
                raise
            raise ValueError(
                f"{str(path)!r} is not a JSON file of the tokenizers library: {problem}"
            ) from problem
        self._content = content
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
        self.name = f"{path.name} {hashlib.sha256(content).hexdigest()[:16]} {document_start}"
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocab_size = max(ids) + 1

    def encode(self, texts: Sequence[bytes]) -> list[TokenArray]:
        """The tokens of each text, which must be UTF-8."""
        encoded = self._tokenizer.encode_batch(
            [text.decode() for text in texts], add_special_tokens=False
        )
        return [_array(one.ids, self.vocab_size) for one in encoded]

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
        try:
            import tiktoken
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError(
                f"the encoding {name!r} needs the tiktoken library; {_INSTALL}"
            ) from missing
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
        return [_array(ids, self.vocab_size) for ids in encoded]

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
    contents = {found[1] for found in files if found}
    return len(contents) < 2


def encode_documents(
    encoding: Encoding, documents: Sequence[tuple[str, bytes]]
) -> list[TokenArray]:
    """The tokens of each document, given with its name, after the token that starts it."""
    texts = [text for _, text in documents]
    try:
        encoded = encoding.encode(texts)
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


def smallest_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest of uint8, uint16 and uint32 that can hold every token."""
    return np.min_scalar_type(vocab_size - 1)


def _array(ids: Sequence[int], vocab_size: int) -> TokenArray:
    return np.array(ids, smallest_dtype(vocab_size))
