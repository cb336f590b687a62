"""Which encoding a corpus was made with: what is noted beside shards, and the way back to it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .encoding import (
    DOCUMENT_START,
    KEPT,
    Bytes,
    Encoding,
    get_encoding,
    may_be_same,
    noted_document_start,
)
from .shards import Place, find_shards, read_record, vocabulary_of

TIKTOKEN = "tiktoken "
# Published shards have no note, and are GPT-2's.
UNNOTED = f"{TIKTOKEN}gpt2"


@dataclass(frozen=True)
class NotedEncoding:
    """The name of an encoding, its vocabulary, and the folder where its tokenizer may be kept."""

    name: str
    vocab_size: int
    document_start: int
    folder: Path | None = None

    @property
    def document_start_word(self) -> str | None:
        """How the tokenizer file that was used writes the token before documents, if it was one."""
        return noted_document_start(self.name)

    def open(self) -> Encoding:
        """The encoding; raises if it is a file that is not kept."""
        if self.name == Bytes.name:
            return Bytes()
        if self.name.startswith(TIKTOKEN):
            encoding = get_encoding(self.name.removeprefix(TIKTOKEN))
        elif self.folder is not None and (self.folder / KEPT).exists():
            word = self.document_start_word or DOCUMENT_START
            encoding = get_encoding(str(self.folder / KEPT), document_start=word)
        else:
            raise FileNotFoundError(
                f"the tokens were made with {self.name!r}, which is not kept beside them; give the "
                f"file of that tokenizer"
            )
        self.check(encoding)
        return encoding

    def check(self, encoding: Encoding) -> None:
        """Raise if an encoding is not the one that is noted, as far as that can be told."""
        numbers = (encoding.vocab_size, encoding.document_start)
        if numbers == (self.vocab_size, self.document_start) and may_be_same(
            self.name, encoding.name
        ):
            return
        raise ValueError(
            f"the tokens were made with {self.name!r} ({self.vocab_size:,} tokens, "
            f"{self.document_start} before documents), and {encoding.name!r} is another tokenizer "
            f"({encoding.vocab_size:,} tokens, {encoding.document_start} before documents)"
        )


BYTES = NotedEncoding(Bytes.name, Bytes.vocab_size, Bytes.document_start)


def shards_encoding(where: Place | Iterable[Place]) -> NotedEncoding:
    """The encoding of shards: as `sia data shards` noted it beside them, or that of GPT-2."""
    files = find_shards(where)
    size, start = vocabulary_of(files)
    folders = sorted({file.parent for file in files})
    records = [read_record(folder) for folder in folders]
    names = {UNNOTED if noted is None else str(noted.get("encoding")) for noted in records}
    if len(names) > 1:
        raise ValueError(f"shards of several encodings do not go together: {sorted(names)}")
    return NotedEncoding(names.pop(), size, start, folders[0])
