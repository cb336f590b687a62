"""A scheme of a user's own, registered for the length of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from scale_invariant_attention import schemes
from scale_invariant_attention.schemes import ALiBi, LineStyle, NamedScheme, RoPE, Scheme

OWN = NamedScheme(
    "alibi-rope",
    lambda base=10_000.0: Scheme(RoPE(base), distance=ALiBi()),
    title="ALiBi+RoPE",
    sentence="RoPE with the penalty of ALiBi.",
    line=LineStyle("#123456", "#abcdef", "-.", "h"),
)


@contextmanager
def own_scheme() -> Iterator[str]:
    """The name of the scheme, which is registered inside the context."""
    schemes.register(OWN)
    try:
        yield OWN.name
    finally:
        schemes.unregister(OWN.name)
