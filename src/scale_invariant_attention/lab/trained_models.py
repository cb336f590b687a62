"""Trained models as the commands use them: their description, defaults, text and results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ..arguments import json_value
from ..data import Encoding, TokenStream, get_encoding
from ..data.encoding import DOCUMENT_START
from ..data.shards import RecordedEncoding
from ..files import replace_file
from ..files.json_files import read_json_object
from ..files.manifest import signed_text
from ..model.pretrained import is_pretrained_name
from ..provenance import provenance
from ..training import TrainedModel
from ..training.trained import is_checkpoint
from ..training.training_data import STANDARD_LIBRARY, corpus_encoding, open_corpus

BYTES = get_encoding("bytes")

# Folder for the results of pretrained models, whose own folders stay as they are.
RUNS = "runs"
# Context lengths for models whose training is unknown.
LENGTHS = (256, 1024, 4096)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to measure, with the context lengths and the text to measure it on."""

    path: Path
    description: str  # one line
    config: Mapping[str, Any]
    lengths: tuple[int, ...]
    data: str  # name of the corpus
    corpus: TokenStream  # its validation split
    results: Path  # folder to write results to
    unfinished: int | None = None

    def write_results(
        self,
        names: tuple[str, str],
        measured: Mapping[str, Any],
        draw: Callable[[], bytes] | None,
        *,
        indent: int = 2,
        **data: Any,
    ) -> list[str]:
        """Write the JSON file and the figure of these names; returns lines that say where they are.

        `data` is recorded about the corpus. Earlier results are kept under other names, unless they are
        the same.
        """
        record, figure = (self.results / name for name in names)
        contents = {
            "model": str(self.path),
            "unfinished_at_step": self.unfinished,
            "config": dict(self.config),
            "data": {
                "name": self.data,
                "split": "validation",
                **data,
                "fingerprint": self.corpus.fingerprint(),
            },
            **measured,
            "provenance": provenance(),
        }
        kept = [] if _same_results(record, contents) else _keep_earlier(record, figure)
        replace_file(record, signed_text(contents, indent=indent))
        if draw is None:
            # The figure of an earlier measurement would not belong to these results.
            figure.unlink(missing_ok=True)
            return [str(record), *kept]
        missing = write_figure(figure, draw)
        return [str(record), f"No figure: {missing}" if missing else str(figure), *kept]


def _same_results(record: Path, contents: Mapping[str, Any]) -> bool:
    """Whether a file has these contents already, measured at whatever time."""
    try:
        earlier = read_json_object(record)
    except (OSError, ValueError):
        return False
    known = json_value("contents", dict(contents))
    return all(earlier.get(name) == known[name] for name in known if name != "provenance")


def _keep_earlier(record: Path, figure: Path) -> list[str]:
    """Rename earlier results to the first number that is free; returns a line that says so, if any."""
    if not record.exists():
        return []
    number = next(it for it in count(1) if not _numbered(record, it).exists())
    for path in (record, figure):
        if path.exists():
            path.rename(_numbered(path, number))
    return [f"Earlier results are kept in {_numbered(record, number)}"]


def _numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def write_figure(path: Path, draw: Callable[[], bytes]) -> str | None:
    """Replace the figure of an earlier measurement; returns the reason if it cannot be drawn."""
    path.unlink(missing_ok=True)
    try:
        picture = draw()
    except ModuleNotFoundError as missing:
        return str(missing)
    replace_file(path, picture)
    return None


def subject_of(
    trained: TrainedModel, lengths: Sequence[int], data: str | None, results: Path
) -> Subject:
    """A trained model as a subject, by default with the lengths and the data of its run."""
    trained.model.config.check_is_causal("this command")
    training, vocab_size = trained.training, trained.model.config.vocab_size
    validated = LENGTHS if training is None else training.validation_lengths
    data = data or _training_data(trained)
    return Subject(
        trained.path,
        describe(trained),
        trained.model.config.to_dict(),
        tuple(lengths or validated),
        data,
        open_corpus(data, "validation", vocab_size),
        results,
        trained.unfinished,
    )


def _training_data(trained: TrainedModel) -> str:
    if trained.training is not None:
        return trained.training.data
    if trained.model.config.vocab_size == BYTES.vocab_size:
        return STANDARD_LIBRARY
    raise ValueError(
        f"--data must be given for {trained.path}: a saved model does not record its training data"
    )


def results_folder(folder: Path, name: str) -> Path:
    """Folder for results: inside that of a run or model, and next to the run's checkpoints for one.

    >>> results_folder(Path("sia-mini-rope"), "evaluation").as_posix()
    'runs/sia-mini-rope/evaluation'
    """
    if is_pretrained_name(folder):
        return Path(RUNS, folder, name)
    if is_checkpoint(folder):
        return folder.absolute().parents[1] / f"{name}-{folder.name}"
    return folder / name


def describe(trained: TrainedModel) -> str:
    """One line about a model."""
    config = trained.model.config
    at = "" if config.train_length is None else f", trained at {config.train_length:,} tokens"
    state = ""
    if trained.training is not None and trained.unfinished is not None:
        state = f": unfinished, at step {trained.unfinished:,} of {trained.training.steps:,}"
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
    check_fits(encoding, size)
    return encoding


def check_fits(encoding: Encoding, vocab_size: int) -> None:
    """Refuse a tokenizer that has more tokens than the model."""
    if encoding.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer {encoding.name!r} has {encoding.vocab_size:,} tokens and this model only "
            f"{vocab_size:,}: it was trained with another tokenizer. Give that one as --tokenizer"
        )


def recorded_encoding(trained: TrainedModel) -> RecordedEncoding | None:
    """The encoding recorded with the data of a run, if the data can still be read."""
    if trained.training is None:
        return None
    try:
        return corpus_encoding(trained.training.data)
    except FileNotFoundError:
        return None  # the model may have been moved away from its data
