"""Repeated strings: random letters before a text, and their beginning again after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arguments import integer
from .encoding import Encoding
from .tasks import NOT_SCORED
from .tokens import TokenSource


@dataclass(frozen=True, eq=False)
class RepeatedStringTask:
    """Copying from afar, which language models can do untrained: continue a string seen before.

    A sequence is a random string of lower-case letters, text, and the string again. Both strings are on
    lines of their own. All of it has exactly the requested length, and is determined by seed, length and
    number, so that the string is repeated after about as many tokens. Only the repeated letters after
    the first `prefix` are scored. With encodings other than bytes, letters are tokens all the same.

    >>> from scale_invariant_attention.data import get_encoding, standard_library
    >>> task = RepeatedStringTask(standard_library("validation"), get_encoding("bytes"), 12, 6)
    >>> bytes(task.example(64, number=0)[-13:].tolist()).decode()
    '\\nltibqjsitlmy'
    """

    text: TokenSource
    encoding: Encoding
    letters: int = 32
    prefix: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        integer("letters", self.letters, at_least=2)
        integer("prefix", self.prefix, at_least=1)
        if self.prefix >= self.letters:
            raise ValueError(
                f"prefix must be less than the {self.letters} letters, got {self.prefix}"
            )

    def example(self, length: int, number: int) -> NDArray[np.int64]:
        """Sequence `number`, of `length` tokens."""
        rng = np.random.default_rng([self.seed, length, number])
        room = length - 2 * self.letters - 2
        if not 0 <= room <= len(self.text):
            least, most = length - room, len(self.text) + length - room
            raise ValueError(
                f"length must be from {least}, for the string twice, to {most}, for which the text "
                f"suffices, got {length}"
            )
        encoded = self.encoding.encode([letter.encode() for letter in (*ascii_lowercase, "\n")])
        *alphabet, newline = [int(tokens[0]) for tokens in encoded]
        string = np.array(alphabet)[rng.integers(0, len(alphabet), self.letters)]
        start = int(rng.integers(0, len(self.text) - room + 1))
        text = self.text.read(start, start + room).astype(np.int64)
        return np.concatenate([string, [newline], text, [newline], string])

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[len(numbers), length - 1]``; only repeated letters are scored."""
        tokens = torch.tensor(np.stack([self.example(length, number) for number in numbers]))
        targets = tokens[:, 1:].clone()
        targets[:, : self.prefix - self.letters] = NOT_SCORED
        return tokens[:, :-1], targets
