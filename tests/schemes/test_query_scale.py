"""Query scales: LogN in both ways of counting, YaRN's temperature, their starts and gradients."""

import math

import pytest
import torch
from hugging_face_rope import hugging_face_frequencies
from torch._dynamo.testing import CompileCounter

from scale_invariant_attention.schemes import (
    Inkling,
    LogN,
    SqrtLogN,
    TokenPositions,
    YaRNTemperature,
)


def learned(module, scales):
    """The module with other scales than it starts with."""
    with torch.no_grad():
        module.scale.copy_(torch.tensor(scales))
    return module.double()


@pytest.mark.parametrize("train_length", [2, 3, 100, 4096])
def test_logn_starts_neutral(train_length):
    counts = [math.log(i + 1) for i in range(train_length)]
    start = LogN(train_length).start
    assert start == pytest.approx(train_length / math.fsum(counts), rel=1e-12)
    factors = LogN(train_length).build(4)(TokenPositions(torch.arange(train_length), train_length))
    assert factors.shape == (4, train_length)
    assert factors.mean(-1).tolist() == pytest.approx([1.0] * 4, rel=1e-6)

    assert LogN(train_length, "context").start == pytest.approx(1 / math.log(train_length))
    factors = LogN(train_length, "context").build(4)(
        TokenPositions(torch.arange(train_length), train_length)
    )
    assert factors.shape == (4, 1)
    assert factors.flatten().tolist() == pytest.approx([1.0] * 4, rel=1e-6)


def test_logn_has_one_scale_a_head_that_learns():
    module = LogN(64).build(heads=5)
    ((name, scale),) = module.named_parameters()
    assert (name, scale.shape, scale.requires_grad) == ("scale", (5,), True)
    assert scale.tolist() == pytest.approx([LogN(64).start] * 5)


def test_two_layers_share_no_scale():
    description = LogN(64)
    assert description.build(2).scale is not description.build(2).scale


@pytest.mark.parametrize("context_length", [7, torch.tensor([[9], [20]])])
def test_logn_by_query_counts_what_the_query_sees(context_length):
    scales = [0.5, -1.25, 2.0]
    module = learned(LogN(64).build(3), scales)
    positions = [[0, 1, 2, 0], [5, 4095, 10**6, 10**9]]
    factors = module(TokenPositions(torch.tensor(positions), context_length))
    assert factors.dtype == torch.float64
    assert factors.shape == (2, 3, 4)
    for b in range(2):
        for h in range(3):
            expected = [scales[h] * math.log(i + 1) for i in positions[b]]
            assert factors[b, h].tolist() == pytest.approx(expected, rel=1e-14)
    shared = module(TokenPositions(torch.tensor(positions[1]), context_length))
    assert torch.equal(shared, factors[1])


def test_logn_by_query_counts_padding_before_a_text_as_its_start():
    module = learned(LogN(64).build(1), [1.0])
    assert module(TokenPositions(torch.tensor([-3, -1, 0, 1]), 2)).tolist() == [
        [0, 0, 0, math.log(2)]
    ]


def test_logn_by_context_counts_the_whole_context():
    scales = [0.5, -1.25]
    module = learned(LogN(64, counts="context").build(2), scales)
    one = module(TokenPositions(torch.arange(4), 50))
    assert one.shape == (2, 1)
    assert one.flatten().tolist() == pytest.approx([s * math.log(50) for s in scales])
    lengths = [[50, 50, 7, 7], [4, 4, 4, 10**6]]
    per_token = module(TokenPositions(torch.arange(4), torch.tensor(lengths)))
    assert per_token.shape == (2, 2, 4)
    for b in range(2):
        for h in range(2):
            expected = [scales[h] * math.log(n) for n in lengths[b]]
            assert per_token[b, h].tolist() == pytest.approx(expected)
    per_row = module(TokenPositions(torch.arange(4), torch.tensor([[50], [7]])))
    assert per_row.shape == (2, 2, 1)
    assert torch.equal(per_row[0], one)


def test_logn_gradients():
    for counts in ("query", "context"):
        module = LogN(64, counts).build(3).double()
        tokens = TokenPositions(torch.tensor([[0, 3, 5], [1, 2, 9]]), torch.tensor([[6], [10]]))

        def factors(scale, module=module, tokens=tokens):
            return torch.func.functional_call(module, {"scale": scale}, (tokens,))

        assert torch.autograd.gradcheck(factors, module.scale)


def test_logn_depends_on_the_context_only_if_that_counts():
    assert not LogN(64).depends_on_context
    assert LogN(64, counts="context").depends_on_context
    assert YaRNTemperature(64).depends_on_context


@pytest.mark.parametrize("counts", ["queries", "", None, 1, ["query"]])
def test_other_ways_of_counting_are_refused(counts):
    with pytest.raises(ValueError, match="counts must be one of query, context; got"):
        LogN(64, counts)


@pytest.mark.parametrize("counts", ["query", "context"])
def test_logn_has_no_neutral_start_at_length_1(counts):
    with pytest.raises(ValueError, match="train_length must be above 1 for LogN"):
        LogN(1, counts).build(2)


@pytest.mark.parametrize("stretch", [1.0, 1.5, 4.0, 16.0])
def test_yarns_temperature_is_transformers_factor_of_queries_times_that_of_keys(stretch):
    _, factor = hugging_face_frequencies(
        "yarn", 64, factor=stretch, original_max_position_embeddings=4096
    )
    module = YaRNTemperature(4096).build(heads=3)
    temperature = module(TokenPositions(torch.arange(5), int(4096 * stretch)))
    assert temperature.shape == (1, 1)
    assert temperature.item() == pytest.approx(factor**2, rel=1e-14)
    assert temperature.item() == pytest.approx((0.1 * math.log(stretch) + 1) ** 2, rel=1e-14)


def test_yarns_temperature_begins_at_the_training_length():
    module = YaRNTemperature(256).build(heads=3)
    assert not list(module.parameters())
    lengths = [[1, 255, 256], [257, 512, 10**6]]
    factors = module(TokenPositions(torch.arange(3), torch.tensor(lengths)))
    assert factors.shape == (2, 1, 3)
    assert factors[0].tolist() == [[1.0, 1.0, 1.0]]
    expected = [(0.1 * math.log(n / 256) + 1) ** 2 for n in lengths[1]]
    assert factors[1, 0].tolist() == pytest.approx(expected, rel=1e-14)
    for i, length in enumerate(lengths[1]):
        alone = module(TokenPositions(torch.arange(3), length))
        assert alone.item() == pytest.approx(factors[1, 0, i].item(), rel=1e-14)


@pytest.mark.parametrize(
    "description", [LogN(256), LogN(256, "context"), YaRNTemperature(256)], ids=repr
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_one_graph_serves_all_lengths(description, as_tensor):
    module = description.build(heads=3)

    def factors(positions, length):
        return module(TokenPositions(positions, length))

    torch._dynamo.reset()
    graphs = CompileCounter()
    compiled = torch.compile(factors, backend=graphs, fullgraph=True, dynamic=True)
    for length in (5, 6, 255, 256, 257, 1000):
        context = torch.full((2, 1), length) if as_tensor else length
        positions = torch.arange(length)
        torch.testing.assert_close(compiled(positions, context), factors(positions, context))
    assert graphs.frame_count == 1


def test_inkling_changes_nothing_up_to_its_floor():
    tokens = TokenPositions(torch.arange(200), context_length=10**6)
    for scale, floor in (
        (Inkling(64), 64),
        (Inkling(64, n_floor=100), 100),
        (Inkling(n_floor=9), 9),
    ):
        factors = scale.build(heads=2)(tokens)[0]
        assert (factors[:floor] == 1).all() and (factors[floor:] > 1).all()
    assert (Inkling(64, alpha=0).build(heads=2)(tokens) == 1).all()
    with pytest.raises(ValueError, match="train_length is not set"):
        Inkling().build(heads=2)


def test_the_first_query_has_finite_factors():
    """log(1) is 0, and padding is at negative positions."""
    tokens = TokenPositions(torch.tensor([-3, -1, 0, 1]), context_length=4)
    assert SqrtLogN().build(1)(tokens)[0].tolist() == [0.0] * 3 + [math.sqrt(2 * math.log(2))]
