"""The op's masses of ranges are those of tiles, whatever a query sees and whichever backend runs."""

import pytest
import torch
from tiny_models import TRAINED, WITHOUT_MEMORY, random_tokens, tiny_model

from scale_invariant_attention import DistanceAffine, available_backends
from scale_invariant_attention.analysis import (
    LayerScores,
    gpt_scores,
    range_log_mass,
    range_profile,
)
from scale_invariant_attention.attention import Visibility

LENGTH = 37
EDGES = (0, 1, 4, 9, LENGTH)
BACKENDS = [name for name in ("reference", "tiled", "cpu") if name in available_backends("cpu")]

POSITIONS = torch.arange(LENGTH) * 2 + torch.tensor([[5], [0]])
VISIBILITY = {
    "all": {},
    "window": {"window": 6},
    "window at an edge": {"window": 4},
    "documents": {"key_documents": torch.tensor([0] * 20 + [1] * 17)},
    "padding": {"key_mask": torch.arange(LENGTH) >= torch.tensor([[0], [3]])},
    "positions": {"query_positions": POSITIONS, "key_positions": POSITIONS},
    "both sides": {"is_causal": False},
    "sinks": {"sinks": 3},
    "sinks under a window": {"sinks": 3, "window": 6},
    "sinks at positions of rows": {
        "sinks": 4,
        "window": 9,
        "query_positions": POSITIONS,
        "key_positions": POSITIONS,
        "key_mask": (torch.arange(LENGTH) != 1).expand(2, -1),
    },
}


def random_scores(dtype=torch.float64, queries=LENGTH, **settings):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, queries, 8, generator=generator, dtype=torch.float64)
    key = torch.randn(2, 2, LENGTH, 8, generator=generator, dtype=torch.float64)
    return LayerScores(0, query.to(dtype), key.to(dtype), **settings)


def check(scores, edges=EDGES, backend="auto", rtol=1e-10):
    expected = range_profile(scores, edges).log_mass
    found = range_log_mass(scores, edges, backend=backend)
    assert found.shape == expected.shape
    assert torch.equal(found == -torch.inf, expected == -torch.inf)
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", VISIBILITY)
def test_whatever_a_query_sees(case, backend):
    # The compiled kernels compute in float32.
    dtype, rtol = (torch.float32, 1e-5) if backend == "cpu" else (torch.float64, 1e-10)
    shown = {"visibility": Visibility(**VISIBILITY[case]), "scale": 0.7}
    taus = torch.tensor([1.0, 2.0, 5.0, 10.0])
    affine = DistanceAffine.scale_invariant(90, taus, dtype=dtype)
    check(random_scores(dtype, affine=affine, **shown), backend=backend, rtol=rtol)
    check(random_scores(dtype, **shown), backend=backend, rtol=rtol)


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_every_kind_of_scheme(case):
    gpt_scores(tiny_model(case), random_tokens(2, 3 * TRAINED + 1), check)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_the_precision_of_the_op(dtype):
    factor = 0.5 + torch.rand(4, LENGTH, generator=torch.Generator().manual_seed(1))
    scores = random_scores(dtype, affine=DistanceAffine.scale_invariant(LENGTH))
    check(scores, rtol=1e-5)
    check(random_scores(dtype, query_scale=factor), rtol=1e-5)
    assert range_log_mass(scores, EDGES).dtype == torch.float32


def test_ranges_that_weigh_next_to_nothing_are_not_lost():
    """As differences of nested windows they would be."""
    steep = DistanceAffine.alibi(LENGTH, torch.full((4,), 3.0))
    scores = random_scores(torch.float32, affine=steep)
    check(scores, rtol=1e-5)
    last = range_log_mass(scores, EDGES)[:, :, -1]
    assert (last[..., -1] < last[..., 0] - 20).all()


def test_fewer_queries_than_keys_and_edges_that_leave_keys_out():
    check(random_scores(queries=5), edges=(0, 3, 20))
    check(random_scores(), edges=(0, 50, 100))


def test_edges_must_rise_from_zero():
    with pytest.raises(ValueError, match="edges must be two or more increasing distances"):
        range_log_mass(random_scores(), (3, 5))
