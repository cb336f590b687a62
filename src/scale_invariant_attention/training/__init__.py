"""Training of a GPT: recipes, the loop, its optimisers, and runs that can be killed and resumed."""

from ._muon import Muon
from ._optimisers import LearningRates, Optimisers, build_optimisers
from ._schedules import Cosine, Trapezoid
from .config import TrainingConfig
from .loop import DivergedError, Progress, StoppedError, train
from .recipes import recipe
from .runs import read_config, read_metrics, read_provenance
from .trained import TrainedModel, open_trained

__all__ = [
    "Cosine",
    "DivergedError",
    "LearningRates",
    "Muon",
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
