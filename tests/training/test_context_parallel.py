"""Processes that share rows: losses, weights and files equal those of one process, up to rounding."""

import json

import pytest
import torch
from context_parallel_training import CONFIG, NEEDLES, OTHER, SIZE
from tiny_training import losses, weights
from two_processes import outcomes
from typer.testing import CliRunner

from scale_invariant_attention.cli import app
from scale_invariant_attention.model import ContextParallel
from scale_invariant_attention.training import read_provenance, train
from scale_invariant_attention.training.ranks import open_ranks


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The folder of runs by four processes, and how each ended on each rank."""
    folder = tmp_path_factory.mktemp("shared")
    return folder, outcomes("context_parallel_training.py", folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the run by one process that the others must equal."""
    folder = tmp_path_factory.mktemp("alone")
    train(CONFIG, folder)
    return folder


def ends_of(ends, name):
    return {ends[name, rank] for rank in range(SIZE)}


def assert_same_but_for_rounding(folder, expected):
    assert losses(folder) == pytest.approx(losses(expected), rel=1e-5)
    found, other = weights(folder), weights(expected)
    assert found.keys() == other.keys()
    for name in found:
        torch.testing.assert_close(found[name], other[name], rtol=0.0, atol=1e-3)


def test_a_model_called_by_four_ranks_equals_one_process(shared):
    """Logits, losses and gradients, as the scenario asserts: five schemes, all methods, both layouts."""
    _, ends = shared
    assert ends_of(ends, "model") == {"ended"}


@pytest.mark.parametrize("name", ["1", "2", "4", "shard-2", "shard-4"])
def test_twenty_steps_have_the_losses_of_one_process(shared, alone, name):
    """Copies or parts of the model, with a learned tau, uneven parts of rows, and clipping."""
    folder, ends = shared
    assert ends_of(ends, name) == {"ended"}
    assert len(losses(folder / name)) == 20 + 2
    assert_same_but_for_rounding(folder / name, alone)


@pytest.mark.parametrize(("name", "config"), [("other", OTHER), ("needles", NEEDLES)])
def test_other_schemes_and_tasks(shared, tmp_path, name, config):
    folder, ends = shared
    assert ends_of(ends, name) == {"ended"}
    train(config, tmp_path)
    assert_same_but_for_rounding(folder / name, tmp_path)


def test_a_run_resumes_with_another_number(shared, alone):
    folder, ends = shared
    (stopped,) = ends_of(ends, "stop")
    assert "saved at step 3 of 20" in stopped
    assert ends_of(ends, "resume") == {"ended"}
    assert_same_but_for_rounding(folder / "stopped", alone)
    found = [line["context_parallel"] for line in read_provenance(folder / "stopped")]
    assert found == [2, 4]


def test_one_process_resumes_what_four_began(shared, tmp_path, alone):
    folder, _ = shared
    assert train(CONFIG, folder / "2") is not None
    assert_same_but_for_rounding(folder / "2", alone)


def test_evaluation_by_four_processes_equals_that_by_one(shared, tmp_path):
    """Lengths that do not divide; the first process alone prints and writes."""
    folder, ends = shared
    assert ends_of(ends, "evaluate") == {"ended"}
    words = ["evaluate", str(folder / "1"), "--lengths", "31,62", "--tokens", "620"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found, expected = (
        json.loads((it / "evaluation.json").read_text()) for it in (folder / "evaluation", tmp_path)
    )
    for part in ("by_length", "by_position"):
        assert len(found[part]) == len(expected[part]) > 1
        for one, other in zip(found[part], expected[part], strict=True):
            assert one == pytest.approx(other, rel=1e-5)


def test_a_number_that_does_not_divide_the_processes(shared):
    _, ends = shared
    (end,) = ends_of(ends, "indivisible")
    assert "context_parallel must divide the number of processes, 4, got 3" in end


def test_compilation_is_refused(shared):
    _, ends = shared
    (end,) = ends_of(ends, "compiled")
    assert "compile must be false with context_parallel, got True" in end


def test_one_process_cannot_share_rows(tmp_path):
    with pytest.raises(ValueError, match="number of processes, 1, got 2"):
        train(CONFIG, tmp_path, context_parallel=2)
    with (
        pytest.raises(ValueError, match="context_parallel must be at least 1, got 0"),
        open_ranks("cpu", context_parallel=0),
    ):
        pass


def test_bad_methods_are_named():
    with pytest.raises(ValueError, match=r"method must be one of .*ring.*; got 'rings'"):
        ContextParallel(method="rings")
