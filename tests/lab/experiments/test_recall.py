"""The recall experiment: every scheme on the same task, at one length, tested to 16 times it."""

from scale_invariant_attention import schemes
from scale_invariant_attention.lab.experiments import recall
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.trials import find_record


def test_every_scheme_has_the_same_task_and_budget():
    trials = recall.recall_trials(seeds=(0,))
    assert [trial.config.scheme for trial in trials] == list(schemes.names())
    apart = {"scheme": "", "scheme_options": {}}
    assert len({str(trial.config.to_dict() | apart) for trial in trials}) == 1
    assert max(recall.EVALUATION.lengths) == 16 * trials[0].config.length


def test_trials_are_recorded(tmp_path):
    small = {"steps": 2, "growth_steps": 1, "batch_size": 2, "width": 16, "layers": 1}
    evaluation = {"lengths": (64, 128), "examples": 2}
    trials = recall.recall_trials("mini", ("rope", "rope-ntk"), (0,), small, evaluation)
    run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["recall-rope-seed-0"]
    for trial in trials:
        rows = find_record(trial, tmp_path / "results").recall
        asked = 2 * recall.TASK["queries"]
        assert [(row.length, row.count) for row in rows] == [(64, asked), (128, asked)]
        assert all(0 <= row.low <= row.share <= row.high for row in rows)
