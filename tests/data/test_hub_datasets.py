import sys
from types import SimpleNamespace

import pytest

from scale_invariant_attention.data import HubDataset, get_encoding, make_shards


class Rows(list):
    """The part of a streamed dataset that is used."""

    def skip(self, count):
        return Rows(self[count:])

    def take(self, count):
        return Rows(self[:count])


@pytest.fixture
def opened(monkeypatch):
    """Stands in for the datasets library, and records the requests."""
    calls = []

    def load_dataset(name, config, *, split, streaming):
        calls.append((name, config, split, streaming))
        return Rows({"text": f"row {number}", "id": number} for number in range(10))

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_rows_are_documents(opened):
    dataset = HubDataset("some/set", "sample", split="train")
    found = list(dataset.documents())
    assert found[0] == ("row 0 of some/set", b"row 0")
    assert len(found) == 10
    assert opened == [("some/set", "sample", "train", True)]


def test_rows_can_be_skipped_and_bounded(opened):
    dataset = HubDataset("some/set", at_most=5)
    assert list(dataset.documents(3)) == list(dataset.documents())[3:]
    assert [text for _, text in dataset.documents(3)] == [b"row 3", b"row 4"]
    assert list(dataset.documents(5)) == []


def test_identity_names_everything_that_selects_rows():
    choices = [
        HubDataset("a"),
        HubDataset("b"),
        HubDataset("a", "c"),
        HubDataset("a", split="test"),
        HubDataset("a", column="body"),
        HubDataset("a", at_most=3),
    ]
    assert len({dataset.identity for dataset in choices}) == len(choices)


def test_a_column_that_is_missing_or_not_text(opened):
    with pytest.raises(ValueError, match="column must be one of text, id, got 'body'"):
        next(HubDataset("some/set", column="body").documents())
    with pytest.raises(ValueError, match="row 0 of some/set must have text in 'id', got 0"):
        next(HubDataset("some/set", column="id").documents())


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="at_most must be at least 1, got 0"):
        HubDataset("some/set", at_most=0)


def test_text_that_is_not_utf8_is_replaced(monkeypatch):
    rows = Rows([{"text": "a\ud800b"}])
    fake = SimpleNamespace(load_dataset=lambda *_, **__: rows)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert [text for _, text in HubDataset("x").documents()] == [b"a?b"]


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"scale-invariant-attention\[datasets\]"):
        next(HubDataset("some/set").documents())


def test_without_a_network_it_says_so(monkeypatch):
    def load_dataset(*_, **__):
        raise OSError("Couldn't reach the hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ConnectionError, match=r"'some/set': Couldn't reach .* Without a network"):
        next(HubDataset("some/set").documents())


def test_shards_of_a_dataset(opened, tmp_path):
    made = make_shards(HubDataset("some/set"), tmp_path, get_encoding("bytes"), validation=0)
    assert made.documents == 10
    assert made.tokens["train"] == 10 * len("\0row 0")
