"""Shards made from documents: interrupted at any moment, they end up the same bytes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scale_invariant_attention.data import (
    ShardError,
    TextFiles,
    documents,
    find_shards,
    get_encoding,
    make_shards,
    making_shards,
    open_shards,
    read_shard,
    text_files,
)
from scale_invariant_attention.data.shard_records import RECORD
from scale_invariant_attention.data.tokens import assign_split
from scale_invariant_attention.files.manifest import verified

BYTES = get_encoding("bytes")


class Killed(BaseException):
    """Ends a process; no library catches it."""


class Listed:
    """Documents from a list."""

    def __init__(self, texts, identity="listed"):
        self.texts, self.identity = texts, identity

    def documents(self, skip=0):
        for number, text in enumerate(self.texts[skip:], skip):
            yield f"text {number}", text


class Failing(Listed):
    """Ends the process before a document, and records where it resumed."""

    def __init__(self, texts, at):
        super().__init__(texts)
        self.at = at

    def documents(self, skip=0):
        self.skipped = skip
        for number, document in enumerate(super().documents(skip), skip):
            if number == self.at:
                raise Killed
            yield document


def texts(count=40, seed=0):
    """Lengths from 1 to several shards; some copies, some empty ones."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 90, count)
    made = [bytes(draw.integers(1, 256, length, np.uint8)) for length in lengths]
    made[3] = made[7] = b""
    made[11] = made[5]
    made[20] = bytes(draw.integers(1, 256, 700, np.uint8))
    return made


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(making_shards, "_BATCH_DOCUMENTS", 3)


def make(folder, source=None, **options):
    options = {"validation": 0.3, "shard_tokens": 200, "save_every": 150} | options
    return make_shards(source or Listed(texts()), folder, BYTES, **options)


def test_shards_hold_every_document_in_order_in_its_split(tmp_path, small_batches):
    made = make(tmp_path)
    whole = [text for text in texts() if text]
    for split in ("train", "validation"):
        stream = open_shards(tmp_path, split)
        assert [bytes(document.tolist()) for document in documents(stream)] == [
            b"\0" + text for text in whole if assign_split(text, 0.3) == split
        ]
        assert len(stream) == made.tokens[split]
        assert stream.vocab_size == 256
        files = find_shards(tmp_path, split)
        assert len(files) == made.shards[split] > 1
        assert {file.stat().st_size for file in files[:-1]} == {1024 + 2 * 200}
    assert made.documents == 40
    assert not list(tmp_path.glob("*.partial"))


def test_copies_are_in_the_same_split(tmp_path):
    source = Listed([f"text {number % 30}".encode() for number in range(300)])
    make(tmp_path, source)
    sides = [
        {bytes(document.tolist()) for document in documents(open_shards(tmp_path, split))}
        for split in ("train", "validation")
    ]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 30


def test_the_same_tokens_as_in_memory(tmp_path):
    for number, text in enumerate(texts()):
        (tmp_path / f"{number:02}.txt").write_bytes(text)
    make(tmp_path / "shards", TextFiles(tmp_path))
    for split in ("train", "validation"):
        expected = text_files(tmp_path, suffixes=[".txt"], split=split, validation=0.3)
        assert open_shards(tmp_path / "shards", split).fingerprint() == expected.fingerprint()


def test_a_single_document_is_divided_as_in_memory(tmp_path):
    text = tmp_path / "input.txt"
    text.write_bytes(b"".join(texts()))
    made = make(tmp_path / "shards", TextFiles(text))
    assert made.documents == 1
    for split in ("train", "validation"):
        stream = text_files(text, split=split, validation=0.3)
        assert open_shards(tmp_path / "shards", split).fingerprint() == stream.fingerprint()


def test_sizes_of_batches_and_saves_change_nothing(tmp_path, monkeypatch):
    make(tmp_path / "a")
    monkeypatch.setattr(making_shards, "_BATCH_BYTES", 100)
    make(tmp_path / "b", save_every=1)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_last_shard_that_is_just_full_leaves_no_empty_one(tmp_path):
    made = make(tmp_path, Listed([b"a" * 199, b"b" * 199]), validation=0)
    assert made.shards == {"train": 2, "validation": 0}
    assert [path.name for path in sorted(tmp_path.glob("*.bin"))] == [
        "tokens_train_000000.bin",
        "tokens_train_000001.bin",
    ]
    assert make(tmp_path, Listed([b"a" * 199, b"b" * 199]), validation=0) == made


class Fuse:
    """Lets some steps pass and then raises, before a step or right after it."""

    def __init__(self, monkeypatch):
        self.left, self.after = None, False
        # Waiting for the disk would only take time: it is the order of steps that counts.
        monkeypatch.setattr(os, "fsync", lambda _: None)
        self._guard(monkeypatch, os, "fsync")
        self._guard(monkeypatch, Path, "replace")
        self._guard(monkeypatch, Path, "unlink")
        self._guard(monkeypatch, making_shards, "encode_documents")

    def _guard(self, monkeypatch, owner, name):
        original = getattr(owner, name)

        def guarded(*arguments, **keywords):
            if self.left == 0 and not self.after:
                raise Killed
            result = original(*arguments, **keywords)
            if self.left == 0:
                raise Killed
            if self.left is not None:
                self.left -= 1
            return result

        monkeypatch.setattr(owner, name, guarded)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_interrupted_at_any_step_ends_the_same(tmp_path, monkeypatch, small_batches, after):
    source = Listed(texts(24))
    make(tmp_path / "whole", source)
    expected = content(tmp_path / "whole")
    fuse = Fuse(monkeypatch)
    fuse.after = after
    for steps in range(10_000):
        folder = tmp_path / str(steps)
        fuse.left = steps
        try:
            make(folder, source)
            break
        except Killed:
            fuse.left = None
        make(folder, source)
        assert content(folder) == expected, f"interrupted at step {steps}"
    assert steps > 50


def test_a_run_interrupted_again_and_again_ends_the_same(tmp_path, monkeypatch, small_batches):
    make(tmp_path / "whole")
    fuse = Fuse(monkeypatch)
    runs = 0
    while True:
        # Enough for any batch and its save, so that every run gets a little further.
        fuse.left, fuse.after, runs = 25 + runs % 5, bool(runs % 2), runs + 1
        try:
            make(tmp_path / "broken", save_every=1)
            break
        except Killed:
            assert runs < 200
    assert runs > 5
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


KILLED_PROCESS = """
import os
import sys
from pathlib import Path

from test_making_shards import Listed, make, making_shards, texts


class Dying(Listed):
    def documents(self, skip=0):
        for number, document in enumerate(super().documents(skip), skip):
            if number == int(sys.argv[2]):
                os.kill(os.getpid(), 9)
            yield document


making_shards._BATCH_DOCUMENTS = 3
make(Path(sys.argv[1]), Dying(texts()))
"""


@pytest.mark.skipif(os.name != "posix", reason="other systems do not kill so")
@pytest.mark.parametrize("number", [22, 39])
def test_a_process_that_is_killed(tmp_path, small_batches, number):
    """Nothing is flushed and nothing closed, unlike with an exception."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    died = subprocess.run(
        [sys.executable, "-c", KILLED_PROCESS, str(tmp_path / "killed"), str(number)],
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert died.returncode == -9
    make(tmp_path / "killed")
    make(tmp_path / "whole")
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_resuming_does_not_start_over(tmp_path, small_batches):
    with pytest.raises(Killed):
        make(tmp_path, Failing(texts(), 30), save_every=1)
    again = Failing(texts(), 30)
    with pytest.raises(Killed):
        make(tmp_path, again, save_every=1)
    assert again.skipped == 30


def test_a_finished_run_only_verifies(tmp_path):
    class Untouchable(Listed):
        def documents(self, skip=0):
            raise AssertionError

    made = make(tmp_path)
    seen = []
    assert make(tmp_path, Untouchable(texts()), progress=seen.append) == made
    assert seen == [made]


def test_progress_counts_documents_and_tokens(tmp_path, small_batches):
    seen = []
    made = make(tmp_path, progress=seen.append)
    assert seen[0].documents == 0
    assert seen[-1] == made
    assert [step.documents for step in seen] == [*range(0, 40, 3), 40]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard_tokens": 300}, "made with shard_tokens 200, and now it is 300"),
        ({"validation": 0.2}, "made with validation 0.3, and now it is 0.2"),
        ({"source": Listed(texts(), "other")}, "made with source 'listed', and now it is 'other'"),
    ],
)
def test_other_settings_do_not_mix(tmp_path, change, message):
    make(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **change)
    assert content(tmp_path) == before


def test_a_run_that_failed_at_once_may_be_corrected(tmp_path, small_batches):
    with pytest.raises(ValueError, match="text 5 contains token 0"):
        make(tmp_path, Listed([b"x" * 300] * 5 + [b"\0"]), save_every=10**9)
    assert len(list(tmp_path.glob("*.bin"))) > 3
    make(tmp_path, shard_tokens=2000)
    make(tmp_path / "whole", shard_tokens=2000)
    expected = content(tmp_path / "whole")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == expected


def test_a_folder_with_other_shards_is_left_alone(tmp_path):
    (tmp_path / "fineweb_train_000001.bin").write_bytes(b"precious")
    with pytest.raises(ValueError, match="another origin, such as fineweb_train_000001"):
        make(tmp_path)
    assert content(tmp_path) == {"fineweb_train_000001.bin": b"precious"}


@pytest.mark.parametrize("damage", ["unlink", "truncate", "shorten"])
@pytest.mark.parametrize("complete", [False, True])
def test_a_lost_shard_is_reported(tmp_path, small_batches, damage, complete):
    if complete:
        make(tmp_path)
    else:
        with pytest.raises(Killed):
            make(tmp_path, Failing(texts(), 30), save_every=1)
    path = tmp_path / "tokens_train_000001.bin"
    if damage == "unlink":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-2])
    else:
        path.write_bytes(shorter(path))
    with pytest.raises(ShardError, match="tokens_train_000001"):
        make(tmp_path)


def shorter(path):
    """A whole shard, but with one token less."""
    from scale_invariant_attention.data.shards import header

    return header(199) + path.read_bytes()[1024:-2]


def test_bytes_after_the_saved_tokens_are_cut_off(tmp_path, small_batches):
    with pytest.raises(Killed):
        make(tmp_path / "cut", Failing(texts(), 9), save_every=1)
    for partial in (tmp_path / "cut").glob("*.partial"):
        with partial.open("ab") as file:
            file.write(b"\xaa" * 1000)
    make(tmp_path / "cut")
    make(tmp_path / "whole")
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_lost_growing_shard_is_reported(tmp_path, small_batches):
    with pytest.raises(Killed):
        make(tmp_path, Failing(texts(), 9), save_every=1)
    (partial, *_) = tmp_path.glob("*train*.partial")
    partial.write_bytes(partial.read_bytes()[:-2])
    with pytest.raises(ShardError, match=r"partial does not have the \d+ tokens that shards\.json"):
        make(tmp_path)
    partial.unlink()
    with pytest.raises(ShardError, match="partial does not have"):
        make(tmp_path)


def test_a_growing_shard_is_not_a_shard(tmp_path, small_batches):
    with pytest.raises(Killed):
        make(tmp_path, Failing(texts(), 9), save_every=1)
    with pytest.raises(ValueError, match="unfinished"):
        open_shards(tmp_path, "train")
    for partial in tmp_path.glob("*.partial"):
        with pytest.raises(ShardError, match="begins with 0"):
            read_shard(partial)


def test_the_record(tmp_path):
    made = make(tmp_path)
    record = json.loads((tmp_path / RECORD).read_text())
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in tmp_path.glob("*.bin")
    }
    assert len(files) == sum(made.shards.values()) > 3
    expected = {
        "source": "listed",
        "encoding": "bytes",
        "vocab_size": 256,
        "document_start": 0,
        "validation": 0.3,
        "shard_tokens": 200,
        "documents": 40,
        "tokens": made.tokens,
        "complete": True,
        "files": files,
    }
    assert verified(record) == expected


def test_every_shard_of_an_interrupted_run_is_recorded(tmp_path, small_batches):
    make(tmp_path / "whole")
    for end in range(1, 40):
        with pytest.raises(Killed):
            make(tmp_path / "cut", Failing(texts(), end), save_every=1)
    make(tmp_path / "cut")
    records = [json.loads((tmp_path / name / RECORD).read_text()) for name in ("whole", "cut")]
    assert records[0]["files"] == records[1]["files"]
    for split in ("train", "validation"):
        open_shards(tmp_path / "cut", split, verify=True)


def test_wrong_arguments(tmp_path):
    class Large:
        name, vocab_size, document_start = "large", 65_537, 0

    with pytest.raises(ValueError, match="encoding 'large' has 65537"):
        make_shards(Listed(texts()), tmp_path / "x", Large())
    with pytest.raises(ValueError, match="shard_tokens must be from 1 to 2147483647, got 0"):
        make(tmp_path / "x", shard_tokens=0)
    with pytest.raises(ValueError, match="fraction from 0 to 1, got -1"):
        make(tmp_path / "x", validation=-1)
    assert not (tmp_path / "x").exists()
    with pytest.raises(ValueError, match="has no text"):
        make(tmp_path / "x", Listed([b"", b""]))
