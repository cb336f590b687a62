"""`sia export`: a trained model as a folder of another library, and back."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data import Encoding
from ..data.shards import TIKTOKEN
from ..provenance import provenance
from ..training import TrainedModel, open_trained, read_provenance
from ..training.trained import is_checkpoint
from ..training.training_data import RECALL
from .errors import plain_errors
from .page import Page
from .subject import described
from .text import BYTES, DocumentStart, TokenizerName, noted_encoding, text_encoding


class Home(StrEnum):
    """Where a model can go."""

    HF = "hf"
    SIA = "sia"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def export(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run, of one of its checkpoints or of a saved model; with --to sia "
            "one of transformers.",
        ),
    ],
    to: Annotated[
        Home, typer.Option(help="hf: a folder that transformers opens; sia: a saved model of ours.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The folder to write; an earlier export is replaced."),
    ],
    tokenizer: TokenizerName = None,
    document_start: DocumentStart = None,
) -> None:
    """Write a model in the form of Hugging Face's transformers, or bring one back from there."""
    page = Page()
    if document_start is not None and tokenizer is None:
        raise typer.BadParameter("--document-start is a token of a file; give --tokenizer too")
    if to is Home.SIA and tokenizer is not None:
        raise typer.BadParameter(
            "--tokenizer goes with --to hf: a saved model of ours is weights and configuration alone"
        )
    with plain_errors(ImportError):
        # Heavy, and it may be missing.
        from ..huggingface.export import (
            check_replaceable,
            open_from_transformers,
            save_for_transformers,
        )

        _without_progress_bars()
        if to is Home.SIA:
            open_from_transformers(folder).save_pretrained(output)
            page.line(f"{output}")
            return
        check_replaceable(output)
        trained = open_trained(folder)
        page.line(described(trained))
        encoding, start = _encoding(page, trained, tokenizer, document_start)
        save_for_transformers(
            trained.model,
            output,
            encoding=encoding,
            document_start=start,
            provenance=_origin(folder, trained),
        )
        page.line(f"{output}")


def _encoding(
    page: Page, trained: TrainedModel, tokenizer: str | None, document_start: str | None
) -> tuple[Encoding | None, int | None]:
    """The encoding to write a tokenizer of, if it can be, and the token before documents."""
    if trained.training is not None and trained.training.task == RECALL:
        page.paragraph("Without a tokenizer: the tokens of associative recall are no text.")
        return None, None
    noted = noted_encoding(trained)
    if tokenizer is None and noted is not None and noted.name.startswith(TIKTOKEN):
        page.paragraph(
            f"Without a tokenizer: the tokens are those of {noted.name}, which has no file to copy. "
            f"Give the same one as --tokenizer FILE.json, or open it from the hub."
        )
        return None, noted.document_start
    size = trained.model.config.vocab_size
    if tokenizer is None and noted is None and size != BYTES.vocab_size:
        page.paragraph(
            f"Without a tokenizer: what the {size:,} tokens were made with is not noted here. Give it "
            f"as --tokenizer FILE.json."
        )
        return None, None
    encoding = text_encoding(trained, tokenizer, document_start)
    return encoding, encoding.document_start


def _origin(folder: Path, trained: TrainedModel) -> dict[str, Any]:
    origin: dict[str, Any] = {"exported": provenance()}
    if trained.training is not None:
        origin["training"] = trained.training.to_dict()
        origin["unfinished_at_step"] = trained.unfinished
        origin["runs"] = read_provenance(_run_of(folder))
    return origin


def _run_of(folder: Path) -> Path:
    return folder.absolute().parents[1] if is_checkpoint(folder) else folder


def _without_progress_bars() -> None:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
