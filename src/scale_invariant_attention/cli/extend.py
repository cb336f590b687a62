"""`sia extend`: a Hugging Face model that reads longer texts than it was trained on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .errors import plain_errors, resumable
from .options import Device, numbers
from .terminal import Page, counted, progress_bars

if TYPE_CHECKING:
    from ..huggingface.extension import Extension, Losses

STANDARD_LIBRARY = "standard-library"


def extend(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="Folder of a model that save_pretrained wrote.")
    ],
    text: Annotated[
        str,
        Option(
            metavar="PATH",
            help="File or folder of sample text, like the text that the model is for; or "
            f"{STANDARD_LIBRARY}, the source of Python's standard library.",
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder for record and model.")],
    factor: Annotated[
        int, Option(min=2, help="The longest context as a multiple of the training length.")
    ] = 16,
    fine_tune: Annotated[
        int | None,
        Option("--fine-tune", min=1, metavar="TOKENS", help="Continue pretraining for so many."),
    ] = None,
    train_length: Annotated[
        int | None,
        Option(min=2, help="By default max_position_embeddings of the model's configuration."),
    ] = None,
    rotaries: Annotated[
        str, Option(metavar="NAME,NAME", help="Rotaries to try; see docs/extending.md.")
    ] = "slow,yarn,ntk,own",
    taus: Annotated[str, Option(metavar="X,X,...", help="Values of tau to try.")] = "3,10,30,1",
    tokens: Annotated[
        int, Option(min=1, help="Tokens to score at each length and for each candidate.")
    ] = 32_768,
    learning_rate: Annotated[float, Option(help="Of the fine-tuning.")] = 2e-5,
    batch_size: Annotated[int, Option(min=1, help="Sequences per step of the fine-tuning.")] = 16,
    lora_rank: Annotated[
        int | None, Option(min=1, help="Fine-tune with LoRA of this rank; default: all weights.")
    ] = None,
    device: Device = None,
) -> None:
    """Extend the context of a Hugging Face model, without training or with a little.

    Measures the spread of every head's scores, tries rotaries and values of tau with the transform for
    that spread on a held-out part of the text, and saves the best model in OUTPUT/model. Shows the loss
    by context length and by position before and after, on another part. With --fine-tune the model is
    then fine-tuned at its training length, and saved in OUTPUT/fine-tuning/model.

    Rerun an interrupted command to resume it: what OUTPUT/extension.json has is not measured again.
    """
    page = Page()
    with plain_errors(ImportError, NotImplementedError), resumable():
        from transformers import AutoTokenizer

        from .. import huggingface
        from ..data import standard_library, text_files
        from ..data.encoding import KEPT
        from ..huggingface import PretrainingRecipe
        from ..lab.diagnosed_models import load_transformers, text_encoding
        from ..training.ranks import find_device

        where = find_device(device)
        model = load_transformers(folder, where)
        length = train_length or model.config.max_position_embeddings
        recipe = None
        if fine_tune is not None:
            recipe = PretrainingRecipe(
                fine_tune, length, batch_size, learning_rate=learning_rate, lora_rank=lora_rank
            )
        encoding = text_encoding(folder, model.config.vocab_size)
        if text == STANDARD_LIBRARY:
            corpus = standard_library("validation", encoding)
        else:
            corpus = text_files(text, encoding=encoding)
        tokenizer = AutoTokenizer.from_pretrained(folder) if (folder / KEPT).exists() else None
        page.line(
            f"{type(model).__name__} from {folder}, trained at {length:,} tokens, to be read at up to "
            f"{factor * length:,}; {counted(len(corpus), 'token')} of sample text"
        )
        with _progress() as watch:
            _, found = huggingface.extend(
                model,
                tokenizer,
                corpus,
                output,
                factor=factor,
                train_length=train_length,
                rotaries=rotaries.split(","),
                taus=numbers("--taus", taus, float),
                tokens=tokens,
                fine_tune=recipe,
                watch=watch,
            )
        _print(page, found)


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar over all tokens to score, and a line for everything that has been measured."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with progress_bars(*columns, transient=True) as bar:
        task = bar.add_task("measuring scores", total=None)

        def watch(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield watch


def _print(page: Page, found: "Extension") -> None:
    page.heading("Candidates, on the part of the text to choose on")
    rows = [
        (f"{it.rotary}, tau {it.tau:g}", *_by_length(it.losses), f"{it.losses.mean:.3f}")
        for it in found.candidates
    ]
    lengths = [f"{row.length:,}" for row in found.before.by_length]
    page.table(("rotary and tau", *lengths, "mean"), rows, numbers=True)
    best = found.chosen
    page.paragraph(f"Chosen, for the lowest mean: {best.rotary}, tau {best.tau:g}.")

    measured = {"before": found.before, "after": found.after}
    if found.fine_tuned is not None:
        measured["fine-tuned"] = found.fine_tuned
    page.heading("Loss by context length, on another part of the text")
    rows = [(name, *_by_length(losses)) for name, losses in measured.items()]
    page.table(("model", *lengths), rows, numbers=True)
    cost = found.after.by_length[0].loss - found.before.by_length[0].loss
    page.paragraph(f"At the training length the extension costs {cost:+.3f} nats per token.")

    page.heading("Loss by position, in texts of the longest length")
    bins = zip(*(losses.by_position for losses in measured.values()), strict=True)
    rows = [
        (f"{one[0].start:,}-{one[0].stop - 1:,}", *(f"{it.loss:.3f}" for it in one))
        for one in bins
        if one[0].stop > found.train_length // 4
    ]
    page.table(("tokens before", *measured), rows, numbers=True)
    page.line(f"\n{found.model_folder}")


def _by_length(losses: "Losses") -> Sequence[str]:
    return [f"{row.loss:.3f}" for row in losses.by_length]
