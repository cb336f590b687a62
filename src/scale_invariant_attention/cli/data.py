"""`sia data`: corpora and token shards: shown, made, fetched and checked."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..data import (
    PUBLISHED,
    DocumentSource,
    FetchError,
    HubDataset,
    ShardError,
    TextFiles,
    TokenStream,
    check_shard,
    document_spans,
    fetch_shards,
    find_shards,
    get_encoding,
    make_shards,
    open_shards,
    standard_library,
)
from ..data.encoding import DOCUMENT_START
from ..data.making_shards import SHARD_TOKENS, Made
from ..data.shards import split_of, vocabulary_of
from ..data.tokens import SPLITS
from .errors import plain_errors
from .page import Page

# Documents of at least so many tokens are counted.
LENGTHS = (1024, 4096, 16384, 65536)

app = typer.Typer(
    help="Corpora and token shards: show, make, fetch and check them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Where = Annotated[
    list[str],
    typer.Argument(metavar="WHERE", help="Shards: files, folders or patterns in quotes."),
]


@contextmanager
def _to_be_continued() -> Iterator[None]:
    """Whoever breaks the command off is told that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Broken off. Run the same command again to go on.", err=True)
        raise typer.Exit(130) from None


@app.command()
def show(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHERE",
            help="Shards: files, folders or patterns in quotes. Without any, the corpus that needs "
            "no download: the source of Python's standard library.",
        ),
    ] = None,
) -> None:
    """Show the size, the documents and the fingerprint of a corpus."""
    page = Page()
    with plain_errors(FetchError):
        streams: dict[str, TokenStream]
        if where:
            files = find_shards(where)
            sides: dict[str, list[Path]] = {}
            for file in files:
                sides.setdefault(split_of(file) or "other", []).append(file)
            streams = {name: open_shards(of_side) for name, of_side in sides.items()}
            page.line(f"{_shards(len(files))}, from {files[0]} on")
        else:
            page.line(f"The standard library of Python {platform.python_version()}, as bytes")
            streams = {split: standard_library(split) for split in SPLITS}
        page.line(f"Vocabulary: {max(stream.vocab_size for stream in streams.values()):,} tokens\n")
        page.table(
            ("", "tokens", "documents", "longest", *(f"{n:,}+" for n in LENGTHS)),
            [(name, *_counts(stream)) for name, stream in streams.items()],
            numbers=True,
        )
        page.heading("Fingerprints")
        page.facts((name, stream.fingerprint()) for name, stream in streams.items())


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count:,} shards"


def _counts(stream: TokenStream) -> list[str]:
    lengths = np.diff(document_spans(stream)).ravel()
    counts = [len(stream), len(lengths), lengths.max(), *((lengths >= n).sum() for n in LENGTHS)]
    return [f"{count:,}" for count in counts]


@app.command()
def shards(
    text: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TEXT", help="Files and folders; each file is a document."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the shards.")
    ] = Path("shards"),
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help='"bytes", a file of the tokenizers library ending in .json, or an encoding of '
            'tiktoken, such as "gpt2".',
        ),
    ] = "bytes",
    document_start: Annotated[
        str,
        typer.Option(
            metavar="TOKEN", help="The token of a tokenizer file to put before every document."
        ),
    ] = DOCUMENT_START,
    suffix: Annotated[
        list[str] | None,
        typer.Option(metavar=".EXT", help="From folders take only files that end so; repeatable."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Instead of TEXT: a dataset of the Hugging Face hub, streamed."
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(help="The configuration of the dataset.")] = None,
    split: Annotated[str, typer.Option(help="The split of the dataset.")] = "train",
    column: Annotated[str, typer.Option(help="The column of the dataset with the text.")] = "text",
    rows: Annotated[
        int | None, typer.Option(min=1, help="Only so many rows of the dataset; all by default.")
    ] = None,
    validation: Annotated[
        float, typer.Option(min=0, max=1, help="The share of documents to hold out.")
    ] = 0.1,
    shard_tokens: Annotated[int, typer.Option(min=1, help="Tokens in a shard.")] = SHARD_TOKENS,
) -> None:
    """Make token shards from text or from a dataset of the Hugging Face hub.

    A run that was broken off goes on where it was when the same command is run again, and ends with
    the same shards.
    """
    if bool(text) == bool(dataset):
        raise typer.BadParameter("give either TEXT or --dataset, and not both")
    with plain_errors(FetchError), _to_be_continued():
        source: DocumentSource
        if dataset:
            source, total = HubDataset(dataset, config, split, column, rows), rows
        else:
            source = TextFiles(text or [], suffixes=suffix)
            total = len(source)
        encoding = get_encoding(tokenizer, document_start=document_start)
        with _document_meter(total) as progress:
            made = make_shards(
                source,
                output,
                encoding,
                validation=validation,
                shard_tokens=shard_tokens,
                progress=progress,
            )
    page = Page()
    page.line(f"{made.documents:,} documents, {encoding.name}\n")
    page.table(
        ("", "tokens", "shards"),
        [(name, f"{made.tokens[name]:,}", f"{made.shards[name]:,}") for name in SPLITS],
        numbers=True,
    )
    for name in SPLITS:
        share = validation if name == "validation" else 1 - validation
        if share and not made.tokens[name]:
            page.paragraph(
                f"No document is for {name}: there are too few. Give more, or make shards for "
                f"training and validation from files of their own, with --validation 0 and 1."
            )
    page.line(f"Written to {output}")


@contextmanager
def _document_meter(total: int | None) -> Iterator[Callable[[Made], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("documents"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as meter:
        task = meter.add_task("0 tokens", total=total)

        def show_progress(made: Made) -> None:
            tokens = f"{sum(made.tokens.values()):,} tokens"
            meter.update(task, completed=made.documents, description=tokens)

        yield show_progress


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(PUBLISHED)}.")],
    shards: Annotated[
        int,
        typer.Option(
            min=0, help="How many for training, about 100 million tokens and 200 MB each."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder; by default NAME.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the files are, if not on the hub.")
    ] = None,
) -> None:
    """Fetch FineWeb as GPT-2 tokens: the shard for validation, and some for training.

    Shards that are there stay; downloads that were broken off go on when the same command is run
    again.
    """
    folder = Path(name) if output is None else output
    with (
        plain_errors(FetchError),
        _to_be_continued(),
        _download_meter(shards + 1) as (progress, notice),
    ):
        paths = fetch_shards(
            name,
            folder,
            shards=shards,
            base_url=base_url,
            progress=progress,
            notice=notice,
        )
    Page().line(f"{_shards(len(paths))} in {folder}")


@contextmanager
def _download_meter(
    files: int,
) -> Iterator[tuple[Callable[[str, int, int | None], None], Callable[[str], None]]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    with Progress(*columns, console=console) as meter:
        tasks: dict[str, TaskID] = {}

        def show_progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                # One bar for all: that of the file before has served.
                for earlier in tasks.values():
                    meter.update(earlier, visible=False)
                place = f"{len(tasks) + 1}/{files}"
                tasks[name] = meter.add_task(f"{place} {name}", completed=done, total=total)
            meter.update(tasks[name], completed=done, total=total)

        yield show_progress, console.print


@app.command()
def check(
    where: Where,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens must be below; by default what was noted when the shards were made, or "
            "that of GPT-2.",
        ),
    ] = None,
) -> None:
    """Check shards to the last token. Exits with 1 if one is truncated, corrupt or foreign."""
    page = Page()
    faults: list[str] = []
    tokens = 0
    with plain_errors(FetchError):
        files = find_shards(where)
        size = vocabulary_of(files)[0] if vocab_size is None else vocab_size
        for file in files:
            try:
                tokens += len(check_shard(file, size))
            except ShardError as fault:
                faults.append(str(fault))
                page.line(f"WRONG  {fault}")
            else:
                page.line(f"OK     {file}")
    page.line(
        f"\n{len(files) - len(faults)} of {_shards(len(files))} right: {tokens:,} tokens, all below "
        f"{size:,}."
    )
    if faults:
        raise typer.Exit(1)
