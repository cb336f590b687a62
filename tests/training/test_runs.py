import json
import re

import pytest

from scale_invariant_attention.files import FolderInUseError
from scale_invariant_attention.training import runs
from scale_invariant_attention.training.runs import (
    DifferentConfigError,
    differences,
    open_run,
    read_config,
    read_metrics,
    read_provenance,
)

CONFIG = {"steps": 300, "model": {"layers": 4, "scheme": "alibi"}, "lengths": (64, 128)}


@pytest.fixture(autouse=True)
def quick_provenance(monkeypatch):
    monkeypatch.setattr(runs, "provenance", lambda: {"commit": "abc", "torch": "2"})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_leaves_its_configuration_origin_and_metrics(tmp_path):
    folder = tmp_path / "runs" / "first"
    with open_run(folder, CONFIG) as run:
        assert run.folder == folder
        run.start()
        run.record(1, {"loss": 5.5})
        run.record(2, {"loss": 5.25, "validation": {"4k": 5.0}})
        run.sync()
    assert names(folder) == ["config.json", "metrics.jsonl", "provenance.jsonl"]
    assert read_config(folder) == {**CONFIG, "lengths": [64, 128]}
    assert list(read_config(folder)) == list(CONFIG)
    assert read_provenance(folder) == [{"step": 0, "commit": "abc", "torch": "2"}]
    assert read_metrics(folder) == [
        {"step": 1, "loss": 5.5},
        {"step": 2, "loss": 5.25, "validation": {"4k": 5.0}},
    ]


def run_to(folder, first, last, torn=b""):
    """Run from the step of a checkpoint until a kill."""
    with open_run(folder, CONFIG) as run:
        run.start(first)
        for step in range(first + 1, last + 1):
            run.record(step, {"loss": 10 / step})
            if step % 5 == 0:
                run.record(step, {"validation": 11 / step})
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(torn)


@pytest.mark.parametrize("torn", [b"", b'{"st', b'{"step": 14, "loss"'])
@pytest.mark.parametrize("checkpoint", [0, 9, 10, 13])
def test_the_metrics_of_a_resumed_run_equal_those_of_an_uninterrupted_one(
    tmp_path, torn, checkpoint
):
    run_to(tmp_path / "whole", 0, 20)
    run_to(tmp_path / "resumed", 0, 13, torn)
    run_to(tmp_path / "resumed", checkpoint, 20)
    whole, resumed = ((tmp_path / n / "metrics.jsonl").read_bytes() for n in ("whole", "resumed"))
    assert whole == resumed
    assert [line["step"] for line in read_provenance(tmp_path / "resumed")] == [0, checkpoint]


def test_a_torn_line_of_provenance_is_repaired(tmp_path):
    run_to(tmp_path, 0, 1)
    with (tmp_path / "provenance.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "comm')
    run_to(tmp_path, 1, 2)
    assert [line["step"] for line in read_provenance(tmp_path)] == [0, 1]


def test_the_same_configuration_may_come_back_and_the_file_stays(tmp_path):
    with open_run(tmp_path, CONFIG):
        before = (tmp_path / "config.json").stat()
    with open_run(tmp_path, {**CONFIG, "lengths": [64, 128]}):
        pass
    assert (tmp_path / "config.json").stat() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 400}, "steps is 300 there, 400 here."),
        ({"steps": 300.0}, "steps is 300 there, 300.0 here."),
        (
            {"model": {"layers": 8, "scheme": "nope"}},
            "model.layers is 4 there, 8 here; model.scheme",
        ),
        ({"model": {"layers": 4}}, "model.scheme is 'alibi' there, missing here."),
        ({"seed": 1}, "seed is missing there, 1 here."),
        ({"lengths": [64]}, "lengths is [64, 128] there, [64] here."),
    ],
)
def test_another_configuration_is_refused_with_the_differences(tmp_path, changes, message):
    with open_run(tmp_path, CONFIG):
        before = (tmp_path / "config.json").read_bytes()
    with (
        pytest.raises(DifferentConfigError, match=re.escape(message)) as caught,
        open_run(tmp_path, CONFIG | changes),
    ):
        pass
    assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_field_missing_in_a_run_has_its_default(tmp_path):
    with open_run(tmp_path, CONFIG):
        pass
    newer = CONFIG | {"speed": "slow"}
    with open_run(tmp_path, newer, defaults={"speed": "slow", "steps": 9}):
        assert read_config(tmp_path)["steps"] == 300
    with (
        pytest.raises(DifferentConfigError, match="speed is 'slow' there, 'fast' here"),
        open_run(tmp_path, CONFIG | {"speed": "fast"}, defaults={"speed": "slow"}),
    ):
        pass


def test_configurations_that_mean_the_same_do_not_differ():
    assert list(differences({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1]}, "a": 1})) == []
    assert list(differences({"a": True}, {"a": 1})) == ["a is True there, 1 here"]


def test_a_run_belongs_to_one_process(tmp_path):
    with open_run(tmp_path, CONFIG) as run:
        with pytest.raises(FolderInUseError, match=str(tmp_path)), open_run(tmp_path, CONFIG):
            pass
        run.start()
        run.record(1, {})
    with open_run(tmp_path, CONFIG):
        pass


def test_nothing_is_recorded_before_the_start_or_after_the_end(tmp_path):
    with open_run(tmp_path, CONFIG) as run:
        with pytest.raises(RuntimeError, match="start"):
            run.record(1, {})
        run.start()
    with pytest.raises(RuntimeError, match="start"):
        run.record(1, {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": 3'])
def test_a_damaged_configuration_is_reported(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    damaged = r"config\.json (is not|must hold a) JSON.*restore it"
    with pytest.raises(ValueError, match=damaged):
        read_config(tmp_path)
    with pytest.raises(ValueError, match=damaged), open_run(tmp_path, CONFIG):
        pass
    assert (tmp_path / "config.json").read_text() == text


def test_a_folder_without_a_run_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        read_config(tmp_path)
    assert read_metrics(tmp_path) == read_provenance(tmp_path) == []


@pytest.mark.parametrize("config", [{"a": float("nan")}, {"a": object()}])
def test_a_configuration_that_is_not_json_is_refused_before_anything_is_created(tmp_path, config):
    with pytest.raises(ValueError, match="config must be JSON"), open_run(tmp_path / "new", config):
        pass
    assert names(tmp_path) == []


def test_leftovers_of_a_killed_start_are_cleared(tmp_path):
    (tmp_path / ".config.json-0123456789abcdef").write_text("{")
    (tmp_path / ".metrics.jsonl-0123456789abcdef").write_text("{")
    with open_run(tmp_path, CONFIG):
        pass
    assert names(tmp_path) == ["config.json"]
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 300
