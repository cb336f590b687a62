"""What a model makes of text: its loss by context length and by position."""

from .by_length import LengthLoss, loss_by_length
from .by_position import PositionLoss, loss_by_position, position_bins

__all__ = [
    "LengthLoss",
    "PositionLoss",
    "loss_by_length",
    "loss_by_position",
    "position_bins",
]
