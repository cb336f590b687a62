"""One sequence over many devices: the op when each rank of a process group holds a part of the sequence.

    layout = sia.SequenceLayout.of_group(length)          # zigzag over the ranks of the group
    shard = sia.shard_sequence(tokens, layout, dim=1)     # this rank's part, with its layout
    ... = model(shard.tensor, positions=shard.positions)  # whose attention calls, in every layer:
    out = sia.context_parallel_attention(query, key, value, layout=layout, method="ring")
    whole = sia.unshard_sequence(shard.with_tensor(hidden))  # the whole sequence, on every rank

Tensors of a call are this rank's part, ``[batch, heads, local length, head_dim]``. Results are those of
one process with the whole sequence, up to rounding. Gradients of query, key and value are those of the
sum of all ranks' losses; gradients of tau and tables are summed over the group, whole on every rank.
"""

from ._agreement import RanksDisagreeError
from ._ranks import RankFailedError
from .api import context_parallel_attention
from .layout import SequenceLayout, SequenceShard, shard_sequence, unshard_sequence

__all__ = [
    "RankFailedError",
    "RanksDisagreeError",
    "SequenceLayout",
    "SequenceShard",
    "context_parallel_attention",
    "shard_sequence",
    "unshard_sequence",
]
