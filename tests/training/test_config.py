import json

import pytest

from scale_invariant_attention.training import Cosine, TrainingConfig, Trapezoid


def test_a_configuration_survives_json():
    config = TrainingConfig(
        scheme_options={"tau": 1.0}, clip_norm=1, validation_lengths=[256, 512], matrix_rate=1
    )
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.to_dict()["clip_norm"] == 1.0
    assert json.dumps(config.to_dict()) == json.dumps(
        TrainingConfig(
            scheme_options={"tau": 1.0},
            clip_norm=1.0,
            validation_lengths=(256, 512),
            matrix_rate=1.0,
        ).to_dict()
    )


def test_the_decay_takes_two_sevenths_by_default():
    assert TrainingConfig(steps=4578).learning_schedule() == Trapezoid(3270)
    assert TrainingConfig(steps=700, warmup_steps=100).learning_schedule() == Trapezoid(400, 100)
    assert TrainingConfig(steps=7, warmup_steps=6).learning_schedule() == Trapezoid(0, 6)
    assert TrainingConfig(steps=9, constant_steps=9).learning_schedule() == Trapezoid(9)
    cosine = TrainingConfig(steps=9, schedule="cosine", warmup_steps=2).learning_schedule()
    assert cosine == Cosine(2)


def test_the_model_is_trained_at_the_length_of_the_batches():
    config = TrainingConfig(scheme="yarn", length=128, qk_norm=False, layers=3)
    model = config.model_config()
    assert (model.scheme_name, model.train_length, model.qk_norm, model.layers) == (
        "yarn",
        128,
        False,
        3,
    )


def test_every_group_has_its_rate():
    config = TrainingConfig(matrix_rate=1, embedding_rate=2, head_rate=3, scalar_rate=4)
    rates = config.learning_rates()
    assert (rates.matrices, rates.embedding, rates.head, rates.scalars) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"steps": 1.5}, TypeError, "steps must be an integer, got 1.5"),
        ({"steps": True}, TypeError, "steps must be an integer"),
        ({"length": 0}, ValueError, "length"),
        ({"batch_size": -1}, ValueError, "batch_size"),
        ({"micro_batch_size": 0}, ValueError, "micro_batch_size"),
        ({"keep_checkpoints": 0}, ValueError, "keep_checkpoints"),
        ({"checkpoint_every": -1}, ValueError, "checkpoint_every"),
        ({"validate_every": -1}, ValueError, "validate_every"),
        ({"clip_norm": 0}, ValueError, "clip_norm must be greater than 0, got 0"),
        ({"clip_norm": float("nan")}, ValueError, "clip_norm must be finite"),
        ({"matrix_rate": -0.1}, ValueError, "matrix_rate must be at least 0, got -0.1"),
        ({"head_rate": "fast"}, TypeError, "head_rate must be a real number, got 'fast'"),
        ({"validation_lengths": ()}, ValueError, "validation_lengths must be one or more"),
        ({"validation_lengths": (256, 0)}, ValueError, r"got \[256, 0\]"),
        ({"validation_lengths": 256}, TypeError, "a list of integers, got 256"),
        ({"validation_lengths": "256"}, TypeError, "a list of integers, got '256'"),
        ({"compile": "yes"}, TypeError, "compile must be True or False, got 'yes'"),
        ({"data": None}, TypeError, "data must be text, got None"),
        ({"scheme_options": "tau"}, TypeError, "scheme_options must be a dict, got 'tau'"),
        ({"scheme": "rop"}, ValueError, "rop"),
        ({"scheme_options": {"theta": 1}}, (TypeError, ValueError), "theta"),
        ({"precision": "float16"}, ValueError, "one of float32, bfloat16; got 'float16'"),
        ({"schedule": "linear"}, ValueError, "one of trapezoid, cosine; got 'linear'"),
        ({"order": "random"}, ValueError, "one of sequential, shuffled; got 'random'"),
        ({"parallel": "split"}, ValueError, "one of replicate, shard; got 'split'"),
        ({"backend": "cuda"}, ValueError, "one of auto, reference.*; got 'cuda'"),
        ({"width": 130}, ValueError, "width must be a multiple of heads"),
        ({"steps": 10, "constant_steps": 11}, ValueError, "constant_steps = 11, got 10"),
        ({"steps": 10, "warmup_steps": 11}, ValueError, "= 11, got 10"),
        ({"schedule": "cosine", "constant_steps": 5}, ValueError, "constant_steps must be none"),
        ({"learning_rate": 1}, TypeError, "no field 'learning_rate'"),
        ({"batchsize": 1}, TypeError, r"no field 'batchsize' \(did you mean 'batch_size'\?\)"),
    ],
)
def test_wrong_fields_are_named_before_anything_runs(changes, error, message):
    with pytest.raises(error, match=message):
        TrainingConfig.from_dict(changes)
