"""Schemes of other papers, from 2019 to 2026, each with the slots that its formula needs."""

from ._entries import GREEN, OLIVE, ORANGE, PURPLE, LineStyle, NamedScheme, Slots, p_rope_of
from .biases import APE, NAPE, T5, KerpleLog, KerplePower, Sandwich
from .key_bias import ForgetGate
from .query_scale import Inkling, SqrtLogN
from .rotary import RoPE

KERPLE = "Chi et al., 2022, arXiv:2205.09921"

RIVALS = (
    NamedScheme(
        "t5",
        Slots(distance=T5),
        "T5",
        "A learned penalty or reward for every range of distances, the ranges growing with distance, "
        "and no rotation.",
        "Raffel et al., 2019, arXiv:1910.10683",
        LineStyle(*OLIVE, "-", "$5$"),
        formula="gain 1, bias b[bucket(t)], b learned per head for 32 buckets: each t below 16, then 16 "
        "ranges of equal ratios up to 128",
    ),
    NamedScheme(
        "kerple-log",
        Slots(distance=KerpleLog),
        "KERPLE-log",
        "A penalty that grows with the logarithm of the distance, its strength and scale learned by "
        "every head, and no rotation.",
        KERPLE,
        LineStyle(*OLIVE, "--", "$k$"),
        formula="gain 1, bias -r1 log(1 + r2 t), r1 and r2 > 0 learned per head",
    ),
    NamedScheme(
        "kerple-power",
        Slots(distance=KerplePower),
        "KERPLE-power",
        "A penalty that grows with a power of the distance, strength and power learned by every head, "
        "and no rotation.",
        KERPLE,
        LineStyle(*OLIVE, ":", "$p$"),
        formula="gain 1, bias -r1 t^r2, r1 > 0 and 0 < r2 <= 2 learned per head",
    ),
    NamedScheme(
        "sandwich",
        Slots(distance=Sandwich),
        "Sandwich",
        "A fixed penalty, the inner product of sinusoidal position embeddings: about the logarithm of "
        "the distance, weaker from head to head.",
        "Chi et al., 2022, arXiv:2212.10356",
        LineStyle(*GREEN, ":", "_"),
        formula="gain 1, bias H/(8h) sum_k (cos(t / 10000^(2k/128)) - 1), k = 1 .. 64, head h = 1 .. H",
    ),
    NamedScheme(
        "nape",
        Slots(distance=NAPE),
        "NAPE",
        "ALiBi's penalty in half of the heads, with steeper slopes, and no positions in the others.",
        "Vasylenko et al., 2025, arXiv:2506.16640",
        LineStyle(*GREEN, "-", "8"),
        formula="gain 1, bias -t/h in heads h = 1 .. H/2, 0 in the others",
    ),
    NamedScheme(
        "fox",
        Slots(key_bias=ForgetGate),
        "FoX",
        "A gate per token and head, computed from the token, multiplies the weights of all earlier "
        "tokens: the model learns when to forget. No rotation.",
        "Lin et al., 2025, arXiv:2503.02130",
        LineStyle(*PURPLE, "-.", "$f$"),
        formula="gain 1, bias c_i - c_j, c the running sum of log sigmoid(w . x + b) over tokens x, "
        "w and b learned per head",
    ),
    NamedScheme(
        "ape",
        Slots(rotary=RoPE, distance=APE),
        "APE",
        "RoPE whose logits fade with distance, and a learned penalty with three terms: linear, "
        "logarithmic and square root.",
        "Vetcha, 2026, arXiv:2601.06113",
        LineStyle(*OLIVE, "-.", "$a$"),
        formula="RoPE, gain 1/(1 + lambda t), bias -delta t - beta log(1 + t) - gamma sqrt(t), all four "
        "learned per head",
    ),
    NamedScheme(
        "sqrt-log-n",
        Slots(query_scale=SqrtLogN, rotary=p_rope_of),
        "sqrt(log n)+p-RoPE",
        "p-RoPE with logits multiplied by a fixed function of the number of tokens seen, the scale at "
        "which softmax begins to choose one of as many random scores.",
        "Giorlandino and Goldt, 2025, arXiv:2505.24333",
        LineStyle(*ORANGE, "-.", "$n$"),
        formula="p-RoPE, queries times sqrt(2 log(n))",
    ),
    NamedScheme(
        "inkling",
        Slots(query_scale=Inkling, rotary=p_rope_of),
        "Inkling+p-RoPE",
        "Trained as p-RoPE; beyond the training length logits are sharpened a little, as in the open "
        "model Inkling.",
        "Thinking Machines Lab, 2026, configuration of Inkling",
        LineStyle(*ORANGE, "-", "$i$"),
        trained_as="p-rope",
        formula="p-RoPE, queries times 1 + alpha log(max(1, n/T)), alpha = 0.1",
    ),
)
