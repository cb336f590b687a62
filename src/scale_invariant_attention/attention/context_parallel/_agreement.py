"""Agreement of ranks before they communicate: all of them call the same function in the same way.

Each rank sends 32 bytes: a digest of its arguments, and the local lengths. Only if digests differ do
ranks exchange the arguments, and every rank raises an error that names the ranks and the field. A rank
whose arguments are wrong takes part with its error: the others stop at once instead of waiting for it.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ._messages import gather
from ._ranks import RankFailedError, Ranks


class RanksDisagreeError(ValueError):
    """Ranks called a function in different ways; the error names the ranks and the field."""


@dataclass
class Agreement:
    """The fields on which ranks must agree, and the lengths on which they need not."""

    fields: dict[str, object] = field(default_factory=dict)
    lengths: tuple[int, int] = (0, 0)
    lengths_by_rank: list[tuple[int, int]] = field(default_factory=list)


@contextmanager
def agree(ranks: Ranks, function: str) -> Iterator[Agreement]:
    """Check the arguments of a call inside; afterwards all ranks agree, or all of them raise."""
    agreement = Agreement()
    try:
        yield agreement
    except Exception as error:
        failure = {"function": function, "arguments": f"{type(error).__name__}: {error}"}
        try:
            _compare(ranks, failure, agreement)
        except (RanksDisagreeError, RankFailedError):
            raise error from None
        raise
    fields = {"function": function, **agreement.fields}
    _compare(ranks, {name: str(value) for name, value in fields.items()}, agreement)


def _compare(ranks: Ranks, fields: dict[str, str], agreement: Agreement) -> None:
    text = json.dumps(fields).encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
    own = torch.tensor([digest, len(text), *agreement.lengths], device=ranks.control_device)
    rows = [row.view(torch.int64).tolist() for row in _gathered(own, ranks, [own.nbytes])]
    agreement.lengths_by_rank = [(row[2], row[3]) for row in rows]
    if all(row[0] == digest for row in rows):
        return
    message = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(own.device)
    texts = _gathered(message, ranks, [row[1] for row in rows])
    raise RanksDisagreeError(_difference(ranks, [json.loads(bytes(it.tolist())) for it in texts]))


def _gathered(tensor: Tensor, ranks: Ranks, sizes: list[int]) -> list[Tensor]:
    return gather(tensor.view(torch.uint8), ranks, sizes * (ranks.size // len(sizes)))


def _difference(ranks: Ranks, by_rank: list[dict[str, str]]) -> str:
    """The first field on which ranks differ, and who has which value."""
    names = dict.fromkeys(name for fields in by_rank for name in fields)
    function = by_rank[ranks.rank]["function"]
    failed = {r: fields["arguments"] for r, fields in enumerate(by_rank) if "arguments" in fields}
    if failed:
        rank, error = next(iter(failed.items()))
        return f"{ranks.named(rank)} failed in {function}: {error}"
    for name in names:
        holders: dict[str | None, list[int]] = {}
        for rank, fields in enumerate(by_rank):
            holders.setdefault(fields.get(name), []).append(rank)
        if len(holders) > 1:
            found = "; ".join(
                f"{', '.join(map(ranks.named, who))}: {value}" for value, who in holders.items()
            )
            return f"{function}: ranks disagree on {name}: {found}"
    raise AssertionError("digests differ, but no field does")
