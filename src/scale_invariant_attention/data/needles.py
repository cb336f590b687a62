"""Needles in a haystack: sentences hidden in real text, and the answer that repeats what they said.

A sequence is text with needles at random positions, a separator or a question, the answer, and the
token that ends it, together of exactly the requested length. Needles are inserted between tokens, as
tokens: none is cut, and no text lands inside one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from string import Formatter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arguments import integer
from .encoding import Encoding
from .tasks import NOT_SCORED
from .tokens import TokenSource

# Large cities of all continents, one word each, none part of another.
CITIES = (
    *("Accra", "Ankara", "Athens", "Bangkok", "Beijing", "Berlin", "Bogota", "Boston", "Brussels"),
    *("Cairo", "Chicago", "Dakar", "Delhi", "Dhaka", "Dublin", "Geneva", "Hanoi", "Havana"),
    *("Helsinki", "Houston", "Istanbul", "Jakarta", "Karachi", "Kyoto", "Lagos", "Lima", "Lisbon"),
    *("London", "Madrid", "Manila", "Melbourne", "Miami", "Milan", "Montreal", "Moscow", "Mumbai"),
    *("Munich", "Nairobi", "Osaka", "Oslo", "Paris", "Perth", "Prague", "Quito", "Riga", "Rome"),
    *("Santiago", "Seattle", "Seoul", "Shanghai", "Singapore", "Stockholm", "Sydney", "Tokyo"),
    *("Toronto", "Tunis", "Vienna", "Warsaw", "Zurich"),
)

ORDERS = ("place", "alphabet")


@dataclass(frozen=True)
class NeedleFormat:
    """Wording and number of needles, and the form of question and answer.

    The sentence, the three needles, the seven digits and the form of the answer are the paper's; the
    rest is chosen here.

    Args:
        cities: the cities that have numbers; a sequence names each at most once.
        digits: per number; the first may be 0.
        needles: number of needles to find.
        distractors: number of sentences about other cities, which are not asked for.
        order: of the answer without a question: "place" as in the text, or "alphabet".
        with_question: whether a question names the cities, in the random order of the answer.
        sentence: of a needle.
        distractor: of a distractor; differs from `sentence`, unless a question names the cities.
        separator: between text and answer, without a question.
        question: between text and answer, with a question.
        entry: of the answer, one per needle.
        between: separates entries.
    """

    cities: Sequence[str] = CITIES
    digits: int = 7
    needles: int = 3
    distractors: int = 0
    order: str = "place"
    with_question: bool = False
    sentence: str = " The special magic {city} number is {number}. "
    distractor: str = " The plain old {city} number is {number}. "
    separator: str = "\n"
    question: str = "\nWhat are the special magic numbers of {cities}?\n"
    entry: str = "{city}={number}"
    between: str = ";"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cities", tuple(self.cities))
        for name, least in (("digits", 1), ("needles", 1), ("distractors", 0)):
            integer(name, getattr(self, name), at_least=least)
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")
        for name in ("sentence", "distractor", "entry"):
            _check_fields(name, getattr(self, name), {"city", "number"})
        _check_fields("question", self.question, {"cities"})
        count = self.needles + self.distractors
        if len(set(self.cities)) < max(count, len(self.cities)):
            raise ValueError(
                f"cities must be at least {count}, all different, got {len(self.cities)}, of which "
                f"{len(set(self.cities))} differ"
            )
        for city in self.cities:
            is_part = any(city in other for other in self.cities if other != city)
            if not city or self.between in city or is_part:
                raise ValueError(
                    f"cities must be words without {self.between!r}, none part of another, got "
                    f"{city!r}"
                )
        if self.distractors and not self.with_question and self.distractor == self.sentence:
            raise ValueError(
                "distractor must differ from sentence without a question, or needles could not be "
                "distinguished from distractors; set with_question or another distractor"
            )


@dataclass(frozen=True)
class Needle:
    """A needle of an example, with the spans of its sentence and its answer entry."""

    city: str
    number: str
    span: tuple[int, int]
    answer_span: tuple[int, int]


@dataclass(frozen=True, eq=False)
class NeedleExample:
    """A whole sequence, which ends with the answer and its end token; `needles` are in its order."""

    tokens: NDArray[np.int64]
    answer_start: int
    needles: tuple[Needle, ...]

    def depth(self, needle: Needle) -> float:
        """Relative depth of a needle, from 0 at the start of the sequence to 1 at the answer."""
        return needle.span[0] / self.answer_start


@dataclass(frozen=True, eq=False)
class NeedleTask:
    """Examples of any length, determined by seed, length and number.

    >>> from scale_invariant_attention.data import get_encoding, standard_library
    >>> task = NeedleTask(standard_library("validation"), get_encoding("bytes"))
    >>> example = task.example(1024, number=0)
    >>> len(example.tokens), len(example.needles)
    (1024, 3)
    >>> bytes(example.tokens[example.answer_start : -1].tolist()).decode()
    'Dakar=9568570;Hanoi=0187171;Riga=2974737'
    """

    haystack: TokenSource
    encoding: Encoding
    format: NeedleFormat = field(default_factory=NeedleFormat)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.haystack.vocab_size > self.encoding.vocab_size:
            raise ValueError(
                f"encoding must be the haystack's, which has {self.haystack.vocab_size} tokens, "
                f"got {self.encoding.name!r} with {self.encoding.vocab_size}"
            )

    def example(self, length: int, number: int) -> NeedleExample:
        """Example `number`, of exactly `length` tokens, the answer and its end included."""
        rng = np.random.default_rng([self.seed, length, number])
        form, chosen = self.format, self._choose(rng)
        sentences = self._encode(
            (form.sentence if which < form.needles else form.distractor).format(
                city=city, number=digits
            )
            for which, (city, digits) in enumerate(chosen)
        )
        # The order of the sentences in the text.
        text_order = rng.permutation(len(sentences)).tolist()
        answered = self._answer_order(chosen, text_order, rng)
        ending = self._ending([chosen[which] for which in answered])
        room = length - sum(map(len, [*sentences, *ending]))
        if room < 0:
            raise ValueError(
                f"length must be at least {length - room} for these needles and answer, got {length}"
            )
        text = self._text(room, rng)
        first, *pieces = np.split(text, np.sort(rng.integers(0, room + 1, len(sentences))))
        parts = [first]
        for which, piece in zip(text_order, pieces, strict=True):
            parts += [sentences[which], piece]
        # Every second part is a sentence; after them and the opening, every second one is an entry.
        opening = len(parts)
        parts += ending
        spans = list(pairwise([0, *np.cumsum([len(part) for part in parts]).tolist()]))
        sentence_spans = dict(zip(text_order, spans[1:opening:2], strict=True))
        entry_spans = spans[opening + 1 :: 2]
        needles = tuple(
            Needle(*chosen[which], sentence_spans[which], span)
            for which, span in zip(answered, entry_spans, strict=True)
        )
        tokens = np.concatenate(parts)
        # Anything else would test nothing.
        whole = all(
            np.array_equal(tokens[slice(*needle.span)], sentences[which])
            for needle, which in zip(needles, answered, strict=True)
        )
        if len(tokens) != length or not whole:
            raise AssertionError(
                f"an example of {length} tokens has {len(tokens)}, or a cut needle"
            )
        return NeedleExample(tokens, entry_spans[0][0], needles)

    def batch(self, length: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[len(numbers), length - 1]`` of examples; only answers are scored."""
        rows = [self.example(length, number) for number in numbers]
        tokens = torch.tensor(np.stack([row.tokens for row in rows]))
        targets = tokens[:, 1:].clone()
        for target, row in zip(targets, rows, strict=True):
            target[: row.answer_start - 1] = NOT_SCORED
        return tokens[:, :-1], targets

    def _choose(self, rng: np.random.Generator) -> list[tuple[str, str]]:
        """Cities with their numbers, needles first."""
        count = self.format.needles + self.format.distractors
        cities = rng.choice(len(self.format.cities), count, replace=False)
        numbers = rng.integers(0, 10, (count, self.format.digits))
        return [
            (self.format.cities[city], "".join(map(str, digits)))
            for city, digits in zip(cities.tolist(), numbers.tolist(), strict=True)
        ]

    def _answer_order(
        self, chosen: list[tuple[str, str]], text_order: list[int], rng: np.random.Generator
    ) -> list[int]:
        """Indices of the needles in the order of the answer."""
        count = self.format.needles
        if self.format.with_question:
            return [int(which) for which in rng.permutation(count)]
        if self.format.order == "alphabet":
            return sorted(range(count), key=lambda which: chosen[which][0])
        return [which for which in text_order if which < count]

    def _ending(self, needles: Sequence[tuple[str, str]]) -> list[NDArray[np.int64]]:
        """Separator or question, the entries of the answer with `between` between them, end token."""
        form, opening = self.format, self.format.separator
        if form.with_question:
            opening = form.question.format(cities=", ".join(city for city, _ in needles))
        entries = [form.entry.format(city=city, number=number) for city, number in needles]
        first, between, *encoded = self._encode([opening, form.between, *entries])
        parts = [first]
        for entry in encoded:
            parts += [entry, between]
        return [*parts[:-1], np.array([self.encoding.document_start], np.int64)]

    def _text(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Tokens of the haystack from a random position on."""
        if count > len(self.haystack):
            raise ValueError(
                f"length needs {count} tokens of text, and the haystack has {len(self.haystack)}; "
                f"use a longer haystack or a shorter length"
            )
        start = int(rng.integers(0, len(self.haystack) - count + 1))
        return self.haystack.read(start, start + count).astype(np.int64)

    def _encode(self, texts: Iterable[str]) -> list[NDArray[np.int64]]:
        encoded = self.encoding.encode([text.encode() for text in texts])
        return [tokens.astype(np.int64) for tokens in encoded]


def _check_fields(name: str, text: str, required: set[str]) -> None:
    present = {
        field_name for _, field_name, _, _ in Formatter().parse(text) if field_name is not None
    }
    if present != required:
        fields = " and ".join(f"{{{each}}}" for each in sorted(required))
        raise ValueError(f"{name} must have {fields} and nothing else in braces, got {text!r}")
