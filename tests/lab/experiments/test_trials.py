"""Records of trials: recognised again, and written with what there is."""

import json

import pytest
from tiny_training import tiny_config

from scale_invariant_attention.lab.experiments.evaluations import LossEvaluation
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.trials import TrainingTrial, find_record

EVALUATION = LossEvaluation(lengths=(32, 128), tokens=512)


def trial(scheme, **changes):
    config = tiny_config(scheme=scheme, steps=3, **changes)
    return TrainingTrial(f"{scheme}-seed-0", config, EVALUATION)


def test_a_record_from_before_a_field_existed_counts(tmp_path):
    one = trial("rope")
    run_in_turn([one], tmp_path / "runs", tmp_path, device="cpu")
    path = tmp_path / "rope-seed-0.json"
    old = json.loads(path.read_text())
    del old["config"]["clip_norm"], old["sha256"]
    path.write_text(json.dumps(old))
    assert find_record(one, tmp_path) is not None


def test_no_document_of_the_longest_length_means_no_losses_by_position(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(64):
        (text / f"{number}.txt").write_text(f"Number {number} is a short text. " * 4)
    one = trial("rope", data=f"text:{text}")
    run_in_turn([one], tmp_path / "runs", tmp_path / "results", device="cpu")
    record = find_record(one, tmp_path / "results")
    assert record.by_position == () and len(record.losses) == 2


@pytest.mark.parametrize("text", ["{}", "{", '{"config": {}} x', '{"config": {"stepps": 3}}'])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "rope-seed-0.json").write_text(text)
    with pytest.raises(ValueError, match=r"rope-seed-0\.json is (not a record|not JSON|damaged)"):
        find_record(trial("rope"), tmp_path)
