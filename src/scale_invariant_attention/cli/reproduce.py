"""`sia reproduce`: tables and figures of the paper, trained anew."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..files import check_writable, replace_file
from ..lab.experiments import attention, recall, sweeps, table1, table2
from ..lab.experiments.scales import SCALES
from ..lab.experiments.trials import Trial, recorded
from ..lab.reporting.attention import recent_shares
from ..lab.reporting.losses import Record, losses_of, option_of, scheme_of
from ..lab.reporting.reproduction import page_and_figures
from ..lab.reporting.shares import needles_found, values_recalled
from ..training.config import parse_fields
from . import reproducing as common
from .converting import print_configurations, reproduce_conversions
from .errors import plain_errors
from .reproducing import SETTINGS, Shown, made, numbers, read_request, reproduce, scheme_names
from .terminal import Page

app = typer.Typer(
    help="Tables and figures of the paper, trained anew.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command(name="table1", **SETTINGS)
def reproduce_table1(
    context: typer.Context,
    scale: common.ScaleName = "mini",
    chosen: common.Schemes = None,
    seeds: common.Seeds = 3,
    lengths: common.Lengths = None,
    tokens: common.Tokens = None,
    workers: common.Workers = None,
    device: common.Device = None,
    runs: common.Runs = None,
    results: common.Results = None,
    print_config: common.PrintConfig = False,
) -> None:
    """Table 1: loss at the trained length, and at 4 and 16 times it, for every scheme.

    Broken off, it goes on when it is run again; what is recorded is not trained again. Fields of the
    configuration can be set as for sia train. On several GPUs: torchrun --nproc-per-node 8 -m
    scale_invariant_attention.cli reproduce table1 --scale paper --data shards:FOLDER.
    """
    request = read_request(context, locals())
    own = SCALES[request.scale]
    measured = replace(own, evaluation=request.measuring(own.evaluation, tokens=tokens))
    names = scheme_names(chosen)
    trials = made(lambda: table1.trials(measured, names, tuple(range(seeds)), request.changes))
    reproduce(request, trials, Shown("scheme", scheme_of, losses_of))


@app.command(name="table2", **SETTINGS)
def reproduce_table2(
    context: typer.Context,
    scale: common.ScaleName = "mini",
    chosen: common.Schemes = None,
    seeds: common.Seeds = 3,
    lengths: common.Lengths = None,
    examples: common.Examples = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="'FIELD=VALUE ...'",
            help="Fields of the trainings that the fine-tunings start from, if not those of table1.",
        ),
    ] = None,
    workers: common.Workers = None,
    device: common.Device = None,
    runs: common.Runs = None,
    results: common.Results = None,
    print_config: common.PrintConfig = False,
) -> None:
    """Table 2: needles found at the trained length, and at 4 and 16 times it, for every scheme.

    The models of table1 are fine-tuned; those whose folders are gone are trained again. Goes on as
    table1 does. Fields of the configuration are those of the fine-tuning; what describes the model
    holds for both. The paper's haystack is C4: sia data shards --help tells how to make shards of it.
    """
    request = read_request(context, locals())
    tuning = table2.FINE_TUNING[request.scale]
    tuning = replace(tuning, evaluation=request.measuring(tuning.evaluation, examples=examples))
    names = scheme_names(chosen)
    earlier = made(lambda: parse_fields([f"--{part}" for part in (before or "").split()]))
    trials = made(
        lambda: table2.trials(
            SCALES[request.scale], tuning, names, tuple(range(seeds)), request.changes, earlier
        )
    )
    reproduce(request, trials, Shown("scheme", scheme_of, needles_found))


@app.command(name="table4")
def reproduce_table4(
    scale: Annotated[
        str, typer.Option("--scale", metavar="mini", help="In miniature, on CPUs.")
    ] = "mini",
    chosen: Annotated[
        str | None,
        typer.Option("--schemes", metavar="NAME,NAME", help="By default the paper's ten."),
    ] = None,
    seeds: common.Seeds = 1,
    runs: common.Runs = None,
    results: common.Results = None,
    print_config: common.PrintConfig = False,
) -> None:
    """Table 4: a Llama trained with RoPE, converted to every scheme, trained on, and its loss by length.

    Goes on as table1 does. Two processes may share the work, each with schemes of its own. Needs
    transformers: pip install 'scale-invariant-attention[huggingface]'.
    """
    if scale != "mini":
        raise typer.BadParameter(
            f"table4 has the scale mini alone, got {scale!r}: for a model of your own see "
            f"continue_pretraining in docs/huggingface.md",
            param_hint="'--scale'",
        )
    names = scheme_names(chosen)
    with plain_errors(ImportError):
        from ..lab.experiments import table4
    trials = made(lambda: table4.trials(names, tuple(range(seeds))))
    if print_config:
        print_configurations(trials)
        return
    reproduce_conversions(trials, runs or Path("runs") / scale, results or Path("results") / scale)


@app.command(name="recall", **SETTINGS)
def reproduce_recall(
    context: typer.Context,
    chosen: common.Schemes = None,
    seeds: common.Seeds = 3,
    lengths: common.Lengths = None,
    examples: common.Examples = None,
    workers: common.Workers = None,
    device: common.Device = None,
    runs: common.Runs = None,
    results: common.Results = None,
    print_config: common.PrintConfig = False,
) -> None:
    """Values recalled for keys, in noise up to 16 times the trained length, for every scheme.

    Not in the paper: what a scheme can find, without what it knows of language. Goes on as table1 does.
    """
    request = read_request(context, locals())
    measured = request.measuring(recall.EVALUATION, examples=examples)
    names = scheme_names(chosen)
    trials = made(lambda: recall.trials(names, tuple(range(seeds)), request.changes, measured))
    reproduce(request, trials, Shown("scheme", scheme_of, values_recalled))


@app.command(name="attention", **SETTINGS)
def reproduce_attention(
    context: typer.Context,
    scale: common.ScaleName = "mini",
    chosen: Annotated[
        str | None,
        typer.Option(
            "--schemes",
            metavar="NAME,NAME",
            help=f"By default {', '.join(attention.SCHEMES)}.",
        ),
    ] = None,
    seeds: common.Seeds = 1,
    lengths: common.Lengths = None,
    contexts: Annotated[
        int | None,
        typer.Option(min=1, help="To read at each length, if not those of the scale."),
    ] = None,
    workers: common.Workers = None,
    device: common.Device = None,
    runs: common.Runs = None,
    results: common.Results = None,
    print_config: common.PrintConfig = False,
) -> None:
    """Figure 1 and the QQ plots: what the attention of the models of table1 does with length.

    Recorded are mass and entropy by range of distance, and score statistics, of every layer and head;
    shown is the share of attention on the nearest 100 tokens. Goes on as table1 does; models whose
    folders are gone are trained again. sia figures draws what is recorded.
    """
    request = read_request(context, locals())
    evaluation = request.measuring(attention.EVALUATIONS[request.scale], contexts=contexts)
    names = scheme_names(chosen) or attention.SCHEMES
    trials = made(
        lambda: attention.trials(
            SCALES[request.scale], evaluation, names, tuple(range(seeds)), request.changes
        )
    )
    reproduce(request, trials, Shown("scheme", scheme_of, recent_shares))


def _sweep(option: str, help_text: str) -> None:
    """Make the command that changes one option of scale-invariant p-RoPE."""

    @app.command(name=option, help=help_text, **SETTINGS)
    def reproduce_sweep(
        context: typer.Context,
        scale: common.ScaleName = "mini",
        values: Annotated[
            str | None,
            typer.Option(
                metavar="X,X,...",
                help=f"By default {', '.join(f'{value:g}' for value in sweeps.VALUES[option])}.",
            ),
        ] = None,
        seeds: common.Seeds = 1,
        lengths: common.Lengths = None,
        tokens: common.Tokens = None,
        workers: common.Workers = None,
        device: common.Device = None,
        runs: common.Runs = None,
        results: common.Results = None,
        print_config: common.PrintConfig = False,
    ) -> None:
        request = read_request(context, locals())
        own = SCALES[request.scale]
        measured = replace(own, evaluation=request.measuring(own.evaluation, tokens=tokens))
        chosen = numbers("--values", values, float) if values else ()
        trials = made(
            lambda: sweeps.trials(measured, option, chosen, tuple(range(seeds)), request.changes)
        )
        label = partial(option_of, name=option)
        reproduce(request, trials, Shown(option, label, losses_of))


_sweep(
    "tau",
    "Figure 5: scale-invariant p-RoPE with other values of tau.\n\n"
    "Goes on and is recorded as table1 is; the training with the scale's own tau is the same.",
)
_sweep(
    "base",
    "Scale-invariant p-RoPE with other bases, by which the one of the miniature was found.\n\n"
    "Goes on and is recorded as table1 is; the training with the scale's own base is the same.",
)


@app.command(name="page")
def write_page(
    results: Annotated[
        Path, typer.Option(help="The folder of the records of the miniature.")
    ] = Path("results/mini"),
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path(
        "REPRODUCTION.md"
    ),
    figures: Annotated[Path, typer.Option(help="The folder of its figures.")] = Path("docs"),
) -> None:
    """Write REPRODUCTION.md and its figures from what is recorded, trained or not."""
    scale = SCALES["mini"]
    with plain_errors(ImportError):
        main = _recorded(table1.trials(scale), results)
        if not main:
            raise FileNotFoundError(
                f"there is no record of Table 1 in {results}; sia reproduce table1 makes them"
            )
        swept = {
            option: _recorded(sweeps.trials(scale, option, seeds=table1.SEEDS), results)
            for option in sweeps.VALUES
        }
        check_writable(figures)
        place = os.path.relpath(figures, output.parent)
        needles = _recorded(table2.trials(scale, table2.FINE_TUNING["mini"]), results)
        recalled = _recorded(recall.trials(), results)
        text, drawn = page_and_figures(
            main,
            swept,
            needles,
            recalled,
            _recorded_conversions(results),
            figures_at=Path(place).as_posix(),
        )
        for name, picture in drawn.items():
            replace_file(figures / name, picture)
        replace_file(output, text.encode())
    Page().line(str(output))


def _recorded(trials: Sequence[Trial], results: Path) -> list[Record]:
    """The records of those trials that are done."""
    return [record for trial in trials if (record := recorded(trial, results)) is not None]


def _recorded_conversions(results: Path) -> list[Record]:
    """The records of Table 4, whose experiment needs transformers to be looked at."""
    if not any(results.glob("table4-*.json")):
        return []
    from ..lab.experiments import conversions, table4

    trials = table4.trials(seeds=table1.SEEDS)
    found = (conversions.recorded(trial, results) for trial in trials)
    return [record for record in found if record is not None]
