"""Training of a GPT: recipes, the loop, its optimisers, and runs that can be killed and resumed."""

from .config import TrainingConfig
from .loop import DivergedError, Progress, StoppedError, train
from .optimisers import LearningRates, Optimisers, build_optimisers
from .recipes import recipe
from .runs import read_config, read_metrics, read_provenance
from .schedules import Cosine, Trapezoid
from .trained import TrainedModel, open_trained

__all__ = [
    "Cosine",
    "DivergedError",
    "LearningRates",
    "Optimisers",
    "Progress",
    "StoppedError",
    "TrainedModel",
    "TrainingConfig",
    "Trapezoid",
    "build_optimisers",
    "open_trained",
    "read_config",
    "read_metrics",
    "read_provenance",
    "recipe",
    "train",
]
