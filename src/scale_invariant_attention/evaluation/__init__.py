"""Evaluation of models: loss by context length and by position, and retrieval."""

from .losses import LengthLoss, PositionLoss, loss_by_length, loss_by_position, position_bins

__all__ = [
    "LengthLoss",
    "PositionLoss",
    "loss_by_length",
    "loss_by_position",
    "position_bins",
]
