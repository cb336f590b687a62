"""`sia generate`: what a trained model writes behind a prompt, as it comes."""

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from ..data import get_encoding
from ..training import open_trained
from ..training.devices import find_device
from .errors import plain_errors

BYTES = get_encoding("bytes")

# What would move the cursor or worse: all that is no text but for the tab and the end of a line.
CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if code not in (0x09, 0x0A)
}


def generate(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of a run, or of a saved model.")
    ],
    prompt: Annotated[
        str | None, typer.Option(help="What the text begins with; by default nothing.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="The prompt as tokens, for models whose tokens are not bytes; prints tokens.",
        ),
    ] = None,
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
    with plain_errors():
        where = find_device(device)
        trained = open_trained(folder, device=where)
        if trained.unfinished is not None:
            typer.echo(f"Unfinished: this is step {trained.unfinished:,}.", err=True)
        as_text = tokens is None
        ids = _bytes(prompt or "", trained.model.config.vocab_size) if as_text else _ids(tokens)
        written = trained.model.stream(
            torch.tensor([ids], device=where),
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop_tokens=[BYTES.document_start] if as_text else [],
            seed=seed,
        )
        new = (int(token) for token in written)
        try:
            if as_text:
                _print_text(prompt or "", new)
            else:
                _print_tokens(ids, new)
        except KeyboardInterrupt:
            typer.echo()
            raise typer.Exit(130) from None


def _bytes(prompt: str, vocab_size: int) -> list[int]:
    if vocab_size != BYTES.vocab_size:
        raise ValueError(
            f"the tokens of this model are not bytes: it has {vocab_size:,} of them. Encode the prompt "
            f"with the tokenizer that it was trained with, and give --tokens 464,3290,..."
        )
    text = prompt.encode(errors="surrogateescape")
    if BYTES.document_start in text:
        raise ValueError("--prompt must not contain a zero byte, which starts a document")
    return [BYTES.document_start, *text]


def _ids(tokens: str | None) -> list[int]:
    try:
        return [int(token) for token in (tokens or "").split(",")]
    except ValueError as error:
        raise ValueError(
            f"--tokens must be whole numbers with commas between them, got {tokens!r}"
        ) from error


def _print_text(prompt: str, tokens: Iterator[int]) -> None:
    """The prompt and what follows, each character as soon as its last byte is there."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    _print(decoder.decode(prompt.encode(errors="surrogateescape")))
    for token in tokens:
        if token != BYTES.document_start:
            _print(decoder.decode(bytes([token])))
    _print(decoder.decode(b"", final=True))
    sys.stdout.write("\n")


def _print_tokens(prompt: list[int], tokens: Iterator[int]) -> None:
    _print(",".join(map(str, prompt)))
    for token in tokens:
        _print(f",{token}")
    sys.stdout.write("\n")


def _print(text: str) -> None:
    sys.stdout.write(text.translate(CONTROLS))
    sys.stdout.flush()
