"""The memory of a scheme: what attention inside a segment retrieves from the segments before it.

Infini-attention cuts each document into segments, and attention stays inside them; a matrix M and a
normaliser z per head carry over. Queries and keys are those before rotary, s is ELU + 1, g learned:

    retrieved(q) = s(q) M / (s(q) . z)       M and z of all segments before; 0 while they are empty
    M += s(K)^T V,   or with the delta rule   M += s(K)^T (V - retrieved(K));   z += sum of s(k)
    output = sigmoid(g) retrieved + (1 - sigmoid(g)) attended

Shapes: B batch, H heads, L tokens, D head_dim, S segments, T tokens per segment.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import integer
from ..attention.numerics import compute_dtype, without_autocast
from ._positions import check_train_length, known_train_length

RULES = ("linear", "delta")
# Below that of any stored token. An empty memory gives 0, and gradients stay finite in float32.
SMALLEST_NORM = 1e-20


@dataclass(frozen=True)
class CompressiveMemory:
    """Segments of `segment_length` tokens, and how a segment is added to the memory.

    By default a segment is half the training length. With ``rule="delta"`` the memory adds only what it
    does not retrieve already.

    >>> CompressiveMemory(train_length=4096).tokens_per_segment
    2048
    """

    segment_length: int | None = None
    rule: str = "linear"
    train_length: int | None = None

    def __post_init__(self) -> None:
        if self.segment_length is not None:
            integer("segment_length", self.segment_length, at_least=1)
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}; got {self.rule!r}")
        check_train_length(self.train_length)

    @property
    def tokens_per_segment(self) -> int:
        """The length of a segment, which must be given or follow from the training length."""
        if self.segment_length is not None:
            return self.segment_length
        return max(1, known_train_length(self.train_length) // 2)

    def build(self, heads: int) -> "MemoryLayer":
        """The memory of one layer, with parameters `gate`, ``[heads]``."""
        return MemoryLayer(heads, self.tokens_per_segment, self.rule)


@dataclass(frozen=True, eq=False)
class MemoryState:
    """The memory of a text that continues, ``[B, H, D, D + 1]``: M, and z as its last column."""

    read: Tensor
    """What the current segment retrieves from."""
    written: Tensor
    """The same with the tokens of the current segment so far."""


@dataclass(frozen=True, eq=False)
class Segments:
    """The tokens of a call by segment, ``count`` segments of ``length`` slots.

    `offset` is the slot of the first token, if all rows are alike and complete. Otherwise `slots` has
    that of every token, ``[B, L]``, or ``count * length`` for one that neither reads nor writes.
    """

    count: int
    length: int
    offset: int = 0
    slots: Tensor | None = None
    begins: Tensor | None = None
    """Which segments start a document, bool ``[B, count]``; None if only the first does."""
    end: int | Tensor | None = None
    """Tokens since the first segment began, or integers ``[B]``, for a call that continues a text."""

    def split(self, x: Tensor) -> Tensor:
        """``[B, H, L, D]`` to ``[B, H, S, T, D]``, zero in slots without a token."""
        size = self.count * self.length
        if self.slots is None:
            x = F.pad(x, (0, 0, self.offset, size - self.offset - x.shape[2]))
        else:
            empty = x.new_zeros(*x.shape[:2], size + 1, x.shape[3])
            x = empty.scatter(2, self._index(x), x)[:, :, :-1]
        return x.reshape(*x.shape[:2], self.count, self.length, x.shape[3])

    def join(self, x: Tensor, tokens: int) -> Tensor:
        """``[B, H, S, T, D]`` to ``[B, H, L, D]``, zero for tokens without a slot."""
        x = x.flatten(2, 3)
        if self.slots is None:
            return x.narrow(2, self.offset, tokens)
        return F.pad(x, (0, 0, 0, 1)).gather(2, self._index(x))

    def _index(self, x: Tensor) -> Tensor:
        assert self.slots is not None
        return self.slots[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])


class MemoryLayer(nn.Module):
    """The memory of one layer, and the gates that mix what it retrieves with attention."""

    def __init__(self, heads: int, segment_length: int, rule: str) -> None:
        super().__init__()
        self.segment_length = segment_length
        self.rule = rule
        self.gate = nn.Parameter(torch.zeros(heads))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: Segments,
        state: MemoryState | None = None,
    ) -> tuple[Tensor, MemoryState | None]:
        """What queries ``[B, H, L, D]`` retrieve, float32 or wider, and the state after the call.

        There is a state only for a call that continues a text; before its first token it is None.
        """
        dtype, tokens = compute_dtype(query.dtype), query.shape[2]
        with without_autocast(query.device):
            query, key = (segments.split(positive(it.to(dtype))) for it in (query, key))
            # Its sums of ones are the normaliser.
            value = segments.split(F.pad(value.to(dtype), (0, 1), value=1.0))
            memories, last = self._memories(key, value, segments, state)
            out = segments.join(retrieve(query, memories), tokens)
        if segments.end is None:
            return out, None
        every = torch.cat([memories, last.unsqueeze(2)], 2)
        complete, rest = segments.end // self.segment_length, segments.end % self.segment_length
        begun = complete + (rest > 0)
        return out, MemoryState(_chosen(every, complete), _chosen(every, begun))

    def mix(self, retrieved: Tensor, attended: Tensor) -> Tensor:
        """The output ``[B, H, L, D]``, in the dtype of `attended`."""
        share = self.gate.to(retrieved.dtype).sigmoid()[:, None, None]
        return attended.to(retrieved.dtype).lerp(retrieved, share).to(attended.dtype)

    def _memories(
        self, key: Tensor, value: Tensor, segments: Segments, state: MemoryState | None
    ) -> tuple[Tensor, Tensor]:
        """What each segment retrieves from, ``[B, H, S, D, D + 1]``, and the memory after the last."""
        if state is None:
            empty = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
            state = MemoryState(empty, empty)
        if self.rule == "linear" and segments.begins is None:
            written = state.written.unsqueeze(2) + (key.mT @ value).cumsum(2)
            return torch.cat([state.read.unsqueeze(2), written[:, :, :-1]], 2), written[:, :, -1]
        memories, memory, written = [], state.read, state.written
        for index, (keys, values) in enumerate(zip(key.unbind(2), value.unbind(2), strict=True)):
            if segments.begins is not None:
                forgets = segments.begins[:, index, None, None, None]
                memory, written = (it.masked_fill(forgets, 0.0) for it in (memory, written))
            memories.append(memory)
            memory = written = written + keys.mT @ self._news(keys, values, memory)
        return torch.stack(memories, 2), memory

    def _news(self, keys: Tensor, values: Tensor, memory: Tensor) -> Tensor:
        """What the rule adds of values ``[B, H, T, D + 1]``."""
        if self.rule == "linear":
            return values
        return values - F.pad(retrieve(keys, memory), (0, 1))


def positive(x: Tensor) -> Tensor:
    """ELU + 1: ``x + 1`` above 0, and ``exp(x)`` below it, where ELU + 1 would round to 0.

    >>> positive(torch.tensor([2.0, 0.0, -30.0]))
    tensor([3.0000e+00, 1.0000e+00, 9.3576e-14])
    """
    return F.relu(x) + x.clamp(max=0).exp()


def retrieve(features: Tensor, memory: Tensor) -> Tensor:
    """Values ``[..., T, D]`` for positive features ``[..., T, D]``; 0 from an empty memory."""
    total = features @ memory
    return total[..., :-1] / total[..., -1:].clamp(min=SMALLEST_NORM)


def _chosen(memories: Tensor, index: int | Tensor) -> Tensor:
    """One memory per row of ``[B, H, S, D, D + 1]``."""
    if isinstance(index, Tensor):
        return memories[torch.arange(len(memories), device=memories.device), :, index]
    # Not a view, which would keep all of them.
    return memories[:, :, index].clone()
