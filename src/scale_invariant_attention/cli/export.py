"""`sia export`: a trained model in the format of Hugging Face transformers, and back."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from .errors import plain_errors
from .options import DocumentStart, Tokenizer
from .terminal import Page

if TYPE_CHECKING:
    from ..data import Encoding
    from ..training import TrainedModel


class Format(StrEnum):
    """Formats that a model can be written in."""

    HF = "hf"
    SIA = "sia"


def export(
    folder: Annotated[
        Path,
        Argument(
            metavar="FOLDER",
            help="Folder of a run, of one of its checkpoints or of a saved model, or the name of a "
            "pretrained model; with --to sia, the folder of a transformers model.",
        ),
    ],
    to: Annotated[
        Format,
        Option(help="hf: a folder that transformers loads; sia: a model that this package loads."),
    ],
    output: Annotated[
        Path, Option("--output", "-o", help="Folder to write; an earlier export is replaced.")
    ],
    tokenizer: Tokenizer = None,
    document_start: DocumentStart = None,
) -> None:
    """Convert a model to the format of Hugging Face transformers, or back."""
    page = Page()
    if document_start is not None and tokenizer is None:
        raise typer.BadParameter(
            "--document-start is a token of a tokenizer file; give --tokenizer too"
        )
    if to is Format.SIA and tokenizer is not None:
        raise typer.BadParameter(
            "--tokenizer goes with --to hf: with --to sia only weights and configuration are written"
        )
    with plain_errors(ImportError):
        from ..huggingface.export import (
            check_replaceable,
            open_from_transformers,
            save_for_transformers,
        )
        from ..lab.trained_models import describe
        from ..training import open_trained

        _disable_progress_bars()
        if to is Format.SIA:
            open_from_transformers(folder).save_pretrained(output)
        else:
            check_replaceable(output)
            trained = open_trained(folder)
            page.line(describe(trained))
            encoding, start = _encoding(page, trained, tokenizer, document_start)
            origin = _origin(folder, trained)
            save_for_transformers(
                trained.model, output, encoding=encoding, document_start=start, provenance=origin
            )
        page.line(f"{output}")


def _encoding(
    page: Page, trained: "TrainedModel", tokenizer: str | None, document_start: str | None
) -> "tuple[Encoding | None, int | None]":
    """The encoding to write a tokenizer for, if there is one, and the token that starts documents."""
    from ..data.shards import TIKTOKEN
    from ..data.tasks import SEQUENCE_TASKS
    from ..lab.trained_models import BYTES, recorded_encoding, text_encoding

    if trained.training is not None and trained.training.task in SEQUENCE_TASKS:
        page.paragraph(f"Without a tokenizer: the tokens of {trained.training.task} are not text.")
        return None, None
    recorded = recorded_encoding(trained)
    if tokenizer is None and recorded is not None and recorded.name.startswith(TIKTOKEN):
        page.paragraph(
            f"Without a tokenizer: the tokens are those of {recorded.name}, which has no file to copy. "
            f"Give the same tokenizer as --tokenizer FILE.json, or load it from the hub."
        )
        return None, recorded.document_start
    size = trained.model.config.vocab_size
    if tokenizer is None and recorded is None and size != BYTES.vocab_size:
        page.paragraph(
            f"Without a tokenizer: the one of the {size:,} tokens is not recorded. Give it as "
            f"--tokenizer FILE.json."
        )
        return None, None
    encoding = text_encoding(trained, tokenizer, document_start)
    return encoding, encoding.document_start


def _origin(folder: Path, trained: "TrainedModel") -> dict[str, Any]:
    from ..provenance import provenance
    from ..training import read_provenance
    from ..training.trained import is_checkpoint

    origin: dict[str, Any] = {"exported": provenance()}
    if trained.training is not None:
        run = folder.absolute().parents[1] if is_checkpoint(folder) else folder
        origin["training"] = trained.training.to_dict()
        origin["unfinished_at_step"] = trained.unfinished
        origin["runs"] = read_provenance(run)
    return origin


def _disable_progress_bars() -> None:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
