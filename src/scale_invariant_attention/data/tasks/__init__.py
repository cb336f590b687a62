"""Tasks: numbered examples of any length, and the tasks that need no text, by name.

>>> from scale_invariant_attention.data.tasks import SEQUENCE_TASKS
>>> inputs, targets = SEQUENCE_TASKS["copy"]().batch(length=64, numbers=range(32))
>>> inputs.shape, len(SEQUENCE_TASKS)
(torch.Size([32, 63]), 11)
"""

from collections.abc import Mapping

from ._process import FractalNoiseTask, MotifTask, ProcessTask
from ._rearrangement import CopyTask, ReverseTask, SortTask
from ._recall import MultiTokenRecallTask, RecallTask, VariableTrackingTask
from ._state import BackTask, FlipFlopTask, LocalCountTask
from ._task import NOT_SCORED, SequenceTask, Task, TaskBatches, TaskExamples

# A task of your own is a subclass of ``SequenceTask`` and a row here.
SEQUENCE_TASKS: Mapping[str, type[SequenceTask]] = {
    "copy": CopyTask,
    "reverse": ReverseTask,
    "sort": SortTask,
    "recall": RecallTask,
    "mqmtar": MultiTokenRecallTask,
    "variable-tracking": VariableTrackingTask,
    "flip-flop": FlipFlopTask,
    "2-back": BackTask,
    "local-count": LocalCountTask,
    "fractal-noise": FractalNoiseTask,
    "motifs": MotifTask,
}

__all__ = [
    "NOT_SCORED",
    "SEQUENCE_TASKS",
    "BackTask",
    "CopyTask",
    "FlipFlopTask",
    "FractalNoiseTask",
    "LocalCountTask",
    "MotifTask",
    "MultiTokenRecallTask",
    "ProcessTask",
    "RecallTask",
    "ReverseTask",
    "SequenceTask",
    "SortTask",
    "Task",
    "TaskBatches",
    "TaskExamples",
    "VariableTrackingTask",
]
