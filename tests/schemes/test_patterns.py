"""Schemes that alternate over the layers: by hand, and by names joined by commas."""

import pytest

from scale_invariant_attention import schemes
from scale_invariant_attention.schemes import (
    NTK,
    LayeredScheme,
    LogN,
    NamedScheme,
    RoPE,
    ScaleInvariant,
    Scheme,
)

LOCAL, FAR = Scheme(RoPE(), window=8), Scheme(distance=ScaleInvariant())


def test_layers_have_the_schemes_in_turn():
    layered = LayeredScheme([LOCAL, LOCAL, FAR])
    assert [layered.of_layer(layer) for layer in range(7)] == [*[LOCAL, LOCAL, FAR] * 2, LOCAL]
    assert layered == LayeredScheme((LOCAL, LOCAL, FAR)) != LayeredScheme([LOCAL, FAR])
    assert len({layered, LayeredScheme((LOCAL, LOCAL, FAR))}) == 1
    assert LOCAL.pattern == (LOCAL,) and LOCAL.of_layer(5) is LOCAL


def test_a_pattern_is_what_any_of_its_schemes_is():
    by_context = Scheme(NTK(64))
    assert not LayeredScheme([LOCAL, FAR]).depends_on_context
    assert LayeredScheme([LOCAL, by_context]).depends_on_context
    assert LayeredScheme([LOCAL, by_context]).train_length == 64
    assert LayeredScheme([LOCAL, FAR]).train_length is None
    assert not LayeredScheme([Scheme(), Scheme(RoPE())]).changes_logits
    assert LayeredScheme([Scheme(), Scheme(window=3)]).changes_logits
    with pytest.raises(
        ValueError, match=r"schemes of pattern must have one train_length.*\[64, 65\]"
    ):
        LayeredScheme([by_context, Scheme(query_scale=LogN(65))])


@pytest.mark.parametrize("wrong", [(), [], LOCAL, "rope,nope", None])
def test_what_is_no_list_of_schemes_is_refused(wrong):
    with pytest.raises(TypeError, match="pattern must be a list of one or more schemes"):
        LayeredScheme(wrong)


@pytest.mark.parametrize("wrong", ["rope", RoPE(), LayeredScheme([LOCAL])])
def test_a_pattern_holds_schemes(wrong):
    with pytest.raises(TypeError, match="pattern must hold objects of class Scheme, got"):
        LayeredScheme([LOCAL, wrong])


@pytest.mark.parametrize(("window", "error"), [(0, ValueError), (-3, ValueError), (2.5, TypeError)])
def test_a_window_is_a_positive_integer(window, error):
    with pytest.raises(error, match="window must be"):
        Scheme(window=window)


def test_names_joined_by_commas_are_a_pattern():
    options = {"rope.window": 8, "scale-invariant-nope.tau": 2.0}
    found = schemes.get("rope,rope,scale-invariant-nope", **options)
    assert found == LayeredScheme([LOCAL, LOCAL, Scheme(distance=ScaleInvariant(2.0))])
    assert schemes.get("rope,logn-rope", train_length=64).train_length == 64
    assert schemes.options("alibi,yarn") == (
        *("alibi.window", "train_length", "yarn.base", "yarn.fast_rotations"),
        *("yarn.slow_rotations", "yarn.window"),
    )


def test_the_entry_of_a_pattern_is_made_of_those_of_its_names():
    row = schemes.entry("rope,rope,yarn,rope")
    assert row.name == "rope,rope,yarn,rope"
    assert row.title == "2 x RoPE, YaRN, RoPE"
    assert row.reference == "Su et al., 2021, arXiv:2104.09864; Peng et al., 2023, arXiv:2309.00071"
    assert row.defaults["yarn.fast_rotations"] == 32.0
    assert schemes.trained_as("rope,yarn") == "rope,rope"
    assert schemes.is_known("rope,yarn")
    assert not schemes.is_known("rope,") and not schemes.is_known("rope,yarns")


def test_wrong_names_and_options_of_a_pattern_are_named():
    with pytest.raises(ValueError, match=r"there is no scheme 'yarns' \(did you mean 'yarn'\?\)"):
        schemes.get("rope,yarns")
    with pytest.raises(ValueError, match="there is no scheme ''"):
        schemes.get("rope,")
    with pytest.raises(TypeError, match=r"no option 'window' .did you mean '(rope|nope).window'"):
        schemes.get("rope,nope", window=3)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        schemes.get("rope,nope", **{"rope.window": 0})


def test_a_registered_pattern_is_used_alone():
    row = NamedScheme(
        "own-layers", lambda window=8: LayeredScheme([Scheme(RoPE(), window=window), FAR])
    )
    schemes.register(row)
    try:
        assert schemes.get("own-layers") == LayeredScheme([LOCAL, FAR])
        with pytest.raises(ValueError, match="'own-layers' is a pattern itself: use it alone"):
            schemes.get("own-layers,rope")
    finally:
        schemes.unregister("own-layers")
    with pytest.raises(ValueError, match="name must have no commas"):
        schemes.register(NamedScheme("rope,rope", Scheme))
