"""A figure to draw on, if matplotlib is there, and its bytes as pixels or as lines."""

from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of the small print below a figure.
LETTERS_AN_INCH = 18


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


def as_png(figure: "Figure", dpi: int = 150) -> bytes:
    """The content of a PNG file, the same for the same figure."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
    return picture.getvalue()


def as_svg(figure: "Figure") -> bytes:
    """The content of an SVG file, the same for the same figure, with text as text."""
    from matplotlib import rc_context

    picture = BytesIO()
    # Names of parts are random otherwise.
    with rc_context({"svg.hashsalt": "figure", "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    return picture.getvalue()


def add_source(figure: "Figure", text: str) -> None:
    """What a figure was made from, in small print below it, in as many lines as its width needs."""
    wrapped = fill(text, int(LETTERS_AN_INCH * figure.get_figwidth()), break_on_hyphens=False)
    figure.supxlabel(wrapped, fontsize=6.5, color="0.35", x=0.01, ha="left")
