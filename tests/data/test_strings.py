"""Repeated strings: the same letters before and after the text, and only the second are scored."""

import numpy as np
import pytest

from scale_invariant_attention.data import get_encoding, standard_library
from scale_invariant_attention.data.strings import RepeatedStringTask
from scale_invariant_attention.data.tasks import NOT_SCORED

TEXT, BYTES = standard_library("validation"), get_encoding("bytes")
TASK = RepeatedStringTask(TEXT, BYTES, letters=10, prefix=4)


@pytest.mark.parametrize("length", [22, 23, 300])
def test_the_string_is_repeated_after_the_text(length):
    seen = set()
    for number in range(5):
        tokens = TASK.example(length, number)
        string, last = bytes(tokens[:10].tolist()), bytes(tokens[-10:].tolist())
        assert len(tokens) == length and string == last and string.isalpha() and string.islower()
        assert tokens[10] == tokens[-11] == ord("\n")
        text = tokens[11:-11].astype(np.uint8).tobytes()
        assert text in TEXT.read(0, len(TEXT)).astype(np.uint8).tobytes()
        seen.add(string)
    assert len(seen) == 5


def test_only_letters_after_the_prefix_are_scored():
    inputs, targets = TASK.batch(100, [3, 7])
    for row, number in enumerate([3, 7]):
        tokens = TASK.example(100, number)
        scored = targets[row] != NOT_SCORED
        assert inputs[row].tolist() == tokens[:-1].tolist()
        assert targets[row][scored].tolist() == tokens[-6:].tolist()


def test_a_sequence_depends_on_seed_length_and_number_alone():
    other = RepeatedStringTask(TEXT, BYTES, letters=10, prefix=4, seed=1)
    assert np.array_equal(TASK.example(100, 3), TASK.example(100, 3))
    assert not np.array_equal(TASK.example(100, 3), other.example(100, 3))
    assert not np.array_equal(TASK.example(100, 3)[:10], TASK.example(101, 3)[:10])


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"letters": 1}, "letters"), ({"prefix": 0}, "prefix"), ({"prefix": 10}, "less than the 10")],
)
def test_strings_without_letters_to_score_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        RepeatedStringTask(TEXT, BYTES, **{"letters": 10, "prefix": 4, **fields})


def test_lengths_without_room_are_refused():
    with pytest.raises(ValueError, match="length must be from 22"):
        TASK.example(21, 0)
    with pytest.raises(ValueError, match="the text suffices"):
        TASK.example(len(TEXT) + 23, 0)
