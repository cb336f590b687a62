"""A position scheme: a choice for each of the four slots of attention, and a window.

rotary        which frequencies rotate queries and keys
query_scale   a factor per query position
distance      a gain and a bias per query-key distance
key_bias      a bias per key, from the input of the layer
window        the number of nearest tokens that a query sees

logit(i, j) = gain(t) * query_scale(i) * rotate(q_i) . rotate(k_j) / sqrt(head_dim)
              + bias(t) + key_bias(j)

A scheme with a `memory` attends inside segments, and retrieves from the memory of those before. The
layers of a model have one scheme, or a pattern of schemes that repeats.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from ..arguments import integer
from .distance import Distance, ScaleInvariant, Unchanged
from .key_bias import KeyBias
from .memory import CompressiveMemory
from .query_scale import LogN, QueryScale, SqrtLogN
from .rotary import Rotary

USUAL = ("rotary", "query_scale", "distance")


@dataclass(frozen=True, repr=False)
class Scheme:
    """The slots of a scheme: all but the distance may be None.

    `window` hides keys at this distance and beyond, so a query sees the nearest `window` tokens, itself
    included; None hides none.

    >>> from scale_invariant_attention.schemes import ALiBi, RoPE
    >>> Scheme(rotary=RoPE(base=500_000.0), distance=ALiBi())
    Scheme(rotary=RoPE(base=500000.0), query_scale=None, distance=ALiBi())
    """

    rotary: Rotary | None = None
    query_scale: QueryScale | None = None
    distance: Distance = field(default_factory=Unchanged)
    window: int | None = None
    key_bias: KeyBias | None = None
    memory: CompressiveMemory | None = None

    def __repr__(self) -> str:
        """The three slots that every scheme has, and those of the others that are filled."""
        values = {it.name: getattr(self, it.name) for it in fields(self)}
        shown = [name for name, value in values.items() if name in USUAL or value is not None]
        return f"Scheme({', '.join(f'{name}={values[name]!r}' for name in shown)})"

    def __post_init__(self) -> None:
        if self.rotary is not None:
            _check_slot("rotary", self.rotary, ("frequencies", "depends_on_context"), "RoPE()")
        if self.query_scale is not None:
            _check_slot("query_scale", self.query_scale, ("build", "depends_on_context"), "LogN()")
        _check_slot("distance", self.distance, ("build",), "ScaleInvariant()")
        if self.key_bias is not None:
            _check_slot("key_bias", self.key_bias, ("build",), "ForgetGate()")
        if self.memory is not None:
            needed = ("build", "segment_length")
            _check_slot("memory", self.memory, needed, "CompressiveMemory(segment_length=2048)")
            for name in ("window", "key_bias"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} must be None with a memory, whose attention stays inside segments, "
                        f"got {getattr(self, name)}"
                    )
        by_length = isinstance(self.query_scale, LogN | SqrtLogN)
        if by_length and isinstance(self.distance, ScaleInvariant):
            raise ValueError(
                f"query_scale={type(self.query_scale).__name__} and distance=ScaleInvariant are two "
                "temperatures for one softmax: the transform's gain already grows with distance; choose "
                "one"
            )
        if self.window is not None:
            object.__setattr__(self, "window", integer("window", self.window, at_least=1))
        _common_train_length("all slots", self._slots)

    @property
    def pattern(self) -> tuple["Scheme", ...]:
        """The schemes that repeat over the layers of a model: this one."""
        return (self,)

    def of_layer(self, layer: int) -> "Scheme":
        """The scheme of one layer of a model, which is the same in all."""
        return self

    @property
    def train_length(self) -> int | None:
        """The training length of the slots; None if it is not set, or no slot depends on it."""
        return _common_train_length("all slots", self._slots)

    @property
    def _slots(self) -> tuple[object, ...]:
        return (self.rotary, self.query_scale, self.memory)

    @property
    def has_memory(self) -> bool:
        """Whether attention stays inside segments, with a memory of those before."""
        return self.memory is not None

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

        A window counts: it hides keys.

        >>> from scale_invariant_attention import schemes
        >>> [name for name in schemes.names() if not schemes.get(name).changes_logits]
        ['rope', 'p-rope', 'nope', 'rope-ntk', 'infini-rope', 'infini-p-rope']
        """
        additions = (self.query_scale, self.window, self.key_bias)
        return any(it is not None for it in additions) or not isinstance(self.distance, Unchanged)


@dataclass(frozen=True)
class LayeredScheme:
    """A scheme per layer: layer `i` has ``pattern[i % len(pattern)]``.

    >>> from scale_invariant_attention.schemes import RoPE, ScaleInvariant
    >>> local = Scheme(RoPE(), window=1024)
    >>> layered = LayeredScheme((local, local, local, Scheme(distance=ScaleInvariant())))
    >>> [layered.of_layer(layer).window for layer in range(8)]
    [1024, 1024, 1024, None, 1024, 1024, 1024, None]
    """

    pattern: Sequence[Scheme]

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, list | tuple) or not self.pattern:
            raise TypeError(f"pattern must be a list of one or more schemes, got {self.pattern!r}")
        for scheme in self.pattern:
            if not isinstance(scheme, Scheme):
                raise TypeError(f"pattern must hold objects of class Scheme, got {scheme!r}")
        object.__setattr__(self, "pattern", tuple(self.pattern))
        _common_train_length("the schemes of pattern", self.pattern)

    def of_layer(self, layer: int) -> Scheme:
        """The scheme of one layer of a model, counted from 0."""
        return self.pattern[layer % len(self.pattern)]

    @property
    def train_length(self) -> int | None:
        """The training length of the schemes; None if it is not set, or none depends on it."""
        return _common_train_length("the schemes of pattern", self.pattern)

    @property
    def has_memory(self) -> bool:
        """Whether any of the schemes has a memory."""
        return any(scheme.has_memory for scheme in self.pattern)

    @property
    def depends_on_context(self) -> bool:
        """Whether any of the schemes treats a token differently in a longer context."""
        return any(scheme.depends_on_context for scheme in self.pattern)

    @property
    def changes_logits(self) -> bool:
        """Whether logits of any layer are more than the scores of rotated queries and keys."""
        return any(scheme.changes_logits for scheme in self.pattern)


# The scheme of a model: one for all layers, or a pattern. Both have `pattern` and `of_layer`.
ModelScheme = Scheme | LayeredScheme


def _common_train_length(holders: str, parts: Iterable[object]) -> int | None:
    """The training length of all parts that have one; None if none has."""
    lengths = (getattr(part, "train_length", None) for part in parts)
    found = {length for length in lengths if length is not None}
    if len(found) > 1:
        raise ValueError(f"{holders} must have one train_length, got {sorted(found)}")
    return next(iter(found), None)


def _check_slot(name: str, given: object, attributes: tuple[str, ...], example: str) -> None:
    if isinstance(given, type) or not all(hasattr(given, each) for each in attributes):
        raise TypeError(
            f"{name} must be an object with {' and '.join(attributes)}, such as {example}, "
            f"got {given!r}"
        )
