"""The contracts of the self-check: small calls that reach every kernel once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .visibility import Visibility

BATCH, HEADS, LENGTH = 2, 2, 200
# Long enough for tiles of any size that need no mask.
LONG = 500
# Half precision is bfloat16, or float16 on devices without it.
SINGLE, HALF = "float32", "half"


@dataclass(frozen=True)
class Contract:
    """One kind of call. `learned` is "tau" or "tables" if these get gradients too.

    Kernels differ by precision, and each is compiled at the first check: most contracts run in one, and
    share kernels with others.
    """

    name: str
    heads: int = HEADS
    key_heads: int = HEADS
    queries: int = LENGTH
    keys: int = LENGTH
    head_dim: int = 64
    value_dim: int = 64
    learned: str | None = None
    visibility: Callable[[], Visibility] = Visibility
    precisions: tuple[str, ...] = (HALF,)


def _scattered(length: int = LENGTH, document: int = 90, window: int = 40) -> Visibility:
    """Positions with gaps, documents, padding, sinks and a window; some queries see nothing."""
    positions = torch.arange(length) * 3 // 2
    documents = torch.arange(length) // document
    mask = torch.arange(length).expand(BATCH, -1) >= torch.tensor([[7], [0]])
    return Visibility(
        query_positions=positions,
        key_positions=positions,
        query_documents=documents,
        key_documents=documents,
        key_mask=mask,
        window=window,
        sinks=2,
    )


# No length is a multiple of a tile, and all but the decoding need several.
CONTRACTS = (
    Contract("causal", precisions=(SINGLE, HALF)),
    Contract("causal, head size 128", head_dim=128, value_dim=128),
    Contract("window", visibility=lambda: Visibility(window=70)),
    Contract(
        "grouped heads, fewer queries than keys, not causal",
        heads=4,
        queries=70,
        value_dim=40,
        visibility=lambda: Visibility(is_causal=False),
    ),
    Contract("positions, documents, mask, window and sinks", visibility=_scattered),
    # The same kernels: here some of the listed tiles need no mask.
    Contract(
        "the same, long documents",
        queries=LONG,
        keys=LONG,
        visibility=lambda: _scattered(LONG, document=450, window=600),
    ),
    Contract("decode, one query", heads=4, key_heads=1, queries=1, keys=1500),
    Contract("learned tau", learned="tau"),
    Contract("learned tau, explicit positions", learned="tau", visibility=_scattered),
    Contract("learned tables", learned="tables", precisions=(SINGLE,)),
    Contract(
        "learned tables, explicit positions",
        learned="tables",
        visibility=_scattered,
        precisions=(SINGLE,),
    ),
)
