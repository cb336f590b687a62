"""Table 1 in miniature: the same for every scheme but for what makes it that scheme."""

from scale_invariant_attention import schemes
from scale_invariant_attention.experiments import table1


def test_every_scheme_and_seed_has_a_trial_with_the_same_data_and_training():
    trials = table1.mini_trials()
    assert len(trials) == len({trial.name for trial in trials}) == 12 * 3
    assert [trial.config.scheme for trial in trials[:12]] == list(schemes.names())
    for trial in trials:
        fields = trial.config.to_dict()
        same = {k: v for k, v in fields.items() if k not in ("scheme", "scheme_options", "seed")}
        assert same == {k: v for k, v in trials[0].config.to_dict().items() if k in same}


def test_all_p_rope_schemes_have_the_same_base():
    bases = {
        trial.config.model_config().slots.rotary.base
        for trial in table1.mini_trials()
        if trial.config.scheme.endswith("p-rope")
    }
    assert len(bases) == 1


def test_lengths_are_the_trained_one_and_beyond():
    (trial,) = table1.mini_trials(("rope",), seeds=(0,))
    length = trial.config.length
    assert trial.evaluation.lengths == (length, 4 * length, 16 * length)


def test_rows_gather_seeds_in_the_order_of_the_schemes():
    def record(scheme, loss):
        return {"config": {"scheme": scheme}, "losses": [{"length": 256, "loss": loss}]}

    rows = table1.rows([record("alibi", 1.0), record("rope", 2.0), record("alibi", 3.0)])
    assert [(row.scheme, row.losses) for row in rows] == [
        ("rope", {256: [2.0]}),
        ("alibi", {256: [1.0, 3.0]}),
    ]
