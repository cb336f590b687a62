"""A scheme inside one layer: factors of queries, tables or tau for the op, and parameters that reset."""

import math

import pytest
import torch

from scale_invariant_attention import (
    DistanceAffine,
    distance_affine_attention,
    scale_invariant_attention,
    schemes,
)
from scale_invariant_attention.attention import Visibility
from scale_invariant_attention.schemes import ScaleInvariant, Scheme, SchemeLayer, TokenPositions

HEADS, LENGTH = 3, 20


def layer_of(name, layer=0, **options):
    if "train_length" in schemes.options(name):
        options = {"train_length": 8, **options}
    return SchemeLayer(schemes.get(name, **options).of_layer(layer), HEADS, width=8)


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(3, 2, HEADS, LENGTH, 8, dtype=dtype).unbind()


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", schemes.names())
def test_tables_give_what_the_op_gives(name, layer):
    layer, (query, key, value) = layer_of(name, layer), inputs()
    gain, bias = layer.distance(torch.arange(LENGTH, dtype=torch.float64))
    expected = distance_affine_attention(
        query, key, value, DistanceAffine(gain.float(), bias.float()), window=7
    )
    affine = layer.affine(LENGTH, query)
    out, lse = layer.attend(
        query, key, value, Visibility(window=7), affine=affine, return_lse=True, backend="reference"
    )
    torch.testing.assert_close(out, expected)
    assert lse.shape == (2, HEADS, LENGTH)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"learn_tau": True},
        {"tau": [1.0, 5.0, 30.0]},
        {"tau": [1.0, 5.0, 30.0], "learn_tau": True},
        {"tau": 1.0, "highest_tau": 30.0},
    ],
)
def test_without_tables_the_op_gets_tau(options):
    layer, (query, key, value) = layer_of("scale-invariant-nope", **options), inputs()
    tau = layer.tau(query.device)
    out = layer.attend(query, key, value, Visibility(), affine=None, scale=0.5)
    assert torch.equal(out, scale_invariant_attention(query, key, value, tau=tau, scale=0.5))
    by_tables = layer.attend(
        query, key, value, Visibility(), affine=layer.affine(LENGTH, query), scale=0.5
    )
    torch.testing.assert_close(out, by_tables)


@pytest.mark.parametrize("backend", ["cpu", "tiled"])
@pytest.mark.parametrize("options", [{"sigma": 3.0}, {"sigma": [2.0, 5.0, 9.0], "mu": -1.5}])
def test_the_spread_of_scores_reaches_the_op_through_tables(backend, options):
    layer, (query, key, value) = layer_of("scale-invariant-nope", **options), inputs()
    assert layer.tau(query.device) is None
    query = 3 * query
    out = layer.attend(
        query, key, value, Visibility(), affine=layer.affine(LENGTH, query), backend=backend
    )
    distance = torch.arange(LENGTH).double()
    growth = 2 * torch.log1p((distance[:, None] - distance).clamp(min=0) / 10)
    sigma = torch.tensor(options["sigma"]).double().expand(HEADS)[:, None, None]
    gain = (1 + growth / sigma**2).sqrt()
    scores = query.double() @ key.double().mT / 8**0.5
    logits = gain * scores - growth - (gain - 1) * options.get("mu", 0.0)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = logits.masked_fill(hidden, -torch.inf).softmax(-1) @ value.double()
    torch.testing.assert_close(out, expected.float())


def test_a_scheme_without_tau_needs_tables():
    layer, (query, key, value) = layer_of("alibi"), inputs()
    assert layer.tau(query.device) is None
    with pytest.raises(ValueError, match=r"affine must be given for Scheme.*ALiBi.*no tau"):
        layer.attend(query, key, value, Visibility(), affine=None)


def test_one_tau_per_head_is_that_of_each_head_alone():
    taus = (0.5, 10.0, 400.0)
    affine = SchemeLayer(Scheme(distance=ScaleInvariant(list(taus))), 3).affine(50, torch.ones(1))
    for head, tau in enumerate(taus):
        alone = SchemeLayer(Scheme(distance=ScaleInvariant(tau)), 1).affine(50, torch.ones(1))
        assert torch.equal(affine.gain[head], alone.gain)
        assert torch.equal(affine.bias[head], alone.bias)


def test_taus_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match="tau must be one number, or a list of 3, one per head; got a list of 2"
    ):
        SchemeLayer(Scheme(distance=ScaleInvariant([1.0, 2.0])), 3)
    with pytest.raises(ValueError, match="tau must be greater than 0"):
        ScaleInvariant([1.0, -2.0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_queries_are_scaled_in_the_dtype_of_logits(dtype):
    layer, (query, _, _) = layer_of("logn-rope"), inputs(dtype)
    positions = TokenPositions(torch.arange(LENGTH), LENGTH)
    scaled = layer.scale_queries(query, positions)
    factors = layer.query_scale(positions)
    wide = torch.promote_types(dtype, torch.float32)
    assert torch.equal(scaled, (query.to(wide) * factors.to(wide).unsqueeze(-1)).to(dtype))
    assert layer.affine(4, query).gain.dtype == wide


def test_queries_without_a_factor_stay_the_same_tensor():
    layer, (query, _, _) = layer_of("rope"), inputs()
    assert layer.scale_queries(query, TokenPositions(torch.arange(LENGTH), LENGTH)) is query


def test_parameters_reset_to_where_they_started():
    layer = layer_of("scale-invariant-rope", learn_tau=True, tau=7.0)
    torch.nn.init.zeros_(layer.distance.log_tau)
    layer.reset_parameters()
    assert torch.equal(layer.distance.log_tau, torch.full((HEADS,), math.log(7.0)))
    assert layer.distance.log_tau.requires_grad


def test_only_the_named_parameters_reset():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Parameter(torch.ones(2))
            self.register_buffer("second", torch.ones(2))

    class Distance:
        def build(self, heads):
            return Two()

    layer = SchemeLayer(Scheme(distance=Distance()), HEADS)
    for name, chosen in [
        (["distance.first"], [1, 0]),
        (["distance.second"], [0, 1]),
        (None, [1, 1]),
    ]:
        for tensor in layer.state_dict().values():
            tensor.zero_()
        layer.reset_parameters(name)
        assert [each[0].item() for each in layer.state_dict().values()] == chosen


def test_parameters_on_the_meta_device_reset_to_nothing():
    with torch.device("meta"):
        layer = layer_of("logn-rope")
        layer.reset_parameters()
    assert layer.query_scale.scale.is_meta
