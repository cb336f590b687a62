"""A position scheme: a choice for each of the three slots of attention.

rotary        which frequencies rotate queries and keys
query_scale   a factor per query position
distance      a gain and a bias per query-key distance

logit(i, j) = gain(t) * query_scale(i) * rotate(q_i) . rotate(k_j) / sqrt(head_dim) + bias(t)

A scheme with a `memory` attends inside segments, and retrieves from the memory of those before.
"""

from dataclasses import dataclass, field, fields

from .distance import Distance, ScaleInvariant, Unchanged
from .memory import CompressiveMemory
from .query_scale import LogN, QueryScale
from .rotary import Rotary


@dataclass(frozen=True)
class Scheme:
    """The three slots of a scheme, and a memory; all but the distance may be None.

    >>> from scale_invariant_attention.schemes import ALiBi, RoPE
    >>> Scheme(rotary=RoPE(base=500_000.0), distance=ALiBi())
    Scheme(rotary=RoPE(base=500000.0), query_scale=None, distance=ALiBi())
    """

    rotary: Rotary | None = None
    query_scale: QueryScale | None = None
    distance: Distance = field(default_factory=Unchanged)
    memory: CompressiveMemory | None = None

    def __repr__(self) -> str:
        """All slots, and the memory of a scheme that has one."""
        shown = [it.name for it in fields(self) if it.name != "memory" or self.memory is not None]
        return f"Scheme({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __post_init__(self) -> None:
        if self.rotary is not None:
            _check_slot("rotary", self.rotary, ("frequencies", "depends_on_context"), "RoPE()")
        if self.query_scale is not None:
            _check_slot("query_scale", self.query_scale, ("build", "depends_on_context"), "LogN()")
        _check_slot("distance", self.distance, ("build",), "ScaleInvariant()")
        if self.memory is not None:
            needed = ("build", "segment_length")
            _check_slot("memory", self.memory, needed, "CompressiveMemory(segment_length=2048)")
        if isinstance(self.query_scale, LogN) and isinstance(self.distance, ScaleInvariant):
            raise ValueError(
                "query_scale=LogN and distance=ScaleInvariant are two temperatures for one softmax: "
                "the transform's gain already grows with distance; choose one"
            )
        if len(self._train_lengths) > 1:
            lengths = sorted(self._train_lengths)
            raise ValueError(f"all slots must have one train_length, got {lengths}")

    @property
    def train_length(self) -> int | None:
        """The training length of the slots; None if it is not set, or no slot depends on it."""
        return next(iter(self._train_lengths), None)

    @property
    def _train_lengths(self) -> set[int]:
        slots = (self.rotary, self.query_scale, self.memory)
        lengths = (getattr(slot, "train_length", None) for slot in slots)
        return {length for length in lengths if length is not None}

    @property
    def depends_on_context(self) -> bool:
        """Whether the scheme treats a token differently in a longer context.

        >>> from scale_invariant_attention import schemes
        >>> [name for name in schemes.names() if schemes.get(name).depends_on_context]
        ['rope-ntk', 'yarn', 'logn-ntk']
        """
        slots = (self.rotary, self.query_scale)
        return any(slot is not None and slot.depends_on_context for slot in slots)

    @property
    def changes_logits(self) -> bool:
        """Whether logits are more than the scores of rotated queries and keys, YaRN's included.

        >>> from scale_invariant_attention import schemes
        >>> [name for name in schemes.names() if not schemes.get(name).changes_logits]
        ['rope', 'p-rope', 'nope', 'rope-ntk', 'infini-rope', 'infini-p-rope']
        """
        return self.query_scale is not None or not isinstance(self.distance, Unchanged)


def _check_slot(name: str, given: object, attributes: tuple[str, ...], example: str) -> None:
    if isinstance(given, type) or not all(hasattr(given, each) for each in attributes):
        raise TypeError(
            f"{name} must be an object with {' and '.join(attributes)}, such as {example}, "
            f"got {given!r}"
        )
