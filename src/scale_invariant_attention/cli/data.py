"""`sia data`: show, create, download and check corpora and token shards."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from .commands import COMMANDS
from .errors import plain_errors, resumable
from .options import or_bad_parameter
from .terminal import Page, counted, progress_bars

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ..data import DocumentSource, TokenStream
    from ..data.making_shards import ShardProgress

# Documents of at least this many tokens are counted.
LENGTHS = (1024, 4096, 16384, 65536)

app = typer.Typer(
    help=COMMANDS["data"], no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.command()
def show(
    data: Annotated[
        list[str] | None,
        Argument(
            metavar="DATA",
            help="standard-library, which is the default and needs no download, text:PATH or "
            "shards:PATH; or files, folders or quoted patterns of shards.",
        ),
    ] = None,
) -> None:
    """Show the size, the documents and the fingerprint of a corpus."""
    from ..data import FetchError
    from ..training.training_data import STANDARD_LIBRARY

    page = Page()
    with plain_errors(FetchError):
        described, streams = _streams(data or [STANDARD_LIBRARY])
        page.line(described)
        page.line(f"Vocabulary: {max(stream.vocab_size for stream in streams.values()):,} tokens\n")
        page.table(
            ("", "tokens", "documents", "longest", *(f"{n:,}+" for n in LENGTHS)),
            [(name, *_counts(stream)) for name, stream in streams.items()],
            numbers=True,
        )
        page.heading("Fingerprints")
        page.facts((name, stream.fingerprint()) for name, stream in streams.items())


def _streams(data: list[str]) -> "tuple[str, dict[str, TokenStream]]":
    """A line about a corpus, and its tokens by split."""
    from ..data import find_shards, open_shards
    from ..data.shards import holds_shards, split_of
    from ..data.tokens import SPLITS
    from ..training.training_data import STANDARD_LIBRARY, check_data, is_data, open_corpus

    kind, _, path = data[0].partition(":")
    if len(data) == 1 and is_data(data[0]) and kind != "shards":
        streams: dict[str, TokenStream] = {it: open_corpus(data[0], it) for it in SPLITS}
        if data[0] == STANDARD_LIBRARY:
            return f"The standard library of Python {platform.python_version()}, as bytes", streams
        return f"The text of {path}, as bytes", streams
    where = [path] if len(data) == 1 and is_data(data[0]) else data
    for each in map(Path, where):
        # A path of text is met with the name of its corpus.
        if not holds_shards(each) and (each.is_file() or (each.is_dir() and any(each.iterdir()))):
            or_bad_parameter(partial(check_data, str(each)))
    files = find_shards(where)
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(split_of(file) or "other", []).append(file)
    streams = {split: open_shards(of_split) for split, of_split in by_split.items()}
    return f"{counted(len(files), 'shard')}, starting with {files[0]}", streams


def _counts(stream: "TokenStream") -> list[str]:
    import numpy as np

    from ..data import document_spans

    lengths = np.diff(document_spans(stream)).ravel()
    counts = [len(stream), len(lengths), lengths.max(), *((lengths >= n).sum() for n in LENGTHS)]
    return [f"{count:,}" for count in counts]


@app.command()
def shards(
    text: Annotated[
        list[Path] | None,
        Argument(metavar="TEXT", help="Files and folders; each file is a document."),
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="Folder for the shards.")] = Path(
        "shards"
    ),
    tokenizer: Annotated[
        str,
        Option(
            metavar="NAME",
            help='"bytes", a file of the tokenizers library ending in .json, or a tiktoken encoding '
            'such as "gpt2".',
        ),
    ] = "bytes",
    document_start: Annotated[
        str,
        Option(metavar="TOKEN", help="The token of a tokenizer file that starts every document."),
    ] = "<|endoftext|>",
    suffix: Annotated[
        list[str] | None,
        Option(metavar=".EXT", help="In folders, read only files with this ending; repeatable."),
    ] = None,
    dataset: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Instead of TEXT: a dataset of the Hugging Face hub, streamed."
        ),
    ] = None,
    config: Annotated[str | None, Option(help="Configuration of the dataset.")] = None,
    split: Annotated[str, Option(help="Split of the dataset.")] = "train",
    column: Annotated[str, Option(help="Column of the dataset that holds the text.")] = "text",
    rows: Annotated[
        int | None, Option(min=1, help="Number of rows of the dataset to read; by default all.")
    ] = None,
    validation: Annotated[
        float, Option(min=0, max=1, help="Share of the documents to hold out for validation.")
    ] = 0.1,
    shard_tokens: Annotated[int, Option(min=1, help="Tokens per shard.")] = 100_000_000,
) -> None:
    """Create token shards from text or from a dataset of the Hugging Face hub.

    If it is interrupted, rerunning the same command resumes it and produces the same shards.
    """
    if bool(text) == bool(dataset):
        given = "both" if text else "neither"
        raise typer.BadParameter(f"give TEXT or --dataset, one of the two; got {given}")
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    from ..data import FetchError, HubDataset, TextFiles, get_encoding, make_shards
    from ..data.tokens import SPLITS

    with plain_errors(FetchError), resumable():
        source: DocumentSource
        if dataset:
            source, total = HubDataset(dataset, config, split, column, rows), rows
        else:
            source = TextFiles(text or [], suffixes=suffix)
            total = len(source)
        encoding = get_encoding(tokenizer, document_start=document_start)
        columns = (BarColumn(), MofNCompleteColumn(), "documents", TimeElapsedColumn())
        with progress_bars("{task.description}", *columns) as meter:
            task = meter.add_task("0 tokens", total=total)

            def progress(made: "ShardProgress") -> None:
                tokens = f"{sum(made.tokens.values()):,} tokens"
                meter.update(task, completed=made.documents, description=tokens)

            made = make_shards(
                source,
                output,
                encoding,
                validation=validation,
                shard_tokens=shard_tokens,
                progress=progress,
            )
    page = Page()
    page.line(f"{counted(made.documents, 'document')}, {encoding.name}\n")
    page.table(
        ("", "tokens", "shards"),
        [(name, f"{made.tokens[name]:,}", f"{made.shards[name]:,}") for name in SPLITS],
        numbers=True,
    )
    for name in SPLITS:
        share = validation if name == "validation" else 1 - validation
        if share and not made.tokens[name]:
            page.paragraph(
                f"No document is left for {name}: there are too few. Give more, or create the shards "
                f"for training and validation from separate files, with --validation 0 and 1."
            )
    page.line(f"Written to {output}")


@app.command()
def fetch(
    name: Annotated[str, Argument(help="fineweb10B or fineweb100B.")],
    shards: Annotated[
        int,
        Option(min=0, help="Number of training shards, about 100 million tokens and 200 MB each."),
    ],
    output: Annotated[
        Path | None, Option("--output", "-o", help="Folder for the shards; by default NAME.")
    ] = None,
    base_url: Annotated[
        str | None, Option(metavar="URL", help="Address of the files, if not the hub.")
    ] = None,
) -> None:
    """Download FineWeb as GPT-2 tokens: the validation shard, and some training shards.

    Shards that are already there are kept. If it is interrupted, rerunning the same command resumes it.
    """
    from ..data import PUBLISHED, FetchError, fetch_shards
    from ..files.download import check_address

    if name not in PUBLISHED:
        raise typer.BadParameter(f"NAME must be one of {', '.join(PUBLISHED)}, got {name!r}")
    or_bad_parameter(lambda: PUBLISHED[name].names(shards))
    if base_url is not None:
        or_bad_parameter(partial(check_address, "--base-url", base_url))
    folder = Path(name) if output is None else output
    with plain_errors(FetchError), resumable(), _download_meter(shards + 1) as (progress, notice):
        paths = fetch_shards(
            name, folder, shards=shards, base_url=base_url, progress=progress, notice=notice
        )
    Page().line(f"{counted(len(paths), 'shard')} in {folder}")


@contextmanager
def _download_meter(
    files: int,
) -> Iterator[tuple[Callable[[str, int, int | None], None], Callable[[str], None]]]:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    sizes = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with progress_bars("{task.description}", BarColumn(), *sizes) as meter:
        tasks: dict[str, TaskID] = {}

        def show_progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                # Show one bar at a time.
                for earlier in tasks.values():
                    meter.update(earlier, visible=False)
                number = f"{len(tasks) + 1}/{files}"
                tasks[name] = meter.add_task(f"{number} {name}", completed=done, total=total)
            meter.update(tasks[name], completed=done, total=total)

        yield show_progress, meter.console.print


@app.command()
def check(
    where: Annotated[
        list[str], Argument(metavar="WHERE", help="Shards: files, folders or quoted patterns.")
    ],
    vocab_size: Annotated[
        int | None,
        Option(
            min=1,
            help="Tokens must be below this; by default the size recorded with the shards, or that of "
            "GPT-2.",
        ),
    ] = None,
) -> None:
    """Check every token of shards. Exits with 1 if a file is truncated, corrupt or not a shard.

    Every shard must have the SHA-256 that shards.json records; shards without one are only checked for
    their size and their vocabulary.
    """
    from ..data import FetchError, ShardError, check_shard, find_shards
    from ..data.shard_records import find_recorded
    from ..data.shards import recorded_encodings

    page = Page()
    faults: list[str] = []
    tokens = 0
    with plain_errors(FetchError):
        files = find_shards(where)
        size = recorded_encodings(files)[0].vocab_size if vocab_size is None else vocab_size
        for file in files:
            try:
                tokens += len(check_shard(file, size))
            except ShardError as fault:
                faults.append(str(fault))
                page.line(f"WRONG  {fault}")
            else:
                page.line(f"OK     {file}")
        recorded = find_recorded(files)
    unknown = [file for file in files if file not in recorded]
    if unknown:
        page.paragraph(
            f"No SHA-256 is recorded for {counted(len(unknown), 'shard')}, such as {unknown[0]}: other "
            f"tokens in the same vocabulary would not be noticed."
        )
    page.line(
        f"\n{len(files) - len(faults)} of {counted(len(files), 'shard')} valid: {tokens:,} tokens, all "
        f"below {size:,}."
    )
    if faults:
        raise typer.Exit(1)
