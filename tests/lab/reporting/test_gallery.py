"""The gallery: the figures, their sources, and the page of them."""

from dataclasses import replace

import pytest
from attention_records import attention_record
from small_records import record, table

from scale_invariant_attention.lab.experiments.theory_numbers import TransformTable
from scale_invariant_attention.lab.measurements import Mean
from scale_invariant_attention.lab.records import TrainingCurve, Validation
from scale_invariant_attention.lab.reporting.attention_figures import (
    against_length_figure,
    entropy_figure,
    quantile_figure,
    root_log,
)
from scale_invariant_attention.lab.reporting.drawing import Point, as_png, as_svg, straight_line
from scale_invariant_attention.lab.reporting.evaluation_figures import training_figure
from scale_invariant_attention.lab.reporting.gallery import (
    Drawing,
    Missing,
    Recorded,
    TheoryNumbers,
    figure_page,
    gallery,
)

ENTROPIES = {t: Mean(2 * root_log(t) + 1, 0.1) for t in (10, 50, 900)}
TRANSFORM = TransformTable([1.0, 10.0], [1.0, 2.0], [0.0, -1.0], [1.0, 0.5], [1.0, 2.0])
THEORY = TheoryNumbers(
    against_length={name: attention_record("rope").attention for name in ("plain", "logn")},
    transformed={"2": ENTROPIES},
    plain={"2": ENTROPIES},
    transform={"10": TRANSFORM},
    samples=128,
)
COMPARED = ("p-rope", "logn-p-rope", "scale-invariant-p-rope")


def losses_of(scheme, seed):
    return (1.0, 1.5, 2.0 + 0.1 * seed)


def trained(record, loss=2.0):
    """The record with 200 training steps of one loss, and two validations."""
    return replace(
        record,
        training=TrainingCurve((loss,) * 200, (1.0,) * 200),
        validation=tuple(
            Validation(step, {256: 1.0, 1024: 2.0 + step / 1000}) for step in (125, 250)
        ),
    )


def recorded(**changes):
    main = [trained(it) for it in table(losses_of)]
    swept = [
        replace(
            record("scale-invariant-p-rope", 0, (1.0, 1.1, tau), tau=tau),
            name=f"tau-{tau:g}-seed-0",
        )
        for tau in (0.1, 1.0)
    ]
    attention = [attention_record(name) for name in COMPARED]
    return Recorded(**{"main": main, "tau": swept, "attention": attention, **changes})


@pytest.fixture(scope="module")
def made():
    return list(gallery(THEORY, recorded()))


def test_every_figure_with_its_source(made):
    assert [it.name for it in made if isinstance(it, Drawing)] == [
        "transform",
        "figure-1-attention-against-length",
        "figure-2-range-entropy",
        "figure-3-training",
        "figure-5-tau",
        "figure-6-plain-range-entropy",
        "figure-8-rotary",
        *(f"figure-9-scores-{name}" for name in COMPARED),
    ]
    sources = {it.name: it.source for it in made}
    assert sources["figure-5-tau"] == "the records tau-0.1-seed-0, tau-1-seed-0 (commit ccccccc)"
    assert "alibi-seed-{0,1,2}" in sources["figure-3-training"]
    assert "yarn" not in sources["figure-3-training"]
    for it in made:
        # The source is written in the figure itself.
        assert " ".join(it.figure.get_supxlabel().split()) == it.source
    assert as_png(made[0].figure, dpi=50).startswith(b"\x89PNG")
    as_lines = as_svg(made[0].figure)
    assert b"expected weight</text>" in as_lines
    again = next(gallery(THEORY, recorded()))
    assert as_svg(again.figure) == as_svg(next(gallery(THEORY, recorded())).figure)


def test_missing_records_are_named_with_the_command_that_makes_them():
    nothing = gallery(THEORY, recorded(main=[], tau=[], attention=[]))
    missing = [it for it in nothing if isinstance(it, Missing)]
    assert [it.command.split(",")[0] for it in missing] == [
        "sia reproduce attention",
        "sia reproduce table1 --schemes rope",
        "sia reproduce tau",
        "sia reproduce table1 --schemes scale-invariant-p-rope",
        "sia reproduce attention",
    ]


def test_the_page_shows_figures_fits_and_missing_records(made):
    missing = Missing("Figure 20", "sia reproduce it")
    page = figure_page([*made, missing], figures_at="figures")
    assert "![Figure 3: loss through training](figures/figure-3-training.png)" in page
    assert "| 2 | 2.000 | 1.000 | 1.0000 |" in page
    assert (
        "## Figure 20\n\nNot drawn: its records are missing; make them with `sia reproduce it`"
        in page
    )
    assert "trained at 256 tokens" in page


def test_figure_1_has_a_row_of_theory_and_one_of_models():
    records = [attention_record(name) for name in COMPARED]
    axes = against_length_figure(THEORY.against_length, records).axes
    assert len(axes) == 8
    lines = {line.get_label(): line for line in axes[4].get_lines()}
    assert {"p-RoPE", "LogN+p-RoPE", "Scale-inv. p-RoPE"} <= lines.keys()
    assert list(lines["p-RoPE"].get_ydata()) == [0.256, 1.024, 4.096]
    assert {"plain", "LogN, s = 0.4"} <= {line.get_label() for line in axes[0].get_lines()}
    # Only contexts of 1,024 and 4,096 hold the whole range 100-1000.
    inside = next(line for line in axes[6].get_lines() if line.get_label() == "p-RoPE")
    assert list(inside.get_xdata()) == [1024, 4096]
    assert list(inside.get_ydata()) == [2.0, 2.0]
    share = next(line for line in axes[7].get_lines() if line.get_label() == "p-RoPE")
    assert list(share.get_ydata()) == [100 / 256, 100 / 1024, 100 / 4096]


def with_layer(record, index, **changes):
    """The record with changes to a layer at 1,024 tokens."""
    first, second, third = record.attention
    layers = list(second.layers)
    layers[index] = replace(layers[index], **changes)
    return replace(record, attention=(first, replace(second, layers=tuple(layers)), third))


def test_quantiles_are_standardised():
    axes = quantile_figure(attention_record("rope"), 1024).axes
    assert len(axes) == 2
    assert axes[0].get_ylabel().startswith("nothing rotates")
    _diagonal, *heads = axes[0].get_lines()
    assert len(heads) == 2
    assert list(heads[0].get_ydata()) == [-3.0, 0.0, 3.0] == list(heads[0].get_xdata())
    assert "spread 2.00 to 2.00" in axes[0].texts[0].get_text()


def test_heads_differ_without_colour_and_stay_inside_the_axes():
    found = attention_record("rope", heads=4)
    scores = found.attention[1].layers[1].scores
    far = (*scores.quantiles[:2], (-13.5, 0.5, 6.5), scores.quantiles[3])
    figure = quantile_figure(with_layer(found, 1, scores=replace(scores, quantiles=far)), 1024)
    names = [it.get_text() for it in figure.legends[0].get_texts()]
    assert names == ["N(0, 1)", "head 0", "head 1", "head 2", "head 3"]
    for axes in figure.axes:
        lines = axes.get_lines()
        assert len({(it.get_linestyle(), it.get_marker()) for it in lines}) == 5
        low, high = axes.get_ylim()
        assert all(low < y < high for it in lines for y in it.get_ydata())


def test_scores_before_rotary_have_a_row_of_their_own():
    found = attention_record("rope")
    unrotated = replace(found.attention[1].layers[0].scores, mean=(0.0, 0.0))
    for layer in range(2):
        found = with_layer(found, layer, unrotated_scores=unrotated)
    axes = quantile_figure(found, 1024).axes
    assert len(axes) == 4
    assert list(axes[2].get_lines()[1].get_ydata()) == [-2.75, 0.25, 3.25]
    for layer in range(2):
        found = with_layer(found, layer, unrotated_scores=None)
    (first, _) = quantile_figure(found, 1024).axes
    assert first.get_ylabel().startswith("after rotary")


def test_lines_through_entropies():
    figure, fits = entropy_figure({"2": ENTROPIES, "4": ENTROPIES}, root_log, "sqrt(log t)")
    assert fits["4"].slope == pytest.approx(2.0)
    assert fits["4"].intercept == pytest.approx(1.0)
    assert figure.axes[1].get_xlabel() == "sqrt(log t)"


def test_training_is_the_mean_over_seeds():
    records = [
        trained(record("alibi", seed, (1.0, 1.0, 1.0)), loss)
        for seed, loss in enumerate((2.0, 4.0))
    ]
    axes = training_figure(records, ["alibi"]).axes
    assert set(axes[0].get_lines()[0].get_ydata()) == {3.0}
    longer = next(line for line in axes[2].get_lines() if line.get_label() == "ALiBi")
    assert list(longer.get_xdata()) == [125, 250]
    assert list(longer.get_ydata()) == [2.125, 2.25]
    assert axes[2].get_title() == "validation, 1,024 tokens (4 times)"


def test_a_line_that_does_not_fit():
    fit = straight_line([Point(0, 0.0), Point(1, 1.0), Point(2, 0.0)])
    assert (fit.slope, fit.r_squared) == (pytest.approx(0.0), pytest.approx(0.0))
    assert str(straight_line([Point(0, -1.0), Point(1, 1.0)])) == "2.00 x - 1.00, R² 1.0000"
