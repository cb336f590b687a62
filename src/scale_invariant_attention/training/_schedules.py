"""Schedules: a factor on all learning rates as a function of the step.

Steps count from 0: the factor of step ``s`` applies to update ``s + 1``. No update is without effect: a
warm-up of 100 steps starts at 1/100 and reaches 1 in its last, and a decay reaches 0 at step ``steps``,
one after the last.
"""

import math
from dataclasses import dataclass

from ..arguments import integer


@dataclass(frozen=True)
class Trapezoid:
    """Linear up over the warm-up, constant, then linear down to 0 at the end.

    >>> paper = Trapezoid(constant_steps=3270)
    >>> [paper.factor(step, 4578) for step in (0, 3270, 3924, 4578)]
    [1.0, 1.0, 0.5, 0.0]
    >>> fine_tuning = Trapezoid(warmup_steps=100, constant_steps=100)
    >>> [fine_tuning.factor(step, 300) for step in (0, 99, 200, 299)]
    [0.01, 1.0, 1.0, 0.01]
    """

    constant_steps: int
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        integer("constant_steps", self.constant_steps, at_least=0)
        integer("warmup_steps", self.warmup_steps, at_least=0)

    def factor(self, step: int, steps: int) -> float:
        """The factor of a step, ``0 <= step <= steps``, in a training of ``steps`` steps."""
        needed = self.warmup_steps + self.constant_steps
        _check(step, steps, needed, "warmup_steps + constant_steps")
        decay = steps - needed
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        left = steps - step
        return left / decay if left < decay else 1.0


@dataclass(frozen=True)
class Cosine:
    """Linear up over the warm-up, then half a cosine, from 1 down to 0 at the end.

    >>> [Cosine().factor(step, 10_900) for step in (0, 5450, 10_900)]
    [1.0, 0.5, 0.0]
    >>> [Cosine(warmup_steps=100).factor(step, 300) for step in (0, 99, 100, 200)]
    [0.01, 1.0, 1.0, 0.5]
    """

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        integer("warmup_steps", self.warmup_steps, at_least=0)

    def factor(self, step: int, steps: int) -> float:
        """The factor of a step, ``0 <= step <= steps``, in a training of ``steps`` steps."""
        _check(step, steps, self.warmup_steps, "warmup_steps")
        decay = steps - self.warmup_steps
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / decay if decay else 1.0
        return (1 + math.cos(math.pi * done)) / 2


def _check(step: int, steps: int, needed: int, names: str) -> None:
    integer("steps", steps, at_least=1)
    if not 0 <= integer("step", step) <= steps:
        raise ValueError(f"step must be from 0 to steps = {steps}, got {step}")
    if steps < needed:
        problem = f"steps must be at least {names} = {needed}, got {steps}"
        raise ValueError(f"{problem}; train longer, or shorten the rest")
