"""`sia extend`: a Hugging Face model that reads longer texts than it was trained on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ..arguments import did_you_mean, integer, positive_number
from ..files.json_files import read_json_object
from .errors import plain_errors, resumable
from .options import Device, device_named, numbers, or_bad_parameter
from .terminal import Page, counted, progress_bars

if TYPE_CHECKING:
    from ..evaluation.losses import Losses
    from ..huggingface.extension import Extension

STANDARD_LIBRARY = "standard-library"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
# Names in huggingface.rotary.ROTARIES, which takes long to import.
ROTARIES = (
    *("own", "slow", "slow-beyond", "yarn", "yarn-beyond", "ntk", "dynamic", "llama3"),
    *("linear", "fast", "p-rope"),
)
BEYOND = "slow-beyond,yarn-beyond,dynamic"


def extend(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="Folder of a model that save_pretrained wrote.")
    ],
    text: Annotated[
        str,
        Option(
            metavar="PATH",
            help="File or folder of sample text, like the text that the model is for; or "
            f"{STANDARD_LIBRARY}, the source of Python's standard library. It is encoded with the "
            f"{TOKENIZER} in FOLDER; without one, a model with a vocabulary of 256 reads bytes.",
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", help="Folder for record and model.")],
    factor: Annotated[
        int, Option(help="The longest context as a multiple of the training length.")
    ] = 16,
    fine_tune: Annotated[
        int | None,
        Option(
            "--fine-tune",
            metavar="TOKENS",
            help="Continue pretraining for this many tokens. A step is batch size x training length, "
            "and the first 20 steps warm up.",
        ),
    ] = None,
    train_length: Annotated[
        int | None,
        Option(help="By default max_position_embeddings of the model's configuration."),
    ] = None,
    rotaries: Annotated[
        str,
        Option(
            metavar="NAME,NAME",
            help=f"Rotaries to try, with the first tau: {', '.join(ROTARIES)}; see docs/extending.md.",
        ),
    ] = "slow,yarn,ntk,own",
    taus: Annotated[
        str, Option(metavar="X,X,...", help="Values of tau to try, with the best rotary.")
    ] = "10,30,3,1",
    tokens: Annotated[
        int, Option(help="Tokens to score at each length and for each candidate.")
    ] = 32_768,
    learning_rate: Annotated[float, Option(help="Of the fine-tuning.")] = 2e-5,
    batch_size: Annotated[int, Option(help="Sequences per step of the fine-tuning.")] = 16,
    lora_rank: Annotated[
        int | None, Option(help="Fine-tune with LoRA of this rank; default: all weights.")
    ] = None,
    device: Device = None,
) -> None:
    """Extend the context of a Hugging Face model, without training or with a little.

    Measures the spread of every head's scores, tries rotaries and values of tau with the transform for
    that spread on a held-out part of the text, and saves the best model in OUTPUT/model. Shows the loss
    by context length and by position before and after, on another part, and says how far it reaches.
    With --fine-tune the model is then fine-tuned at its training length, and saved in
    OUTPUT/fine-tuning/model.

    Rerun an interrupted command to resume it: what OUTPUT/extension.json has is not measured again.
    """
    page = Page()
    with plain_errors(ImportError, NotImplementedError), resumable():
        names, values = rotaries.split(","), numbers("--taus", taus, float)
        _check(folder, text, names, values)
        for option, number, least in (
            ("--factor", factor, 2),
            ("--fine-tune", fine_tune, 1),
            ("--train-length", train_length, 2),
            ("--tokens", tokens, 1),
            ("--batch-size", batch_size, 1),
            ("--lora-rank", lora_rank, 1),
        ):
            if number is not None:
                or_bad_parameter(partial(integer, option, number, at_least=least))
        from transformers import AutoTokenizer

        from .. import huggingface
        from ..data import standard_library, text_files
        from ..huggingface import PretrainingRecipe
        from ..huggingface.extension import training_length
        from ..lab.trained_models import BYTES
        from ..lab.transformers_models import load_transformers, text_encoding

        where = device_named(device)
        model = load_transformers(folder, where)
        length = training_length(model, train_length)
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
        tokenizer = AutoTokenizer.from_pretrained(folder) if (folder / TOKENIZER).exists() else None
        page.paragraph(
            f"{type(model).__name__} from {folder}: trained at {length:,} tokens, to read up to "
            f"{factor * length:,}. Sample text: "
            f"{counted(len(corpus), 'byte' if encoding == BYTES else 'token')}."
        )
        with _progress() as watch:
            _, found = huggingface.extend(
                model,
                tokenizer,
                corpus,
                output,
                factor=factor,
                train_length=train_length,
                rotaries=names,
                taus=values,
                tokens=tokens,
                fine_tune=recipe,
                watch=watch,
            )
        _print(page, found)


def _check(folder: Path, text: str, rotaries: Sequence[str], taus: Sequence[float]) -> None:
    """Refuse paths and values that cannot be right, before slow imports."""
    path = folder / CONFIG
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {CONFIG}: give the folder of a model that save_pretrained wrote"
        )
    if text != STANDARD_LIBRARY and not Path(text).exists():
        raise typer.BadParameter(
            f"--text must be a file or folder that exists, or {STANDARD_LIBRARY}, got {text}"
        )
    for name in rotaries:
        if name not in ROTARIES:
            raise typer.BadParameter(
                f"--rotaries must be names separated by commas, out of {', '.join(ROTARIES)}, got "
                f"{name!r}{did_you_mean(name, ROTARIES)}"
            )
    for tau in taus:
        or_bad_parameter(partial(positive_number, "--taus", tau))
    if read_json_object(path).get("vocab_size") != 256 and not (folder / TOKENIZER).exists():
        raise FileNotFoundError(
            f"{folder} has no {TOKENIZER} to encode --text with: save the tokenizer there, with "
            "tokenizer.save_pretrained, or pass token ids to huggingface.extend (docs/extending.md)"
        )


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar over all tokens to read, with what is being done."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with progress_bars(*columns, transient=True) as bar:
        task = bar.add_task("measuring scores", total=None)

        def watch(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield watch


def _print(page: Page, found: "Extension") -> None:
    page.heading("Candidates, on the part of the text to choose on")
    best = found.chosen
    rows = [
        (
            f"{it.rotary}, tau {it.tau:g}",
            *_by_length(it.losses),
            f"{it.losses.mean:.3f}",
            "chosen" if it == best else _above(it.losses, best.losses),
        )
        for it in found.candidates
    ]
    lengths = [f"{row.length:,}" for row in found.before.by_length]
    page.table(("rotary and tau", *lengths, "mean", "above the chosen"), rows, numbers=True)
    stretches = len(best.losses.by_stretch)
    errors = f" ± is the standard error over {stretches} texts." if stretches > 1 else ""
    page.paragraph(f"Chosen, for the lowest mean: {best.rotary}, tau {best.tau:g}.{errors}")

    measured = {"before": found.before, "after": found.after}
    if found.fine_tuned is not None:
        measured["fine-tuned"] = found.fine_tuned
    page.heading("Loss by context length, on another part of the text")
    rows = [(name, *_by_length(losses)) for name, losses in measured.items()]
    page.table(("model", *lengths), rows, numbers=True)
    page.paragraph(_verdict(found))

    page.heading("Loss by position, in texts of the longest length")
    bins = zip(*(losses.by_position for losses in measured.values()), strict=True)
    rows = [
        (f"{one[0].start:,}-{one[0].stop - 1:,}", *(f"{it.loss:.3f}" for it in one))
        for one in bins
        if one[0].stop > found.train_length // 4
    ]
    page.table(("tokens before", *measured), rows, numbers=True)
    page.line(f"\n{found.model_folder}")


def _verdict(found: "Extension") -> str:
    """How far the extended model reaches, what it costs, and what to do if that is not good enough."""
    from ..huggingface.extension import NEAR

    is_tuned, longest = found.fine_tuned is not None, found.after.by_length[-1].length
    sentences = [
        f"At the training length the extension costs {found.cost:+.3f} nats per token"
        f"{', fine-tuning included' if is_tuned else ''}.",
        f"Up to {found.reach:,} tokens the loss stays within {NEAR} nats of its value at that length"
        f"{'' if found.reach == longest else ', and not beyond'}.",
    ]
    if found.cost > NEAR or found.reach < longest:
        problem = "That costs much" if found.reach == longest else "The extension falls short"
        tune = "--fine-tune with more tokens" if is_tuned else "--fine-tune TOKENS"
        sentences.append(
            f"{problem}: try {tune} and --rotaries slow,yarn, or --rotaries {BEYOND}, or a smaller "
            "--factor; docs/extending.md says when."
        )
    return "\n".join(sentences)


def _above(losses: "Losses", chosen: "Losses") -> str:
    """How much worse than the chosen candidate, with the standard error if there are several texts."""
    difference = losses.above(chosen)
    error = f" ± {difference.standard_error:.3f}" if len(losses.by_stretch) > 1 else ""
    return f"{difference.mean:+.3f}{error}"


def _by_length(losses: "Losses") -> Sequence[str]:
    return [f"{row.loss:.3f}" for row in losses.by_length]
