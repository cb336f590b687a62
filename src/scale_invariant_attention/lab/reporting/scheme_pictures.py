"""What a scheme does to logits, as a picture by distance.

With scores from N(0, 1), the logits of keys at distance `t` have the mean ``bias(t)`` and the standard
deviation ``gain(t) * query_scale``: a line with a band for each head, up to the window or the segment.
Gates are those of inputs of zero. Marks above them are the wavelengths of the pairs of dimensions that
rotate. Layers that differ are drawn together.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

import torch
from torch import Tensor

from ...schemes import ModelScheme, NamedScheme, Scheme, SchemeLayer, TokenPositions

# A model trained at the paper's length, in a context four times as long, seen by its last query.
TRAIN_LENGTH, CONTEXT = 4096, 16_384
HEADS, HEAD_DIM = 4, 64
POINTS = 48

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 34, 10, 26, 30
LOWEST, HIGHEST = -20.0, 10.0
DISTANCES = ((1, "1"), (10, "10"), (100, "100"), (1000, "1k"), (10_000, "10k"))
LOGITS = (-20, -10, 0, 10)


@dataclass(frozen=True)
class HeadLogits:
    """Mean and standard deviation of one head's logits, at each of the distances."""

    distances: Sequence[float]
    means: Sequence[float]
    deviations: Sequence[float]


def built_for_picture(entry: NamedScheme) -> ModelScheme:
    """The scheme with its default options, and the training length of the pictures if it takes one."""
    takes_length = "train_length" in entry.options
    return entry.build(**({"train_length": TRAIN_LENGTH} if takes_length else {}))


def head_logits(scheme: Scheme) -> list[HeadLogits]:
    """The logits of every head by distance, one for heads that are the same.

    >>> from scale_invariant_attention import schemes
    >>> [head] = head_logits(schemes.get("scale-invariant-nope"))
    >>> [round(it[0], 3) for it in (head.distances, head.means, head.deviations)]
    [1, -0.191, 1.091]
    """
    reach = scheme.window or CONTEXT
    if scheme.memory is not None:
        reach = scheme.memory.tokens_per_segment
    # Whole distances, because some schemes have buckets of them.
    powers = (CONTEXT ** (point / POINTS) for point in range(POINTS + 1))
    distances = [it for it in sorted(set(map(round, powers))) if it < reach]
    # Some schemes start at random.
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(0)
        layer = SchemeLayer(scheme, HEADS, HEADS * HEAD_DIM)
        gain, bias = layer.distance(torch.tensor(distances, dtype=torch.float64))
        deviation = gain * _query_scale(layer)
        if layer.key_bias is not None:
            [steps] = layer.key_bias(torch.zeros(1, 1, HEADS * HEAD_DIM))
            bias = bias - steps * torch.tensor(distances)
    every = torch.zeros(HEADS, len(distances), dtype=torch.float64)
    heads = zip((bias + every).tolist(), (deviation + every).tolist(), strict=True)
    return [HeadLogits(distances, *head) for head, _ in groupby(heads)]


def wavelengths(scheme: Scheme) -> list[float]:
    """Tokens per turn of every pair of dimensions that rotates.

    >>> from scale_invariant_attention import schemes
    >>> len(wavelengths(schemes.get("rope"))), len(wavelengths(schemes.get("p-rope")))
    (32, 16)
    """
    if scheme.rotary is None:
        return []
    frequencies: list[float] = scheme.rotary.frequencies(HEAD_DIM, CONTEXT).tolist()
    return [2 * math.pi / frequency for frequency in frequencies if frequency]


def scheme_picture(entry: NamedScheme) -> str:
    """The picture of a scheme as SVG."""
    schemes = list(dict.fromkeys(built_for_picture(entry).pattern))
    parts = [*_frame(), *_rotation([wavelengths(scheme) for scheme in schemes])]
    for scheme in schemes:
        for head in head_logits(scheme):
            parts += _head(head, entry.line.colour)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="10" role="img">',
            f"<title>Logits of {escape(entry.title)} by distance</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        )
    )


def _query_scale(layer: SchemeLayer) -> Tensor:
    last = TokenPositions(torch.tensor([CONTEXT - 1]), CONTEXT)
    factors = layer.query_factors(last, torch.float64)
    return torch.ones(1, 1, dtype=torch.float64) if factors is None else factors.reshape(-1, 1)


def _x(distance: float) -> float:
    share = math.log(max(distance, 1)) / math.log(CONTEXT)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _y(logit: float) -> float:
    share = (HIGHEST - min(max(logit, LOWEST), HIGHEST)) / (HIGHEST - LOWEST)
    return round(TOP + share * (HEIGHT - TOP - BOTTOM), 1)


def _frame() -> Iterator[str]:
    for logit in LOGITS:
        y = _y(logit)
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 3}" text-anchor="end">{logit}</text>'
    for distance, name in DISTANCES:
        x = _x(distance)
        yield f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#dddddd"/>'
        yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 12}" text-anchor="middle">{name}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">distance in tokens</text>'


def _rotation(turns: Sequence[Sequence[float]]) -> Iterator[str]:
    """The wavelengths of each scheme of a pattern."""
    shown = sorted({_x(turn) for each in turns for turn in each if turn <= CONTEXT})
    if shown:
        marks = "".join(f"M{x} {TOP - 9}v7" for x in shown)
        yield f'<path d="{marks}" stroke="#555555"/>'
    counts = [f"{len(each)} of {HEAD_DIM // 2}" if each else "none" for each in turns]
    rotating = " or ".join(dict.fromkeys(counts))
    yield f'<text x="{LEFT}" y="{TOP - 13}" fill="#555555">rotating pairs: {rotating}</text>'


def _head(head: HeadLogits, colour: str) -> Iterator[str]:
    xs = [_x(distance) for distance in head.distances]
    upper, lower = (
        [
            _y(mean + sign * deviation)
            for mean, deviation in zip(head.means, head.deviations, strict=True)
        ]
        for sign in (1, -1)
    )
    around = [*zip(xs, upper, strict=True), *zip(xs[::-1], lower[::-1], strict=True)]
    yield f'<polygon points="{_points(around)}" fill="{colour}" fill-opacity="0.14"/>'
    line = [
        (x, _y(mean)) for x, mean in zip(xs, head.means, strict=True) if LOWEST <= mean <= HIGHEST
    ]
    yield f'<polyline points="{_points(line)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.0f},{y:.1f}" for x, y in pairs)
