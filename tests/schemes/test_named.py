"""The names: what each fills its slots with, its options, and help with wrong ones."""

import pytest
import torch

from scale_invariant_attention import schemes
from scale_invariant_attention.schemes import (
    APE,
    NAPE,
    NTK,
    T5,
    ALiBi,
    CompressiveMemory,
    ForgetGate,
    Inkling,
    KerpleLog,
    KerplePower,
    LogN,
    ProportionalRoPE,
    RoPE,
    Sandwich,
    ScaleInvariant,
    Scheme,
    SqrtLogN,
    TokenPositions,
    TruncatedRoPE,
    YaRN,
    YaRNTemperature,
    named,
    rotation,
)

P_ROPE, ROPE, TRANSFORM = TruncatedRoPE(1024.0), RoPE(10_000.0), ScaleInvariant(tau=10.0)

TAU = {"tau", "highest_tau", "learn_tau", "without", "sigma", "mu", "learn_sigma"}
TAU_ALONE = {"tau", "highest_tau"}
P_OPTIONS = {"base", "fraction", "rotating"}
QUARTER, QUARTER_OPTIONS = TruncatedRoPE(1024.0, rotating=0.25), {"base", "rotating"}
SPREAD = ScaleInvariant(1.0, 30.0)
MEMORY, MEMORY_OPTIONS = (
    CompressiveMemory(train_length=64),
    {"segment_length", "rule", "train_length"},
)

# The paper's rows, ours, and the rivals', and the expected properties of each.
EXPECTED = {
    "rope": (Scheme(ROPE), {"base"}),
    "p-rope": (Scheme(P_ROPE), P_OPTIONS),
    "nope": (Scheme(), set()),
    "rope-ntk": (Scheme(NTK(64, 10_000.0)), {"base", "train_length"}),
    "yarn": (
        Scheme(YaRN(64, 10_000.0, 32.0, 1.0), YaRNTemperature(64)),
        {"base", "train_length", "fast_rotations", "slow_rotations"},
    ),
    "logn-rope": (Scheme(ROPE, LogN(64, "query")), {"base", "train_length", "counts"}),
    "logn-p-rope": (
        Scheme(P_ROPE, LogN(64, "query")),
        P_OPTIONS | {"train_length", "counts"},
    ),
    "logn-ntk": (
        Scheme(NTK(64, 10_000.0), LogN(64, "query")),
        {"base", "train_length", "counts"},
    ),
    "alibi": (Scheme(distance=ALiBi()), set()),
    "scale-invariant-p-rope": (
        Scheme(P_ROPE, distance=TRANSFORM),
        P_OPTIONS | TAU,
    ),
    "scale-invariant-rope": (Scheme(ROPE, distance=TRANSFORM), {"base"} | TAU),
    "scale-invariant-nope": (Scheme(distance=TRANSFORM), TAU),
    "scale-invariant-spread": (Scheme(QUARTER, distance=SPREAD), QUARTER_OPTIONS | TAU),
    "scale-invariant-quarter": (Scheme(QUARTER, distance=TRANSFORM), QUARTER_OPTIONS | TAU),
    "spread-half": (Scheme(P_ROPE, distance=SPREAD), P_OPTIONS | TAU),
    "spread-eighth": (
        Scheme(TruncatedRoPE(rotating=0.125), distance=SPREAD),
        QUARTER_OPTIONS | TAU,
    ),
    "spread-nope": (Scheme(distance=SPREAD), TAU),
    "spread-learned-tau": (
        Scheme(QUARTER, distance=ScaleInvariant(1.0, 30.0, learn_tau=True)),
        QUARTER_OPTIONS | TAU_ALONE,
    ),
    "spread-without-gain": (
        Scheme(QUARTER, distance=ScaleInvariant(1.0, 30.0, without="gain")),
        QUARTER_OPTIONS | TAU_ALONE,
    ),
    "spread-without-bias": (
        Scheme(QUARTER, distance=ScaleInvariant(1.0, 30.0, without="bias")),
        QUARTER_OPTIONS | TAU_ALONE,
    ),
    "alibi-p-rope": (Scheme(QUARTER, distance=ALiBi()), QUARTER_OPTIONS),
    "scale-invariant-learned-tau": (
        Scheme(P_ROPE, distance=ScaleInvariant(10.0, learn_tau=True)),
        P_OPTIONS | TAU_ALONE,
    ),
    "scale-invariant-without-gain": (
        Scheme(P_ROPE, distance=ScaleInvariant(10.0, without="gain")),
        P_OPTIONS | TAU_ALONE,
    ),
    "scale-invariant-without-bias": (
        Scheme(P_ROPE, distance=ScaleInvariant(10.0, without="bias")),
        P_OPTIONS | TAU_ALONE,
    ),
    "scale-invariant-without-sparsity": (
        Scheme(P_ROPE, distance=ScaleInvariant(10.0, without="sparsity")),
        P_OPTIONS | TAU_ALONE,
    ),
    "t5": (Scheme(distance=T5(32, 128)), {"buckets", "max_distance"}),
    "kerple-log": (Scheme(distance=KerpleLog()), set()),
    "kerple-power": (Scheme(distance=KerplePower()), set()),
    "sandwich": (Scheme(distance=Sandwich(128)), {"dimensions"}),
    "nape": (Scheme(distance=NAPE()), set()),
    "fox": (Scheme(key_bias=ForgetGate()), set()),
    "ape": (
        Scheme(ROPE, distance=APE(0.01, 0.01, 0.1, 0.1)),
        {"base", "damping", "delta", "beta", "gamma"},
    ),
    "sqrt-log-n": (Scheme(P_ROPE, SqrtLogN()), P_OPTIONS),
    "inkling": (
        Scheme(P_ROPE, Inkling(64, alpha=0.1, n_floor=None)),
        P_OPTIONS | {"train_length", "alpha", "n_floor"},
    ),
    "infini-rope": (Scheme(ROPE, memory=MEMORY), {"base"} | MEMORY_OPTIONS),
    "infini-p-rope": (Scheme(P_ROPE, memory=MEMORY), P_OPTIONS | MEMORY_OPTIONS),
}

# The others are patterns: see test_hybrids.py.
NAMES = [*EXPECTED, "llama4", "swan", "scale-invariant-global"]

# A value for every option that is not its default.
OTHERS = {
    "base": 77.0,
    "fraction": 0.25,
    "rotating": 0.75,
    "train_length": 99,
    "counts": "context",
    "fast_rotations": 16.0,
    "slow_rotations": 2.0,
    "tau": 3.0,
    "highest_tau": 77.0,
    "learn_tau": True,
    "without": "gain",
    "sigma": 2.0,
    "mu": -1.0,
    "learn_sigma": True,
    "buckets": 16,
    "max_distance": 99,
    "dimensions": 64,
    "damping": 0.5,
    "delta": 0.5,
    "beta": 0.5,
    "gamma": 0.5,
    "alpha": 0.5,
    "n_floor": 99,
    "window": 5,
    "segment_length": 7,
    "rule": "delta",
}


def get(name, **options):
    """A scheme, with a training length if it takes one."""
    if "train_length" in schemes.options(name):
        options = {"train_length": 64, **options}
    return schemes.get(name, **options)


def test_the_names():
    assert list(schemes.names()) == NAMES


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_fills_the_slots_as_the_paper_does(name):
    scheme, options = EXPECTED[name]
    assert get(name) == scheme
    assert set(schemes.options(name)) == options | (set() if scheme.memory else {"window"})


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in EXPECTED for option in schemes.options(name)],
)
def test_every_option_reaches_a_slot_that_has_it(name, option):
    scheme = get(name, **{option: OTHERS[option]})
    assert scheme != get(name)
    holders = [
        slot
        for slot in (scheme, scheme.rotary, scheme.query_scale, scheme.distance, scheme.memory)
        if hasattr(slot, option)
    ]
    assert holders
    assert all(getattr(slot, option) == OTHERS[option] for slot in holders)


@pytest.mark.parametrize("name", ["p-rope", "logn-p-rope", "scale-invariant-p-rope"])
def test_a_fraction_chooses_the_general_form_of_p_rope(name):
    assert get(name, fraction=0.25).rotary == ProportionalRoPE(0.25, base=10_000.0)
    assert get(name, fraction=0.25, base=500.0).rotary == ProportionalRoPE(0.25, base=500.0)
    assert get(name, base=500.0).rotary == TruncatedRoPE(base=500.0)
    assert get(name, rotating=0.25).rotary == TruncatedRoPE(rotating=0.25)
    with pytest.raises(ValueError, match="fraction and rotating exclude each other"):
        get(name, fraction=0.25, rotating=0.25)


@pytest.mark.parametrize("name", schemes.names())
@pytest.mark.parametrize("head_dim", [4, 6, 64, 100])
@pytest.mark.parametrize("context_length", [16, 64, 1000])
@pytest.mark.parametrize("layer", [0, -1])
def test_every_scheme_works_with_every_shape(name, head_dim, context_length, layer):
    scheme, heads = get(name).of_layer(layer), 3
    tokens = TokenPositions(torch.arange(16), context_length)
    if scheme.rotary is not None:
        query = torch.randn(2, heads, 16, head_dim)
        turned = rotation(scheme.rotary, tokens, head_dim, torch.float32)(query)
        torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))
    if scheme.query_scale is not None:
        factors = scheme.query_scale.build(heads)(tokens)
        assert factors.dtype == torch.float64
        assert torch.broadcast_shapes(factors.shape, (2, heads, 16)) == (2, heads, 16)
    gain, bias = scheme.distance.build(heads)(torch.arange(16, dtype=torch.float64))
    if scheme.key_bias is not None:
        steps = scheme.key_bias.build(heads, width=head_dim)(torch.randn(2, 16, head_dim))
        assert steps.shape == (2, heads, 16) and steps.dtype == torch.float64
    for table in (gain, bias):
        assert table.shape in ((16,), (heads, 16))
        assert table.dtype == torch.float64


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("RoPE", "rope"),
        ("NoPE", "nope"),
        ("prope", "p-rope"),
        ("ALiBi", "alibi"),
        ("YARN", "yarn"),
        ("scale_invariant_p_rope", "scale-invariant-p-rope"),
        ("Scale-Invariant-P-RoPE", "scale-invariant-p-rope"),
        ("logn_ntk", "logn-ntk"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong, nearest):
    message = f"there is no scheme '{wrong}' .did you mean '{nearest}'.*the schemes are: rope, "
    for use in (schemes.get, schemes.options):
        with pytest.raises(ValueError, match=message):
            use(wrong)


@pytest.mark.parametrize("wrong", ["", "transformer", None, 3, ["rope"], RoPE()])
def test_a_name_unlike_all_is_refused_with_the_list(wrong):
    message = (
        r"there is no scheme .*; the paper's is 'scale-invariant-p-rope', and the schemes are: rope"
    )
    with pytest.raises(ValueError, match=message):
        schemes.get(wrong)


def test_an_unknown_option_is_refused_with_the_nearest():
    message = r"'scale-invariant-rope' has no option 'taus' \(did you mean 'tau'\?\); its options"
    with pytest.raises(TypeError, match=message):
        schemes.get("scale-invariant-rope", taus=1.0)
    with pytest.raises(TypeError, match="'alibi' has no option 'slopes'; its options are: window"):
        schemes.get("alibi", slopes=[1.0])
    with pytest.raises(TypeError, match="'rope' has no option 'train_length'"):
        schemes.get("rope", train_length=64)


@pytest.mark.parametrize("name", schemes.names())
def test_bad_values_are_refused_at_once(name):
    for option in schemes.options(name):
        # Words count in no option, and no option takes NaN.
        for wrong in ("much", float("nan")):
            with pytest.raises((TypeError, ValueError), match=f"{option} must"):
                get(name, **{option: wrong})


def own(name="own-scheme", build=lambda base=100.0: Scheme(RoPE(base)), **fields):
    return schemes.NamedScheme(name, build, **fields)


@pytest.fixture
def registered():
    """Register schemes for one test."""
    added = []

    def register(scheme):
        schemes.register(scheme)
        added.append(scheme.name)

    yield register
    for name in added:
        schemes.unregister(name)


def test_every_scheme_has_its_own_title_and_marker_and_says_what_it_is():
    """Markers distinguish the lines of a greyscale print."""
    rows = [schemes.entry(name) for name in schemes.names()]
    assert len({row.title for row in rows}) == len({row.line.marker for row in rows}) == len(rows)
    for row in rows:
        assert row.sentence.endswith(".")
        assert row.options == schemes.options(row.name)
        assert row.reference == "this package" or 2017 <= row.year <= 2026, row.reference
        assert row.formula.isascii() and row.formula.isprintable() and row.formula


def test_groups_hold_every_scheme_once():
    paper, ours = (named.PAPER_SCHEMES, (named.SPREAD,)), (named.CONTROLS, named.RIVALS)
    groups = (*paper, *ours, named.INFINI, named.HYBRIDS)
    assert [row.name for group in groups for row in group] == list(schemes.names())
    assert {row.year is None for row in named.RIVALS} == {False}


def test_the_year_is_that_of_the_reference():
    assert own(reference="Chi et al., 2022, arXiv:2205.09921").year == 2022
    assert own(reference="this package").year is own().year is None


def test_a_registered_scheme_is_used_by_name(registered):
    registered(own(title="Own", trained_as="rope"))
    assert schemes.names() == (*NAMES, "own-scheme")
    assert schemes.get("own-scheme", base=50.0) == Scheme(RoPE(50.0))
    assert schemes.options("own-scheme") == ("base",)
    assert schemes.trained_as("own-scheme") == "rope"
    assert schemes.entry("own-scheme").title == "Own"
    with pytest.raises(ValueError, match="did you mean 'own-scheme'"):
        schemes.get("own-schem")


def test_a_removed_scheme_is_unknown_again():
    schemes.register(own())
    schemes.unregister("own-scheme")
    assert list(schemes.names()) == NAMES
    with pytest.raises(ValueError, match="there is no scheme 'own-scheme'"):
        schemes.unregister("own-scheme")


def test_what_an_entry_leaves_open_follows_from_its_name():
    row = own()
    assert (row.title, row.trained_as, row.line) == (row.name, row.name, schemes.LineStyle())


def test_existing_names_and_titles_are_refused(registered):
    registered(own())
    for name in ("own-scheme", "rope"):
        with pytest.raises(ValueError, match=f"already a scheme '{name}'"):
            schemes.register(own(name, title="Another"))
    with pytest.raises(ValueError, match="title 'RoPE' already names another scheme"):
        schemes.register(own("another", title="RoPE"))
    assert schemes.get("rope") == Scheme(RoPE())


@pytest.mark.parametrize("name", ["", "Own", "own scheme", "own/scheme", "-own", "own--scheme", 3])
def test_names_that_folders_cannot_have_are_refused(name):
    with pytest.raises(ValueError, match="name must be lower-case words joined by hyphens"):
        own(name)


def test_entries_that_do_not_work_are_refused():
    with pytest.raises(ValueError, match="there is no scheme 'ropes'"):
        schemes.register(own(trained_as="ropes"))
    with pytest.raises(TypeError, match="build must return a Scheme or a LayeredScheme"):
        schemes.register(own(build=RoPE))
    assert list(schemes.names()) == NAMES


def test_the_papers_schemes_stay():
    with pytest.raises(ValueError, match="'rope' belongs to this package"):
        schemes.unregister("rope")
