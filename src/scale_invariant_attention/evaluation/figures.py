"""Pictures of what was evaluated: loss against position."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from .by_position import PositionLoss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOUR = "#0072b2"


def draw_loss_by_position(
    rows: Sequence[PositionLoss], *, title: str, train_length: int | None = None
) -> bytes:
    """A PNG of the loss against position, with its standard errors and the trained length."""
    figure = _figure()
    axes = figure.subplots()
    middles = [((row.start * (row.stop - 1)) ** 0.5) for row in rows]
    axes.errorbar(
        middles,
        [row.loss for row in rows],
        yerr=[row.standard_error or 0.0 for row in rows],
        color=COLOUR,
        marker="o",
        markersize=4,
        capsize=2,
    )
    if train_length is not None:
        axes.axvline(train_length, color="0.5", linestyle="--", linewidth=1)
        axes.annotate(
            " trained length",
            (train_length, 0.98),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=8,
            color="0.35",
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda position, _: f"{position:,.0f}")
    axes.set_xlabel("tokens before the predicted one, in its document")
    axes.set_ylabel("loss in nats")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()


def _figure() -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            'figures need matplotlib; pip install "scale-invariant-attention[plots]" adds it',
            name=missing.name,
        ) from missing
    return Figure(figsize=(7, 4), layout="constrained")
