"""Rotation: against loops, transformers and fifty-digit arithmetic; context lengths; compiling."""

import math

import pytest
import torch
from mpmath import mp, mpf
from torch._dynamo.testing import CompileCounter

from scale_invariant_attention.schemes import (
    NTK,
    ProportionalRoPE,
    RoPE,
    TokenPositions,
    TruncatedRoPE,
    YaRN,
    axial_rotation,
    rotation,
)

ROTARIES = [RoPE(), TruncatedRoPE(), ProportionalRoPE(0.3), NTK(256), YaRN(256)]
STRETCHING = [NTK(256), NTK(256, base=100.0), YaRN(256), YaRN(256, 500.0, 8.0, 2.0)]
EPS = torch.finfo(torch.float32).eps


def rotated_in_loops(frequencies, positions, heads):
    """Dimension `k` and ``k + head_dim / 2`` turned by ``position * frequency``, number by number."""
    batch, number_of_heads, length, head_dim = heads.shape
    half = head_dim // 2
    result = torch.zeros_like(heads)
    for b in range(batch):
        for h in range(number_of_heads):
            for i in range(length):
                position = positions[i] if positions.ndim == 1 else positions[b, i]
                for k in range(half):
                    angle = position.item() * frequencies[k]
                    x, y = heads[b, h, i, k].item(), heads[b, h, i, k + half].item()
                    result[b, h, i, k] = x * math.cos(angle) - y * math.sin(angle)
                    result[b, h, i, k + half] = x * math.sin(angle) + y * math.cos(angle)
    return result


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
@pytest.mark.parametrize("head_dim", [8, 14])
@pytest.mark.parametrize("per_row", [False, True])
def test_rotation_is_the_one_spelled_out(rotary, head_dim, per_row):
    heads = torch.randn(2, 3, 5, head_dim, dtype=torch.float64)
    # Of packed documents, positions start again.
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 7, 3, 3, 1000]]) if per_row else torch.arange(5)
    rotate = rotation(rotary, TokenPositions(positions, 300), head_dim, torch.float64)
    frequencies = rotary.frequencies(head_dim, 300).tolist()
    expected = rotated_in_loops(frequencies, positions, heads)
    torch.testing.assert_close(rotate(heads), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
def test_rotation_is_that_of_hugging_faces_llama(rotary):
    query, key = torch.randn(2, 2, 3, 9, 64, dtype=torch.float64).unbind()
    positions = torch.stack([torch.arange(9), torch.arange(100, 109)])
    angles = positions.unsqueeze(-1) * rotary.frequencies(64, 300)
    angles = torch.cat([angles, angles], -1)
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    expected = llama.apply_rotary_pos_emb(query, key, angles.cos(), angles.sin())
    rotate = rotation(rotary, TokenPositions(positions, 300), 64, torch.float64)
    torch.testing.assert_close((rotate(query), rotate(key)), expected)


def exact_turns(head_dim, base, fraction, position):
    """Cosines and sines of RoPE's angles with fifty digits, of p-RoPE's first half likewise."""
    mp.dps = 50
    pairs = head_dim // 2 if fraction == 1 else head_dim // 4
    power = mpf(2) / head_dim if fraction == 1 else mpf(1) / (pairs - 1)
    angles = [position * mpf(base) ** (-k * power) for k in range(pairs)]
    return [(mp.cos(angle), mp.sin(angle)) for angle in angles]


@pytest.mark.parametrize("position", [1, 4095, 10**6, 10**6 + 7, 12_345_678, 99_999_989])
@pytest.mark.parametrize(
    ("rotary", "base", "fraction"),
    [(RoPE(), 10_000, 1), (RoPE(500_000.0), 500_000, 1), (TruncatedRoPE(), 1024, 0.5)],
)
def test_float32_rotations_are_exact_at_far_positions(rotary, base, fraction, position):
    rotate = rotation(
        rotary, TokenPositions(torch.tensor([position]), position + 1), 128, torch.float32
    )
    half_ulp = EPS / 4  # of numbers between 1/2 and 1
    # What is left of float64: a frequency and a product, each rounded.
    angle_error = position * 2.0**-52
    for k, (cos, sin) in enumerate(exact_turns(128, base, fraction, position)):
        unit = torch.zeros(1, 1, 1, 128)
        unit[..., k] = 1
        turned = rotate(unit)[0, 0, 0].tolist()
        assert abs(turned[k] - cos) <= half_ulp + angle_error
        assert abs(turned[k + 64] - sin) <= half_ulp + angle_error
        assert half_ulp + angle_error < EPS


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
@pytest.mark.parametrize("shift", [1000, 10**6, 10**7])
def test_scores_depend_on_distance_alone(rotary, shift):
    query, key = torch.randn(2, 1, 2, 50, 64).unbind()

    def scores(start):
        tokens = TokenPositions(torch.arange(start, start + 50), context_length=1000)
        rotate = rotation(rotary, tokens, 64, torch.float32)
        return (rotate(query).double() @ rotate(key).double().mT).flatten()

    size = (query.norm(dim=-1).unsqueeze(-1) * key.norm(dim=-1).unsqueeze(-2)).flatten()
    assert ((scores(shift) - scores(0)).abs() <= 4 * EPS * size).all()


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
def test_position_zero_is_left_alone_exactly(rotary):
    heads = torch.randn(1, 2, 1, 64)
    rotate = rotation(rotary, TokenPositions(torch.tensor([0]), 1000), 64, torch.float32)
    assert torch.equal(rotate(heads), heads)


@pytest.mark.parametrize("rotary", [TruncatedRoPE(), ProportionalRoPE(0.5)], ids=repr)
def test_still_pairs_are_left_alone_exactly(rotary):
    heads = torch.randn(1, 2, 7, 16)
    turned = rotation(rotary, TokenPositions(torch.arange(7) + 10**6, 7), 16, torch.float32)(heads)
    for kept in (slice(4, 8), slice(12, 16)):
        assert torch.equal(turned[..., kept], heads[..., kept])
    for moved in (slice(0, 4), slice(8, 12)):
        assert (turned[..., moved] != heads[..., moved]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("within", [torch.float32, torch.float64])
def test_heads_keep_their_dtype_and_are_rounded_once(dtype, within):
    heads = torch.randn(2, 3, 6, 32, dtype=torch.float64).to(dtype)
    tokens = TokenPositions(torch.arange(6) * 1000, 6000)
    turned = rotation(RoPE(), tokens, 32, within)(heads)
    assert turned.dtype == dtype
    exact = rotated_in_loops(RoPE().frequencies(32, 1).tolist(), tokens.positions, heads.double())
    # Two products and a sum in `within`, of numbers no larger than the pair, then the result.
    pair = heads.double().unflatten(-1, (2, 16)).norm(dim=-2).repeat(1, 1, 1, 2)
    allowed = 4 * torch.finfo(within).eps * pair + torch.finfo(dtype).eps / 2 * exact.abs()
    assert ((turned.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_throughout(dtype):
    heads = torch.randn(2, 3, 6, 32).to(dtype)
    tokens = TokenPositions(torch.arange(6) + 10**6, 10**6)
    turned = rotation(RoPE(), tokens, 32, dtype)(heads)
    assert turned.dtype == dtype
    expected = rotation(RoPE(), tokens, 32, torch.float64)(heads.double())
    size = 4 * torch.finfo(dtype).eps * heads.double().abs().max()
    assert ((turned.double() - expected).abs() <= size).all()


def test_heads_may_be_a_transposed_view():
    heads = torch.randn(2, 6, 3, 32).transpose(1, 2)
    rotate = rotation(RoPE(), TokenPositions(torch.arange(6), 6), 32, torch.float32)
    assert torch.equal(rotate(heads), rotate(heads.contiguous()))


@pytest.mark.parametrize("rotary", [RoPE(), TruncatedRoPE()], ids=repr)
def test_gradients(rotary):
    heads = torch.randn(2, 2, 3, 8, dtype=torch.float64, requires_grad=True)
    rotate = rotation(rotary, TokenPositions(torch.arange(3), 3), 8, torch.float64)
    assert torch.autograd.gradcheck(rotate, heads)


@pytest.mark.parametrize("rotary", STRETCHING, ids=repr)
def test_up_to_the_training_length_it_is_rope_and_changes_smoothly_beyond_it(rotary):
    rope = RoPE(rotary.base).frequencies(64, 1)
    for length in (1, 255, 256):
        torch.testing.assert_close(rotary.frequencies(64, length), rope, rtol=1e-15, atol=0)
    beyond = rotary.frequencies(64, 257)
    assert not torch.equal(beyond, rope)
    # Nothing falls faster than by the stretch.
    assert (beyond >= rope / (257 / 256) * (1 - 1e-12)).all()
    assert (beyond <= rope).all()


@pytest.mark.parametrize("rotary", [RoPE(), TruncatedRoPE(), ProportionalRoPE(0.3)], ids=repr)
def test_others_are_the_same_at_every_length(rotary):
    assert not rotary.depends_on_context
    assert torch.equal(rotary.frequencies(64, 10), rotary.frequencies(64, 10**6))


@pytest.mark.parametrize("rotary", STRETCHING, ids=repr)
@pytest.mark.parametrize("head_dim", [2, 6, 64])
@pytest.mark.parametrize(
    "lengths", [[[1], [256], [257], [5000]], [[1, 300, 256], [9999, 400, 700]]]
)
def test_a_tensor_of_lengths_is_each_length_alone(rotary, head_dim, lengths):
    assert rotary.depends_on_context
    lengths = torch.tensor(lengths)
    tables = rotary.frequencies(head_dim, lengths)
    assert tables.shape == (*lengths.shape, head_dim // 2)
    for b, row in enumerate(lengths.tolist()):
        for i, length in enumerate(row):
            alone = rotary.frequencies(head_dim, length)
            torch.testing.assert_close(tables[b, i], alone, rtol=1e-14, atol=0)


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_rotations_of_packed_documents_are_those_of_each_alone(rotary, per_token, per_row):
    heads = torch.randn(2, 3, 4, 16)
    positions = torch.tensor([[0, 1, 400, 401], [0, 90, 1, 2]]) if per_row else torch.arange(4)
    lengths = [[200, 200, 700, 700], [100, 100, 5000, 5000]] if per_token else [[300], [5000]]
    tokens = TokenPositions(positions, torch.tensor(lengths))
    turned = rotation(rotary, tokens, 16, torch.float32)(heads)
    for b in range(2):
        for i in range(4):
            position = positions[b, i : i + 1] if per_row else positions[i : i + 1]
            length = lengths[b][i if per_token else 0]
            alone = rotation(rotary, TokenPositions(position, length), 16, torch.float32)
            expected = alone(heads[b : b + 1, :, i : i + 1])[0, :, 0]
            torch.testing.assert_close(turned[b, :, i], expected, rtol=0, atol=4 * EPS)


@pytest.mark.parametrize("head_dim", [4, 6])
@pytest.mark.parametrize("rotary", [RoPE(), TruncatedRoPE(), ProportionalRoPE(), NTK(4), YaRN(4)])
def test_small_heads_turn(rotary, head_dim):
    heads = torch.randn(1, 1, 9, head_dim)
    turned = rotation(rotary, TokenPositions(torch.arange(9), 9), head_dim, torch.float32)(heads)
    torch.testing.assert_close(turned.norm(dim=-1), heads.norm(dim=-1))
    assert not torch.equal(turned[:, :, 1:], heads[:, :, 1:])


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
@pytest.mark.parametrize("head_dim", [3, 63])
def test_an_odd_head_is_refused(rotary, head_dim):
    with pytest.raises(ValueError, match=f"head_dim must be even and at least 2, got {head_dim}"):
        rotation(rotary, TokenPositions(torch.arange(4), 4), head_dim, torch.float32)


@pytest.mark.parametrize("rotary", [RoPE, TruncatedRoPE, ProportionalRoPE, NTK, YaRN])
def test_bad_bases_are_refused(rotary):
    for base in (1, 1.0, 0.5):
        with pytest.raises(ValueError, match=f"base must be above 1, got {base}"):
            rotary(base=base)
    for base in (0, -2.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"base must .* got {base}"):
            rotary(base=base)
    for base in (True, "10000", None, [10_000.0]):
        with pytest.raises(TypeError, match="base must be a real number"):
            rotary(base=base)


def test_no_pair_or_every_pair_may_turn():
    assert ProportionalRoPE(0).frequencies(8, 1).tolist() == [0.0] * 4
    assert torch.equal(ProportionalRoPE(1).frequencies(8, 1), RoPE().frequencies(8, 1))


def test_bad_fractions_are_refused():
    for fraction in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"fraction must be .*, got {fraction}"):
            ProportionalRoPE(fraction)
    for fraction in (True, "0.5", None):
        with pytest.raises(TypeError, match="fraction must be a real number"):
            ProportionalRoPE(fraction)


def test_bad_ramps_are_refused():
    with pytest.raises(
        ValueError, match=r"fast_rotations must be at least slow_rotations, got 1.0 and 2.0"
    ):
        YaRN(256, fast_rotations=1.0, slow_rotations=2.0)
    for name in ("fast_rotations", "slow_rotations"):
        for wrong in (0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"{name} must"):
                YaRN(256, **{name: wrong})
        with pytest.raises(TypeError, match=f"{name} must be a real number"):
            YaRN(256, **{name: "1"})


@pytest.mark.parametrize("rotary", ROTARIES, ids=repr)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_one_graph_serves_all_lengths(rotary, as_tensor):
    def turn(heads, positions, length):
        rotate = rotation(rotary, TokenPositions(positions, length), heads.shape[-1], torch.float32)
        return rotate(heads)

    torch._dynamo.reset()
    graphs = CompileCounter()
    compiled = torch.compile(turn, backend=graphs, fullgraph=True, dynamic=True)
    for length in (5, 6, 200, 255, 256, 257, 300, 1000):
        heads, positions = torch.randn(2, 3, length, 16), torch.arange(length)
        context = torch.full((2, 1), length) if as_tensor else length
        torch.testing.assert_close(
            compiled(heads, positions, context), turn(heads, positions, context)
        )
    assert graphs.frame_count == 1


def test_an_axial_rotation_turns_a_part_of_the_pairs_by_each_coordinate():
    heads = torch.randn(1, 2, 5, 24, dtype=torch.float64)
    coordinates = torch.tensor([[0, 0, 0], [3, 1, 2], [7, 0, 0], [0, 4, 0], [2, 2, 9]])
    found = axial_rotation(RoPE(base=50.0), coordinates, 24, torch.float64)(heads)
    for axis in range(3):
        # Pairs k and k + 12, of which each coordinate has four.
        pairs = torch.tensor([4 * axis + k + half for half in (0, 12) for k in range(4)])
        tokens = TokenPositions(coordinates[:, axis], context_length=1)
        alone = rotation(RoPE(base=50.0), tokens, 8, torch.float64)(heads[..., pairs])
        torch.testing.assert_close(found[..., pairs], alone, rtol=0, atol=1e-14)


def test_one_coordinate_rotates_as_a_position():
    heads, positions = torch.randn(1, 2, 6, 16), torch.arange(6) * 5
    whole = rotation(TruncatedRoPE(base=8.0), TokenPositions(positions, 6), 16, torch.float32)
    axial = axial_rotation(TruncatedRoPE(base=8.0), positions[:, None], 16, torch.float32)
    assert torch.equal(axial(heads), whole(heads))


def test_heads_that_coordinates_cannot_share_are_refused():
    with pytest.raises(
        ValueError, match="head_dim must be a multiple of 4 for 2 coordinates per token"
    ):
        axial_rotation(RoPE(), torch.zeros(3, 2), 6, torch.float32)
