"""Corpora, token shards and batches for training and evaluation.

>>> from scale_invariant_attention.data import Windows, standard_library
>>> batches = Windows(standard_library("train"), length=256, batch_size=16, order="shuffled")
>>> tokens, targets = batches[1000]
>>> tokens.shape
torch.Size([16, 256])
"""

from ..files.download import FetchError
from ._document_sources import DocumentSource, HubDataset, TextFiles, standard_library, text_files
from ._fetching import PUBLISHED, fetch_shards
from .encoding import Decoder, Encoding, get_encoding
from .making_shards import make_shards
from .shard_records import ShardError
from .shards import check_shard, find_shards, open_shards, read_shard, write_shard
from .tokens import TokenSource, TokenStream
from .windows import (
    SameTokens,
    Windows,
    document_batches,
    document_spans,
    documents,
    spread_windows,
)

__all__ = [
    "PUBLISHED",
    "Decoder",
    "DocumentSource",
    "Encoding",
    "FetchError",
    "HubDataset",
    "SameTokens",
    "ShardError",
    "TextFiles",
    "TokenSource",
    "TokenStream",
    "Windows",
    "check_shard",
    "document_batches",
    "document_spans",
    "documents",
    "fetch_shards",
    "find_shards",
    "get_encoding",
    "make_shards",
    "open_shards",
    "read_shard",
    "spread_windows",
    "standard_library",
    "text_files",
    "write_shard",
]
