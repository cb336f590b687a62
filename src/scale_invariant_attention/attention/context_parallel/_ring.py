"""Method "ring": keys and values travel from rank to rank, and every rank adds what its queries see.

A rank's keys travel in several rounds, each time a piece of every chunk, with everything that is known
about them; while a rank computes with what it has received, the next is under way. Partial results
are merged in the compute dtype:

    lse = log(exp(lse_1) + exp(lse_2)),   out = out_1 + exp(lse_2 - lse) (out_2 - out_1)

Backward sends the keys around again. It starts from the merged output and log-sum-exp, so that no
partial results are kept. The gradients of keys and values travel one step behind, until they are home.
Besides inputs, outputs and gradients, a rank holds a few pieces.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .._opaque import Gradients
from ..block_map import BlockMap
from ..contract import AttentionCall
from ..numerics import compute_dtype
from ..visibility import Visibility
from ._messages import Format, Incoming, pack, pass_on
from ._parts import (
    EVERYTHING,
    GradientSums,
    Parts,
    Result,
    Rows,
    cut,
    format_with_length,
    gradients,
    keys_of,
    learned_of,
    with_keys,
)
from ._ranks import Ranks

# Most rounds in backward, where memory is scarce, and in forward, where merging takes time.
BACKWARD_ROUNDS, FORWARD_ROUNDS = 24, 6
# Tokens that keep a device busy: a rank sends no fewer at a time if it has as many.
LEAST = {"cpu": 2048}
LEAST_ELSEWHERE = 8192


def refusal(call: AttentionCall, ranks: Ranks) -> str | None:
    """Why the method cannot run a call: it can run any."""
    return None


def forward(call: AttentionCall, parts: Parts) -> Result:
    """The results of this rank's queries."""
    plan = Plan.of(call, parts, FORWARD_ROUNDS)
    out, lse = call.nothing_seen()
    for index in range(plan.rounds):
        for _, pieces in _travelling(call, plan, index):
            for keys, with_piece in pieces:
                for queries in plan.seeing(keys, with_piece):
                    part = parts.forward(cut(with_piece, queries, EVERYTHING))
                    _merge(out[:, :, queries], lse[:, :, queries], *part)
    return Result(out, lse, call, out, lse)


def backward(call: AttentionCall, parts: Parts, rows: Rows, affine_grads: bool) -> Gradients:
    """The gradients of this rank's inputs, and its part of those of the affine."""
    plan = Plan.of(call, parts, BACKWARD_ROUNDS)
    sums, dtype, device = GradientSums(call), rows.out.dtype, rows.out.device
    home = _Home(call, plan)
    for index in range(plan.rounds):
        travelling = None
        for source, pieces in _travelling(call, plan, index):
            form = plan.gradients_format(call, source, index)
            message = torch.zeros(form.nbytes, dtype=torch.uint8, device=device)
            by_piece = plan.by_piece(form.unpack(message), source, index)
            for (keys, with_piece), totals in zip(pieces, by_piece, strict=True):
                for queries in plan.seeing(keys, with_piece):
                    seeing = cut(with_piece, queries, EVERYTHING)
                    part = parts.backward(seeing, rows.of(queries), affine_grads)
                    sums.add(part, queries)
                    for total, grad in zip(totals, learned_of(part), strict=True):
                        total += grad
            if travelling is None:
                home.receive()
            else:
                message.view(dtype).add_(travelling.wait().view(dtype))
            size = plan.gradients_format(call, plan.previous(source), index).nbytes
            travelling = pass_on(message, plan.ranks, size)
        home.expect(index, travelling)
    home.receive()
    return gradients(sums.query, home.grads, sums.affine)


@dataclass(frozen=True)
class Piece:
    """Some of a rank's tokens, and where they stand in the sequence if that is known from the layout."""

    local: slice
    span: range | None


@dataclass(frozen=True, eq=False)
class Plan:
    """The pieces in which keys travel, and those in which queries are computed."""

    ranks: Ranks
    rounds: int
    queries: list[Piece]  # of this rank
    keys: list[list[list[Piece]]]  # by rank and round, one of each chunk

    @classmethod
    def of(cls, call: AttentionCall, parts: Parts, most_rounds: int) -> "Plan":
        """The plan of a pass; all ranks make as many rounds."""
        least = LEAST.get(call.query.device.type, LEAST_ELSEWHERE)

        def rounds(lengths: tuple[int, ...]) -> int:
            return max(1, min(most_rounds, max(lengths) // least))

        queries = _pieces(parts, parts.ranks.rank, parts.query_lengths, rounds(parts.query_lengths))
        in_rounds = rounds(parts.key_lengths)
        keys = [
            _pieces(parts, rank, parts.key_lengths, in_rounds) for rank in range(parts.ranks.size)
        ]
        return cls(parts.ranks, in_rounds, [piece for it in queries for piece in it], keys)

    def previous(self, rank: int) -> int:
        """The rank whose keys arrive after those of `rank`."""
        return (rank - 1) % self.ranks.size

    def lengths(self, rank: int, index: int) -> list[int]:
        """Number of tokens in the pieces of a rank."""
        return [piece.local.stop - piece.local.start for piece in self.keys[rank][index]]

    def keys_format(self, call: AttentionCall, rank: int, index: int) -> Format:
        """The format of a message with a rank's keys."""
        own = keys_of(call)
        formats = (format_with_length(own, length) for length in self.lengths(rank, index))
        return Format(tuple(part for it in formats for part in it.parts))

    def gradients_format(self, call: AttentionCall, rank: int, index: int) -> Format:
        """The format of a message with the gradients of a rank's keys, values and key bias."""
        dtype = compute_dtype(call.query.dtype)
        shapes = [
            (*tensor.shape[:2], length, *tensor.shape[3:])
            for length in self.lengths(rank, index)
            for tensor in learned_of(call)
        ]
        return Format(tuple((shape, dtype) for shape in shapes))

    def by_piece(self, tensors: Sequence[Tensor], rank: int, index: int) -> list[Sequence[Tensor]]:
        """The tensors of a message by the piece they belong to."""
        each = len(tensors) // len(self.keys[rank][index])
        return [tensors[first : first + each] for first in range(0, len(tensors), each)]

    def seeing(self, keys: Piece, with_piece: AttentionCall) -> Iterator[slice]:
        """The pieces of queries that may see a piece of keys."""
        for queries in self.queries:
            if _may_see(with_piece, queries, keys):
                yield queries.local


def _pieces(parts: Parts, rank: int, lengths: tuple[int, ...], rounds: int) -> list[list[Piece]]:
    """A rank's part of the sequence by round: a piece of each chunk.

    Early and late chunks of a zigzag layout travel together, so that all ranks compute as long.
    """
    pieces: list[list[Piece]] = [[] for _ in range(rounds)]
    chunks = parts.chunks(rank, lengths)
    spans: tuple[range | None, ...] = (None,) * len(chunks)
    if parts.layout is not None and not parts.has_positions:
        spans = parts.layout.of_rank(rank).chunks
    for chunk, span in zip(chunks, spans, strict=True):
        length = chunk.stop - chunk.start
        ends = pairwise(length * index // rounds for index in range(rounds + 1))
        for it, (start, stop) in zip(pieces, ends, strict=True):
            local = slice(chunk.start + start, chunk.start + stop)
            it.append(Piece(local, None if span is None else span[start:stop]))
    return pieces


def _may_see(with_piece: AttentionCall, queries: Piece, keys: Piece) -> bool:
    """Whether some query may see some key: False is certain, True is not."""
    visibility, rows = with_piece.visibility, queries.local
    query_length, key_length = rows.stop - rows.start, with_piece.key.shape[2]
    if query_length == 0 or key_length == 0:
        return False
    if with_piece.query.device.type == "cpu":
        seen = visibility.tile(rows, EVERYTHING)
    elif queries.span is not None and keys.span is not None:
        # Reading the tensors would make a GPU wait. Documents and masks are left to its kernels.
        seen = Visibility(
            query_positions=torch.tensor([[queries.span[0], queries.span[-1]]]),
            key_positions=torch.tensor([[keys.span[0], keys.span[-1]]]),
            is_causal=visibility.is_causal,
            window=visibility.window,
            sinks=visibility.sinks,
        )
        query_length = key_length = 2
    else:
        return True
    some, _ = BlockMap(seen, query_length, key_length).every()
    return bool(some.any())


def _travelling(
    call: AttentionCall, plan: Plan, index: int
) -> Iterator[tuple[int, list[tuple[Piece, AttentionCall]]]]:
    """The keys of all ranks in one round, this rank's first: their rank, and a call with each piece."""
    ranks, source = plan.ranks, plan.ranks.rank
    own = [cut(call, EVERYTHING, piece.local) for piece in plan.keys[source][index]]
    message = pack([tensor for it in own for tensor in keys_of(it)])
    for step in range(ranks.size):
        incoming = None
        if step + 1 < ranks.size:
            size = plan.keys_format(call, plan.previous(source), index).nbytes
            incoming = pass_on(message, ranks, size)
        pieces = plan.keys[source][index]
        tensors = plan.keys_format(call, source, index).unpack(message)
        calls = (with_keys(call, it) for it in plan.by_piece(tensors, source, index))
        yield source, list(zip(pieces, calls, strict=True))
        if incoming is not None:
            message, source = incoming.wait(), plan.previous(source)


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Add the results of more keys to `out` and `lse`, in place."""
    total = torch.logaddexp(lse, part_lse)
    # A row that has seen no key yet: -inf minus -inf would be NaN.
    share = torch.exp(part_lse - total).masked_fill_(total == -torch.inf, 0)
    out.lerp_(part, share.unsqueeze(-1))
    lse.copy_(total)


class _Home:
    """The gradients of this rank's keys, values and key bias, which arrive after each round."""

    def __init__(self, call: AttentionCall, plan: Plan) -> None:
        dtype = compute_dtype(call.query.dtype)
        self._call, self._plan = call, plan
        self.grads = [torch.empty(t.shape, dtype=dtype, device=t.device) for t in learned_of(call)]
        self._under_way: tuple[int, Incoming] | None = None

    def expect(self, index: int, incoming: Incoming | None) -> None:
        """Note that the gradients of a round are under way."""
        assert incoming is not None
        self._under_way = index, incoming

    def receive(self) -> None:
        """Store the gradients that are under way, if any."""
        if self._under_way is None:
            return
        index, incoming = self._under_way
        rank = self._plan.ranks.rank
        tensors = self._plan.gradients_format(self._call, rank, index).unpack(incoming.wait())
        by_piece = self._plan.by_piece(tensors, rank, index)
        for piece, grads in zip(self._plan.keys[rank][index], by_piece, strict=True):
            for whole, grad in zip(self.grads, grads, strict=True):
                whole[:, :, piece.local] = grad
        self._under_way = None
