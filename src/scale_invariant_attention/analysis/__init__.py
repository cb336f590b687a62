"""Analysis of a model's attention: mass and entropy by range of distance, and score statistics.

>>> import torch
>>> from scale_invariant_attention.analysis import LayerScores, last_rows, range_profile
>>> query, key = torch.randn(2, 1, 4, 1000, 32).unbind()
>>> profile = range_profile(LayerScores(0, query, key), (0, 10, 100, 1000), last_rows(1000, 8))
>>> profile.share.shape, profile.global_entropy.shape
(torch.Size([1, 4, 8, 3]), torch.Size([1, 4, 8]))
"""

from ._scores import LayerScores, ScoreSource, gpt_scores, last_rows, spread_rows
from .by_length import LayerAttention, LengthAttention, attention_by_length
from .diagnosis import Diagnosis, LayerDiagnosis, diagnose
from .ranges import RangeProfile, mass_slope, range_edges, range_log_mass, range_profile
from .score_statistics import ScoreStatistics, score_statistics
from .synthetic import GaussianAttention, gaussian_attention

__all__ = [
    "Diagnosis",
    "GaussianAttention",
    "LayerAttention",
    "LayerDiagnosis",
    "LayerScores",
    "LengthAttention",
    "RangeProfile",
    "ScoreSource",
    "ScoreStatistics",
    "attention_by_length",
    "diagnose",
    "gaussian_attention",
    "gpt_scores",
    "last_rows",
    "mass_slope",
    "range_edges",
    "range_log_mass",
    "range_profile",
    "score_statistics",
    "spread_rows",
]
