"""`sia evaluate`: the loss of a trained model by context length and by position."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from .errors import plain_errors
from .options import (
    AnyModelFolder,
    AsJson,
    Data,
    Device,
    Lengths,
    check_data_option,
    device_named,
    numbers,
)
from .terminal import Page, counted, progress_bar

if TYPE_CHECKING:
    from ..data import SameTokens, TokenStream
    from ..evaluation import LengthLoss, PositionLoss


def evaluate(
    folder: AnyModelFolder,
    lengths: Lengths = None,
    data: Data = None,
    tokens: Annotated[
        int, Option(min=1, help="Maximum number of tokens to score at each length.")
    ] = 65_536,
    positions: Annotated[
        bool, Option(help="Also measure the loss by position in long documents.")
    ] = True,
    device: Device = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="Folder for the results; by default RUN/evaluation, and RUN-evaluation for a "
            "transformers model.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model's loss on the same tokens at several context lengths, and by position.

    For contexts beyond one device, start it with torchrun, as sia train: the processes share each
    context, and the first one prints.
    """
    with plain_errors(ImportError):
        from ..evaluation import loss_by_length, loss_by_position
        from ..files import check_writable
        from ..lab.evaluated_models import open_evaluated_model
        from ..lab.reporting.evaluation_figures import draw_loss_by_position
        from ..training.ranks import is_first_rank, open_ranks, process_count

        where, first = device_named(device), is_first_rank()
        page = Page(quiet=as_json or not first)
        check_data_option(data)
        chosen = numbers("--lengths", lengths, at_least=1)
        with open_ranks(where, context_parallel=process_count()) as ranks:
            shared = ranks.context_parallel
            subject = open_evaluated_model(folder, where, chosen, data, output, shared)
            model, corpus, longest = subject.scored, subject.corpus, max(subject.lengths)
            same = _same_tokens(corpus, subject.lengths, tokens)
            if positions:
                _check_documents(corpus, subject.data, longest)
            ranks.on_first(lambda: check_writable(subject.results))
            page.line(subject.description)
            page.line(f"Validation split of {subject.data}: {len(corpus):,} tokens\n")
            bar = progress_bar if first else _no_progress_bar
            with bar("lengths", len(subject.lengths) * same.count) as progress:
                by_length = loss_by_length(model, same, device=where, progress=progress)
            _print_lengths(page, by_length)
            by_position: list[PositionLoss] = []
            if positions:
                # As many tokens as at each length, but at least two documents, for a standard error.
                documents = max(2, tokens // longest)
                with bar("documents", documents) as progress:
                    by_position = loss_by_position(
                        model, corpus, longest, at_most=documents, device=where, progress=progress
                    )
                _print_positions(page, by_position)
        _check_finite([*by_length, *by_position])

        def draw() -> bytes:
            return draw_loss_by_position(
                {subject.name: by_position},
                title=f"Loss by position, {subject.name}",
                train_length=subject.train_length,
            )

        if not first:
            return
        lines = subject.write_results(
            ("evaluation.json", "loss-by-position.png"),
            {
                "by_length": [asdict(row) for row in by_length],
                "by_position": [asdict(row) for row in by_position],
            },
            draw if by_position else None,
            tokens=len(corpus),
        )
        page.line("\n" + "\n".join(lines))
        if as_json:
            typer.echo((subject.results / "evaluation.json").read_text(encoding="utf-8"), nl=False)


@contextmanager
def _no_progress_bar(unit: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def _same_tokens(corpus: "TokenStream", lengths: tuple[int, ...], tokens: int) -> "SameTokens":
    from ..data import SameTokens

    try:
        return SameTokens(corpus, lengths, at_most=tokens)
    except ValueError as error:
        raise typer.BadParameter(
            f"--lengths cannot be combined with --tokens {tokens}: {error}"
        ) from error


def _check_documents(corpus: "TokenStream", name: str, length: int) -> None:
    import numpy as np

    from ..data import document_spans

    longest = int(np.diff(document_spans(corpus)).max())
    if longest <= length:
        raise typer.BadParameter(
            f"--lengths must be below {longest:,}, the tokens of the longest document of {name}, got "
            f"{length:,}: the loss by position is measured on whole documents. Give shorter lengths, "
            f"--data with longer documents, or --no-positions"
        )


def _print_lengths(page: Page, rows: "Sequence[LengthLoss]") -> None:
    page.table(
        ("length", "loss", "standard error", "tokens"),
        [
            (f"{row.length:,}", f"{row.loss:.4f}", _error(row.standard_error), f"{row.tokens:,}")
            for row in rows
        ],
        numbers=True,
    )


def _print_positions(page: Page, rows: "Sequence[PositionLoss]") -> None:
    page.heading("By position")
    page.paragraph(
        f"Mean over {counted(rows[0].documents, 'document')}, each read from its start, by the number "
        f"of tokens before the predicted one."
    )
    page.table(
        ("tokens before", "loss", "standard error"),
        [(_span(row), f"{row.loss:.4f}", _error(row.standard_error)) for row in rows],
        numbers=True,
    )


def _span(row: "PositionLoss") -> str:
    last = row.stop - 1
    return f"{row.start:,}" if row.start == last else f"{row.start:,}-{last:,}"


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"


def _check_finite(rows: "Sequence[LengthLoss | PositionLoss]") -> None:
    if not all(math.isfinite(row.loss) for row in rows):
        raise ValueError("the loss is not finite: the model's weights are broken; train it again")
