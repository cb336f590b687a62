"""Images on canvases of any size, for models that are trained on small ones and tested on large ones.

>>> from scale_invariant_attention.data.images import IMAGE_TASKS
>>> batch = IMAGE_TASKS["textures"]().batch(size=4, numbers=range(8))
>>> batch.images.shape, batch.hidden.shape
(torch.Size([8, 32, 32]), torch.Size([8, 16]))
"""

from collections.abc import Mapping

from ._digits import DigitsTask
from ._patches import PatchTask, PhotographTask, TextureTask
from ._task import ImageBatch, ImageTask

IMAGE_TASKS: Mapping[str, type[ImageTask]] = {
    "digits": DigitsTask,
    "textures": TextureTask,
    "photographs": PhotographTask,
}

__all__ = [
    "IMAGE_TASKS",
    "DigitsTask",
    "ImageBatch",
    "ImageTask",
    "PatchTask",
    "PhotographTask",
    "TextureTask",
]
