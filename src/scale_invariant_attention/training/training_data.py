"""Training and validation data of a configuration: windows of a corpus, or examples of a task."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..arguments import check_field_names, did_you_mean
from ..data import (
    Encoding,
    SameTokens,
    TokenStream,
    Windows,
    open_shards,
    standard_library,
    text_files,
)
from ..data.masked_text import MaskedTextTask, Masking
from ..data.needles import NeedleFormat, NeedleTask
from ..data.shards import (
    BYTES,
    RecordedEncoding,
    holds_shards,
    recorded_fingerprint,
    shards_encoding,
)
from ..data.tasks import SEQUENCE_TASKS, SequenceTask, Task, TaskBatches, TaskExamples
from .runs import differences

if TYPE_CHECKING:
    from .config import TrainingConfig

STANDARD_LIBRARY = "standard-library"
TEXT, NEEDLES, MASKED = "text", "needles", "masked-text"
# The class of the options of each task but text, which has none.
TASK_OPTIONS: Mapping[str, type[Any]] = {
    NEEDLES: NeedleFormat,
    MASKED: Masking,
    **SEQUENCE_TASKS,
}
TASKS = (TEXT, *TASK_OPTIONS)
# The task seed of validation and tests; trainings use the seeds after it.
HELD_OUT = 0
# Of the windows of masked text: validation asks for the same tokens at every length.
ORDER_OF_SPLIT = {"train": "shuffled", "validation": "sequential"}


@dataclass(frozen=True)
class TrainingData:
    """The batches of a rank, a validation set, and what identifies the corpora, by split.

    `shards` has the fingerprints of their recorded hashes, where all shards have one.
    """

    batches: Windows | TaskBatches
    validation: SameTokens | TaskExamples
    tokens: dict[str, int]
    fingerprints: dict[str, str]
    shards: dict[str, str]

    def identity(self) -> dict[str, dict[str, Any]]:
        """What identifies the data, for a checkpoint."""
        known: dict[str, dict[str, Any]] = {
            "tokens": self.tokens,
            "fingerprints": self.fingerprints,
        }
        return known | ({"shards": self.shards} if self.shards else {})

    def changes(self, recorded: Mapping[str, Any]) -> list[str]:
        """How the data differs from an earlier identity, as far as both are known, in words."""
        now = {name: value for name, value in self.identity().items() if name in recorded}
        before = {name: recorded[name] for name in now}
        return list(differences(before, now))


def open_training_data(config: "TrainingConfig", rank: int = 0, ranks: int = 1) -> TrainingData:
    """Open the data of a configuration, for one of several ranks."""
    splits = () if config.task in SEQUENCE_TASKS else ("train", "validation")
    corpora = {split: open_corpus(config.data, split, config.vocab_size) for split in splits}
    lengths = config.validation_lengths
    batches: Windows | TaskBatches
    validation: SameTokens | TaskExamples
    if config.task == TEXT:
        batches = Windows(
            corpora["train"],
            length=config.length,
            batch_size=config.batch_size,
            order=config.order,
            seed=config.seed,
        )
        validation = SameTokens(corpora["validation"], lengths, at_most=config.validation_tokens)
    else:
        batches = TaskBatches(
            open_task(config, "train", HELD_OUT + 1 + config.seed),
            length=config.length,
            batch_size=config.batch_size,
            first_length=config.first_length,
            growth_steps=config.growth_steps,
        )
        task = open_task(config, "validation", HELD_OUT)
        examples = max(1, config.validation_tokens // max(lengths))
        validation = TaskExamples(task, lengths, examples, same_tokens=config.task == MASKED)
    sizes = {split: len(corpus) for split, corpus in corpora.items()}
    fingerprints = {split: corpus.sampled_fingerprint() for split, corpus in corpora.items()}
    shards = {split: _recorded(config.data, split) for split in splits}
    known = {split: it for split, it in shards.items() if it is not None}
    return TrainingData(batches.rank(rank, of=ranks), validation, sizes, fingerprints, known)


def _recorded(data: str, split: str) -> str | None:
    kind, _, folder = data.partition(":")
    return recorded_fingerprint(folder, split) if kind == "shards" else None


class TaskConfig(Protocol):
    """The fields of a configuration that describe its text and its task."""

    @property
    def data(self) -> str:
        """See :func:`open_corpus`."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the vocabulary."""

    @property
    def task(self) -> str:
        """One of :data:`TASKS`."""

    @property
    def task_options(self) -> Mapping[str, Any]:
        """Fields of the task."""


def open_task(config: TaskConfig, split: str, seed: int) -> Task:
    """Open the task of a configuration on a split of its data."""
    if config.task == NEEDLES:
        corpus = open_corpus(config.data, split, config.vocab_size)
        encoding = corpus_encoding(config.data).open()
        return NeedleTask(corpus, encoding, NeedleFormat(**config.task_options), seed)
    task: MaskedTextTask | SequenceTask
    if config.task == MASKED:
        corpus, order = open_corpus(config.data, split), ORDER_OF_SPLIT[split]
        task = MaskedTextTask(corpus, Masking(**config.task_options), order, seed)
    else:
        task = SEQUENCE_TASKS[config.task](**config.task_options, seed=seed)
    if task.vocab_size > config.vocab_size:
        right = f"at least the {task.vocab_size} tokens of the task {config.task!r}"
        raise ValueError(f"vocab_size must be {right}, got {config.vocab_size}")
    return task


def check_task(task: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the task does not have."""
    if task == TEXT:
        if options:
            raise ValueError(f"task_options must be empty for the task 'text', got {dict(options)}")
        return
    if "seed" in options:
        raise ValueError(
            f"task_options must be without a seed, got {options['seed']!r}: give --seed"
        )
    check_field_names(TASK_OPTIONS[task], options)
    TASK_OPTIONS[task](**options)


def open_corpus(
    data: str, split: str, vocab_size: int | None = None, encoding: Encoding | None = None
) -> TokenStream:
    """Open the tokens of a split, "train" or "validation", and check that the vocabulary has them.

    `data` is "standard-library", "text:PATH" for a file or a folder of text, or "shards:PATH" for token
    shards. Text is encoded by `encoding`; None means bytes.

    >>> len(open_corpus("standard-library", "validation", vocab_size=256)) > 100_000
    True
    """
    check_data(data)
    kind, _, path = data.partition(":")
    if data == STANDARD_LIBRARY:
        corpus = standard_library(split, encoding)
    elif kind == "text":
        corpus = text_files(path, split=split, encoding=encoding or "bytes")
    else:
        corpus = open_shards(path, split)
    if vocab_size is not None and corpus.vocab_size > vocab_size:
        right = f"at least the {corpus.vocab_size} of {data!r}"
        raise ValueError(f"vocab_size must be {right}, got {vocab_size}")
    return corpus


def check_data(data: str) -> None:
    """Refuse a name that is not one of a corpus; for a path, name the corpus that it probably is.

    >>> check_data("standart-library")
    Traceback (most recent call last):
    ValueError: data must be 'standard-library', 'text:PATH' or 'shards:PATH', got 'standart-library'
    (did you mean 'standard-library'?)
    """
    if is_data(data):
        return
    path = Path(data)
    if data and path.exists():
        kind = "shards" if holds_shards(path) else "text"
        hint = f"; for this {'folder' if path.is_dir() else 'file'}, give '{kind}:{data}'"
    else:
        missing = "; there is no file or folder of that name"
        hint = did_you_mean(data, [STANDARD_LIBRARY]) or missing
    right = f"{STANDARD_LIBRARY!r}, 'text:PATH' or 'shards:PATH'"
    raise ValueError(f"data must be {right}, got {data!r}{hint}")


def is_data(name: str) -> bool:
    """Whether a name is one of a corpus, which may be missing.

    >>> is_data("text:input.txt"), is_data("input.txt")
    (True, False)
    """
    kind, _, path = name.partition(":")
    return name == STANDARD_LIBRARY or (kind in ("text", "shards") and bool(path))


def corpus_encoding(data: str) -> RecordedEncoding:
    """The encoding of a corpus.

    >>> corpus_encoding("standard-library").name
    'bytes'
    """
    kind, _, path = data.partition(":")
    return shards_encoding(path) if kind == "shards" else BYTES
