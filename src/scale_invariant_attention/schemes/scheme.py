"""A position scheme: a choice for each of the three slots of attention.

rotary        which frequencies rotate queries and keys
query_scale   a factor per query position
distance      a gain and a bias per query-key distance

logit(i, j) = gain(t) * query_scale(i) * rotate(q_i) . rotate(k_j) / sqrt(head_dim) + bias(t)
"""

from dataclasses import dataclass, field

from .distance import Distance, ScaleInvariant, Unchanged
from .query_scale import LogN, QueryScale
from .rotary import Rotary


@dataclass(frozen=True)
class Scheme:
    """The three slots, filled; an empty rotary or query scale is None.

    >>> from scale_invariant_attention.schemes import ALiBi, RoPE
    >>> Scheme(rotary=RoPE(base=500_000.0), distance=ALiBi())
    Scheme(rotary=RoPE(base=500000.0), query_scale=None, distance=ALiBi())
    """

    rotary: Rotary | None = None
    query_scale: QueryScale | None = None
    distance: Distance = field(default_factory=Unchanged)

    def __post_init__(self) -> None:
        if isinstance(self.query_scale, LogN) and isinstance(self.distance, ScaleInvariant):
            raise ValueError(
                "query_scale=LogN and distance=ScaleInvariant are two temperatures for one softmax: "
                "the transform's gain already grows with distance; choose one of them"
            )

    @property
    def depends_on_context(self) -> bool:
        """Whether the scheme changes what it does to a token when the context gets longer.

        >>> from scale_invariant_attention import schemes
        >>> [name for name in schemes.names() if schemes.get(name).depends_on_context]
        ['rope-ntk', 'yarn', 'logn-ntk']
        """
        slots = (self.rotary, self.query_scale)
        return any(slot is not None and slot.depends_on_context for slot in slots)
