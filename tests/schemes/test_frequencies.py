"""Frequencies: each table against its formula in plain Python, and against transformers."""

import math

import pytest
import torch
from hugging_face_rope import hugging_face_frequencies

from scale_invariant_attention.schemes import NTK, ProportionalRoPE, RoPE, TruncatedRoPE, YaRN
from scale_invariant_attention.schemes.rotary import rope_frequencies

HEAD_DIMS = [2, 4, 6, 8, 60, 64, 100, 128]
BASES = [1.5, 100.0, 10_000.0, 500_000.0]

TABLES = {
    "rope": RoPE(),
    "truncated": TruncatedRoPE(),
    "proportional": ProportionalRoPE(),
    "ntk": NTK(64),
    "yarn": YaRN(64),
}


def close(table, expected):
    """Equal but for the last bits of a few float64 operations."""
    assert table.dtype == torch.float64
    assert table.tolist() == pytest.approx(expected, rel=1e-13, abs=0)


def close_to_float32(table, expected):
    """Equal but for float32: a rounded exponent, a power, a reciprocal."""
    eps = torch.finfo(torch.float32).eps
    torch.testing.assert_close(table, expected.double(), rtol=16 * eps, atol=0)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("base", BASES)
def test_rope(head_dim, base):
    close(
        RoPE(base).frequencies(head_dim, 1),
        [base ** (-2 * k / head_dim) for k in range(head_dim // 2)],
    )


def test_rope_by_default_turns_all_64_pairs_of_128_dimensions_with_base_ten_thousand():
    close(RoPE().frequencies(128, 1), [math.exp(-k / 64 * math.log(10_000)) for k in range(64)])


def test_rope_takes_a_tensor_of_bases():
    bases = torch.tensor([[100.0, 7.0], [3.0, 10_000.0]], dtype=torch.float64)
    tables = rope_frequencies(12, bases)
    assert tables.shape == (2, 2, 6)
    for row in range(2):
        for column in range(2):
            close(tables[row, column], rope_frequencies(12, bases[row, column].item()).tolist())


def test_the_papers_p_rope_at_128_dimensions():
    table = TruncatedRoPE().frequencies(128, 1)
    close(table, [1024 ** (-k / 31) for k in range(32)] + [0.0] * 32)
    assert table[0] == 1
    assert table[31] == 1 / 1024


@pytest.mark.parametrize("head_dim", [8, 60, 64, 100, 102])
@pytest.mark.parametrize("base", BASES)
def test_the_papers_p_rope_of_other_heads(head_dim, base):
    turning = head_dim // 4
    still = head_dim // 2 - turning
    expected = [base ** (-k / (turning - 1)) for k in range(turning)] + [0.0] * still
    close(TruncatedRoPE(base).frequencies(head_dim, 1), expected)


@pytest.mark.parametrize("head_dim", [32, 60, 64, 128])
@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 1.0])
def test_a_share_of_the_pairs_rotates_between_the_same_frequencies(head_dim, share):
    turning = int(share * head_dim / 2)
    table = TruncatedRoPE(16.0, rotating=share).frequencies(head_dim, 1)
    expected = [16 ** (-k / (turning - 1)) for k in range(turning)]
    close(table, expected + [0.0] * (head_dim // 2 - turning))


@pytest.mark.parametrize(("head_dim", "still"), [(2, 0), (4, 1), (6, 2)])
def test_the_only_pair_of_the_papers_p_rope_turns_fastest(head_dim, still):
    assert TruncatedRoPE().frequencies(head_dim, 1).tolist() == [1.0] + [0.0] * still


def test_p_rope_that_would_turn_nothing_is_refused():
    for share in (0, -0.5, 1.5):
        with pytest.raises(ValueError, match=r"rotating must be above 0 and at most 1, got"):
            TruncatedRoPE(rotating=share)
    with pytest.raises(
        ValueError, match=r"fraction must.*head_dim=16.*got 0\.1;.*0 for no rotation"
    ):
        ProportionalRoPE(0.1).frequencies(16, 1)
    assert ProportionalRoPE(0).frequencies(16, 1).tolist() == [0.0] * 8


@pytest.mark.parametrize("head_dim", [6, 60, 64, 100, 128])
@pytest.mark.parametrize("fraction", [0.35, 0.5, 0.7, 0.75, 1.0])
def test_general_p_rope_keeps_the_highest_of_ropes_frequencies(head_dim, fraction):
    # In integers: a float product such as 0.7 * 10 may fall below its value.
    turning = round(fraction * 100) * head_dim // 200
    expected = [10_000 ** (-2 * k / head_dim) if k < turning else 0.0 for k in range(head_dim // 2)]
    close(ProportionalRoPE(fraction).frequencies(head_dim, 1), expected)


@pytest.mark.parametrize("head_dim", [8, 60, 64, 100, 128])
@pytest.mark.parametrize("fraction", [0.25, 0.29, 0.3, 0.5, 0.58, 0.99, 1.0])
@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_general_p_rope_is_what_transformers_calls_proportional(head_dim, fraction, base):
    expected, factor = hugging_face_frequencies(
        "proportional", head_dim, base=base, partial_rotary_factor=fraction
    )
    assert factor == 1
    table = ProportionalRoPE(fraction, base).frequencies(head_dim, 1)
    close_to_float32(table, expected)
    assert ((table == 0) == (expected == 0)).all()


@pytest.mark.parametrize("head_dim", [8, 60, 64, 128])
def test_the_papers_p_rope_can_be_written_as_a_proportional_one(head_dim):
    base = 1024 ** ((head_dim / 2) / (head_dim / 4 - 1))
    expected, _ = hugging_face_frequencies(
        "proportional", head_dim, base=base, partial_rotary_factor=0.5
    )
    close_to_float32(TruncatedRoPE().frequencies(head_dim, 1), expected)
    close(
        TruncatedRoPE().frequencies(head_dim, 1),
        ProportionalRoPE(0.5, base).frequencies(head_dim, 1).tolist(),
    )


@pytest.mark.parametrize("head_dim", [4, 6, 60, 128])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("stretch", [1.0, 1.01, 4.0, 16.0, 1000.0])
def test_ntk(head_dim, base, stretch):
    raised = base * stretch ** (head_dim / (head_dim - 2))
    table = NTK(100, base).frequencies(head_dim, 100 * stretch)
    close(table, [raised ** (-2 * k / head_dim) for k in range(head_dim // 2)])
    # What the exponent is for: the ends of the table.
    assert table[0] == 1
    assert table[-1].item() == pytest.approx(base ** (2 / head_dim - 1) / stretch)


def test_ntk_of_a_single_pair_changes_nothing():
    assert NTK(64).frequencies(2, 1024).tolist() == [1.0]
    several = NTK(64).frequencies(2, torch.tensor([64, 1024]))
    assert several.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("head_dim", [4, 60, 64, 128])
@pytest.mark.parametrize("base", [100.0, 10_000.0])
@pytest.mark.parametrize("context_length", [10, 256, 257, 1024, 65_536])
def test_ntk_is_what_transformers_calls_dynamic_at_factor_1(head_dim, base, context_length):
    expected, factor = hugging_face_frequencies(
        "dynamic",
        head_dim,
        base=base,
        train_length=256,
        context_length=context_length,
        factor=1.0,
    )
    assert factor == 1
    close_to_float32(NTK(256, base).frequencies(head_dim, context_length), expected)


def yarn_in_loops(head_dim, stretch, train_length, base, fast, slow):
    """Each pair by its rotations within the training length."""
    table = []
    # The pair, as a real number, with this number of rotations.
    first = max(math.floor(head_dim / 2 * math.log(train_length / fast / math.tau, base)), 0)
    last = min(
        math.ceil(head_dim / 2 * math.log(train_length / slow / math.tau, base)), head_dim - 1
    )
    for k in range(head_dim // 2):
        frequency = 1 / base ** (2 * k / head_dim)
        if k <= first:
            table.append(frequency)
        elif k >= last:
            table.append(frequency / stretch)
        else:
            share = (k - first) / (last - first)
            table.append((1 - share) * frequency + share * frequency / stretch)
    return table


@pytest.mark.parametrize("head_dim", [2, 4, 6, 60, 128])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("stretch", [1.0, 1.5, 4.0, 16.0])
@pytest.mark.parametrize(
    ("train_length", "fast", "slow"), [(4096, 32.0, 1.0), (300, 32.0, 1.0), (4096, 8.0, 2.5)]
)
def test_yarn(head_dim, base, stretch, train_length, fast, slow):
    expected = yarn_in_loops(head_dim, stretch, train_length, base, fast, slow)
    yarn = YaRN(train_length, base, fast, slow)
    close(yarn.frequencies(head_dim, stretch * train_length), expected)


@pytest.mark.parametrize("train_length", [64, 1000, 4096])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0])
def test_yarn_keeps_fast_pairs_and_divides_slow_ones(train_length, base):
    table = YaRN(train_length, base).frequencies(128, 4 * train_length)
    shares = (table / RoPE(base).frequencies(128, 1)).tolist()
    rotations = [train_length * base ** (-k / 64) / math.tau for k in range(64)]
    for share, turns in zip(shares, rotations, strict=True):
        if turns >= 32:
            assert share == pytest.approx(1)
        elif turns <= 1:
            assert share == pytest.approx(1 / 4)
    assert shares == sorted(shares, reverse=True)


def test_yarn_changes_nothing_where_all_pairs_are_fast():
    # The ramp would begin after the last pair, and end before it begins.
    table = YaRN(4096, base=1.5).frequencies(8, 4 * 4096)
    close(table, RoPE(1.5).frequencies(8, 1).tolist())


@pytest.mark.parametrize("head_dim", [4, 60, 64, 128])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("stretch", [1.0, 1.5, 4.0, 16.0])
@pytest.mark.parametrize("train_length", [300, 4096])
def test_yarn_is_that_of_transformers(head_dim, base, stretch, train_length):
    expected, _ = hugging_face_frequencies(
        "yarn",
        head_dim,
        base=base,
        train_length=train_length,
        factor=stretch,
        original_max_position_embeddings=train_length,
    )
    yarn = YaRN(train_length, base)
    close_to_float32(yarn.frequencies(head_dim, stretch * train_length), expected)


@pytest.mark.parametrize("head_dim", [-2, 0, 1, 3, 65])
@pytest.mark.parametrize("table", TABLES)
def test_a_head_that_has_no_pairs_is_refused(table, head_dim):
    with pytest.raises(ValueError, match=f"head_dim must be even and at least 2, got {head_dim}"):
        TABLES[table].frequencies(head_dim, 128)


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_highest_first_and_one_per_pair(table):
    for head_dim in (4, 6, 64, 102):
        frequencies = TABLES[table].frequencies(head_dim, 128)
        assert frequencies.shape == (head_dim // 2,)
        assert frequencies[0] == 1
        assert (frequencies.diff() <= 0).all()
