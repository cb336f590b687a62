"""A scheme: what fits its slots, what does not go together, when the context length matters."""

import pytest

from scale_invariant_attention.schemes import (
    NTK,
    ALiBi,
    LogN,
    RoPE,
    ScaleInvariant,
    Scheme,
    TruncatedRoPE,
    Unchanged,
    YaRN,
    YaRNTemperature,
)


def test_an_empty_scheme_is_ordinary_attention_without_rotation():
    assert Scheme() == Scheme(rotary=None, query_scale=None, distance=Unchanged())


@pytest.mark.parametrize(
    ("scheme", "depends"),
    [
        (Scheme(), False),
        (Scheme(RoPE(), LogN(64), ALiBi()), False),
        (Scheme(TruncatedRoPE(), distance=ScaleInvariant()), False),
        (Scheme(NTK(64)), True),
        (Scheme(YaRN(64)), True),
        (Scheme(query_scale=YaRNTemperature(64)), True),
        (Scheme(RoPE(), LogN(64, counts="context")), True),
    ],
    ids=repr,
)
def test_whether_the_context_length_matters(scheme, depends):
    assert scheme.depends_on_context is depends


@pytest.mark.parametrize("learn_tau", [False, True])
@pytest.mark.parametrize("counts", ["query", "context"])
def test_two_temperatures_are_refused(learn_tau, counts):
    with pytest.raises(ValueError, match="LogN and distance=ScaleInvariant are two temperatures"):
        Scheme(RoPE(), LogN(64, counts), ScaleInvariant(learn_tau=learn_tau))


def test_schemes_are_values():
    scheme = Scheme(RoPE(base=500.0), LogN(64), ALiBi())
    assert scheme == Scheme(RoPE(500.0), LogN(64), ALiBi())
    assert scheme != Scheme(RoPE(501.0), LogN(64), ALiBi())
    assert len({scheme, Scheme(RoPE(500), LogN(64), ALiBi())}) == 1


@pytest.mark.parametrize(
    ("slot", "wrong", "remedy"),
    [
        ("rotary", "rope", r"RoPE\(\)"),
        ("rotary", RoPE, r"RoPE\(\)"),
        ("rotary", ScaleInvariant(), r"RoPE\(\)"),
        ("query_scale", "logn", r"LogN\(\)"),
        ("query_scale", RoPE(), r"LogN\(\)"),
        ("distance", None, r"ScaleInvariant\(\)"),
        ("distance", ALiBi, r"ScaleInvariant\(\)"),
        ("distance", 10.0, r"ScaleInvariant\(\)"),
    ],
)
def test_what_does_not_fit_a_slot_is_refused(slot, wrong, remedy):
    with pytest.raises(TypeError, match=f"{slot} must be an object with .*{remedy}, got"):
        Scheme(**{slot: wrong})
