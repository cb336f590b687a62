"""Diagnosis of a model's attention: findings by named thresholds, and advice.

Scores should have about unit variance, as the transform assumes; attention should be nearly
scale-invariant, which is a slope of 0 (see `mass_slope`); and inside distant ranges attention should
fall on few tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .by_length import LayerAttention, LengthAttention
from .ranges import LOCAL, mass_slope

# Standard deviations of scores that count as one: variances from about a half to two.
NARROW, WIDE = 0.7, 1.4

# Slopes up to this, in either direction, count as scale-invariant: successive decades then differ by
# less than a factor of 1.8.
SLOPE = 0.25

# Mean scores up to this, in either direction, count as zero. Softmax alone is invariant to the mean, but
# the transform's gain multiplies it, and grows with distance.
OFF_CENTRE = 0.5

# Attention spread over more than this share of a range's tokens is not sparse: under plain softmax,
# Gaussian scores of unit variance give 0.61.
SPREAD_OUT = 1 / 3

# In smaller ranges, attention falls on a large share of tokens even if the transform works as intended.
FEWEST = 30

# Names of the findings; `_advice` explains each.
NARROW_SCORES = "narrow scores"
WIDE_SCORES = "wide scores"
OFF_CENTRE_SCORES = "off-centre scores"
DRIFTS_FAR = "drifts far"
STAYS_NEAR = "stays near"
SPREADS_OUT = "spreads out"


@dataclass(frozen=True)
class RangeDiagnosis:
    """A range of distance: its share of attention, and the number of tokens that receive it.

    `tokens` is the exponential of the mean entropy; `part` is its fraction of the visible tokens. Both
    are None in a range that no query sees, such as one beyond the window of a layer.
    """

    start: int
    stop: int
    share: float
    tokens: float | None
    part: float | None

    @property
    def is_spread_out(self) -> bool:
        """Whether attention falls on too large a part of enough tokens."""
        if self.tokens is None or self.part is None:
            return False
        return self.part > SPREAD_OUT and self.tokens / self.part >= FEWEST


@dataclass(frozen=True)
class LayerDiagnosis:
    """Diagnosis of one layer: over all its heads, and of its most extreme heads.

    Slopes are None if fewer than two ranges beyond the local one have mass, because the context is too
    short or a window hides them.
    """

    layer: int
    score_mean: float
    score_spread: float  # of all heads together
    score_spreads: tuple[float, float]  # of the narrowest and the widest head
    kurtosis: float | None  # None if the scores of a head do not vary
    slope: float | None
    slopes: tuple[float, float] | None  # smallest and greatest, of the heads that have one
    recent_share: float
    ranges: tuple[RangeDiagnosis, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of all layers at one length, with advice for each finding.

    `slope` is over all layers and heads together.
    """

    length: int
    slope: float | None
    layers: tuple[LayerDiagnosis, ...]
    advice: dict[str, str]


def diagnose(
    measured: LengthAttention,
    *,
    scale_invariant: bool | Sequence[bool],
    qk_norm: bool,
    transformers: bool = False,
    knows_spread: bool = False,
) -> Diagnosis:
    """Compare measurements at one length with the thresholds above.

    The advice depends on the model: whether it uses the transform, everywhere or in which of its layers,
    whether it normalises queries and keys, and whether it is a transformers model, which can be
    converted and calibrated. A transform that knows the spread of each head's scores needs no spread
    of 1.
    """
    layers = tuple(_layer(measured, layer, knows_spread) for layer in measured.layers)
    texts = {uses: _advice(uses, qk_norm, transformers) for uses in (True, False)}
    relevant = {}
    for finding in texts[True]:
        found = {
            scale_invariant if isinstance(scale_invariant, bool) else scale_invariant[it.layer]
            for it in layers
            if finding in it.findings
        }
        if len(found) == 2:
            relevant[finding] = (
                f"In layers with the transform: {texts[True][finding]} In the others: "
                f"{texts[False][finding]}"
            )
        elif found:
            relevant[finding] = texts[found.pop()][finding]
    share = torch.stack([layer.share.mean((0, 1)) for layer in measured.layers]).mean(0)
    slope = _number(mass_slope(measured.edges, share))
    return Diagnosis(measured.length, slope, layers, relevant)


def _layer(measured: LengthAttention, layer: LayerAttention, knows_spread: bool) -> LayerDiagnosis:
    scores = layer.scores
    share = layer.share.mean(0)
    slopes = mass_slope(measured.edges, share)
    known = slopes[slopes.isfinite()]
    slope = _number(mass_slope(measured.edges, share.mean(0)))
    score_mean = float(scores.mean.mean())
    # Variance of the scores of all heads together.
    score_spread = float((scores.variance.mean() + scores.mean.var(unbiased=False)).sqrt())
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
    exceeded = {
        NARROW_SCORES: score_spread < NARROW and not knows_spread,
        WIDE_SCORES: score_spread > WIDE and not knows_spread,
        OFF_CENTRE_SCORES: abs(score_mean) > OFF_CENTRE,
        DRIFTS_FAR: slope is not None and slope > SLOPE,
        STAYS_NEAR: slope is not None and slope < -SLOPE,
        SPREADS_OUT: any(it.start >= LOCAL and it.is_spread_out for it in ranges),
    }
    return LayerDiagnosis(
        layer=layer.layer,
        score_mean=score_mean,
        score_spread=score_spread,
        score_spreads=(float(spreads.min()), float(spreads.max())),
        kurtosis=_number(scores.kurtosis.mean()),
        slope=slope,
        slopes=(float(known.min()), float(known.max())) if len(known) else None,
        recent_share=float(layer.recent_share.mean()),
        ranges=ranges,
        findings=tuple(finding for finding, is_found in exceeded.items() if is_found),
    )


def _advice(scale_invariant: bool, qk_norm: bool, transformers: bool) -> dict[str, str]:
    """The meaning of each finding, and a remedy."""
    transform = (
        "convert it to a scale-invariant scheme (huggingface.convert) and fine-tune it"
        if transformers
        else "train with a scale-invariant scheme (sia train --scheme scale-invariant-p-rope)"
    )
    if transformers:
        unit = (
            "Calibrate it: huggingface.measure_scores(model, batches) measures mean and spread per "
            "head, and huggingface.convert(model, calibration=...) gives them to the transform; "
            "huggingface.extend does both."
        )
    elif qk_norm:
        unit = (
            "Queries and keys are already normalised, so this is what the heads have learned; it "
            "matters only if the slope is also far from 0."
        )
    else:
        unit = "Normalise queries and keys per head: train with qk_norm=True."
    if scale_invariant:
        then = "far ranges get"
        drifting = (
            "With the transform, the cause is scores wider than 1 or of positive mean, or a tau beyond "
            "the relevant distances: lower tau."
        )
        near = (
            "With the transform, the cause is scores narrower than 1 or of negative mean: the heads "
            "have learned to attend to nearby tokens. This is harmless if distant text has nothing to "
            "add; otherwise train at a longer length, or on text with long-range dependencies."
        )
        spreading = "With the transform, the cause is scores narrower than 1."
    else:
        then = "with the transform, far ranges would get"
        drifting = f"To fix this, {transform}."
        near = f"Biases such as ALiBi's do this by design; to read distant text, {transform}."
        spreading = (
            f"To sharpen attention by distance, {transform}; LogN sharpens it by context length."
        )
    assumed = "The transform assumes scores with"
    return {
        NARROW_SCORES: f"{assumed} a spread of 1, and this one is below {NARROW}: {then} too little "
        f"attention. {unit}",
        WIDE_SCORES: f"{assumed} a spread of 1, and this one is above {WIDE}: {then} too much "
        f"attention. {unit}",
        OFF_CENTRE_SCORES: f"{assumed} mean 0, and this one is off by more than {OFF_CENTRE}. Its "
        f"gain multiplies the mean: if it is negative, {then} less attention, if it is positive, "
        f"more. {unit}",
        DRIFTS_FAR: "Each decade of distance gets more attention than the one before (slope above "
        f"{SLOPE}; the same weight at every distance has slope 1): the local context is lost as the "
        f"context grows. {drifting}",
        STAYS_NEAR: "Each decade of distance gets less attention than the one before (slope below "
        f"{-SLOPE}): distant text is hardly read. {near}",
        SPREADS_OUT: f"Inside a range beyond {LOCAL} tokens attention falls on more than "
        f"{SPREAD_OUT:.0%} of the tokens: it averages them rather than selecting a few. {spreading}",
    }


def _sparsity(entropy: float, keys: float) -> tuple[float, float] | tuple[None, None]:
    """Number of tokens that attention falls on, and their fraction; None if no query sees the range."""
    if math.isnan(entropy):
        return None, None
    tokens = math.exp(entropy)
    return tokens, tokens / keys


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
