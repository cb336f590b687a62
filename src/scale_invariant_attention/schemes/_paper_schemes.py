"""The schemes that the paper compares."""

from ._entries import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PRESS,
    PURPLE,
    SCALE_INVARIANT,
    LineStyle,
    NamedScheme,
    Slots,
    p_rope_of,
)
from .distance import ALiBi, ScaleInvariant
from .query_scale import LogN, YaRNTemperature
from .rotary import NTK, RoPE, YaRN

SCALABLE_SOFTMAX = "Nakanishi, 2025, arXiv:2501.19399"
TRANSFORM = "gain sqrt(1 + 2 log(1 + t/tau)), bias -2 log(1 + t/tau), tau = 10"

# In the order of the paper's tables.
PAPER_SCHEMES = (
    NamedScheme(
        "rope",
        Slots(rotary=RoPE),
        "RoPE",
        "Queries and keys are rotated by angles that grow with position, so that scores depend on "
        "distance.",
        "Su et al., 2021, arXiv:2104.09864",
        LineStyle(*GREY, "-", "o"),
        formula="pair k rotates by base^(-2k/d) per token, base = 10000",
    ),
    NamedScheme(
        "p-rope",
        Slots(rotary=p_rope_of),
        "p-RoPE",
        "RoPE without its slow rotations: half of the pairs of dimensions do not rotate.",
        "Barbero et al., 2024, arXiv:2410.06205",
        LineStyle(*GREY, "--", "s"),
        formula="d/4 pairs rotate, by 1 to 1/base per token on a logarithmic scale, base = 1024",
    ),
    NamedScheme(
        "nope",
        Slots(),
        "NoPE",
        "No positions except through the causal mask.",
        "Kazemnejad et al., 2023, arXiv:2305.19466",
        LineStyle(*GREY, ":", "x"),
        formula="no rotation, gain 1, bias 0",
    ),
    NamedScheme(
        "rope-ntk",
        Slots(rotary=NTK),
        "RoPE+NTK",
        "Trained as RoPE; beyond the training length the base grows with the context, which keeps "
        "the slow rotations within the range seen in training.",
        "bloc97, 2023, NTK-aware scaled RoPE",
        LineStyle(*PURPLE, "-", "v"),
        trained_as="rope",
        formula="RoPE with base = 10000 max(1, L/T)^(d/(d-2))",
    ),
    NamedScheme(
        "yarn",
        Slots(rotary=YaRN, query_scale=YaRNTemperature),
        "YaRN",
        "Trained as RoPE; beyond the training length slow rotations become slower, fast ones stay, "
        "and logits are sharpened a little.",
        "Peng et al., 2023, arXiv:2309.00071",
        LineStyle(*PURPLE, "--", "^"),
        trained_as="rope",
        formula="with s = max(1, L/T): RoPE whose slow pairs rotate s times slower, queries times "
        "(0.1 log(s) + 1)^2",
    ),
    NamedScheme(
        "logn-rope",
        Slots(query_scale=LogN, rotary=RoPE),
        "LogN+RoPE",
        "RoPE with logits multiplied by the logarithm of the number of tokens seen, times a learned "
        "factor: sharper as the context grows.",
        SCALABLE_SOFTMAX,
        LineStyle(*ORANGE, "-", "P"),
        formula="RoPE, queries times s log(n), s learned per head",
    ),
    NamedScheme(
        "logn-p-rope",
        Slots(query_scale=LogN, rotary=p_rope_of),
        "LogN+p-RoPE",
        "p-RoPE with logits multiplied by the logarithm of the number of tokens seen, times a "
        "learned factor.",
        SCALABLE_SOFTMAX,
        LineStyle(*ORANGE, "--", "X"),
        formula="p-RoPE, queries times s log(n), s learned per head",
    ),
    NamedScheme(
        "logn-ntk",
        Slots(query_scale=LogN, rotary=NTK),
        "LogN+NTK",
        "Trained as LogN+RoPE; evaluated with NTK's growing base.",
        SCALABLE_SOFTMAX,
        LineStyle(*ORANGE, ":", "<"),
        trained_as="logn-rope",
        formula="RoPE+NTK, queries times s log(n), s learned per head",
    ),
    NamedScheme(
        "alibi",
        Slots(distance=ALiBi),
        "ALiBi",
        "A penalty proportional to distance, with a different slope for each head, and no rotation.",
        PRESS,
        LineStyle(*GREEN, "-.", "*"),
        formula="gain 1, bias -m t, m from 2^(-8/H) to 2^-8 over the H heads",
    ),
    NamedScheme(
        "scale-invariant-p-rope",
        Slots(rotary=p_rope_of, distance=ScaleInvariant),
        "Scale-inv. p-RoPE",
        "p-RoPE with a gain and a bias by distance that give every decade of distances about the "
        "same total attention, and few tokens most of it: the paper's method.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "-", "D", width=2.5),
        formula=f"p-RoPE, {TRANSFORM}",
    ),
    NamedScheme(
        "scale-invariant-rope",
        Slots(rotary=RoPE, distance=ScaleInvariant),
        "Scale-inv. RoPE",
        "The same gain and bias by distance on top of RoPE.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, "--", ">"),
        formula=f"RoPE, {TRANSFORM}",
    ),
    NamedScheme(
        "scale-invariant-nope",
        Slots(distance=ScaleInvariant),
        "Scale-inv. NoPE",
        "The same gain and bias by distance without any rotation.",
        SCALE_INVARIANT,
        LineStyle(*BLUE, ":", "+"),
        formula=TRANSFORM,
    ),
)
