"""`sia data`: corpora and shards from the shell."""

import platform
import sys

import numpy as np
import pytest
from shard_server import running
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.data import open_shards, read_shard, standard_library, write_shard
from scale_invariant_attention.data.shard_records import RECORD
from scale_invariant_attention.data.shards import header


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.txt").write_text(f"text {number} " * (number + 1))
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    return folder


@pytest.fixture
def shards(tmp_path):
    """Two for training, one for validation; 50256 starts a document."""
    folder = tmp_path / "fineweb"
    for name, tokens in {
        "fineweb_val_000000": [50256, 5],
        "fineweb_train_000001": [50256, *range(1, 1500), 50256, 7],
        "fineweb_train_000002": [50256],
    }.items():
        write_shard(folder / f"{name}.bin", np.array(tokens, np.uint16))
    return folder


def rows(output):
    """The cells of a table by the first word of each line."""
    return {words[0]: words[1:] for line in output.splitlines() if (words := line.split())}


def test_without_a_command_all_are_listed():
    assert all(f"\n  {name} " in run().output for name in ("show", "shards", "fetch", "check"))


def test_show_the_standard_library():
    done = run("show")
    assert done.exit_code == 0
    assert done.output.startswith(f"The standard library of Python {platform.python_version()}")
    train = standard_library("train")
    counts = [line.split() for line in done.output.splitlines() if line.startswith("train")]
    assert counts[0][1:3] == [f"{len(train):,}", f"{len(train.document_starts):,}"]
    assert counts[1] == ["train", train.fingerprint()]


def test_show_shards(shards):
    done = run("show", shards)
    assert done.exit_code == 0
    assert done.output.startswith("3 shards, starting with ")
    assert "Vocabulary: 50,257 tokens" in done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["train", "1,503", "3", "1,500", "1", "0", "0", "0"] in lines
    assert ["validation", "2", "1", "2", "0", "0", "0", "0"] in lines
    assert ["train", open_shards(shards, "train").fingerprint()] in lines
    assert run("show", shards / "fineweb_val_000000.bin").output.startswith(
        "1 shard, starting with "
    )


def test_show_shards_with_other_names(tmp_path):
    write_shard(tmp_path / "mine.bin", np.array([50256, 1], np.uint16))
    assert rows(run("show", tmp_path).output)["other"] == [
        open_shards(tmp_path / "mine.bin").fingerprint()
    ]


def test_shards_from_text_and_again(texts, tmp_path):
    output = tmp_path / "out"
    command = ("shards", texts, "-o", output, "--suffix", ".txt", "--shard-tokens", 1000)
    done = run(*command)
    assert done.exit_code == 0
    assert "30 documents, bytes" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Written to {output}"
    train = open_shards(output, "train")
    found = rows(done.stdout)
    assert found["train"] == [f"{len(train):,}", str(-(-len(train) // 1000))]
    assert found["validation"][0] == f"{len(open_shards(output, 'validation')):,}"
    assert run(*command).stdout == done.stdout
    assert run("check", output).exit_code == 0


def test_shards_with_a_tokenizer_file(texts, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0, "text": 1, "<s>": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    command = ("shards", texts / "00.txt", "-o", tmp_path / "out", "--validation", 0)
    done = run(*command, "--tokenizer", tmp_path / "words.json")
    assert done.exit_code == 1
    assert "got '<|endoftext|>'; name the token" in done.stderr
    done = run(*command, "--tokenizer", tmp_path / "words.json", "--document-start", "<s>")
    assert done.exit_code == 0
    assert read_shard(tmp_path / "out" / "tokens_train_000000.bin").tolist() == [2, 1, 0]


def test_a_file_that_is_no_text_is_named(texts, tmp_path):
    done = run("shards", texts, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert "picture.png contains token 0" in done.stderr
    assert "Traceback" not in done.output
    assert run("shards", texts, "-o", tmp_path / "out", "--suffix", ".txt").exit_code == 0


def test_a_single_file_is_divided_by_position(texts, tmp_path):
    done = run("shards", texts / "09.txt", "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert done.stdout.startswith("1 document, bytes\n")
    size = len("text 9 " * 10)
    assert rows(done.stdout)["train"] == [f"{1 + size * 9 // 10}", "1"]
    assert rows(done.stdout)["validation"] == [f"{1 + size // 10}", "1"]
    alone = run("shards", texts / "00.txt", "-o", tmp_path / "alone", "--validation", 1)
    assert "No document is left" not in alone.stdout
    assert len(open_shards(tmp_path / "alone", "validation")) == len("\0text 0 ")


def test_too_few_documents_for_both_splits(texts, tmp_path):
    done = run("shards", texts / "00.txt", texts / "01.txt", "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert "No document is left for validation: there are too few" in done.stdout


def test_show_text(texts):
    done = run("show", f"text:{texts / '09.txt'}")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"The text of {texts / '09.txt'}, as bytes\n")
    assert rows(done.stdout.partition("Fingerprints")[0])["validation"][:2] == ["8", "1"]
    assert run("show", "standard-library").stdout == run("show").stdout


def test_show_names_the_corpus_of_a_path(texts, shards):
    done = run("show", texts / "09.txt")
    assert done.exit_code == 2
    assert f"give 'text:{texts / '09.txt'}'" in done.stderr
    assert run("show", f"shards:{shards}").stdout == run("show", shards).stdout


def test_an_interrupted_command_says_how_to_resume(texts, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("scale_invariant_attention.data.make_shards", interrupted)
    done = run("shards", texts, "-o", tmp_path / "out")
    assert done.exit_code == 130
    assert "Interrupted. Rerun the same command to resume." in done.stderr


def test_shards_of_a_dataset_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    done = run("shards", "--dataset", "some/set", "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert 'pip install "scale-invariant-attention[datasets]"' in done.stderr


@pytest.mark.parametrize("source", [(), ("a.txt", "--dataset", "b")])
def test_text_or_a_dataset(source):
    done = run("shards", *source)
    assert done.exit_code == 2
    assert "give TEXT or --dataset, one of the two" in done.output


def test_fetch(tmp_path):
    names = ("fineweb_val_000000.bin", "fineweb_train_000001.bin")
    with running({name: header(2) + b"\1\0\2\0" for name in names}) as server:
        command = ("fetch", "fineweb10B", "--shards", 1, "-o", tmp_path, "--base-url", server.url)
        done = run(*command)
        assert done.exit_code == 0
        assert done.stdout == f"2 shards in {tmp_path}\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, RECORD])
        assert run(*command).exit_code == 0
        assert len(server.requests) == 2


def test_fetch_a_missing_file(tmp_path):
    with running({}) as server:
        done = run("fetch", "fineweb10B", "--shards", 0, "-o", tmp_path, "--base-url", server.url)
    assert done.exit_code == 1
    assert "fineweb_val_000000.bin cannot be fetched: the server answers 404" in done.stderr


def test_fetch_an_unknown_dataset(tmp_path):
    done = run("fetch", "fineweb", "--shards", 1, "-o", tmp_path)
    assert done.exit_code == 2
    assert "one of fineweb10B, fineweb100B, got 'fineweb'" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shards", 2000), "shards must be from 0 to 103, got 2000"),
        (("--shards", 1, "--base-url", "file:///etc"), "--base-url must begin with https://"),
    ],
)
def test_fetch_refuses_bad_arguments(tmp_path, words, message):
    done = run("fetch", "fineweb10B", "-o", tmp_path, *words)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())


def test_check_finds_every_fault(shards):
    assert run("check", shards).exit_code == 0
    first, second = shards / "fineweb_train_000001.bin", shards / "fineweb_train_000002.bin"
    first.write_bytes(first.read_bytes()[:-1])
    write_shard(second, np.array([50257], np.uint16))
    done = run("check", shards)
    assert done.exit_code == 1
    assert f"WRONG  {first} is truncated" in done.stdout
    assert f"WRONG  {second} has the token 50257 at index 0" in done.stdout
    assert f"OK     {shards / 'fineweb_val_000000.bin'}" in done.stdout
    assert done.stdout.endswith("\n1 of 3 shards valid: 2 tokens, all below 50,257.\n")
    assert run("check", second, "--vocab-size", 50258).exit_code == 0


def test_check_compares_the_hashes(texts, tmp_path, shards):
    output = tmp_path / "out"
    assert run("shards", texts, "--suffix", ".txt", "-o", output).exit_code == 0
    assert "No SHA-256" not in run("check", output).output
    (path,) = output.glob("*_train_*.bin")
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    done = run("check", output)
    assert done.exit_code == 1
    assert "is corrupt: its SHA-256 is" in done.output
    assert "No SHA-256 is recorded for 3 shards" in " ".join(run("check", shards).output.split())


@pytest.mark.parametrize("command", ["show", "check"])
def test_missing_shards_are_an_error(tmp_path, command):
    done = run(command, tmp_path / "nothing")
    assert done.exit_code == 1
    assert "no match for" in done.stderr
    done = run(command, tmp_path)
    assert done.exit_code == 1
    assert "found no shard" in done.stderr
