"""Event files hold the values of the metrics, every step once."""

import sys
from itertools import pairwise

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tiny_training import tiny_config

from scale_invariant_attention.training import read_metrics, train
from scale_invariant_attention.training.runs import DifferentConfigError
from scale_invariant_attention.training.tensorboard import TensorBoard

CONFIG = tiny_config()
SINGLE = {"rel": 1e-6}  # event files hold float32


class KilledError(Exception):
    """Ends a training between two steps, as a kill would."""


def watched(folder, config=CONFIG, killed_at=None):
    with TensorBoard(folder, config) as board:

        def watch(progress):
            board(progress)
            if progress.step == killed_at:
                raise KilledError

        train(config, folder, watch=watch)


def written(folder):
    """Step and value of every event, by name, as TensorBoard reads them."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def expected(folder):
    """The same from the metrics."""
    names = {
        "training/loss": lambda line: line["loss"],
        "training/gradient_norm": lambda line: line["gradient_norm"],
        "training/learning_rate_factor": lambda line: line["factor"],
        "training/tokens_per_second": lambda line: 4 * 32 / line["seconds"],
    }
    metrics = read_metrics(folder)
    steps = [line for line in metrics if "loss" in line]
    validations = [line for line in metrics if "validation" in line]
    return {
        **{name: [(line["step"], value(line)) for line in steps] for name, value in names.items()},
        **{
            f"validation_loss/{length}": [
                (line["step"], line["validation"][length]) for line in validations
            ]
            for length in ("32", "64")
        },
    }


def assert_as_measured(folder):
    found, wanted = written(folder), expected(folder)
    assert found.keys() == wanted.keys()
    for name, events in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in events], name
        values = [value for _, value in events]
        assert [value for _, value in found[name]] == pytest.approx(values, **SINGLE), name


def test_the_values_equal_the_metrics(tmp_path):
    watched(tmp_path)
    assert [step for step, _ in written(tmp_path)["training/loss"]] == list(range(1, 9))
    assert [step for step, _ in written(tmp_path)["validation_loss/64"]] == [4, 8]
    assert_as_measured(tmp_path)


@pytest.mark.parametrize("step", [1, 5, 8])
def test_a_resumed_run_has_every_step_once(tmp_path, step):
    """Step 5 is made again, after the checkpoint of step 4; step 8 was the last."""
    with pytest.raises(KilledError):
        watched(tmp_path, killed_at=step)
    assert [number for number, _ in written(tmp_path)["training/loss"]] == list(range(1, step + 1))
    watched(tmp_path)
    assert_as_measured(tmp_path)
    # Not by grace of the reader, which hides what comes twice.
    (file,) = (tmp_path / "tensorboard").iterdir()
    steps = [
        event.step
        for event in EventFileLoader(str(file)).Load()
        if any(value.tag == "training/loss" for value in event.summary.value)
    ]
    assert steps == list(range(1, 9))


def test_steps_made_without_it_are_there_too(tmp_path):
    train(CONFIG, tmp_path)
    watched(tmp_path)
    assert_as_measured(tmp_path)


def test_time_does_not_run_backwards(tmp_path):
    with pytest.raises(KilledError):
        watched(tmp_path, killed_at=5)
    watched(tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    times = [event.wall_time for event in events.Scalars("training/loss")]
    assert all(earlier < later for earlier, later in pairwise(times))


def test_a_training_that_is_refused_loses_nothing(tmp_path):
    watched(tmp_path)
    (file,) = (tmp_path / "tensorboard").iterdir()
    before = file.read_bytes()
    with pytest.raises(DifferentConfigError):
        watched(tmp_path, tiny_config(steps=9))
    assert file.read_bytes() == before


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "scale-.*\[tensorboard\]"'):
        TensorBoard(tmp_path, CONFIG)
