"""`sia diagnose`: where a model's attention goes, layer by layer, and what to do about it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from .errors import plain_errors
from .options import (
    AnyModelFolder,
    AsJson,
    Data,
    Device,
    Lengths,
    check_data_option,
    device_named,
    numbers,
)
from .terminal import Page, counted, progress_bar

if TYPE_CHECKING:
    from torch import Tensor

    from ..analysis import Diagnosis, LengthAttention
    from ..analysis.diagnosis import RangeDiagnosis
    from ..data import TokenStream


def diagnose(
    folder: AnyModelFolder,
    lengths: Lengths = None,
    data: Data = None,
    delta: Annotated[
        float,
        Option(
            metavar="X", help="Ranges of distance end at X times their start; 10 gives decades."
        ),
    ] = 10.0,
    contexts: Annotated[int, Option(min=1, help="Number of texts at each length.")] = 8,
    device: Device = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="Folder for the results; by default RUN/diagnosis, and RUN-diagnosis for a "
            "transformers model.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a model's attention depends on distance, and what to fix.

    For every layer: whether scores have the mean 0 and variance 1 that the transform assumes; how far
    attention is from scale invariance, as the slope of its mass against distance, which is 0 if it is
    invariant; and how many tokens of each range it falls on. Writes diagnosis.json, with every length,
    layer and head, and diagnosis.png if matplotlib is installed.

    A transformers model is read from its folder alone, converted or not, and reads text with the
    tokenizer.json next to it.
    """
    page = Page(quiet=as_json)
    with plain_errors(ImportError, NotImplementedError):
        from .. import analysis
        from ..analysis.by_length import QUERIES, RECENT
        from ..files import check_writable
        from ..lab.diagnosed_models import open_diagnosed_model
        from ..lab.reporting.attention_figures import draw_diagnosis

        if not delta > 1:
            raise typer.BadParameter(
                f"--delta must be greater than 1, got {delta:g}; 10 gives decades"
            )
        where = device_named(device)
        check_data_option(data)
        given = numbers("--lengths", lengths, at_least=2)
        model = open_diagnosed_model(folder, where, given, data, output)
        ascending = tuple(sorted(set(model.lengths)))
        tokens = _contexts(model.corpus, ascending, contexts).to(where)
        check_writable(model.results)
        page.line(model.description)
        page.line(
            f"{counted(contexts, 'text')} of {model.data}, the last {QUERIES} queries of each\n"
        )
        with progress_bar("tokens", contexts * sum(ascending)) as progress:
            measured = analysis.attention_by_length(
                model.source, tokens, ascending, ratio=delta, progress=progress
            )
        diagnoses = [
            analysis.diagnose(
                it,
                scale_invariant=model.scale_invariant,
                qk_norm=model.qk_norm,
                transformers=model.transformers,
                knows_spread=model.knows_spread,
            )
            for it in measured
        ]
        longest = diagnoses[-1]
        _print_lengths(page, measured, diagnoses)
        _print_layers(page, longest)
        _print_ranges(page, longest)
        _print_findings(page, longest)
        lines = model.write_results(
            ("diagnosis.json", "diagnosis.png"),
            {
                "contexts": contexts,
                "recent": RECENT,
                "diagnosis": [asdict(it) for it in diagnoses],
                "attention": [it.to_dict() for it in measured],
            },
            lambda: draw_diagnosis(longest, title=model.title),
            indent=1,
        )
        page.line("\n" + "\n".join(lines))
        if as_json:
            typer.echo((model.results / "diagnosis.json").read_text(encoding="utf-8"), nl=False)


def _contexts(corpus: "TokenStream", lengths: Sequence[int], count: int) -> "Tensor":
    from ..data import spread_windows

    try:
        return spread_windows(corpus, max(lengths), count)
    except ValueError as error:
        raise typer.BadParameter(f"--lengths do not fit the data: {error}") from error


def _print_lengths(
    page: Page, measured: "Sequence[LengthAttention]", diagnoses: "Sequence[Diagnosis]"
) -> None:
    from ..analysis.by_length import RECENT
    from ..analysis.ranges import LOCAL

    rows = []
    for attention, diagnosis in zip(measured, diagnoses, strict=True):
        (entropy,), (recent,) = (
            attention.overall(name) for name in ("global_entropy", "recent_share")
        )
        rows.append(
            (
                f"{attention.length:,}",
                _signed(diagnosis.slope),
                f"{entropy.mean:.2f}",
                f"{recent.mean:.3f}",
            )
        )
    page.table(("length", "slope", "entropy", f"on the last {RECENT}"), rows, numbers=True)
    page.paragraph(
        f"\nMeans over all layers and heads. The slope is that of attention against distance beyond "
        f"{LOCAL} tokens: 0 if it is scale-invariant, 1 if it is the same at every distance. Entropy is "
        f"in nats."
    )


def _print_layers(page: Page, found: "Diagnosis") -> None:
    rows = []
    for layer in found.layers:
        low, high = layer.score_spreads
        slopes = "" if layer.slopes is None else f"{layer.slopes[0]:+.2f} to {layer.slopes[1]:+.2f}"
        rows.append(
            (
                str(layer.layer),
                f"{layer.score_mean:+.2f}",
                f"{layer.score_spread:.2f}",
                f"{low:.2f} to {high:.2f}",
                _signed(layer.kurtosis),
                _signed(layer.slope),
                slopes,
                ", ".join(layer.findings) or "none",
            )
        )
    page.heading(f"Layers at {found.length:,} tokens")
    spreads = ("score mean", "spread", "by head", "kurtosis")
    page.table(("layer", *spreads, "slope", "by head", "findings"), rows, numbers=True)


def _print_ranges(page: Page, found: "Diagnosis") -> None:
    from ..analysis.ranges import range_name

    page.heading("Share of attention, and of the tokens it falls on, by distance")
    ranges = found.layers[0].ranges
    page.table(
        ("layer", *(range_name(it.start, it.stop) for it in ranges)),
        [(str(layer.layer), *map(_range, layer.ranges)) for layer in found.layers],
        numbers=True,
    )


def _range(found: "RangeDiagnosis") -> str:
    return "unseen" if found.part is None else f"{found.share:.1%} on {found.part:.0%}"


def _print_findings(page: Page, found: "Diagnosis") -> None:
    page.heading("Findings")
    if not found.advice:
        page.paragraph(
            "Scores have about mean 0 and variance 1; attention is nearly scale-invariant and sparse in "
            "every range: nothing to do."
        )
    for finding, text in found.advice.items():
        layers = [str(layer.layer) for layer in found.layers if finding in layer.findings]
        noun = "layer" if len(layers) == 1 else "layers"
        page.paragraph(f"{finding.capitalize()}, {noun} {', '.join(layers)}. {text}\n")


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"
