"""The documentation page on speed and memory, from records alone."""

from collections.abc import Iterable, Sequence

from ..reporting.prose import filled
from ..tables import markdown_table
from .figures import DECODE_FIGURE, PEAK_FIGURE, RATIO_FIGURE
from .problem import DECODE
from .records import ModelTiming, Ratio, Timing, held_to_targets
from .rivals import BASELINE

# The backend that is held to the targets when no ratios are recorded.
BACKEND = "cpu"

_HEAD = """# Speed and memory

<!-- Written by `sia bench page` from recorded results: run `make bench` to update it. -->

Causal attention, batch 1, float32, {threads} threads of an {cpu}. SDPA is torch's plain
`scaled_dot_product_attention`, which does not compute the transform; `eager` computes it naively with
the whole score matrix, and skips lengths at which that takes too much memory. The implementations take
turns in rounds; ratios are medians over rounds of the time relative to SDPA in the same round, with
quartiles in brackets. Shares of peak relate the work of the exact causal triangle (forward and backward
together 3.5 times the forward pass) to {peak_gflops} GFLOP/s: {peak_source}. Memory, where it was
measured, is the peak above inputs, outputs and gradients, each in a separate process."""

_DECODE_HEAD = """Decoding is one query against a cache of keys and values. It is bound by reading them:
shares are relative to {read_gigabytes_per_second} GB/s, {read_source}."""

_TARGETS_HEAD = """## Targets

The targets of the backend `{backend}`: by the medians, {met} of {count} are met. An added cost below
zero means that it is smaller than the drift of the machine within a run."""

_MODELS_HEAD = """## Models

A step of the GPT with the scheme `scale-invariant-p-rope`, relative to the same GPT with plain RoPE on
SDPA. A training step is forward, loss, backward and a step of Adam; a decoding step adds one token to a
full cache, and the table shows the share of its time spent in attention."""


def page(
    origin: dict[str, str],
    timings: Sequence[Timing],
    ratio_origin: dict[str, str] | None = None,
    ratios: Sequence[Ratio] = (),
    model_origin: dict[str, str] | None = None,
    models: Sequence[ModelTiming] = (),
) -> str:
    """The page as Markdown."""
    backend = (ratio_origin or {}).get("backend", BACKEND)
    targets = [*held_to_targets(timings, backend), *ratios]
    parts = [_HEAD.format(**origin)]
    if any(row.pass_name != DECODE for row in timings):
        parts.append(f"![Time relative to SDPA against length]({RATIO_FIGURE})")
        parts.append(f"![Share of peak arithmetic against length]({PEAK_FIGURE})")
    if any(row.pass_name == DECODE for row in timings):
        parts.append(_DECODE_HEAD.format(**origin))
        parts.append(f"![Decoding: time and share of bandwidth]({DECODE_FIGURE})")
    if targets:
        parts += _targets(targets, backend)
    if models:
        parts += _models(models)
    groups = dict.fromkeys((row.pass_name, row.shape) for row in _in_order(timings))
    parts += [_table(*group, timings) for group in groups]
    parts.append("## Provenance")
    parts.append(_source(origin, "attention.csv"))
    if ratio_origin is not None:
        parts.append(_source(ratio_origin, "ratios.csv"))
    if model_origin is not None:
        parts.append(_source(model_origin, "models.csv"))
    return "\n\n".join(parts) + "\n"


def _targets(targets: Sequence[Ratio], backend: str) -> Iterable[str]:
    met = sum(ratio.met for ratio in targets)
    yield _TARGETS_HEAD.format(backend=backend, met=met, count=len(targets))
    yield markdown_table(
        ("", "heads", "length", "pass", "measured", "target", "met"),
        [
            (
                ratio.comparison,
                _heads(ratio.shape),
                f"{ratio.length:,}",
                ratio.pass_name,
                ratio.shown,
                ratio.shown_target,
                "yes" if ratio.met else "**no**",
            )
            for ratio in targets
        ],
    )


def _models(models: Sequence[ModelTiming]) -> Iterable[str]:
    yield _MODELS_HEAD
    header = "model", "", "tokens", "milliseconds", "relative to RoPE on SDPA", "target", "met"
    yield markdown_table(
        (*header, "in attention"),
        [
            (
                row.model,
                row.pass_name,
                f"{row.batch} x {row.length:,}",
                f"{row.median_ms:#.4g}",
                f"{row.ratio:.3f} ({row.ratio_low:.3f} to {row.ratio_high:.3f})",
                f"at most {row.target:g}",
                "yes" if row.met else "**no**",
                "" if row.attention_share is None else f"{row.attention_share:.0%}",
            )
            for row in models
        ],
    )


def _table(pass_name: str, shape: str, timings: Sequence[Timing]) -> str:
    bound = "share of bandwidth" if pass_name == DECODE else "share of peak"
    mine = (row for row in timings if (row.pass_name, row.shape) == (pass_name, shape))
    header = ("length", "", "milliseconds", "relative to SDPA", bound, "memory, MiB")
    return f"## {_heads(shape)}, {pass_name}\n\n" + markdown_table(
        header, map(_cells, _in_order(mine))
    )


def _cells(row: Timing) -> list[str]:
    ratio = f"{row.ratio_to_sdpa:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})"
    return [
        f"{row.length:,}",
        row.rival,
        f"{row.median_ms:.1f}" if row.median_ms >= 10 else f"{row.median_ms:.3g}",
        "1" if row.rival == BASELINE else ratio,
        f"{100 * row.share_of_bound:.0f} %",
        "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.0f}",
    ]


def _in_order(timings: Iterable[Timing]) -> list[Timing]:
    """By number of heads, then by length; rivals stay in their order."""
    return sorted(timings, key=lambda row: (row.heads, row.length))


def _heads(shape: str) -> str:
    heads, _, head_dim = shape.partition("x")
    return f"{heads} {'head' if heads == '1' else 'heads'} of {head_dim}"


def _source(origin: dict[str, str], file: str) -> str:
    commit, _, changes = origin["commit"].partition(" ")
    text = (
        f"`benchmarks/results/{file}`: recorded {origin['date']} with scale-invariant-attention "
        f"{origin['version']} (commit {' '.join(filter(None, (commit[:12], changes)))}), torch "
        f"{origin['torch']}, Python {origin['python']}, on {origin['threads']} threads of an "
        f"{origin['cpu']}; load {origin['load']} before the run. Bounds of the machine: "
        f"{origin['peak_gflops']} GFLOP/s ({origin['peak_source']})"
    )
    if "read_source" in origin:
        text += f", {origin['read_gigabytes_per_second']} GB/s ({origin['read_source']})"
    return filled(f"{text}.")
