"""Which side of the split between training and validation a document is on."""

import hashlib
from typing import Literal

Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")


def side(key: bytes, validation: float) -> Split:
    """The side of the document with this key; about a share of `validation` is held out.

    It depends on nothing but key and share, so that a document stays on its side whatever is added,
    removed or reordered around it, and documents with equal keys are never on both.

    >>> [side(name, 0.5) for name in (b"abc.py", b"argparse.py", b"bisect.py")]
    ['train', 'train', 'validation']
    """
    place = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
    return "validation" if place < validation * 2**64 else "train"


def check_share(validation: float) -> None:
    """Raise unless it is a share."""
    if not 0 <= validation <= 1:
        raise ValueError(f"validation must be a share from 0 to 1, got {validation}")


def check_split(split: str | None) -> None:
    """Raise unless there is such a split; None stands for both."""
    if split is not None and split not in SPLITS:
        raise ValueError(f"split must be 'train', 'validation' or None for both, got {split!r}")
