"""Downloads published token shards, and keeps only whole ones."""

from dataclasses import dataclass
from pathlib import Path

from ..files import FileRecord, locked
from ..files.download import Notice, Progress, check_address, download
from .shard_records import (
    ShardError,
    check_recorded,
    read_record,
    recorded_files,
    write_record,
)
from .shards import GPT2_VOCAB_SIZE, HEADER_BYTES, TIKTOKEN, announced_bytes, read_shard

HUB = "https://huggingface.co/datasets"
# The last token of GPT-2, <|endoftext|>, starts a document.
GPT2_RECORD = {
    "encoding": f"{TIKTOKEN}gpt2",
    "vocab_size": GPT2_VOCAB_SIZE,
    "document_start": GPT2_VOCAB_SIZE - 1,
    "complete": True,
}


@dataclass(frozen=True)
class Published:
    """Shards on the hub: one for validation, and `train_shards` of about 100 million tokens each."""

    url: str
    train_shards: int

    def names(self, shards: int) -> list[str]:
        """The validation shard and the first `shards` training shards.

        >>> PUBLISHED["fineweb10B"].names(1)
        ['fineweb_val_000000.bin', 'fineweb_train_000001.bin']
        """
        if not 0 <= shards <= self.train_shards:
            raise ValueError(f"shards must be from 0 to {self.train_shards}, got {shards}")
        training = [f"fineweb_train_{number:06}.bin" for number in range(1, shards + 1)]
        return ["fineweb_val_000000.bin", *training]


PUBLISHED = {
    "fineweb10B": Published(f"{HUB}/kjj0/fineweb10B-gpt2/resolve/main", 103),
    "fineweb100B": Published(f"{HUB}/kjj0/fineweb100B-gpt2/resolve/main", 1030),
}


def fetch_shards(
    name: str,
    folder: str | Path,
    *,
    shards: int,
    base_url: str | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    progress: Progress = lambda *_: None,
    notice: Notice = lambda _: None,
) -> list[Path]:
    """Download published shards into a folder; whole shards in it are kept as they are.

    `shards.json` in the folder gets the size and the SHA-256 of each.

    Args:
        name: "fineweb10B" or "fineweb100B".
        folder: where to put them; created if missing, and locked meanwhile.
        shards: how many training shards, in addition to the one for validation.
        base_url: where the files are, if not on the hub.
        attempts: how many attempts in a row may fail to gain a byte of a file.
        pause: seconds before the second attempt, doubled before each later one.
        progress: called with the file's name, the bytes downloaded, and the total if known.
        notice: called with a sentence for the user about retries and the like.
    """
    if name not in PUBLISHED:
        raise ValueError(f"name must be one of {', '.join(PUBLISHED)}, got {name!r}")
    published = PUBLISHED[name]
    base = published.url if base_url is None else check_address("base_url", base_url)
    folder = Path(folder)
    paths = [folder / file for file in published.names(shards)]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=False):
        files = _earlier_files(folder, name)
        for path in paths:
            if _is_there(path, files, notice):
                size = path.stat().st_size
                progress(path.name, size, size)
            else:
                download(
                    f"{base}/{path.name}",
                    path,
                    _fault,
                    attempts=attempts,
                    pause=pause,
                    progress=progress,
                    notice=notice,
                )
                files.pop(path.name, None)
            if path.name not in files:
                files[path.name] = FileRecord.of(path)
                write_record(folder, {"source": name, **GPT2_RECORD}, files)
    return paths


def _earlier_files(folder: Path, name: str) -> dict[str, FileRecord]:
    """The recorded shards of an earlier download."""
    earlier = read_record(folder)
    if earlier is not None and earlier.get("source") != name:
        raise ValueError(
            f"{str(folder)!r} has shards of {earlier.get('source')!r}, and {name!r} are others; choose "
            f"another folder"
        )
    return recorded_files(earlier)


def _is_there(path: Path, files: dict[str, FileRecord], notice: Notice) -> bool:
    """Whether a shard is in the folder, whole and of its recorded size."""
    if not path.exists():
        return False
    try:
        read_shard(path)
        check_recorded(path, files.get(path.name), quick=True)
    except ShardError as fault:
        notice(f"Fetching again: {fault}")
        return False
    return True


def _fault(path: Path, *, whole: bool) -> str | None:
    size = path.stat().st_size
    try:
        if whole:
            read_shard(path)
        elif size > HEADER_BYTES and size > (announced := announced_bytes(path)):
            return f"what is not a whole shard (it exceeds the {announced} bytes of its header)"
    except ShardError as fault:
        return f"what is not a whole shard ({fault})"
    return None
