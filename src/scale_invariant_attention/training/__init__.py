"""Training a GPT: its optimisers and schedules, and runs that can be killed and resumed."""

from .checkpoints import (
    Checkpoint,
    CheckpointNotSavedError,
    DamagedCheckpointError,
    FoundCheckpoint,
    find_checkpoints,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from .optimisers import LearningRates, Optimisers, build_optimisers
from .random_state import RandomState, capture_random_state, restore_random_state
from .runs import DifferentConfigError, Run, open_run, read_config, read_metrics, read_provenance
from .schedules import Cosine, Schedule, Trapezoid, schedule_from_dict, schedule_to_dict

__all__ = [
    "Checkpoint",
    "CheckpointNotSavedError",
    "Cosine",
    "DamagedCheckpointError",
    "DifferentConfigError",
    "FoundCheckpoint",
    "LearningRates",
    "Optimisers",
    "RandomState",
    "Run",
    "Schedule",
    "Trapezoid",
    "build_optimisers",
    "capture_random_state",
    "find_checkpoints",
    "latest_checkpoint",
    "load_checkpoint",
    "open_run",
    "read_config",
    "read_metrics",
    "read_provenance",
    "restore_random_state",
    "save_checkpoint",
    "schedule_from_dict",
    "schedule_to_dict",
]
