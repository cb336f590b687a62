"""The paper's GPT with any position scheme: training, cached generation, saving.

>>> from scale_invariant_attention.model import GPT, GPTConfig
>>> model = GPT(GPTConfig.preset("mini", scheme_name="scale-invariant-p-rope"))
>>> model.generate(torch.tensor([[72, 105]]), max_new_tokens=3).shape
torch.Size([1, 5])
"""

import torch  # noqa: F401  the examples use it

from ._cache import KeyValueCache
from ._generation import Sampler, left_padded
from .config import PRESETS, GPTConfig
from .context_parallel import ContextParallel, WholeLosses
from .gpt import GPT
from .loss import projected_cross_entropy
from .parameters import ParameterSplit, parameter_split
from .pretrained import PretrainedModel, find_pretrained, pretrained_models
from .storage import SavedModelError
from .vision import VisionConfig, VisionTransformer

__all__ = [
    "GPT",
    "PRESETS",
    "ContextParallel",
    "GPTConfig",
    "KeyValueCache",
    "ParameterSplit",
    "PretrainedModel",
    "Sampler",
    "SavedModelError",
    "VisionConfig",
    "VisionTransformer",
    "WholeLosses",
    "find_pretrained",
    "left_padded",
    "parameter_split",
    "pretrained_models",
    "projected_cross_entropy",
]
