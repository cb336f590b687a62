"""`sia generate`: what a trained model writes behind a prompt, as it comes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from ..data import Encoding
from ..training import open_trained
from ..training.ranks import find_device
from .errors import plain_errors
from .text import BYTES, DocumentStart, TokenizerName, text_encoding

# What would move the cursor or worse: all that is no text but for the tab and the end of a line.
CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if code not in (0x09, 0x0A)
}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def generate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run, of one of its checkpoints, or of a saved model.",
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option(help="What the text begins with; by default nothing.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="The prompt as tokens, instead of text; prints tokens.",
        ),
    ] = None,
    tokenizer: TokenizerName = None,
    document_start: DocumentStart = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="How many to write at most.")] = 256,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token, 1 samples as the model predicts.")
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among so many of the likeliest tokens only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the likeliest tokens that have this probability together."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For the same text again.")] = None,
    device: Annotated[
        str | None, typer.Option(help="By default a GPU if there is one, else the CPU.")
    ] = None,
) -> None:
    """Let a model write on. The text ends where the model begins a new document.

    The prompt stands at the start of a document, as documents do in training.
    """
    if prompt is not None and tokens is not None:
        raise typer.BadParameter("give either --prompt or --tokens, and not both")
    if tokenizer is not None and tokens is not None:
        raise typer.BadParameter("--tokenizer is for text; give it or --tokens, and not both")
    if document_start is not None and tokenizer is None:
        raise typer.BadParameter("--document-start is a token of a file; give --tokenizer too")
    with plain_errors():
        where = find_device(device)
        trained = open_trained(folder, device=where)
        if trained.unfinished is not None:
            typer.echo(f"Unfinished: this is step {trained.unfinished:,}.", err=True)
        if tokens is None:
            encoding = text_encoding(trained, tokenizer, document_start)
            ids, stops = _encoded(prompt or "", encoding), [encoding.document_start]
        else:
            encoding, ids, stops = None, _ids(tokens), []
        written = trained.model.stream(
            torch.tensor([ids], device=where),
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop_tokens=stops,
            seed=seed,
        )
        new = (int(token) for token in written)
        try:
            if encoding is None:
                _print_tokens(ids, new)
            else:
                _print_text(encoding, ids[1:], new)
        except KeyboardInterrupt:
            typer.echo()
            raise typer.Exit(130) from None


def _encoded(prompt: str, encoding: Encoding) -> list[int]:
    start = encoding.document_start
    try:
        (tokens,) = encoding.encode([prompt.encode(errors="surrogateescape")])
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--prompt must be UTF-8 for the tokenizer {encoding.name!r}: {error.reason} at byte "
            f"{error.start}"
        ) from error
    if (tokens == start).any():
        what = "a zero byte" if encoding.name == BYTES.name else f"token {start}"
        raise ValueError(f"--prompt must not contain {what}, which starts a document")
    return [start, *tokens.tolist()]


def _ids(tokens: str | None) -> list[int]:
    try:
        return [int(token) for token in (tokens or "").split(",")]
    except ValueError as error:
        raise ValueError(
            f"--tokens must be whole numbers with commas between them, got {tokens!r}"
        ) from error


def _print_text(encoding: Encoding, prompt: list[int], tokens: Iterator[int]) -> None:
    """The prompt and what follows, each character as soon as it is whole."""
    decoder = encoding.decoder()
    _print("".join(map(decoder.add, prompt)))
    for token in tokens:
        if token != encoding.document_start:
            _print(decoder.add(token))
    _print(decoder.finish())
    sys.stdout.write("\n")


def _print_tokens(prompt: list[int], tokens: Iterator[int]) -> None:
    _print(",".join(map(str, prompt)))
    for token in tokens:
        _print(f",{token}")
    sys.stdout.write("\n")


def _print(text: str) -> None:
    sys.stdout.write(text.translate(CONTROLS))
    sys.stdout.flush()
