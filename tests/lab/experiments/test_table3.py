"""Table 3: Infini-attention by the length of its segments."""

import pytest

from scale_invariant_attention.lab.experiments.catalogue import EXPERIMENTS, SEGMENT_LENGTHS
from scale_invariant_attention.lab.experiments.running import run_in_turn
from scale_invariant_attention.lab.experiments.table1 import attention_trials, loss_trials
from scale_invariant_attention.lab.experiments.table3 import segment_trials
from scale_invariant_attention.lab.experiments.trials import find_record

SMALL = {
    **{"steps": 2, "batch_size": 2, "width": 32, "heads": 2, "layers": 1, "length": 256},
    **{"validation_lengths": (256,), "validation_tokens": 256},
}


def tokens_per_segment(trial):
    return trial.config.model_config().scheme.memory.tokens_per_segment


@pytest.mark.parametrize("scale", SEGMENT_LENGTHS)
def test_segments_differ_and_nothing_else(scale):
    trials = segment_trials(scale, seeds=(0,))
    assert len({trial.name for trial in trials}) == len(trials)
    lengths = SEGMENT_LENGTHS[scale]
    assert [tokens_per_segment(it) for it in trials] == [*lengths, *lengths]
    # Half the training length, which is the trial of Table 1.
    usual = [trials[0], trials[len(lengths)]]
    assert usual == loss_trials(scale, ("infini-rope", "infini-p-rope"), seeds=(0,))
    assert 2 * lengths[0] == trials[0].config.length
    for trial in trials:
        own = usual[trial.config.scheme == "infini-p-rope"]
        options = {**trial.config.scheme_options}
        options.pop("segment_length", None)
        assert {**trial.config.to_dict(), "scheme_options": options} == own.config.to_dict()


def test_the_paper_has_the_segments_of_the_publication():
    for trial in segment_trials("paper"):
        assert tokens_per_segment(trial) == 2048
        assert trial.config.scheme_options.get("base") in (None, 1024.0)


def test_a_model_is_trained_and_recorded_and_labelled_by_its_segments(tmp_path):
    evaluation = {"lengths": (256, 512), "tokens": 512}
    trials = segment_trials("mini", ("infini-rope",), (0,), SMALL, evaluation)
    run_in_turn(trials, tmp_path / "runs", tmp_path / "results", device="cpu")
    records = [find_record(trial, tmp_path / "results") for trial in trials]
    assert [EXPERIMENTS["table3"].label(it) for it in records] == [
        f"Infini-RoPE, segments of {length}" for length in (128, 64, 32)
    ]
    losses = [it.losses_by_length() for it in records]
    assert all(list(it) == [256, 512] and 0 < it[512] < 6 for it in losses)


def test_attention_that_a_memory_is_part_of_is_not_measured():
    with pytest.raises(ValueError, match=r"schemes must have no memory.*'infini-rope'"):
        attention_trials("mini", ("infini-rope",))
