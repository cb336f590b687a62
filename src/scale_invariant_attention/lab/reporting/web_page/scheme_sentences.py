"""What each position scheme is, in a sentence for readers who have not met it."""

from collections.abc import Mapping
from types import MappingProxyType

SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "rope": "Queries and keys are rotated by angles that grow with position, so that scores depend "
        "on distance.",
        "p-rope": "RoPE without its slow rotations: half of the pairs of dimensions do not rotate.",
        "nope": "No positions at all but for the causal mask.",
        "rope-ntk": "Trained as RoPE; beyond the trained length the base grows with the context, so "
        "that slow rotations stay within what was trained.",
        "yarn": "Trained as RoPE; beyond the trained length slow rotations are slowed further, fast "
        "ones kept, and logits sharpened a little.",
        "logn-rope": "RoPE with logits multiplied by the logarithm of the number of tokens seen, times "
        "a learned factor: sharper as the context grows.",
        "logn-p-rope": "p-RoPE with logits multiplied by the logarithm of the number of tokens seen, "
        "times a learned factor.",
        "logn-ntk": "Trained as LogN+RoPE; read with the growing base of NTK.",
        "alibi": "A penalty that grows in proportion to distance, with a slope of its own for each "
        "head, and no rotation.",
        "scale-invariant-p-rope": "p-RoPE with a gain and a bias by distance that give every decade of "
        "distances about the same total attention, and few tokens most of it: the paper's method.",
        "scale-invariant-rope": "The same gain and bias by distance on top of RoPE.",
        "scale-invariant-nope": "The same gain and bias by distance without any rotation.",
    }
)
