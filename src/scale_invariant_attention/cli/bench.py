"""`sia bench`: speed and memory of the op, side by side with its rivals."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import Page

if TYPE_CHECKING:
    from ..lab.benchmark.records import Ratio, Record, Timing
    from ..lab.benchmark.rivals import Rival

OUTPUT = Path("benchmark-output")
TIMINGS, RATIOS, MODELS = (OUTPUT / f"{name}.csv" for name in ("attention", "ratios", "models"))
PAGE = OUTPUT / "benchmark.md"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    lengths: Annotated[
        list[str] | None,
        typer.Option(
            metavar="L,L",
            help="In tokens; by default 512 to 32768, and 4096, 16384 and 65536 to decode.",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(metavar="HxD,HxD", help="Heads x head size; by default 6x128 and 12x64."),
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option(metavar="PASS,PASS", help="Of forward, forward+backward, decode; all three."),
    ] = None,
    rivals: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="sdpa, which is always there, eager, and backends; all but the reference.",
        ),
    ] = None,
    flex: Annotated[
        bool, typer.Option("--flex/--no-flex", help="Whether to compile FlexAttention first.")
    ] = True,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0, help="A problem, for all rivals, after at least three rounds; 30 by default."
        ),
    ] = None,
    slowest: Annotated[
        float,
        typer.Option(min=0, help="In seconds: a rival that needs more for one run sits out."),
    ] = 60,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Whether to measure peak memory.")
    ] = True,
    memory_limit: Annotated[
        float,
        typer.Option(min=0, help="In GiB: a rival whose score matrices need more sits out."),
    ] = 4,
    output: Annotated[
        Path, typer.Option(metavar="CSV", help="Where to write; a file that is there is replaced.")
    ] = TIMINGS,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with what --output has of this code and machine."),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny problems: does it run?")] = False,
) -> None:
    """Time and memory of attention, rivals taking turns; medians and quartiles as a CSV.

    Lists take commas. Exits with 1, and without a figure, if a rival is wrong.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    from ..lab.benchmark import grid
    from ..lab.benchmark.records import Timing, write_records
    from ..lab.benchmark.rivals import BASELINE, contenders, rival_named
    from ..lab.benchmark.timing import Bounds
    from ..provenance import provenance

    extent = grid.QUICK if quick else grid.FULL
    invited = [rival.name for rival in contenders().values() if rival.invited]
    names = dict.fromkeys([BASELINE, *(_items(rivals) or invited)])
    page = Page()
    try:
        chosen = [rival_named(name) for name in names if flex or name != "flex"]
        problems = grid.problems(extent, _items(shapes), _items(lengths), _items(passes))
        origin = provenance() | {"rivals": " ".join(rival.name for rival in chosen)}
        continued = grid.recorded(output, origin) if resume and output.exists() else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    refuse_wrong(chosen)

    if continued is None:
        origin, rows = origin | Bounds.measured().record(), list[Timing]()
    else:
        origin, rows = continued
    bounds = Bounds.recorded(origin)
    print_origin(page, origin)
    page.line(f"Bounds: {bounds}")
    for problem in problems:
        page.heading(str(problem))
        if grid.is_recorded(problem, rows):
            page.line("recorded already")
            continue
        taking_part = []
        for rival in chosen:
            why = grid.objection(problem, rival, memory_limit * 2**30, slowest)
            if why is None:
                taking_part.append(rival)
            else:
                page.line(f"without {rival.name}: {why}")
        found = grid.measured(
            problem, taking_part, extent.seconds if seconds is None else seconds, bounds, memory
        )
        rows += found
        # After every problem, so that a run that is broken off loses nothing.
        write_records(output, origin, rows)
        page.table(("rival", "ms", "to SDPA", "of bound", "MiB"), map(_cells, found), numbers=True)
    page.line(f"\nWritten to {output}")


@app.command()
def ratios(
    backend: Annotated[str, typer.Option(help="The backend to compare.")] = "cpu",
    flex: Annotated[
        bool, typer.Option("--flex/--no-flex", help="Whether to compile FlexAttention and compare.")
    ] = True,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="A comparison, after at least three rounds; 15 by default."),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="CSV", help="Where to write; a file that is there is replaced.")
    ] = RATIOS,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny problems, at which targets mean nothing.")
    ] = False,
) -> None:
    """Named comparisons of one backend, each held to its target.

    What the transform costs, a window against the whole, one thread against two, the cost of a call
    and the like. Exits with 1, and without a figure, if a rival is wrong.
    """
    from ..attention import unavailable_backends
    from ..lab.benchmark import comparisons
    from ..lab.benchmark.records import write_records
    from ..lab.benchmark.rivals import BASELINE, contenders, rival_named
    from ..lab.benchmark.timing import Bounds
    from ..provenance import provenance

    page = Page()
    try:
        rival, baseline = _backend_named(backend), rival_named(BASELINE)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--backend'") from error
    other = contenders().get("flex") if flex and backend != "flex" else None
    refuse_wrong([rival, baseline] if other is None else [rival, baseline, other])

    bounds = Bounds.measured()
    origin = provenance() | {"backend": backend} | bounds.record()
    print_origin(page, origin)
    page.line(f"Bounds: {bounds}")
    if other is None:
        page.line(f"without flex: {unavailable_backends().get('flex', 'it is not asked for')}")
    if comparisons.cores() == 1:
        page.line("without two threads: there is one core")
    lengths, usual_seconds = (comparisons.QUICK, 0.05) if quick else (comparisons.FULL, 15)
    bandwidth = bounds.read_gigabytes_per_second
    rows: list[Ratio] = []
    for trial in comparisons.trials(rival, baseline, other, bandwidth, lengths):
        page.heading(str(trial.problem))
        try:
            found = comparisons.compared(trial, usual_seconds if seconds is None else seconds)
        except NotImplementedError as declined:
            page.line(f"without {trial.names}: {declined}")
            continue
        rows += found
        # After every comparison, so that a run that is broken off leaves what it has.
        write_records(output, origin, rows)
        page.table(("", "figure", "target", "met"), map(_target_cells, found))
    page.line(f"\n{sum(row.met for row in rows)} of {len(rows)} targets met.")
    page.line(f"Written to {output}")


@app.command(name="models")
def bench_models(
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="A model, after at least three rounds; 30 by default."),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="CSV", help="Where to write; a file that is there is replaced.")
    ] = MODELS,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small models, at which targets mean nothing.")
    ] = False,
) -> None:
    """Steps of whole models: the scale-invariant scheme, relative to plain RoPE on SDPA."""
    from ..lab.benchmark import models
    from ..lab.benchmark.records import ModelTiming, write_records
    from ..lab.benchmark.timing import Bounds
    from ..provenance import provenance

    page = Page()
    bounds = Bounds.measured()
    origin = provenance() | bounds.record()
    print_origin(page, origin)
    usual_seconds = 0.05 if quick else 30
    rows: list[ModelTiming] = []
    for problem in models.problems(quick):
        page.heading(str(problem))
        row = models.measured(problem, usual_seconds if seconds is None else seconds)
        rows.append(row)
        # After every model, so that a run that is broken off leaves what it has.
        write_records(output, origin, rows)
        page.line(
            f"{row.median_ms:#.4g} ms, {row.ratio:.3f} ({row.ratio_low:.3f} to {row.ratio_high:.3f}) "
            f"of RoPE on SDPA; target: at most {row.target:g}, {'met' if row.met else 'not met'}"
        )
        if row.attention_share is not None:
            page.line(f"{row.attention_share:.0%} of the time of a token in attention")
    page.line(f"\nWritten to {output}")


def _backend_named(name: str) -> "Rival":
    from ..attention import available_backends
    from ..lab.benchmark.rivals import rival_named

    rival = rival_named(name)
    if not rival.whole_contract:
        raise ValueError(f"{name!r} is no backend; backends are {', '.join(available_backends())}")
    return rival


@app.command()
def plot(
    results: Annotated[
        Path, typer.Option(metavar="CSV", help="What `sia bench` has written.")
    ] = TIMINGS,
    output: Annotated[
        Path, typer.Option(help="The folder for the figures; made if it is missing.")
    ] = OUTPUT,
) -> None:
    """Draw recorded results against length. Needs matplotlib."""
    from ..lab.benchmark.figures import draw
    from ..lab.benchmark.records import Timing

    try:
        written = draw(*_read(results, Timing, "--results"), output)
    except ModuleNotFoundError as missing:
        typer.echo(f"Not drawn: {missing}", err=True)
        raise typer.Exit(1) from missing
    typer.echo("\n".join(map(str, written)))


@app.command(name="page")
def write_page(
    results: Annotated[
        Path, typer.Option(metavar="CSV", help="What `sia bench` has written.")
    ] = TIMINGS,
    ratios: Annotated[
        Path, typer.Option(metavar="CSV", help="What `sia bench ratios` has written, if it has.")
    ] = RATIOS,
    models: Annotated[
        Path, typer.Option(metavar="CSV", help="What `sia bench models` has written, if it has.")
    ] = MODELS,
    output: Annotated[Path, typer.Option(metavar="MD", help="The page to write.")] = PAGE,
) -> None:
    """Write up recorded results as a page of the documentation."""
    from ..lab.benchmark import report
    from ..lab.benchmark.records import ModelTiming, Ratio, Timing

    timings = _read(results, Timing, "--results")
    compared = _read(ratios, Ratio, "--ratios") if ratios.exists() else (None, [])
    whole = _read(models, ModelTiming, "--models") if models.exists() else (None, [])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(report.page(*timings, *compared, *whole), encoding="utf-8")
    typer.echo(str(output))


def _read(path: Path, kind: "type[Record]", option: str) -> "tuple[dict[str, str], list[Record]]":
    from ..lab.benchmark.records import read_records

    try:
        return read_records(path, kind)
    except FileNotFoundError as missing:
        reason = f"{str(path)!r} is not there; name a file that was recorded, or record one first"
        raise typer.BadParameter(reason, param_hint=f"'{option}'") from missing
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error


def refuse_wrong(rivals: "Iterable[Rival]") -> None:
    """End the command if a rival does not compute what it should."""
    from ..lab.benchmark.rivals import fault

    faults = [found for rival in rivals if (found := fault(rival)) is not None]
    if faults:
        typer.echo("\n".join([*faults, "No figures."]), err=True)
        raise typer.Exit(1)


def print_origin(page: Page, origin: dict[str, str]) -> None:
    """The machine and the versions, in a line."""
    page.line(
        f"{origin['cpu']}, {origin['threads']} threads, load {origin['load']} before the run; "
        f"torch {origin['torch']}, commit {origin['commit']}."
    )


def _cells(row: "Timing") -> Sequence[str]:
    bound = row.share_of_peak if row.share_of_bandwidth is None else row.share_of_bandwidth
    return (
        row.rival,
        f"{row.median_ms:#.4g}",
        f"{row.ratio_to_sdpa:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})",
        f"{bound:.0%}",
        "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.1f}",
    )


def _target_cells(row: "Ratio") -> Sequence[str]:
    from ..lab.benchmark import report

    target = f"{row.sense} {report.in_unit(row.target, row.unit)}"
    return row.comparison, report.measured(row), target, "yes" if row.met else "no"


def _items(words: Iterable[str] | None) -> list[str]:
    return [item for word in words or () for item in re.split(r"[,\s]+", word) if item]


def _refuse_options_before(context: typer.Context) -> None:
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"{option} belongs to `sia bench` itself: put options of "
                f"{context.invoked_subcommand!r} after its name"
            )
