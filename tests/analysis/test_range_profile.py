"""Mass and entropy by range: against a dense float64 computation, the op itself, and memory bounds."""

from itertools import pairwise

import pytest
import torch
from tiny_models import TRAINED, WITHOUT_MEMORY, random_tokens, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from scale_invariant_attention import DistanceAffine, distance_affine_attention
from scale_invariant_attention.analysis import LayerScores, gpt_scores, last_rows, range_profile
from scale_invariant_attention.analysis import _scores as tiling
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.theory import range_entropy_from_logits

EXACT = {"rtol": 1e-10, "atol": 1e-10}
EDGES = (0, 1, 4, 9, 37)


def random_scores(batch=2, heads=4, key_heads=2, queries=37, keys=37, **settings):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return LayerScores(
        0, normal(batch, heads, queries, 8), normal(batch, key_heads, keys, 8), **settings
    )


def dense_logits(scores):
    """All logits ``[B, H, L, N]`` of causal attention without masks, spelled out."""
    query, key = scores.query, scores.key
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    queries, keys = query.shape[2], key.shape[2]
    offset = torch.arange(keys - queries, keys).unsqueeze(1) - torch.arange(keys)
    distance = offset.clamp(min=0)
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scores.scale is None else scores.scale)
    if scores.query_scale is not None:
        logits = logits * scores.query_scale.unsqueeze(-1)
    if scores.affine is not None:
        # Tables end at the window.
        distance = distance.clamp(max=scores.affine.length - 1)
        logits = scores.affine.gain[..., distance] * logits + scores.affine.bias[..., distance]
    if scores.key_bias is not None:
        logits = logits + scores.key_bias.unsqueeze(2)
    window = keys if scores.visibility.window is None else scores.visibility.window
    return logits.masked_fill((offset < 0) | (offset >= window), -torch.inf), offset


def check(profile, logits, offset):
    total = logits.logsumexp(-1)
    for index, (start, stop) in enumerate(pairwise(profile.edges)):
        inside = logits.masked_fill((offset < start) | (offset >= stop), -torch.inf)
        share = (inside.logsumexp(-1) - total).exp()
        torch.testing.assert_close(profile.share[..., index], share, **EXACT)
        torch.testing.assert_close(
            profile.entropy[..., index], range_entropy_from_logits(inside), **EXACT
        )
    torch.testing.assert_close(profile.global_entropy, range_entropy_from_logits(logits), **EXACT)


@pytest.mark.parametrize("case", WITHOUT_MEMORY)
def test_every_kind_of_scheme_against_the_definition(case):
    """Attention of a GPT, computed from full matrices of float64 logits."""
    seen = []

    def look(scores):
        profile = range_profile(scores, EDGES)
        check(profile, *dense_logits(scores))
        seen.append(scores.layer)

    gpt_scores(tiny_model(case), random_tokens(2, 3 * TRAINED + 1), look)
    assert seen == [0, 1]


@pytest.mark.parametrize("pairs", [1, 50, 2**20])
def test_tiles_of_any_size_give_the_same(pairs, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_PAIRS", pairs)
    monkeypatch.setattr(tiling, "TILE_ROWS", 5)
    scores = random_scores(affine=DistanceAffine.scale_invariant(37, 2.0, dtype=torch.float64))
    check(range_profile(scores, EDGES), *dense_logits(scores))


def test_some_rows_are_those_rows_of_all():
    scores = random_scores(scale=0.9, query_scale=torch.rand(4, 37, dtype=torch.float64))
    every, some = range_profile(scores, EDGES), range_profile(scores, EDGES, last_rows(37, 5))
    for name in ("log_mass", "entropy"):
        assert torch.equal(getattr(some, name), getattr(every, name)[:, :, -5:])
    assert torch.equal(some.keys, every.keys[:, -5:])


def test_far_ranges_keep_their_entropy_however_little_they_weigh():
    """Under a steep ALiBi all weight of a far range underflows, but not what is inside it."""
    scores = random_scores(
        batch=1, queries=1, keys=4000, affine=DistanceAffine.alibi(4000, torch.full((4,), 2.0))
    )
    profile = range_profile(scores, (0, 10, 2000, 2002, 4000))
    assert float(profile.share[..., 2].max()) == 0.0
    logits, offset = dense_logits(scores)
    inside = logits.masked_fill((offset < 2000) | (offset >= 2002), -torch.inf)
    torch.testing.assert_close(profile.entropy[..., 2], range_entropy_from_logits(inside), **EXACT)
    assert float(profile.entropy[..., 2].min()) > 0.01


def test_merging_is_measuring_with_fewer_edges():
    scores = random_scores()
    merged = range_profile(scores, EDGES).merged((0, 4, 37))
    direct = range_profile(scores, (0, 4, 37))
    torch.testing.assert_close(merged.log_mass, direct.log_mass, **EXACT)
    torch.testing.assert_close(merged.entropy, direct.entropy, **EXACT)
    assert torch.equal(merged.keys, direct.keys)
    torch.testing.assert_close(
        direct.recent_share(4), range_profile(scores, EDGES).share[..., :2].sum(-1), **EXACT
    )
    with pytest.raises(ValueError, match="edges must be some of"):
        direct.merged((0, 5, 37))


def test_documents_padding_windows_and_sinks_as_the_op_sees_them():
    """The op gives the log of a range's mass as the difference of two windows."""
    documents = torch.tensor([0] * 20 + [1] * 17)
    mask = torch.arange(37) >= torch.tensor([[0], [3]])
    affine = DistanceAffine.scale_invariant(37, 3.0, dtype=torch.float64)
    visibility = {"key_documents": documents, "key_mask": mask, "sinks": 2}
    scores = random_scores(affine=affine, visibility=Visibility(**visibility))
    profile = range_profile(scores, (0, 9, 37))

    def mass(window):
        _, lse = distance_affine_attention(
            scores.query,
            scores.key,
            scores.key,
            affine,
            window=window,
            return_lse=True,
            **{**visibility, "sinks": 0},
        )
        return lse.exp()

    unsunk = range_profile(
        random_scores(affine=affine, visibility=Visibility(**visibility | {"sinks": 0})), (0, 9, 37)
    )
    torch.testing.assert_close(unsunk.log_mass[..., 0].exp(), mass(9), **EXACT)
    torch.testing.assert_close(unsunk.log_mass[..., 1].exp(), mass(None) - mass(9), **EXACT)
    _, lse = distance_affine_attention(
        scores.query, scores.key, scores.key, affine, return_lse=True, **visibility
    )
    torch.testing.assert_close(profile.log_mass.logsumexp(-1), lse, **EXACT)
    # The second row's first three queries are padding, and see nothing.
    assert profile.keys[1, :3].sum() == 0
    assert bool(profile.share[1, :, :3].isnan().all())
    assert profile.keys[0, 19].tolist() == [9, 11]


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.numel())
        return out


def test_65536_tokens_never_need_a_matrix_of_them():
    length = 65_536
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, length, 8, generator=generator).unbind()
    scores = LayerScores(0, query, key, DistanceAffine.scale_invariant(length))
    with Largest() as largest:
        profile = range_profile(scores, (0, 100, 10_000, length), last_rows(length, 20))
    assert query.numel() <= largest.elements <= tiling.TILE_PAIRS < 20 * length
    assert profile.keys[0, -1].tolist() == [100, 9_900, length - 10_000]
    torch.testing.assert_close(
        profile.share.sum(-1), torch.ones(1, 1, 20, dtype=torch.float64), **EXACT
    )


@pytest.mark.parametrize("edges", [(), (0,), (1, 5), (0, 5, 5)])
def test_edges_must_rise_from_zero(edges):
    with pytest.raises(ValueError, match="edges must be two or more increasing distances"):
        range_profile(random_scores(), edges)


def test_shells_of_a_plane_are_ranges_of_euclidean_distances():
    grid = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    affine = DistanceAffine.alibi(13, torch.tensor([0.1, 0.2, 0.4, 0.8], dtype=torch.float64))
    scores = random_scores(
        queries=81,
        keys=81,
        affine=affine,
        visibility=Visibility(is_causal=False, key_coordinates=grid),
    )
    distance = (grid[:, None] - grid).double().square().sum(-1).sqrt()
    key = scores.key.repeat_interleave(2, 1)
    logits = scores.query @ key.mT * 8**-0.5 + affine.bias[:, 1, None, None] * distance
    rows, edges = last_rows(81, 70), (0, 2, 5, 13)
    profile = range_profile(scores, edges, rows=rows)
    for index, (start, stop) in enumerate(pairwise(edges)):
        inside = (distance >= start) & (distance < stop)
        expected = logits.masked_fill(~inside, -torch.inf).logsumexp(-1)[:, :, 11:]
        torch.testing.assert_close(profile.log_mass[..., index], expected, **EXACT)
        assert torch.equal(profile.keys[..., index], inside.sum(-1)[11:].expand(2, 70))
