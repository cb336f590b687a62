"""The contracts of the self-check: every path of the kernels that users take, with few kernels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .visibility import Visibility

BATCH, HEADS, LENGTH = 2, 2, 200
# Long enough for tiles of any size that need no mask.
LONG = 500
# Half precision is bfloat16, or float16 on devices without it.
SINGLE, HALF, FLOAT16 = "float32", "half", "float16"


@dataclass(frozen=True)
class Contract:
    """One kind of call. `learned` is "tau" or "tables" if these get gradients too.

    With `key_bias` there is a bias per key and query head; for the first sequence, it hides some keys.
    `sequence_first` gives tensors the memory layout ``[B, L, H, D]``. With `hidden_nan`, keys and values
    that the key mask hides are NaN, which must change nothing. `gradients` is false for contracts of
    decoding alone. Kernels differ by precision, and each is compiled at the first check: most contracts
    run in one, and share kernels with others.
    """

    name: str
    heads: int = HEADS
    key_heads: int = HEADS
    queries: int = LENGTH
    keys: int = LENGTH
    head_dim: int = 64
    value_dim: int = 64
    learned: str | None = None
    key_bias: bool = False
    visibility: Callable[[], Visibility] = Visibility
    precisions: tuple[str, ...] = (HALF,)
    sequence_first: bool = False
    hidden_nan: bool = False
    gradients: bool = True


def _packed(length: int = LONG, document: int = 450, window: int = 600) -> Visibility:
    """Documents, padding, sinks and a window, with default positions."""
    documents = torch.arange(length) // document
    return Visibility(
        query_documents=documents,
        key_documents=documents,
        key_mask=_padding(length),
        window=window,
        sinks=2,
    )


def _padding(length: int) -> Tensor:
    """Key mask that hides the first seven keys of the first sequence."""
    return torch.arange(length).expand(BATCH, -1) >= torch.tensor([[7], [0]])


def _padded_cache(queries: int, keys: int) -> Visibility:
    """The last queries of a cache whose positions begin after its padding."""
    positions = torch.arange(keys).expand(BATCH, -1) - torch.tensor([[7], [0]])
    return Visibility(
        query_positions=positions[:, -queries:], key_positions=positions, key_mask=_padding(keys)
    )


def _scattered(length: int = LENGTH, document: int = 90, window: int = 40) -> Visibility:
    """Positions with gaps, documents, padding, sinks and a window; some queries see nothing."""
    positions = torch.arange(length) * 3 // 2
    documents = torch.arange(length) // document
    return Visibility(
        query_positions=positions,
        key_positions=positions,
        query_documents=documents,
        key_documents=documents,
        key_mask=_padding(length),
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
        # Rows that are not aligned.
        value_dim=36,
        visibility=lambda: Visibility(is_causal=False),
    ),
    Contract(
        "documents, mask, window and sinks",
        queries=LONG,
        keys=LONG,
        head_dim=128,
        value_dim=128,
        visibility=_packed,
        sequence_first=True,
        hidden_nan=True,
    ),
    Contract("positions, documents, mask, window and sinks", visibility=_scattered),
    # The same kernels: here some of the listed tiles need no mask.
    Contract(
        "the same, long documents",
        queries=LONG,
        keys=LONG,
        visibility=lambda: _scattered(LONG, document=450, window=600),
    ),
    Contract("heads of 256", head_dim=256, value_dim=256, precisions=(FLOAT16,)),
    Contract("decode, one query", heads=4, key_heads=1, queries=1, keys=1500),
    Contract(
        "decode, 20 rows, padded cache",
        heads=4,
        key_heads=1,
        queries=5,
        keys=700,
        head_dim=60,
        visibility=lambda: _padded_cache(5, 700),
        precisions=(SINGLE,),
        hidden_nan=True,
        gradients=False,
    ),
    Contract(
        "decode, 60 rows, window",
        heads=4,
        key_heads=1,
        queries=15,
        keys=700,
        head_dim=128,
        value_dim=128,
        visibility=lambda: Visibility(window=300),
        gradients=False,
    ),
    Contract("decode, 100 rows", heads=4, key_heads=1, queries=25, keys=700, gradients=False),
    Contract("key bias", heads=4, queries=LONG, keys=LONG, key_bias=True),
    Contract("decode, key bias", heads=4, queries=5, keys=700, key_bias=True, gradients=False),
    Contract("learned tau", learned="tau"),
    Contract("learned tau, explicit positions", learned="tau", visibility=_scattered),
    Contract("learned tables", learned="tables", precisions=(SINGLE,)),
    Contract(
        "learned tables, not causal, window",
        learned="tables",
        visibility=lambda: Visibility(is_causal=False, window=70),
        precisions=(SINGLE,),
    ),
    Contract(
        "learned tables, explicit positions",
        learned="tables",
        visibility=_scattered,
        precisions=(SINGLE,),
    ),
    Contract("learned tables, key bias", learned="tables", key_bias=True, precisions=(SINGLE,)),
)
