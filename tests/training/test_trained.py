import json
import os
import shutil

import pytest
import torch
from tiny_training import same_weights, tiny_config

from scale_invariant_attention.model import SavedModelError
from scale_invariant_attention.training import (
    StoppedError,
    loop,
    open_trained,
    read_metrics,
    train,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(tiny_config(scheme="logn-rope"), folder)
    return folder


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """A run that was asked to stop at once."""
    monkeypatch.setattr(loop.StopRequest, "requested", True, raising=False)
    monkeypatch.setattr(
        loop.StopRequest, "__init__", lambda self, notice: setattr(self, "_before", {})
    )
    with pytest.raises(StoppedError):
        train(tiny_config(scheme_options={"base": 16.0}), tmp_path / "run")
    return tmp_path / "run"


def test_a_run_has_its_model(run):
    found = open_trained(run)
    assert found.path == run / "model"
    assert found.training == tiny_config(scheme="logn-rope")
    assert found.unfinished is None
    assert found.model.config.scheme_name == "logn-rope"


def test_a_saved_model_is_one(run):
    found = open_trained(run / "model")
    assert (found.path, found.training, found.unfinished) == (run / "model", None, None)
    assert same_weights(found.model.state_dict(), open_trained(run).model.state_dict())


def test_any_checkpoint_of_a_run_can_be_opened(run, monkeypatch):
    before, last = sorted((run / "checkpoints").iterdir())[-2:]
    early, late = open_trained(before), open_trained(last)
    assert (early.path, early.unfinished) == (before, 6)
    assert (late.path, late.unfinished) == (last, None)
    assert same_weights(late.model.state_dict(), open_trained(run).model.state_dict())
    assert not same_weights(early.model.state_dict(), late.model.state_dict())
    # A path that does not name the run is one too.
    monkeypatch.chdir(last.parent)
    assert open_trained(last.name).training == tiny_config(scheme="logn-rope")


def test_an_unfinished_run_has_its_last_checkpoint(unfinished):
    found = open_trained(unfinished)
    assert found.path == unfinished / "checkpoints" / "step-00000001"
    assert found.unfinished == 1
    assert any(bool(weight.any()) for weight in found.model.head.parameters())
    tokens = torch.zeros(1, 4, dtype=torch.long)
    assert found.model(tokens).shape == (1, 4, 256)


def test_a_flipped_bit_in_the_configuration_of_a_run_is_found(unfinished):
    """The scheme of a checkpoint's model is in the configuration of the run."""
    path = unfinished / "config.json"
    text, checkpoint = path.read_bytes(), unfinished / "checkpoints" / "step-00000001"
    damaged = text.replace(b'"base": 1', b'"base": 9', 1)
    assert damaged != text
    for changed in (damaged, text.replace(b'"layers": 1', b'"layers": 2')):
        path.write_bytes(changed)
        for folder in (unfinished, checkpoint):
            with pytest.raises(ValueError, match=r"config\.json is damaged: its SHA-256 is"):
                open_trained(folder)


def test_a_run_without_a_hash_of_its_configuration_is_opened(unfinished):
    path = unfinished / "config.json"
    config = json.loads(path.read_bytes())
    del config["sha256"]
    path.write_text(json.dumps(config))
    assert open_trained(unfinished).unfinished == 1


def test_a_run_without_a_checkpoint_is_reported(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config().to_dict()))
    with pytest.raises(FileNotFoundError, match="has saved no checkpoint yet"):
        open_trained(tmp_path)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (None, FileNotFoundError, "neither a run nor a model"),
        ("{", SavedModelError, "is not JSON"),
        ("[]", SavedModelError, "must hold a JSON object"),
        ('{"model_type": "llama"}', SavedModelError, "'llama'"),
        ('{"stepps": 4}', ValueError, "is not the configuration of a run: .*did you mean 'steps'"),
    ],
)
def test_a_folder_that_is_neither_is_reported(tmp_path, config, error, message):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(error, match=message):
        open_trained(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 10**9}, "layers is 1000000000 in the configuration, but"),
        ({"width": 2**40, "heads": 1}, r"width / heads must be at most 65536, got 1099511627776"),
        ({"width": 2**40, "heads": 2**30}, "width is 1099511627776 in the configuration, but"),
        ({"vocab_size": 2**40}, "vocab_size is 1099511627776 in the configuration, but"),
        ({"steps": "2"}, "steps must be an integer, got '2'"),
        ({"matrix_rate": 10**400}, "matrix_rate must be finite, got an integer of 1329 bits"),
        ({"matrix_rate": [1]}, r"matrix_rate must be a real number, got \[1\]"),
        ({"scheme_options": []}, r"scheme_options must be a dict, got \[\]"),
        ({"clip_norm": float("inf")}, "must have a finite number as clip_norm, got inf"),
    ],
)
def test_hostile_fields_of_a_run_are_named(tmp_path, changes, message):
    train(tiny_config(steps=1, checkpoint_every=1), tmp_path)
    shutil.rmtree(tmp_path / "model")
    path = tmp_path / "config.json"
    # Without its SHA-256, a configuration is read as it is.
    values = {**json.loads(path.read_text()), **changes}
    del values["sha256"]
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message) as caught:
        open_trained(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model/config.json", "metrics.jsonl"])
def test_a_pipe_does_not_hang(tmp_path, name):
    train(tiny_config(steps=1), tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} must be a file, got a pipe"):
        read_metrics(tmp_path) if name == "metrics.jsonl" else open_trained(tmp_path)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nothing"):
        open_trained(tmp_path / "nothing")
