"""A figure to draw on, if matplotlib is there, and its bytes."""

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float = 7, height: float = 4) -> "Figure":
    """An empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'figures need matplotlib; pip install "scale-invariant-attention[plots]" adds it',
            name=missing.name,
        ) from missing
    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: "Figure") -> bytes:
    """The content of a PNG file, the same for the same figure."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    return picture.getvalue()
