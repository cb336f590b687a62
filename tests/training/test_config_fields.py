from dataclasses import fields

import pytest

from scale_invariant_attention.training import TrainingConfig
from scale_invariant_attention.training.config import parse_fields

WORDS = {
    "scheme": "rope",
    "scheme_options": '{"tau": 2.5}',
    "start": "runs/mine",
    "task": "needles",
    "task_options": '{"digits": 3}',
    "data": "text:some=where",
    "order": "sequential",
    "schedule": "cosine",
    "precision": "float32",
    "backend": "tiled",
    "parallel": "shard",
    "validation_lengths": "128,64",
}
VALUES = {
    "scheme_options": {"tau": 2.5},
    "task_options": {"digits": 3},
    "validation_lengths": (128, 64),
}


@pytest.mark.parametrize("name", [field.name for field in fields(TrainingConfig)])
def test_every_field_can_be_set(name):
    kinds = {field.name: field.type for field in fields(TrainingConfig)}
    numbers = {int: 3, float: 3.0, bool: False, int | None: 3, float | None: 3.0}
    expected = VALUES.get(name, WORDS.get(name, numbers.get(kinds[name])))
    word = WORDS.get(name, str(numbers.get(kinds[name])))
    option = "--" + name.replace("_", "-")
    for words in ([option, word], [f"{option}={word}"], [f"--{name}", word]):
        found = parse_fields(words)
        assert found == {name: expected}
        assert type(found[name]) is type(expected)


def test_none_and_switches():
    words = "--clip-norm none --micro-batch-size None --compile yes --qk-norm OFF --seed -3"
    assert parse_fields(words.split()) == {
        "clip_norm": None,
        "micro_batch_size": None,
        "compile": True,
        "qk_norm": False,
        "seed": -3,
    }


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("tau=1,learn_tau=true", {"tau": 1, "learn_tau": True}),
        ("form=kept,", {"form": "kept"}),
        ('{"tau": [1, 2]}', {"tau": [1, 2]}),
        ("", {}),
    ],
)
def test_options_of_schemes(text, options):
    assert parse_fields([f"--scheme-options={text}"]) == {"scheme_options": options}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "3"], "no option '--step'; did you mean --steps?"),
        (["--recip", "mini"], "did you mean --recipe?"),
        (["--wibble", "3"], "see --print-config for all fields"),
        (["steps", "3"], "no option 'steps'; did you mean --steps?"),
        (["-steps", "3"], "did you mean --steps?"),
        (["--steps"], "--steps needs a value: a whole number"),
        (["--steps", "--seed", "3"], "--steps needs a value: a whole number"),
        (["--steps", "many"], "--steps must be a whole number, got 'many'"),
        (["--steps", ""], "--steps must be a whole number, got ''"),
        (["--steps", "3", "--steps=4"], "--steps is given twice"),
        (["--compile", "maybe"], "--compile must be true or false, got 'maybe'"),
        (["--clip-norm", "big"], "--clip-norm must be a number or none, got 'big'"),
        (["--validation-lengths", "1;2"], "must be whole numbers separated by commas"),
        (["--scheme-options", "tau"], "must be name=value,name=value, got 'tau'"),
        (["--scheme-options", "=1"], "must be name=value,name=value, got '=1'"),
        (["--scheme-options", "{tau"], "must be name=value,name=value, got '{tau'"),
    ],
)
def test_wrong_words_are_named(words, message):
    with pytest.raises(ValueError, match=r"^") as error:
        parse_fields(words, options=["--recipe"])
    assert message in str(error.value)
