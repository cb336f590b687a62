"""Where the tokens of a call stand, which is all that a scheme may know about them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """The position of every token in its document, and how long that document is.

    A context length may be longer than what is there yet: of a text that is being generated it is the
    length that the text is going to have.
    """

    positions: Tensor  # integers [L] or [B, L], from 0 at the start of each document
    context_length: int | Tensor  # one for all, or integers [B, 1] or [B, L]
