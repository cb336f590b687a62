"""Trained models as the commands use them: their description, defaults, text and folder for results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data import Encoding, TokenStream, get_encoding
from ..data.encoding import DOCUMENT_START
from ..data.shards import RecordedEncoding
from ..training import TrainedModel, open_trained
from ..training.trained import is_checkpoint
from ..training.training_data import STANDARD_LIBRARY, corpus_encoding, open_corpus

BYTES = get_encoding("bytes")

# Context lengths for models whose training is unknown.
LENGTHS = (256, 1024, 4096)


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained model, with the context lengths and the text to measure it on."""

    trained: TrainedModel
    lengths: tuple[int, ...]
    data: str
    corpus: TokenStream


def open_subject(
    folder: Path, *, lengths: Sequence[int] | None, data: str | None, device: torch.device
) -> Subject:
    """Open a model and the validation split to measure it on; None stands for the run's own choices."""
    trained = open_trained(folder, device=device)
    name = data or training_data(trained)
    corpus = open_corpus(name, "validation", trained.model.config.vocab_size)
    return Subject(trained, tuple(lengths or validation_lengths(trained)), name, corpus)


def validation_lengths(trained: TrainedModel) -> tuple[int, ...]:
    """Context lengths that the run validates at."""
    return LENGTHS if trained.training is None else trained.training.validation_lengths


def training_data(trained: TrainedModel) -> str:
    """Name of the corpus that a model was trained on, if it is known."""
    if trained.training is not None:
        return trained.training.data
    if trained.model.config.vocab_size == BYTES.vocab_size:
        return STANDARD_LIBRARY
    raise ValueError(
        f"--data must be given for {trained.path}: a saved model does not record its training data"
    )


def results_folder(folder: Path, name: str) -> Path:
    """Folder for results: inside that of a run or model, and next to the run's checkpoints for one."""
    if is_checkpoint(folder):
        return folder.absolute().parents[1] / f"{name}-{folder.name}"
    return folder / name


def describe(trained: TrainedModel) -> str:
    """One line about a model."""
    config = trained.model.config
    at = "" if config.train_length is None else f", trained at {config.train_length:,} tokens"
    state = (
        ""
        if trained.training is None or trained.unfinished is None
        else f": unfinished, at step {trained.unfinished:,} of {trained.training.steps:,}"
    )
    return f"{config.scheme_name}{at}, from {trained.path}{state}"


def text_encoding(
    trained: TrainedModel, tokenizer: str | None, document_start: str | None
) -> Encoding:
    """The encoding of a model's text: the one given, or the one that its data was encoded with."""
    size = trained.model.config.vocab_size
    recorded = recorded_encoding(trained)
    if tokenizer is not None:
        recorded_start = None if recorded is None else recorded.document_start_name
        start = document_start or recorded_start or DOCUMENT_START
        encoding = get_encoding(tokenizer, document_start=start)
        if recorded is not None:
            recorded.check(encoding)
    elif recorded is not None:
        encoding = recorded.open()
    elif size == BYTES.vocab_size:
        encoding = BYTES
    else:
        raise ValueError(
            f"the tokens of this model are not bytes: its vocabulary has {size:,}, and its tokenizer is "
            f"not recorded. Give it as --tokenizer, a file ending in .json or a name such as gpt2; or "
            f"give the prompt as --tokens 464,3290,..."
        )
    if encoding.vocab_size > size:
        raise ValueError(
            f"the tokenizer {encoding.name!r} has {encoding.vocab_size:,} tokens and this model only "
            f"{size:,}: it was trained with another tokenizer. Give that one as --tokenizer"
        )
    return encoding


def recorded_encoding(trained: TrainedModel) -> RecordedEncoding | None:
    """The encoding recorded with the data of a run, if the data can still be read."""
    if trained.training is None:
        return None
    try:
        return corpus_encoding(trained.training.data)
    except FileNotFoundError:
        return None  # the model may have been moved away from its data
