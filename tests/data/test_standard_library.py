import sys
from itertools import pairwise

import pytest

from scale_invariant_attention.data import document_spans, documents, standard_library
from scale_invariant_attention.data._document_sources import VALIDATION, source_files
from scale_invariant_attention.data.tokens import assign_split


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


def test_it_is_the_source_of_this_python():
    files = dict(source_files())
    import argparse
    import email.message
    from pathlib import Path

    assert files["argparse.py"] == Path(argparse.__file__).read_bytes()
    assert files["email/message.py"] == Path(email.message.__file__).read_bytes()
    assert list(files) == sorted(files)
    assert len(set(files.values())) == len(files)
    assert all(name.endswith(".py") for name in files)


def test_splits_are_whole_files_and_share_none():
    files = dict(source_files())
    sides = {}
    for split in ("train", "validation"):
        stream = standard_library(split)
        texts = [bytes(document[1:]) for document in documents(stream)]
        assert [document[0] for document in documents(stream)] == [0] * len(texts)
        assert texts == [
            text for name, text in files.items() if assign_split(name.encode(), VALIDATION) == split
        ]
        sides[split] = set(texts)
    assert not sides["train"] & sides["validation"]
    assert sides["train"] | sides["validation"] == set(files.values())


def test_both_together_are_the_whole_and_the_same_each_time():
    whole = standard_library()
    assert whole.fingerprint() == standard_library().fingerprint()
    assert len(whole) == len(standard_library("train")) + len(standard_library("validation"))


def test_validation_has_documents_long_enough_to_evaluate_lengths():
    corpus = standard_library("validation")
    assert len(document_spans(corpus, at_least=16_384)) >= 3
    assert len(corpus) > 400_000


def test_which_files_belong(tmp_path):
    write(
        tmp_path,
        {
            "zipfile/__init__.py": b"z",
            "abc.py": b"a",
            "email/mime/base.py": b"e",
            "email/architecture.rst": b"no module",
            "email/__pycache__/base.cpython-311.pyc": b"\0",
            "json/__init__.py": b"",
            "json/tool.py": b"a",
            "os.py": b"one\r\ntwo\r\n",
            "test/test_abc.py": b"1",
            "unittest/test/case.py": b"2",
            "sqlite3/tests/dbapi.py": b"3",
            "site-packages/numpy/core.py": b"4",
            "site-packages/abc.py": b"5",
            "_sysconfigdata_linux.py": b"6",
            "idlelib/run.py": b"7",
            "turtle.py": b"8",
            "encodings/cp437.py": b"9",
            "pydoc_data/topics.py": b"10",
            "sitecustomize.py": b"11",
        },
    )
    assert list(source_files(tmp_path)) == [
        ("abc.py", b"a"),
        ("email/mime/base.py", b"e"),
        ("os.py", b"one\ntwo\n"),
        ("zipfile/__init__.py", b"z"),
    ]


def test_a_python_without_source_is_reported(tmp_path):
    write(tmp_path, {"abc.pyc": b"\0\0"})
    with pytest.raises(FileNotFoundError, match="no source of its standard library"):
        list(source_files(tmp_path))


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="got 'valid'"):
        standard_library("valid")


def test_documents_are_found_where_files_begin():
    stream = standard_library("validation")
    starts = stream.document_starts.tolist()
    names = [
        name
        for name, _ in source_files()
        if assign_split(name.encode(), VALIDATION) == "validation"
    ]
    sizes = [len(text) + 1 for name, text in source_files() if name in names]
    assert [stop - start for start, stop in pairwise([*starts, len(stream)])] == sizes
    assert set(sys.stdlib_module_names) >= {
        name.split("/")[0].removesuffix(".py") for name in names
    }
