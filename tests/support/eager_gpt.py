"""Independent eager implementation of the paper's GPT: one document, the full score matrix.

Written from the paper's description without sharing code with the package, so the two agree on a wrong
result only if both make the same mistake. Only the names of the weights come from the model.
"""

import cmath
import math
from typing import Any

import torch
from torch import Tensor


def eager_logits(
    weights: dict[str, Tensor],
    scheme: str,
    tokens: Tensor,
    *,
    heads: int,
    train_length: int | None = None,
    options: dict[str, Any] | None = None,
    positions: list[int] | None = None,
    context_length: int | None = None,
    qk_norm: bool = True,
    is_causal: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Logits ``[L, V]`` for the tokens ``[L]`` of one document.

    `scheme` may be several names joined by commas, one per layer, which repeat; an option then starts
    with the name of its scheme and a dot.
    """
    weights = {name: tensor.detach().to(dtype) for name, tensor in weights.items()}
    options = options or {}
    length = len(tokens)
    positions = list(range(length)) if positions is None else positions
    context = max(positions) - min(positions) + 1 if context_length is None else context_length
    stretch = max(1.0, context / train_length) if train_length else 1.0

    x = _norm(weights["embedding.weight"][tokens])
    head_dim = x.shape[1] // heads
    pattern = _pattern(scheme, options, train_length)
    for layer in range(_layers(weights)):
        scheme, options = pattern[layer % len(pattern)]
        turns = _frequencies(scheme, head_dim, stretch, train_length, options)
        angles = [[cmath.exp(1j * position * turn) for turn in turns] for position in positions]
        rotation = torch.tensor(angles, dtype=torch.complex128).reshape(length, head_dim // 2)
        window = options.get("window", math.inf)
        hidden = torch.tensor(
            [
                [
                    (is_causal and column > row) or abs(row - column) >= window
                    for column in positions
                ]
                for row in positions
            ]
        )
        layer_weights = {
            name.removeprefix(f"blocks.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        y = _norm(x)
        mixed = []
        for head in range(heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            query, key, value = (
                y @ layer_weights[f"attention.{name}.weight"][columns].T
                for name in ("query", "key", "value")
            )
            if qk_norm:
                query, key = _norm(query), _norm(key)
            plain_query, plain_key = query, key
            query, key = _turned(query, rotation), _turned(key, rotation)
            scores = query @ key.T / math.sqrt(head_dim)
            factor, gain, bias = _slots(
                scheme,
                layer_weights,
                head,
                heads,
                positions,
                context,
                train_length,
                options,
                is_causal,
                dtype,
            )
            logits = gain * (factor[:, None] * scores) + bias
            if is_causal:
                logits = logits + _forgotten(layer_weights, head, y)
            logits[hidden] = -math.inf
            if scheme.startswith("infini"):
                segment = options.get("segment_length", (train_length or 0) // 2)
                gate = float(layer_weights["attention.scheme.memory.gate"][head])
                delta = options.get("rule") == "delta"
                mixed.append(_infini(plain_query, plain_key, value, logits, segment, gate, delta))
                continue
            mixed.append(torch.softmax(logits, dim=-1) @ value)
        x = x + torch.cat(mixed, dim=1) @ layer_weights["attention.output.weight"].T
        inner = (_norm(x) @ layer_weights["mlp.up.weight"].T).clamp(min=0)
        x = x + (inner * inner) @ layer_weights["mlp.down.weight"].T
    return _norm(x) @ weights["head.weight"].T


def _infini(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    logits: Tensor,
    length: int,
    gate: float,
    delta: bool,
) -> Tensor:
    """Infini-attention of one head, token by token: equations 7 to 10 of its paper."""

    def positive(x: Tensor) -> Tensor:
        return torch.nn.functional.elu(x) + 1

    size = value.shape[1]
    memory = value.new_zeros(key.shape[1], size)
    norm = value.new_zeros(key.shape[1])
    share = 1 / (1 + math.exp(-gate))
    rows = []
    for start in range(0, len(query), length):
        segment = range(start, min(start + length, len(query)))
        for i in segment:
            retrieved = value.new_zeros(size)
            if start > 0:
                retrieved = positive(query[i]) @ memory / (positive(query[i]) @ norm)
            seen = [j for j in segment if logits[i, j] > -math.inf]
            weights = torch.softmax(logits[i, seen], dim=0)
            attended = weights @ value[seen]
            rows.append(share * retrieved + (1 - share) * attended)
        before, before_norm = memory.clone(), norm.clone()
        for j in segment:
            new = value[j]
            if delta and start > 0:
                new = new - positive(key[j]) @ before / (positive(key[j]) @ before_norm)
            memory = memory + torch.outer(positive(key[j]), new)
            norm = norm + positive(key[j])
    return torch.stack(rows)


def _pattern(
    scheme: str, options: dict[str, Any], train_length: int | None
) -> list[tuple[str, dict[str, Any]]]:
    """Schemes of the layers, which repeat, each with its options."""
    if "," in scheme:
        return [
            (
                name,
                {
                    option.removeprefix(f"{name}."): value
                    for option, value in options.items()
                    if option.startswith(f"{name}.")
                },
            )
            for name in scheme.split(",")
        ]
    if scheme not in ("llama4", "swan", "scale-invariant-global"):
        return [(scheme, options)]
    window = options.get("window", (train_length or 4096) // 4)
    base = options.get("local_base", 10_000.0)
    local = [("rope", {"window": window, "base": base})] * options.get("local_layers", 3)
    if scheme == "llama4":
        whole = {"floor_scale": window, "strength": 0.1, **options}
        return [
            *local,
            ("llama4 global", {name: whole[name] for name in ("floor_scale", "strength")}),
        ]
    if scheme == "swan":
        return [("swan global", {"offset": options.get("offset", train_length)}), *local]
    named = ("base", "rotating", "tau", "highest_tau", "learn_tau")
    return [
        *local,
        ("scale-invariant-spread", {name: options[name] for name in named if name in options}),
    ]


def _layers(weights: dict[str, Tensor]) -> int:
    return len({name.split(".")[1] for name in weights if name.startswith("blocks.")})


def _norm(x: Tensor) -> Tensor:
    return x / (x * x).mean(dim=-1, keepdim=True).sqrt()


def _turned(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the complex numbers made of dimensions k and k + d/2."""
    half = x.shape[1] // 2
    turned = torch.complex(x[:, :half], x[:, half:]) * rotation.to(x.dtype.to_complex())
    return torch.cat([turned.real, turned.imag], dim=1)


def _frequencies(
    scheme: str, head_dim: int, stretch: float, train_length: int | None, options: dict[str, Any]
) -> list[float]:
    pairs = head_dim // 2
    if scheme in (*UNROTATED, "llama4 global", "swan global"):
        return [0.0] * pairs
    truncated = scheme in TRUNCATED
    if truncated and "fraction" not in options:
        turning = head_dim // TRUNCATED[scheme]
        base = options.get("base", 1024.0)
        if turning < 2:
            return [1.0] + [0.0] * (pairs - 1)
        return [base ** (-k / (turning - 1)) for k in range(turning)] + [0.0] * (pairs - turning)
    base = options.get("base", 10_000.0)
    if "ntk" in scheme:
        base *= stretch ** (head_dim / (head_dim - 2))
    turns = [base ** (-2 * k / head_dim) for k in range(pairs)]
    if truncated:
        kept = math.floor(options["fraction"] * pairs + 1e-9)
        return [turn if k < kept else 0.0 for k, turn in enumerate(turns)]
    if scheme == "yarn":
        assert train_length is not None

        def pair_that_makes(rotations: float) -> float:
            """Solve train_length * base^(-2k/d) = 2 pi rotations for k."""
            return head_dim / 2 * math.log(train_length / (2 * math.pi * rotations), base)

        first = max(0, math.floor(pair_that_makes(options.get("fast_rotations", 32.0))))
        last = min(head_dim - 1, math.ceil(pair_that_makes(options.get("slow_rotations", 1.0))))
        for k in range(pairs):
            share = min(1.0, max(0.0, (k - first) / (last - first)))
            turns[k] = (1 - share) * turns[k] + share * turns[k] / stretch
    return turns


def _slots(
    scheme: str,
    layer_weights: dict[str, Tensor],
    head: int,
    heads: int,
    positions: list[int],
    context: int,
    train_length: int | None,
    options: dict[str, Any],
    is_causal: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """A factor per query, and a gain and a bias per query-key pair."""
    length = len(positions)
    seen = [position + 1 if is_causal else context for position in positions]
    factor = [1.0] * length
    if scheme == "yarn":
        assert train_length is not None
        stretch = max(1.0, context / train_length)
        factor = [(0.1 * math.log(stretch) + 1) ** 2] * length
    if scheme == "llama4 global":
        wholes = [count // options["floor_scale"] for count in seen]
        factor = [options["strength"] * math.log(1 + whole) + 1 for whole in wholes]
    if scheme == "swan global":
        factor = [math.log(options["offset"] + it - 1, options["offset"]) for it in seen]
    if scheme.startswith("logn"):
        scale = float(layer_weights["attention.scheme.query_scale.scale"][head])
        by_query = options.get("counts", "query") == "query"
        factor = [scale * math.log(count if by_query else context) for count in seen]
    if scheme == "sqrt-log-n":
        factor = [math.sqrt(2 * math.log(count)) for count in seen]
    if scheme == "inkling":
        assert train_length is not None
        floor, alpha = options.get("n_floor", train_length), options.get("alpha", 0.1)
        factor = [1 + alpha * max(0.0, math.log(count / floor)) for count in seen]
    gain = [[1.0] * length for _ in range(length)]
    bias = [[0.0] * length for _ in range(length)]
    learned = {
        name.rpartition(".")[2]: tensor[head].double().tolist()
        for name, tensor in layer_weights.items()
        if name.startswith("attention.scheme.distance.")
    }
    spread = "spread" in scheme
    tau = options.get("tau", 1.0 if spread else 10.0)
    highest = options.get("highest_tau", 30.0 if spread else tau)
    if heads == 1:
        tau = math.sqrt(tau * highest)
    else:
        tau = math.exp(math.log(tau) + head * (math.log(highest) - math.log(tau)) / (heads - 1))
    if "log_tau" in learned:
        tau = math.exp(learned["log_tau"])
    for row in range(length):
        for column in range(length):
            t = positions[row] - positions[column]
            t = max(0, t) if is_causal else abs(t)
            if scheme.startswith("alibi"):
                bias[row][column] = -SLOPES[heads][head] * t
            elif spread or scheme.startswith("scale-invariant"):
                penalty = 2 * math.log(1 + t / tau)
                if "without-bias" not in scheme:
                    bias[row][column] = -penalty / (2 if "without-sparsity" in scheme else 1)
                if "without-gain" not in scheme and "without-sparsity" not in scheme:
                    gain[row][column] = math.sqrt(1 + penalty)
            elif scheme == "ape":
                damping, delta, beta, gamma = (
                    math.exp(learned[f"log_{name}"])
                    for name in ("damping", "delta", "beta", "gamma")
                )
                gain[row][column] = 1 / (1 + damping * t)
                bias[row][column] = -delta * t - beta * math.log(1 + t) - gamma * math.sqrt(t)
            else:
                bias[row][column] = _rival_bias(scheme, t, head + 1, heads, learned)
    return tuple(torch.tensor(table, dtype=dtype) for table in (factor, gain, bias))


def _forgotten(layer_weights: dict[str, Tensor], head: int, y: Tensor) -> Tensor:
    """The logarithm of the product of the forget gates after each key, up to each query."""
    length, name = len(y), "attention.scheme.key_bias"
    table = [[0.0] * length for _ in range(length)]
    if f"{name}.weight" in layer_weights:
        weight, shift = layer_weights[f"{name}.weight"][head], layer_weights[f"{name}.bias"][head]
        gates = torch.sigmoid(y @ weight + shift).double().tolist()
        for row in range(length):
            for column in range(row + 1):
                table[row][column] = math.log(math.prod(gates[column + 1 : row + 1]))
    return torch.tensor(table, dtype=y.dtype)


def _rival_bias(scheme: str, t: int, head: int, heads: int, learned: dict[str, Any]) -> float:
    """The bias of another paper at distance t in a head, counted from 1."""
    if scheme == "kerple-log":
        return -math.exp(learned["log_r1"]) * math.log(1 + math.exp(learned["log_r2"]) * t)
    if scheme == "kerple-power":
        return -math.exp(learned["log_r1"]) * float(t) ** (2 / (1 + math.exp(-learned["logit_r2"])))
    if scheme == "nape":
        return -t / head if head <= heads // 2 else 0.0
    if scheme == "sandwich":
        # The embedding of a position is a sine and a cosine per frequency.
        def embedding(position: int) -> list[float]:
            angles = [position / 10_000 ** (2 * k / 128) for k in range(1, 65)]
            return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]

        product = math.fsum(a * b for a, b in zip(embedding(t), embedding(0), strict=True))
        return (product - 64) / (8 * head / heads)
    if scheme == "t5":
        bucket = t
        if t >= 16:
            bucket = min(31, 16 + int(16 * math.log(t / 16) / math.log(128 / 16)))
        return float(learned["bias"][bucket])
    return 0.0


UNROTATED = {
    *("nope", "alibi", "scale-invariant-nope", "spread-nope"),
    *("t5", "kerple-log", "kerple-power", "sandwich", "nape", "fox"),
}
# The head size divided by the number of rotating pairs.
TRUNCATED = {
    **dict.fromkeys(("p-rope", "logn-p-rope", "scale-invariant-p-rope", "spread-half"), 4),
    "infini-p-rope": 4,
    **{f"scale-invariant-without-{part}": 4 for part in ("gain", "bias", "sparsity")},
    **dict.fromkeys(("scale-invariant-learned-tau", "sqrt-log-n", "inkling"), 4),
    **dict.fromkeys(("scale-invariant-spread", "scale-invariant-quarter", "alibi-p-rope"), 8),
    **{f"spread-{part}": 8 for part in ("without-gain", "without-bias", "learned-tau")},
    "spread-eighth": 16,
}

# The published slopes for these numbers of heads.
SLOPES = {1: [2**-8], 2: [2**-4, 2**-8], 3: [2**-4, 2**-8, 2**-2]}
