"""`sia generate`: text that a trained model generates from a prompt, printed as it comes."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from .errors import INTERRUPTED, plain_errors
from .options import (
    AnyModelFolder,
    Device,
    DocumentStart,
    Tokenizer,
    device_named,
    numbers,
    or_bad_parameter,
)
from .printable import printable

if TYPE_CHECKING:
    import torch

    from ..data import Encoding
    from ..lab.transformers_models import TransformersModel
    from ..model import GPT


def generate(
    folder: AnyModelFolder,
    prompt: Annotated[
        str | None, Option(help="The beginning of the text; by default empty.")
    ] = None,
    tokens: Annotated[
        str | None,
        Option(
            metavar="N,N,...", help="The prompt as token ids instead of text; prints token ids."
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    document_start: DocumentStart = None,
    max_new_tokens: Annotated[
        int, Option(min=0, help="Maximum number of tokens to generate.")
    ] = 256,
    temperature: Annotated[
        float,
        Option(help="0 takes the most likely token; 1 samples from the model's distribution."),
    ] = 0.8,
    top_k: Annotated[
        int | None, Option(help="Sample from this many of the most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        Option(help="Sample from the most likely tokens that together have this probability."),
    ] = None,
    seed: Annotated[int | None, Option(help="The same seed gives the same text.")] = None,
    device: Device = None,
) -> None:
    """Generate text from a prompt, until the model starts a new document.

    The prompt is read as the start of a document, as in training.
    """
    if prompt is not None and tokens is not None:
        raise typer.BadParameter("give --prompt or --tokens, not both")
    if tokenizer is not None and tokens is not None:
        raise typer.BadParameter("--tokenizer is for text; give --tokenizer or --tokens, not both")
    if document_start is not None and tokenizer is None:
        raise typer.BadParameter(
            "--document-start is a token of a tokenizer file; give --tokenizer too"
        )
    with plain_errors(ImportError):
        import torch

        where = device_named(device)
        sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k}
        sampling |= {"top_p": top_p, "seed": seed}
        model, encoding_of, ends = _open(folder, where)
        if tokens is None:
            encoding = encoding_of(tokenizer, document_start)
            ids, stops = _encode(prompt or "", encoding), [encoding.document_start, *ends]
        else:
            encoding, ids, stops = None, list(numbers("--tokens", tokens)), ends
        generated = or_bad_parameter(
            lambda: model.stream(
                torch.tensor([ids], device=where), max_new_tokens, stop_tokens=stops, **sampling
            )
        )
        new = (int(token) for token in generated)
        texts = _ids(ids, new) if encoding is None else _text(encoding, ids[1:], new, stops)
        try:
            for text in texts:
                _print(text)
        except KeyboardInterrupt:
            typer.echo()
            raise typer.Exit(INTERRUPTED) from None
        typer.echo()


def _open(
    folder: Path, device: "torch.device"
) -> "tuple[GPT | TransformersModel, Callable[[str | None, str | None], Encoding], list[int]]":
    """A model, a function that gives the encoding of its text, and further tokens that end a text."""
    from ..lab.trained_models import text_encoding
    from ..lab.transformers_models import is_of_transformers, open_transformers
    from ..training import open_trained

    if is_of_transformers(folder):
        opened = open_transformers(folder, device)
        return opened.gpt or opened, opened.encoding, opened.stop_tokens
    trained = open_trained(folder, device=device)
    if trained.unfinished is not None:
        typer.echo(f"Unfinished run: the model is from step {trained.unfinished:,}.", err=True)
    return trained.model, partial(text_encoding, trained), []


def _encode(prompt: str, encoding: "Encoding") -> list[int]:
    start = encoding.document_start
    try:
        (tokens,) = encoding.encode([prompt.encode(errors="surrogateescape")])
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"--prompt must be UTF-8 for the tokenizer {encoding.name!r}: {error.reason} at byte "
            f"{error.start}"
        ) from error
    if (tokens == start).any():
        what = "a zero byte" if encoding.name == "bytes" else f"token {start}"
        raise typer.BadParameter(f"--prompt must not contain {what}, which starts a document")
    return [start, *tokens.tolist()]


def _text(
    encoding: "Encoding", prompt: list[int], tokens: Iterator[int], stops: list[int]
) -> Iterator[str]:
    """The prompt and the generated text, each character as soon as it is complete."""
    decoder = encoding.decoder()
    yield "".join(map(decoder.add, prompt))
    for token in tokens:
        if token not in stops:
            yield decoder.add(token)
    yield decoder.finish()


def _ids(prompt: list[int], tokens: Iterator[int]) -> Iterator[str]:
    yield ",".join(map(str, prompt))
    yield from (f",{token}" for token in tokens)


def _print(text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()
