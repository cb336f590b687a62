import hashlib

import pytest

from scale_invariant_attention.data.tokens import check_share, check_split, side


def test_the_share_is_about_as_asked():
    keys = [f"module{number}.py".encode() for number in range(10_000)]
    held_out = sum(side(key, 0.1) == "validation" for key in keys)
    assert 900 < held_out < 1100


def test_a_larger_share_only_adds():
    keys = [str(number).encode() for number in range(200)]
    small = {key for key in keys if side(key, 0.1) == "validation"}
    large = {key for key in keys if side(key, 0.4) == "validation"}
    assert small < large


def test_the_rule_is_the_documented_one_forever():
    key = b"email/message.py"
    place = int(hashlib.sha256(key).hexdigest()[:16], 16) / 2**64
    assert side(key, place + 1e-9) == "validation"
    assert side(key, place - 1e-9) == "train"


def test_shares_of_nothing_and_all():
    keys = [str(number).encode() for number in range(100)]
    assert {side(key, 0.0) for key in keys} == {"train"}
    assert {side(key, 1.0) for key in keys} == {"validation"}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(ValueError, match="validation must be a share"):
        check_share(share)


def test_what_is_no_split_is_refused():
    with pytest.raises(ValueError, match="got 'test'"):
        check_split("test")
