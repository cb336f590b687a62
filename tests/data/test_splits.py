import hashlib

import pytest

from scale_invariant_attention.data.tokens import (
    assign_split,
    check_share,
    check_split,
    divide,
)


def test_the_fraction_is_about_as_requested():
    keys = [f"module{number}.py".encode() for number in range(10_000)]
    held_out = sum(assign_split(key, 0.1) == "validation" for key in keys)
    assert 900 < held_out < 1100


def test_a_larger_fraction_only_adds():
    keys = [str(number).encode() for number in range(200)]
    small = {key for key in keys if assign_split(key, 0.1) == "validation"}
    large = {key for key in keys if assign_split(key, 0.4) == "validation"}
    assert small < large


def test_the_rule_never_changes():
    key = b"email/message.py"
    uniform = int(hashlib.sha256(key).hexdigest()[:16], 16) / 2**64
    assert assign_split(key, uniform + 1e-9) == "validation"
    assert assign_split(key, uniform - 1e-9) == "train"


def test_fractions_of_nothing_and_all():
    keys = [str(number).encode() for number in range(100)]
    assert {assign_split(key, 0.0) for key in keys} == {"train"}
    assert {assign_split(key, 1.0) for key in keys} == {"validation"}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_only_fractions_are_accepted(share):
    with pytest.raises(ValueError, match="validation must be a fraction"):
        check_share(share)


def test_only_splits_are_accepted():
    with pytest.raises(ValueError, match="got 'test'"):
        check_split("test")


@pytest.mark.parametrize("validation", [0, 0.1, 0.5, 1])
def test_a_text_that_is_alone_is_divided_by_position(validation):
    text = bytes(range(1, 101))
    parts = divide(text, validation, alone=True)
    assert parts.get("train", b"") + parts.get("validation", b"") == text
    assert len(parts.get("validation", b"")) == 100 * validation
    assert all(parts.values())


def test_no_character_is_cut():
    text = "a€𝄞".encode() * 50
    for tenths in range(11):
        for part in divide(text, tenths / 10, alone=True).values():
            part.decode()
    # Bytes that never end a character are no text, but are not lost either.
    assert b"".join(divide(b"\x80" * 100, 0.1, alone=True).values()) == b"\x80" * 100


def test_a_text_that_is_not_alone_stays_whole():
    assert divide(b"bisect.py", 0.5, alone=False) == {"validation": b"bisect.py"}
