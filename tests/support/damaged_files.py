"""Everything that the package opens, damaged at random: is it refused, or the same, or different?"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from file_damage import draw_damage
from shard_server import Answer, running
from tiny_training import tiny_config

from scale_invariant_attention.data import (
    FetchError,
    TextFiles,
    get_encoding,
    make_shards,
    open_shards,
)
from scale_invariant_attention.data.shards import shards_encoding
from scale_invariant_attention.files.download import download
from scale_invariant_attention.files.manifest import verified
from scale_invariant_attention.lab.measurements import EvaluationResults
from scale_invariant_attention.lab.records import (
    read_record,
    read_results,
    record_text,
    write_record,
)
from scale_invariant_attention.lab.trained_models import subject_of
from scale_invariant_attention.model import GPT, GPTConfig
from scale_invariant_attention.training import TrainedModel, TrainingConfig, open_trained, train
from scale_invariant_attention.training.checkpoints import find_checkpoints, load_checkpoint

RECORD = Path(__file__).parents[2] / "results" / "mini-500" / "rope-seed-0.json"


class Outcome(StrEnum):
    """How opening a damaged file ended."""

    REFUSED = "refused clearly"
    SAME = "same result"
    UNCLEAR = "unclear error"
    DIFFERENT = "silently different"


@dataclass(frozen=True)
class Opened:
    """Files in a folder, and a function that opens them and returns all that they decide."""

    folder: Path
    files: dict[Path, bytes]
    open: Callable[[], Any]
    expected: Any = None


@dataclass(frozen=True)
class Case:
    """One damaged file and the outcome; `detail` is the error or the difference."""

    kind: str
    seed: int
    damage: str
    outcome: Outcome
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}: {self.damage}: {self.outcome}: {self.detail:.300}"


def examine(kind: str, opened: Opened, seed: int) -> Case:
    """Damage a file, open it, and restore all files."""
    draw = random.Random(f"{kind} {seed}")
    damage = draw_damage(opened.files, draw)
    try:
        if damage.content is None:
            damage.path.unlink()
        else:
            damage.path.write_bytes(damage.content)
        outcome, detail = _outcome(opened)
    finally:
        _restore(opened)
    name = damage.path.relative_to(opened.folder)
    return Case(kind, seed, f"{damage.description} of {name}", outcome, detail)


def _outcome(opened: Opened) -> tuple[Outcome, str]:
    try:
        found = opened.open()
    except (ValueError, OSError, FetchError) as error:
        named = str(opened.folder) in str(error)
        return Outcome.REFUSED if named else Outcome.UNCLEAR, f"{type(error).__name__}: {error}"
    except Exception as error:
        return Outcome.UNCLEAR, f"{type(error).__name__}: {error}"
    return (
        (Outcome.SAME, "") if found == opened.expected else (Outcome.DIFFERENT, repr(found)[:200])
    )


def _restore(opened: Opened) -> None:
    for path in opened.folder.rglob("*"):
        if path.is_file() and path not in opened.files:
            path.unlink()
    for path, content in opened.files.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def _opened(folder: Path, opening: Callable[[], Any]) -> Opened:
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return Opened(folder, files, opening)


def _decided(model: GPT) -> tuple[str, str]:
    """Everything that decides what a model computes."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return json.dumps(model.config.to_dict()), digest.hexdigest()


def _tiny() -> GPT:
    torch.manual_seed(0)
    options = {"tau": 10.0}
    model = GPT(GPTConfig.preset("mini", layers=1, width=16, heads=2, scheme_options=options))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


@contextmanager
def models(folder: Path) -> Iterator[Opened]:
    """A saved model with its weights in several files."""
    _tiny().save_pretrained(folder, shard_bytes=10_000)
    yield _opened(folder, lambda: _decided(GPT.from_pretrained(folder)))


@contextmanager
def checkpoints(folder: Path) -> Iterator[Opened]:
    """A checkpoint of a run, and the configuration of the run; logs are no part of it."""
    train(tiny_config(steps=2, width=16, scheme_options={"base": 16.0}), folder)
    shutil.rmtree(folder / "model")
    for log in folder.glob("*.jsonl"):
        log.unlink()
    [found] = find_checkpoints(folder / "checkpoints")

    def opening() -> Any:
        trained, checkpoint = open_trained(found.path), load_checkpoint(found.path)
        states = hashlib.sha256()
        for group, tensors in checkpoint.tensors.items():
            for name, tensor in tensors.items():
                states.update(f"{group} {name}".encode() + tensor.reshape(-1).numpy().tobytes())
        values = json.dumps([checkpoint.values, checkpoint.metric, checkpoint.step])
        return _decided(trained.model), trained.training, states.hexdigest(), values

    yield _opened(folder, opening)


@contextmanager
def shards(folder: Path) -> Iterator[Opened]:
    """Token shards of both splits, opened with their hashes."""
    texts = folder.with_name("texts")
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"Text number {number} of many. " * (number + 1))
    make_shards(TextFiles(texts), folder, get_encoding("bytes"), shard_tokens=4000)

    def opening() -> Any:
        streams = [open_shards(folder, split, verify=True) for split in ("train", "validation")]
        encoding = shards_encoding(folder)
        facts = [(it.fingerprint(), it.vocab_size, it.document_start) for it in streams]
        return facts, replace(encoding, folder=None)

    yield _opened(folder, opening)


@contextmanager
def records(folder: Path) -> Iterator[Opened]:
    """The record of a trial, as it is written today."""
    write_record(replace(read_record(RECORD, TrainingConfig), read_from=None), folder)
    path = folder / RECORD.name
    yield _opened(folder, lambda: read_record(path, TrainingConfig))


@contextmanager
def records_without_a_hash(folder: Path) -> Iterator[Opened]:
    """The record of a trial from before records had hashes; not all damage to it can be found."""
    path = folder / RECORD.name
    path.write_bytes(record_text(verified(json.loads(RECORD.read_bytes()))))
    yield _opened(folder, lambda: read_record(path, TrainingConfig))


@contextmanager
def results(folder: Path) -> Iterator[Opened]:
    """The results of `sia evaluate`."""
    trained = TrainedModel(_tiny(), folder)
    subject = subject_of(trained, (32, 64), None, folder)
    losses = [{"length": n, "loss": 5.5, "standard_error": 0.1, "tokens": 640} for n in (32, 64)]
    position = {"start": 1, "stop": 2, "loss": 5.5, "standard_error": None, "documents": 3}
    measured = {"by_length": losses, "by_position": [position]}
    subject.write_results(("evaluation.json", "evaluation.png"), measured, None, tokens=640)
    path = folder / "evaluation.json"
    yield _opened(folder, lambda: read_results(path, EvaluationResults))


@contextmanager
def exports(folder: Path) -> Iterator[Opened]:
    """An export for transformers."""
    from transformers.utils.logging import disable_progress_bar

    from scale_invariant_attention.huggingface import open_from_transformers, save_for_transformers

    disable_progress_bar()
    save_for_transformers(_tiny(), folder, encoding=get_encoding("bytes"))
    # Decides nothing.
    (folder / "README.md").unlink()
    yield _opened(folder, lambda: _decided(open_from_transformers(folder)))


@contextmanager
def downloads(folder: Path) -> Iterator[Opened]:
    """An interrupted download, which is completed."""
    content = random.Random(0).randbytes(20_000)
    path = folder / "file.bin"
    with running({path.name: content}) as server:
        url = f"{server.url}/{path.name}"
        server.answers = [Answer(cut_after=12_000), Answer(status=404)]
        with suppress(FetchError):
            download(url, path, lambda path, *, whole: None, pause=0)
        opened: Opened

        def opening() -> bytes:
            download(url, path, lambda path, *, whole: None, attempts=1)
            whole = path.read_bytes()
            _restore(opened)
            return hashlib.sha256(whole).digest()

        opened = _opened(folder, opening)
        assert len(opened.files) == 2
        yield opened


# Kinds, and whether silent differences are accepted, because nothing could reveal them.
KINDS: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "models": (models, False),
    "checkpoints": (checkpoints, False),
    "shards": (shards, False),
    "records": (records, False),
    "results": (results, False),
    "exports": (exports, False),
    "downloads": (downloads, False),
    "records without a hash": (records_without_a_hash, True),
}


def failed(case: Case) -> bool:
    """Whether the outcome of a case must not be."""
    accepted = KINDS[case.kind][1] and case.outcome is Outcome.DIFFERENT
    return case.outcome in (Outcome.UNCLEAR, Outcome.DIFFERENT) and not accepted


@contextmanager
def prepared(kind: str, folder: Path) -> Iterator[Opened]:
    """The files of a kind, in a new folder."""
    place = folder / kind.replace(" ", "-") / "it"
    place.mkdir(parents=True)
    with KINDS[kind][0](place) as opened:
        yield replace(opened, expected=opened.open())
