import math

import pytest

from scale_invariant_attention.training import Cosine, Trapezoid

PAPER = Trapezoid(constant_steps=3270)
NEEDLE = Trapezoid(warmup_steps=100, constant_steps=100)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 1), (3269, 1), (3270, 1), (3271, 1307 / 1308), (4577, 1 / 1308), (4578, 0)],
)
def test_the_papers_schedule(step, factor):
    assert PAPER.factor(step, 4578) == factor


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.01), (1, 0.02), (99, 1), (100, 1), (199, 1), (200, 1), (201, 0.99), (299, 0.01)],
)
def test_the_schedule_of_fine_tuning(step, factor):
    assert NEEDLE.factor(step, 300) == factor
    assert NEEDLE.factor(300, 300) == 0


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100, 10_900])
def test_a_cosine_goes_from_one_to_zero(steps):
    factors = [Cosine().factor(step, steps) for step in range(steps + 1)]
    assert factors[0] == 1
    assert factors[-1] == 0
    assert factors == sorted(factors, reverse=True)
    for step, factor in enumerate(factors):
        assert factor == pytest.approx(0.5 * (1 + math.cos(math.pi * step / steps)), abs=1e-12)


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [(PAPER, 4578), (NEEDLE, 300), (Cosine(), 500), (Cosine(9), 50), (Trapezoid(0), 10)],
)
def test_every_step_that_is_made_counts(schedule, steps):
    assert all(0 < schedule.factor(step, steps) <= 1 for step in range(steps))
    assert max(schedule.factor(step, steps) for step in range(steps)) == 1


def test_without_room_for_a_decay_there_is_none():
    assert [Trapezoid(2, 2).factor(step, 4) for step in range(4)] == [0.5, 1, 1, 1]


def test_a_linear_decline_from_the_first_step():
    assert [Trapezoid(0).factor(step, 4) for step in range(5)] == [1, 0.75, 0.5, 0.25, 0]


def test_a_cosine_after_a_warm_up():
    schedule = Cosine(warmup_steps=4)
    factors = [schedule.factor(step, 12) for step in range(13)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1, 1]
    assert factors[4:] == [Cosine().factor(step, 8) for step in range(9)]
    assert [Cosine(2).factor(step, 2) for step in range(3)] == [0.5, 1, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PAPER.factor(0, 3269), ValueError, "at least .* 3270, got 3269"),
        (lambda: PAPER.factor(-1, 4578), ValueError, "step must be from 0 to .* 4578, got -1"),
        (lambda: Cosine().factor(11, 10), ValueError, "got 11"),
        (lambda: Cosine().factor(0, 0), ValueError, "steps must be at least 1"),
        (lambda: Cosine().factor(0.5, 10), TypeError, "integer"),
        (lambda: Trapezoid(-1), ValueError, "constant_steps"),
        (lambda: Trapezoid(1, -1), ValueError, "warmup_steps"),
        (lambda: Cosine(11).factor(0, 10), ValueError, "warmup_steps = 11, got 10"),
        (lambda: Cosine(-1), ValueError, "warmup_steps"),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
