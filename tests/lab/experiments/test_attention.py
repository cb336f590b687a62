"""Attention of the models of Table 1: no training of its own, recorded at every length."""

from dataclasses import replace

from scale_invariant_attention.lab.experiments import attention, table1
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.scales import SCALES
from scale_invariant_attention.lab.experiments.trials import recorded
from scale_invariant_attention.lab.reporting.attention import recent_shares

MINI = SCALES["mini"]


def test_models_are_those_of_table_1():
    found = attention.trials(MINI, attention.EVALUATIONS["mini"])
    main = {trial.name: trial for trial in table1.trials(MINI, seeds=(0,))}
    assert [trial.training for trial in found] == [main[f"{it}-seed-0"] for it in attention.SCHEMES]


def test_trials_are_recorded(tmp_path):
    small = {"steps": 2, "batch_size": 2, "width": 32, "heads": 2, "layers": 1, "length": 32}
    small |= {"validation_lengths": (32,), "validation_tokens": 64}
    evaluation = replace(attention.EVALUATIONS["mini"], lengths=(32, 150), contexts=2)
    trials = attention.trials(MINI, evaluation, ("rope", "rope-ntk"), (0,), small)
    run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["rope-seed-0"]
    for trial in trials:
        record = recorded(trial, tmp_path / "results")
        assert [it["edges"] for it in record["attention"]] == [[0, 10, 32], [0, 10, 100, 150]]
        assert recent_shares(record)[32] == 1.0
        assert 0 < recent_shares(record)[150] < 1
        assert record["config"]["scheme"] == trial.config.scheme
