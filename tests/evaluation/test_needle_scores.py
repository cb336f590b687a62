"""Scores of answers, including answers that try to cheat."""

import math

import pytest

from scale_invariant_attention.data.needles import Needle, NeedleFormat
from scale_invariant_attention.evaluation.retrieval import needles_found
from scale_invariant_attention.evaluation.shares import Share

NEEDLES = tuple(
    Needle(city, number, (0, 1), (0, 1))
    for city, number in (("Rome", "1234567"), ("Oslo", "7654321"), ("Lima", "0000000"))
)
RIGHT = "Rome=1234567;Oslo=7654321;Lima=0000000"


def scores(answer, ended=True):
    return needles_found(answer, ended, NEEDLES, NeedleFormat())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (RIGHT, (1, 1, 1)),
        # Another order is no other answer.
        ("Lima=0000000;Rome=1234567;Oslo=7654321", (1, 1, 1)),
        ("", (0, 0, 0)),
        ("Rome=1234567", (1, 0, 0)),
        ("Rome=1234567;", (1, 0, 0)),
        # City and number must both be right, and belong together.
        ("Oslo=1234567;Rome=7654321;Lima=0000000", (0, 0, 1)),
        ("Paris=1234567;Oslo=7654321;Lima=0000000", (0, 1, 1)),
        ("Rome=1234568;Oslo=7654321;Lima=0000000", (0, 1, 1)),
        # Extra characters before or after, in the middle or at the end.
        ("Rome=12345678;Oslo=7654321;Lima=0000000", (0, 1, 1)),
        ("Rome=123456;Oslo=7654321;Lima=0000000", (0, 1, 1)),
        ("Rome=1234567 ;Oslo=7654321;Lima=0000000", (0, 1, 1)),
        ("Rome=1234567;Oslo=7654321;Lima=00000000", (1, 1, 0)),
        (RIGHT + "\n", (1, 1, 0)),
        (RIGHT + ";Rome=1234567", (0, 1, 0)),
        ("The answer is " + RIGHT, (0, 1, 1)),
        # Guessing twice.
        ("Rome=1111111;Rome=1234567;Oslo=7654321;Lima=0000000", (0, 0, 0)),
        ("Rome=1234567;Rome=1111111;Oslo=7654321", (0, 1, 0)),
        ("Rome=1234567;Oslo=7654321;Lima=0000001;Lima=0000000", (1, 1, 0)),
        ("Rome=1234567;Rome=1234567;Oslo=7654321", (0, 1, 0)),
        # Everything at once.
        (";".join(f"Rome={number}" for number in range(1234560, 1234570)), (0, 0, 0)),
        ("Rome=Oslo=Lima=1234567", (0, 0, 0)),
        ("rome=1234567;OSLO=7654321;Lima=0000000", (0, 0, 1)),
    ],
)
def test_answers(answer, expected):
    assert tuple(scores(answer)) == tuple(map(bool, expected))


def test_an_answer_without_an_end_has_no_last_entry():
    assert scores(RIGHT, ended=False) == [True, True, False]
    assert scores("Rome=1234567;Oslo=7654321", ended=False) == [True, False, False]
    assert scores("Rome=1234567;Ro", ended=False) == [True, False, False]
    assert scores("Rome=1234567;Rome=1", ended=False) == [False, False, False]


def test_one_needle_is_the_whole_answer():
    (needle, *_) = NEEDLES
    assert needles_found("Rome=1234567", True, [needle], NeedleFormat()) == [True]
    assert needles_found("Rome=1234567;", True, [needle], NeedleFormat()) == [False]
    assert needles_found("Rome=1234567", False, [needle], NeedleFormat()) == [False]


def test_another_format_is_scored_by_its_own_rules():
    form = NeedleFormat(entry="[{number}] of {city}", between=" / ")
    answer = " / ".join(f"[{it.number}] of {it.city}" for it in NEEDLES)
    assert needles_found(answer, True, NEEDLES, form) == [True] * 3
    assert (
        needles_found(answer.replace("[1234567]", "[1234567] [1]"), True, NEEDLES, form)[0] is False
    )


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (20, 20), (1, 1), (7, 13), (500, 1000)])
def test_wilsons_interval_solves_its_equation(hits, count):
    share = Share(hits, count)
    for bound in share.interval:
        error = abs(share.mean - bound)
        expected = 1.959964 * math.sqrt(bound * (1 - bound) / count)
        assert error == pytest.approx(expected, abs=1e-9)
    low, high = share.interval
    assert 0 <= low <= share.mean <= high <= 1
