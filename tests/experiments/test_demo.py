import math
from itertools import pairwise

import pytest

from scale_invariant_attention.experiments.demo import decade_masses, op_run, recent_shares


def test_the_nearest_tokens_drown_in_plain_attention_and_survive_the_transform():
    found = recent_shares((1024, 16384), samples=64)
    plain, transformed = (
        [share.mean for share in found.shares[scheme]] for scheme in ("plain", "scale-invariant")
    )
    assert plain[1] < plain[0] / 10
    assert transformed[1] > transformed[0] / 2


def test_every_scheme_has_a_share_at_every_length():
    found = recent_shares((200, 400, 800), recent=50, samples=8)
    assert list(found.shares) == ["plain", "LogN", "scale-invariant"]
    assert all(len(shares) == len(found.lengths) for shares in found.shares.values())
    assert (found.recent, found.samples) == (50, 8)


def test_decades_grow_vanish_or_stay():
    found = decade_masses()
    plain, alibi, transformed = (
        found.masses[scheme] for scheme in ("plain", "ALiBi", "scale-invariant")
    )
    assert all(far == pytest.approx(10 * near) for near, far in pairwise(plain))
    assert alibi[-1] < 1e-10
    assert transformed[-1] == pytest.approx(found.limit, rel=1e-3)
    assert found.limit == pytest.approx(10 * math.exp(0.5) * math.log(10))


@pytest.mark.parametrize("length", [16, 111, 512])
def test_the_op_agrees_with_the_reference_in_output_and_gradient(length):
    run = op_run(batch=2, heads=3, length=length, head_dim=20)
    assert run.backend in ("cpu", "tiled")
    assert 0 <= run.output_error < 1e-5
    assert 0 <= run.gradient_error < 1e-4
    assert min(run.forward_seconds, run.backward_seconds) > 0
    assert run.score_matrix_bytes == 2 * 3 * length**2 * 4
