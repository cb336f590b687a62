"""`sia diagnose`: what a model's attention does, layer by layer, and what to do about it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..analysis import Diagnosis, LengthAttention, attention_by_length, diagnose
from ..analysis.by_length import QUERIES, RECENT
from ..analysis.diagnosis import LayerDiagnosis, RangeDiagnosis
from ..analysis.invariance import LOCAL
from ..analysis.ranges import DECADE, range_name
from ..data import TokenStream, spread_windows
from ..files import check_writable, replace_file
from ..lab.reporting.attention_figures import draw_diagnosis
from ..provenance import provenance
from ..training.ranks import find_device
from .diagnosed import Diagnosed, open_diagnosed
from .errors import plain_errors
from .meter import meter
from .page import Page
from .subject import Data, Device, Lengths, chosen_lengths

RESULTS = "diagnosis.json"
FIGURE = "diagnosis.png"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(name="diagnose")
def diagnose_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run, of one of its checkpoints, of a saved model, or of a model of "
            "transformers.",
        ),
    ],
    lengths: Lengths = None,
    data: Data = None,
    delta: Annotated[
        float,
        typer.Option(
            metavar="X", help="Ranges of distance end at X times their start; 10 for decades."
        ),
    ] = DECADE,
    contexts: Annotated[int, typer.Option(min=1, help="How many texts at each length.")] = 8,
    device: Device = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The folder for the results; by default FOLDER/diagnosis, and FOLDER-diagnosis "
            "for a model of transformers.",
        ),
    ] = None,
) -> None:
    """Show what a model's attention does by distance, and what is the matter with it.

    For every layer: whether scores have the mean 0 and variance 1 that the transform assumes; how far
    attention is from scale-invariant, by the slope of its mass against distance, where 0 is invariant;
    and on how many tokens of each range it falls. diagnosis.json has all of it for every length, layer
    and head, and diagnosis.png a picture, where matplotlib is there.

    A model of transformers is opened from its folder alone, converted or not, and reads text with the
    tokenizer.json beside it.
    """
    page = Page()
    with plain_errors(ImportError, NotImplementedError):
        if not delta > 1:
            raise ValueError(f"--delta must be greater than 1, got {delta:g}; 10 is for decades")
        where = find_device(device)
        model = open_diagnosed(folder, where)
        wanted = tuple(sorted(set(chosen_lengths(lengths, model.lengths))))
        name = data or model.data()
        corpus = model.corpus(name)
        tokens = _contexts(corpus, wanted, contexts).to(where)
        results = output or model.results
        check_writable(results)
        page.line(model.described)
        page.line(f"{contexts} texts of {name}, the last {QUERIES} queries of each\n")
        with meter("tokens", contexts * sum(wanted)) as progress:
            measured = attention_by_length(
                model.source, tokens, wanted, ratio=delta, progress=progress
            )
        found = [_diagnose(model, it) for it in measured]
        _print_lengths(page, measured, found)
        _print_layers(page, found[-1])
        _print_ranges(page, found[-1])
        _print_findings(page, found[-1])
        _write(results / RESULTS, model, name, corpus, contexts, measured, found)
        page.line(f"\n{results / RESULTS}")
        _draw(page, results / FIGURE, model.title, found)


def _contexts(corpus: TokenStream, lengths: Sequence[int], count: int) -> Any:
    if min(lengths) < 2:
        raise ValueError(f"--lengths must be at least 2 each, got {min(lengths)}")
    try:
        return spread_windows(corpus, max(lengths), count)
    except ValueError as error:
        raise ValueError(f"--lengths do not go with the data: {error}") from error


def _diagnose(model: Diagnosed, measured: LengthAttention) -> Diagnosis:
    return diagnose(
        measured,
        scale_invariant=model.scale_invariant,
        qk_norm=model.qk_norm,
        transformers=model.transformers,
    )


def _print_lengths(
    page: Page, measured: Sequence[LengthAttention], found: Sequence[Diagnosis]
) -> None:
    rows = []
    for attention, diagnosis in zip(measured, found, strict=True):
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
        f"\nOver all layers and heads. The slope is that of attention by distance, beyond {LOCAL} "
        f"tokens: 0 if it is scale-invariant, 1 if it is the same at every distance. Entropy is in nats."
    )


def _print_layers(page: Page, found: Diagnosis) -> None:
    page.heading(f"Layers at {found.length:,} tokens")
    page.table(
        ("layer", "score mean", "spread", "by head", "kurtosis", "slope", "by head", "findings"),
        [_layer_row(layer) for layer in found.layers],
        numbers=True,
    )


def _layer_row(layer: LayerDiagnosis) -> tuple[str, ...]:
    low, high = layer.score_spreads
    slopes = "" if layer.slopes is None else f"{layer.slopes[0]:+.2f} to {layer.slopes[1]:+.2f}"
    return (
        str(layer.layer),
        f"{layer.score_mean:+.2f}",
        f"{layer.score_spread:.2f}",
        f"{low:.2f} to {high:.2f}",
        _signed(layer.kurtosis),
        _signed(layer.slope),
        slopes,
        ", ".join(layer.findings) or "none",
    )


def _print_ranges(page: Page, found: Diagnosis) -> None:
    page.heading("Share of attention, and of the tokens that it falls on, by distance")
    ranges = found.layers[0].ranges
    page.table(
        ("layer", *(range_name(it.start, it.stop) for it in ranges)),
        [(str(layer.layer), *map(_range, layer.ranges)) for layer in found.layers],
        numbers=True,
    )


def _range(found: RangeDiagnosis) -> str:
    return "unseen" if found.part is None else f"{found.share:.1%} on {found.part:.0%}"


def _print_findings(page: Page, found: Diagnosis) -> None:
    page.heading("Findings")
    if not found.advice:
        page.paragraph(
            "Scores are near mean 0 and variance 1, attention is near scale-invariant, and sparse in "
            "every range: nothing to do."
        )
    for finding, text in found.advice.items():
        layers = [str(layer.layer) for layer in found.layers if finding in layer.findings]
        noun = "layer" if len(layers) == 1 else "layers"
        page.paragraph(f"{finding.capitalize()}, {noun} {', '.join(layers)}. {text}\n")


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _write(
    path: Path,
    model: Diagnosed,
    data: str,
    corpus: TokenStream,
    contexts: int,
    measured: Sequence[LengthAttention],
    found: Sequence[Diagnosis],
) -> None:
    contents: dict[str, Any] = {
        "model": str(model.path),
        "unfinished_at_step": model.unfinished,
        "config": dict(model.config),
        "data": {"name": data, "split": "validation", "fingerprint": corpus.fingerprint()},
        "contexts": contexts,
        "recent": RECENT,
        "diagnosis": [asdict(it) for it in found],
        "attention": [it.to_dict() for it in measured],
        "provenance": provenance(),
    }
    replace_file(path, (json.dumps(contents, indent=1, allow_nan=False) + "\n").encode())


def _draw(page: Page, path: Path, title: str, found: Sequence[Diagnosis]) -> None:
    # That of an earlier diagnosis would not belong to these results.
    path.unlink(missing_ok=True)
    try:
        picture = draw_diagnosis(asdict(found[-1]), title=title)
    except ModuleNotFoundError as missing:
        page.line(f"No figure: {missing}")
    else:
        replace_file(path, picture)
        page.line(str(path))
