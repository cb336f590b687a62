"""What is the matter with a model's attention, and what to do about it: named thresholds, and words.

Scores should have about unit variance, as the transform assumes; total attention should be near
scale-invariant, which is a slope of 0 (see `invariance`); and inside far ranges attention should fall on
few tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from .by_length import LayerAttention, LengthAttention
from .invariance import LOCAL, mass_slope

# Standard deviations of scores that count as one: variances from about a half to two.
NARROW, WIDE = 0.7, 1.4

# Slopes up to this, to both sides, count as scale-invariant: a decade then differs from the next by less
# than a factor of 1.8.
SLOPE = 0.25

# Means of scores up to this, to both sides, count as zero. A softmax alone does not mind them, but the
# transform's gain multiplies them, and grows with distance.
OFF_CENTRE = 0.5

# Attention spread over more than this share of a range's tokens is not sparse: Gaussian scores of unit
# variance under plain softmax come to 0.61.
SPREAD_OUT = 1 / 3

# Of fewer tokens attention falls on a large part even where the transform does just what it should.
FEWEST = 30

# What the findings are called, and what each of them means.
NARROW_SCORES = "narrow scores"
WIDE_SCORES = "wide scores"
OFF_CENTRE_SCORES = "off-centre scores"
DRIFTS_FAR = "drifts far"
STAYS_NEAR = "stays near"
SPREADS_OUT = "spreads out"


@dataclass(frozen=True)
class RangeDiagnosis:
    """A range of distance: its share of attention, and over how many of its tokens that is spread.

    `tokens` is the exponential of the mean entropy; `part` is that over the tokens that are seen. Both
    are None in a range that no query sees, such as one beyond the window of a layer.
    """

    start: int
    stop: int
    share: float
    tokens: float | None
    part: float | None


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer: over all its heads, and for those that are farthest out.

    Slopes are None where there are no two ranges with mass beyond the local one, because the context is
    too short or a window hides them.
    """

    layer: int
    score_mean: float
    score_spread: float  # of all heads together
    score_spreads: tuple[float, float]  # of the narrowest and the widest head
    kurtosis: float | None  # None where the scores of a head do not vary
    slope: float | None
    slopes: tuple[float, float] | None  # least and greatest, of the heads that have one
    recent_share: float
    ranges: tuple[RangeDiagnosis, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Of all layers at one length, with advice for each finding that some layer has.

    `slope` is that of all layers and heads together.
    """

    length: int
    slope: float | None
    layers: tuple[LayerDiagnosis, ...]
    advice: dict[str, str]


def diagnose(
    measured: LengthAttention, *, scale_invariant: bool, qk_norm: bool, transformers: bool = False
) -> Diagnosis:
    """Hold what was measured at one length to the thresholds above.

    What is to be done depends on the model: whether it has the transform, whether it normalises queries
    and keys, and whether it is one of transformers, which is converted and calibrated.
    """
    layers = tuple(_layer(measured, layer) for layer in measured.layers)
    found = {finding for layer in layers for finding in layer.findings}
    advice = {
        finding: " ".join(text)
        for finding, *text in _advice(scale_invariant, qk_norm, transformers)
        if finding in found
    }
    share = torch.stack([layer.share.mean((0, 1)) for layer in measured.layers]).mean(0)
    slope = _number(mass_slope(measured.edges, share))
    return Diagnosis(measured.length, slope, layers, advice)


def _layer(measured: LengthAttention, layer: LayerAttention) -> LayerDiagnosis:
    scores = layer.scores
    share = layer.share.mean(0)
    slopes = mass_slope(measured.edges, share)
    slope = mass_slope(measured.edges, share.mean(0))
    # The variance of all heads' scores together.
    variance = scores.variance.mean() + scores.mean.var(unbiased=False)
    spreads = scores.variance.sqrt()
    ranges = tuple(
        RangeDiagnosis(start, stop, mass, *_sparsity(entropy, keys))
        for (start, stop), mass, entropy, keys in zip(
            pairwise(measured.edges),
            share.mean(0).tolist(),
            layer.entropy.mean((0, 1)).tolist(),
            layer.keys.mean(0).tolist(),
            strict=True,
        )
    )
    known = slopes[slopes.isfinite()]
    made = LayerDiagnosis(
        layer=layer.layer,
        score_mean=float(scores.mean.mean()),
        score_spread=float(variance.sqrt()),
        score_spreads=(float(spreads.min()), float(spreads.max())),
        kurtosis=_number(scores.kurtosis.mean()),
        slope=_number(slope),
        slopes=(float(known.min()), float(known.max())) if len(known) else None,
        recent_share=float(layer.recent_share.mean()),
        ranges=ranges,
        findings=(),
    )
    return replace(made, findings=tuple(_findings(made)))


def _findings(layer: LayerDiagnosis) -> Iterator[str]:
    if layer.score_spread < NARROW:
        yield NARROW_SCORES
    if layer.score_spread > WIDE:
        yield WIDE_SCORES
    if abs(layer.score_mean) > OFF_CENTRE:
        yield OFF_CENTRE_SCORES
    if layer.slope is not None and layer.slope > SLOPE:
        yield DRIFTS_FAR
    if layer.slope is not None and layer.slope < -SLOPE:
        yield STAYS_NEAR
    if any(it.start >= LOCAL and _is_spread_out(it) for it in layer.ranges):
        yield SPREADS_OUT


def _is_spread_out(found: RangeDiagnosis) -> bool:
    if found.tokens is None or found.part is None:
        return False
    return found.part > SPREAD_OUT and found.tokens / found.part >= FEWEST


def _advice(scale_invariant: bool, qk_norm: bool, transformers: bool) -> Iterator[tuple[str, ...]]:
    """A finding, what it means, and what to do about it."""
    transform = (
        "convert it to a scale-invariant scheme (huggingface.convert) and train it on"
        if transformers
        else "train with a scale-invariant scheme (sia train --scheme scale-invariant-p-rope)"
    )
    if transformers:
        unit = (
            "Calibrate it: huggingface.measure_scores(model, batches) has mean and spread of every "
            "head's scores, and with huggingface.convert(model, calibration=...) they are 0 and 1 when "
            "the transform sees them. Measure it without a calibration: a new one takes the place of "
            "the old one."
        )
    elif qk_norm:
        unit = (
            "Queries and keys are normalised already, so it is what the heads have learned; it matters "
            "only where the slope is far from 0 too."
        )
    else:
        unit = "Normalise queries and keys per head: train with qk_norm=True."
    then = "far ranges get" if scale_invariant else "if it were added, far ranges would get"
    yield (
        NARROW_SCORES,
        f"The transform takes scores to have a spread of 1, and it is below {NARROW}: {then} too little "
        f"attention.",
        unit,
    )
    yield (
        WIDE_SCORES,
        f"The transform takes scores to have a spread of 1, and it is above {WIDE}: {then} too much "
        f"attention.",
        unit,
    )
    yield (
        OFF_CENTRE_SCORES,
        f"The transform takes scores to have mean 0, and it is off by more than {OFF_CENTRE}. Its gain "
        f"multiplies the mean, so with a negative one {then} less attention, with a positive one more.",
        unit,
    )
    yield (
        DRIFTS_FAR,
        f"Each decade of distance gets more attention than the one before (slope above {SLOPE}; the "
        f"same weight at every distance has 1): the local context drowns as the context grows.",
        "With the transform that comes from scores wider than 1 or of positive mean, or from a tau "
        "beyond the distances that matter: lower tau."
        if scale_invariant
        else f"To mend it, {transform}.",
    )
    yield (
        STAYS_NEAR,
        f"Each decade of distance gets less attention than the one before (slope below {-SLOPE}): what "
        f"stands far back is hardly read.",
        "With the transform that comes from scores narrower than 1 or of negative mean: heads that have "
        "learned to look near. It is harmless where the far text has nothing to add; where it has, "
        "train at a longer length, or on text that needs it."
        if scale_invariant
        else f"Biases such as ALiBi's do that by design; to read far, {transform}.",
    )
    yield (
        SPREADS_OUT,
        f"Inside a range beyond {LOCAL} tokens attention falls on more than {SPREAD_OUT:.0%} of the "
        f"tokens: an average of them rather than a choice.",
        "With the transform that comes from scores narrower than 1."
        if scale_invariant
        else f"To sharpen it with distance, {transform}; LogN sharpens it with the context length.",
    )


def _sparsity(entropy: float, keys: float) -> tuple[float, float] | tuple[None, None]:
    """On how many tokens attention falls, and on what part of them; NaN is for ranges nobody sees."""
    if math.isnan(entropy):
        return None, None
    tokens = math.exp(entropy)
    return tokens, tokens / keys


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
