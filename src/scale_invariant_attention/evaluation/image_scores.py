"""Scores of a vision transformer on canvases of any size."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.images import ImageBatch, ImageTask
from ..model.vision import VisionTransformer
from ..theory import Estimate

# Patches of all examples of a call.
PATCHES_AT_ONCE = 16_384


@dataclass(frozen=True)
class ImageScore:
    """`share` is that of images classified right, or of the variance of hidden pixels explained.

    `loss` is that of each example, in nats or as the mean square of the error.
    """

    share: float
    loss: Estimate


def answers(model: VisionTransformer, batch: ImageBatch, device: torch.device) -> Tensor:
    """The output of a model for a batch: logits ``[B, classes]`` or pixels ``[B, N, P]``."""
    hidden = None if batch.hidden is None else batch.hidden.to(device)
    said: Tensor = model(batch.images.to(device), hidden)
    return said


def example_losses(said: Tensor, batch: ImageBatch, device: torch.device) -> Tensor:
    """Losses ``[B]``: cross-entropy in nats, or the mean square of the error in hidden pixels."""
    targets = batch.targets.to(device)
    if batch.hidden is None:
        return F.cross_entropy(said, targets, reduction="none")
    hidden = batch.hidden.to(device)
    return ((said - targets).square().mean(-1) * hidden).sum(1) / hidden.sum(1)


@torch.no_grad()
def image_scores(
    model: VisionTransformer, task: ImageTask, size: int, examples: int, device: torch.device
) -> ImageScore:
    """Score the examples 0 to `examples - 1` on canvases of a size.

    >>> from scale_invariant_attention.data.images import TextureTask
    >>> from scale_invariant_attention.model.vision import VisionConfig
    >>> model = VisionTransformer(VisionConfig(patch=8))       # which predicts 0 before it is trained
    >>> image_scores(model, TextureTask(), 6, 4, torch.device("cpu")).share
    0.0
    """
    losses, right, variances = [], 0, []
    at_once = max(1, PATCHES_AT_ONCE // size**2)
    for first in range(0, examples, at_once):
        batch = task.batch(size, range(first, min(first + at_once, examples)))
        said = answers(model, batch, device)
        losses.append(example_losses(said, batch, device).double().cpu())
        if batch.hidden is None:
            right += int((said.argmax(-1).cpu() == batch.targets).sum())
        else:
            # Against the best guess of one who sees no patch of any canvas: 0, the mean of all pixels.
            nothing = torch.zeros_like(batch.targets)
            variances.append(example_losses(nothing, batch, torch.device("cpu")).double())
    loss = Estimate(torch.cat(losses))
    share = right / examples
    if variances:
        share = 1 - loss.mean / float(torch.cat(variances).mean())
    return ImageScore(share, loss)
