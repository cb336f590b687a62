"""The schedules the transform is compared with."""

import math
import re

import pytest
import torch

from scale_invariant_attention.theory import ALiBi, LogN, Plain, ScaleInvariantTransform

SCHEDULES = [Plain(), LogN(4096), ALiBi(0.25), ScaleInvariantTransform()]


def test_gains_and_biases():
    t = torch.tensor([0, 1, 1000])
    for schedule, gains, biases in [
        (Plain(), [1.0] * 3, [0.0] * 3),
        (LogN(4096, scale=0.5), [0.5 * math.log(4096)] * 3, [0.0] * 3),
        (LogN(1), [0.0] * 3, [0.0] * 3),
        (ALiBi(0.25), [1.0] * 3, [0.0, -0.25, -250.0]),
    ]:
        assert schedule.gain(t).tolist() == gains
        assert schedule.bias(t).tolist() == biases


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_every_schedule_treats_distances_alike(schedule, dtype):
    distance = torch.tensor([[-7, -1, 0], [1, 30, 100]], dtype=dtype)
    visible = distance.clamp(min=0)
    for method in (schedule.gain, schedule.bias):
        out = method(distance)
        assert out.shape == distance.shape
        assert out.dtype == (dtype if dtype.is_floating_point else torch.float64)
        assert torch.equal(out, method(visible))
        assert torch.isfinite(out).all()
        with pytest.raises(TypeError, match="distance must be a tensor, got 3"):
            method(3)


@pytest.mark.parametrize(
    ("build", "error", "shown"),
    [
        (lambda: LogN(0), ValueError, "length must be at least 1, got 0"),
        (lambda: LogN(10.5), TypeError, "length must be an integer, got 10.5"),
        (lambda: LogN(True), TypeError, "length must be an integer, got True"),
        (lambda: LogN(10, scale=-0.4), ValueError, "scale must be greater than 0, got -0.4"),
        (lambda: LogN(10, scale="a"), TypeError, "scale must be a real number, got 'a'"),
        (lambda: ALiBi(0.0), ValueError, "slope must be greater than 0, got 0.0"),
        (lambda: ALiBi(math.nan), ValueError, "slope must be finite, got nan"),
    ],
)
def test_invalid_parameters(build, error, shown):
    with pytest.raises(error, match=re.escape(shown)):
        build()
