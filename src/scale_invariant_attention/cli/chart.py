"""Lines drawn in characters, for terminals and pipes."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

Point = tuple[float, float]

WIDTH, HEIGHT = 64, 16


def chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    labels_at: Sequence[float],
    marked: float | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> list[str]:
    """Lines, each drawn with the one character that is its name, over a logarithmic x axis.

    Where lines meet, the last one is seen.

    Args:
        lines: points by character, from left to right.
        labels_at: where the x axis has labels.
        marked: where a vertical line stands.
        width: of the drawing, in characters.
        height: the same.

    >>> print("\\n".join(chart({"a": [(1, 0), (8, 2)]}, labels_at=[1, 8], width=8, height=3)))
      2.00 |      aa
      1.00 |  aaaa
      0.00 |aa
           +--------
            1      8
    """
    points = [point for line in lines.values() for point in line]
    left, right = (math.log(pick(x for x, _ in points)) for pick in (min, max))
    bottom, top = (pick(y for _, y in points) for pick in (min, max))

    def column(x: float) -> int:
        return round((math.log(x) - left) / (right - left) * (width - 1))

    def row(y: float) -> int:
        return round((top - y) / ((top - bottom) or 1.0) * (height - 1))

    canvas = [[" "] * width for _ in range(height)]
    if marked is not None:
        for cells in canvas:
            cells[column(marked)] = ":"
    for character, line in lines.items():
        for place in range(width):
            x = math.exp(left + (right - left) * place / (width - 1))
            y = _between(line, x)
            if y is not None:
                canvas[row(y)][place] = character
    drawn = []
    for number, cells in enumerate(canvas):
        value = top - (top - bottom) * number / (height - 1)
        drawn.append(f"{value:>6.2f} |{''.join(cells)}".rstrip())
    drawn.append(f"{'':>7}+{'-' * width}")
    drawn.append(f"{'':>8}{_labels(labels_at, column, width)}")
    return drawn


def _between(line: Sequence[Point], x: float) -> float | None:
    """The height of a line at x, straight between its points on the logarithmic axis."""
    tolerance = 1 + 1e-9
    for (x0, y0), (x1, y1) in pairwise(line):
        if x0 / tolerance <= x <= x1 * tolerance:
            share = (math.log(x) - math.log(x0)) / (math.log(x1) - math.log(x0))
            return y0 + share * (y1 - y0)
    return None


def _labels(at: Sequence[float], column: Callable[[float], int], width: int) -> str:
    cells = [" "] * (width + 1)
    for x in at:
        text = f"{x:,.0f}"
        start = min(column(x), width - len(text))
        cells[start : start + len(text)] = text
    return "".join(cells).rstrip()
