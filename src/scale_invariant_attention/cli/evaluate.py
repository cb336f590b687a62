"""`sia evaluate`: the loss of a trained model by context length, and by position."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..data import SameTokens, TokenStream, document_spans
from ..evaluation import LengthLoss, PositionLoss, loss_by_length, loss_by_position
from ..files import check_writable, replace_file
from ..lab.reporting.evaluation_figures import draw_loss_by_position
from ..provenance import provenance
from ..training import TrainedModel, open_trained
from ..training.ranks import find_device
from ..training.training_data import open_corpus
from .errors import plain_errors
from .meter import meter
from .page import Page
from .subject import (
    Data,
    Device,
    Lengths,
    Subject,
    beside,
    chosen_lengths,
    described,
    own_data,
    own_lengths,
)

TOKENS = 65_536
RESULTS = "evaluation.json"
FIGURE = "loss-by-position.png"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def evaluate(
    folder: Subject,
    lengths: Lengths = None,
    data: Data = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="How many tokens to score at most, at each length.")
    ] = TOKENS,
    positions: Annotated[
        bool, typer.Option(help="Also the loss by position in long documents.")
    ] = True,
    device: Device = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The folder for the results; by default RUN/evaluation."
        ),
    ] = None,
) -> None:
    """Show the loss of a model on the same tokens at several context lengths, and by position."""
    page = Page()
    with plain_errors():
        where = find_device(device)
        trained = open_trained(folder, device=where)
        wanted = chosen_lengths(lengths, own_lengths(trained))
        name = data or own_data(trained)
        corpus = open_corpus(name, "validation", trained.model.config.vocab_size)
        same = _same_tokens(corpus, wanted, tokens)
        if positions:
            _check_documents(corpus, name, max(wanted))
        results = output or beside(folder, "evaluation")
        check_writable(results)
        page.line(described(trained))
        page.line(f"The validation split of {name}: {len(corpus):,} tokens\n")
        with meter("lengths", len(wanted) * same.count) as progress:
            by_length = loss_by_length(trained.model, same, device=where, progress=progress)
        _print_lengths(page, by_length)
        by_position: list[PositionLoss] = []
        if positions:
            # As many tokens as at each length, but at least two documents, for an error.
            documents = max(2, tokens // max(wanted))
            with meter("documents", documents) as progress:
                by_position = loss_by_position(
                    trained.model,
                    corpus,
                    max(wanted),
                    at_most=documents,
                    device=where,
                    progress=progress,
                )
            _print_positions(page, by_position)
        _check_finite([*by_length, *by_position])
        _write(results, trained, name, corpus, by_length, by_position)
        page.line(f"\n{results / RESULTS}")
        # That of an earlier evaluation would not belong to these results.
        (results / FIGURE).unlink(missing_ok=True)
        if by_position:
            _draw(page, results / FIGURE, trained, by_position)


def _same_tokens(corpus: TokenStream, lengths: tuple[int, ...], tokens: int) -> SameTokens:
    try:
        return SameTokens(corpus, lengths, at_most=tokens)
    except ValueError as error:
        raise ValueError(f"--lengths and --tokens {tokens} do not go together: {error}") from error


def _check_documents(corpus: TokenStream, name: str, length: int) -> None:
    longest = int(np.diff(document_spans(corpus)).max())
    if longest <= length:
        raise ValueError(
            f"--lengths must be below the {longest:,} tokens of the longest document of {name}, got "
            f"{length:,}: the loss by position is read from whole documents. Give shorter lengths, "
            f"--data with longer documents, or --no-positions"
        )


def _print_lengths(page: Page, rows: Sequence[LengthLoss]) -> None:
    page.table(
        ("length", "loss", "standard error", "tokens"),
        [
            (f"{row.length:,}", f"{row.loss:.4f}", _error(row.standard_error), f"{row.tokens:,}")
            for row in rows
        ],
        numbers=True,
    )


def _print_positions(page: Page, rows: Sequence[PositionLoss]) -> None:
    page.heading("By position")
    page.paragraph(
        f"In {rows[0].documents:,} documents, each read from its start: the loss of the tokens that "
        f"have so many before them."
    )
    page.table(
        ("tokens before", "loss", "standard error"),
        [(_span(row), f"{row.loss:.4f}", _error(row.standard_error)) for row in rows],
        numbers=True,
    )


def _span(row: PositionLoss) -> str:
    last = row.stop - 1
    return f"{row.start:,}" if row.start == last else f"{row.start:,}-{last:,}"


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"


def _check_finite(rows: Sequence[LengthLoss | PositionLoss]) -> None:
    if not all(math.isfinite(row.loss) for row in rows):
        raise ValueError(
            "the loss is not finite: the model's weights are not sound; train it again"
        )


def _write(
    folder: Path,
    trained: TrainedModel,
    data: str,
    corpus: TokenStream,
    by_length: Sequence[LengthLoss],
    by_position: Sequence[PositionLoss],
) -> None:
    contents: dict[str, Any] = {
        "model": str(trained.path),
        "unfinished_at_step": trained.unfinished,
        "config": trained.model.config.to_dict(),
        "data": {
            "name": data,
            "split": "validation",
            "tokens": len(corpus),
            "fingerprint": corpus.fingerprint(),
        },
        "by_length": [asdict(row) for row in by_length],
        "by_position": [asdict(row) for row in by_position],
        "provenance": provenance(),
    }
    replace_file(
        folder / RESULTS, (json.dumps(contents, indent=2, allow_nan=False) + "\n").encode()
    )


def _draw(page: Page, path: Path, trained: TrainedModel, rows: Sequence[PositionLoss]) -> None:
    config = trained.model.config
    scheme = config.scheme or "a scheme of its own"
    try:
        picture = draw_loss_by_position(
            {scheme: [asdict(row) for row in rows]},
            title=f"Loss by position, {scheme}",
            train_length=config.train_length,
        )
    except ModuleNotFoundError as missing:
        page.line(f"No figure: {missing}")
    else:
        replace_file(path, picture)
        page.line(str(path))
