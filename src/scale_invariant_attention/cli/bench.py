"""`sia bench`: speed and memory of the op, side by side with its rivals."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from .errors import plain_errors
from .options import or_bad_parameter
from .terminal import Page

if TYPE_CHECKING:
    import torch

    from ..lab.benchmark.problem import Setting
    from ..lab.benchmark.records import Record, Timing
    from ..lab.benchmark.rivals import Rival

OUTPUT = Path("benchmark-output")
TIMINGS, RATIOS, MODELS = (OUTPUT / f"{name}.csv" for name in ("attention", "ratios", "models"))
GPU_TIMINGS, GPU_REPORT = OUTPUT / "attention-gpu.csv", OUTPUT / "gpu-report.md"
PAGE = OUTPUT / "benchmark.md"

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Flex = Annotated[bool, Option("--flex/--no-flex", help="Compile FlexAttention and compare.")]
Seconds = Annotated[
    float | None,
    Option(
        min=0, help="Time per problem, after at least three rounds; by default 30, for ratios 15."
    ),
]
Output = Annotated[Path, Option(metavar="CSV", help="File to write; replaced if it exists.")]
Quick = Annotated[bool, Option("--quick", help="Tiny problems, at which targets mean nothing.")]
Results = Annotated[
    Path, Option(metavar="CSV", help="File that `sia bench` wrote: records, or a report.")
]


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    lengths: Annotated[
        list[str] | None,
        Option(
            metavar="L,L",
            help="In tokens; by default 512 to 32768, and 4096, 16384 and 65536 for decoding; "
            "on GPUs 1024 to 65536.",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        Option(
            metavar="HxD,HxD",
            help="Heads x head size; by default 6x128 and 12x64; on GPUs 16x128 and 32x64.",
        ),
    ] = None,
    passes: Annotated[
        list[str] | None,
        Option(
            metavar="PASS,PASS", help="forward, forward+backward, decode; all three by default."
        ),
    ] = None,
    rivals: Annotated[
        list[str] | None,
        Option(
            metavar="NAME,NAME",
            help="eager, and backends by name; by default all except the reference. sdpa always runs. "
            "On GPUs also sdpa-flash, sdpa-cudnn and, if installed, flash-attn and flash-attn-4.",
        ),
    ] = None,
    flex: Flex = True,
    seconds: Seconds = None,
    slowest: Annotated[
        float | None,
        Option(
            min=0,
            help="In seconds: skip a rival that needs more for one run; by default 60, on GPUs 2.",
        ),
    ] = None,
    memory: Annotated[bool, Option("--memory/--no-memory", help="Measure peak memory.")] = True,
    memory_limit: Annotated[
        float, Option(min=0, help="In GiB: skip a rival whose score matrices need more.")
    ] = 4,
    device: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str | None, Option(help="float32, bfloat16 or float16; on GPUs bfloat16 by default.")
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            metavar="CSV",
            help=f"File to write; replaced if it exists. By default {TIMINGS}, on GPUs {GPU_TIMINGS}.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        Option(
            metavar="MD",
            help="Also write everything into one file that can be sent back; on GPUs always, by "
            f"default to {GPU_REPORT}.",
        ),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Continue --output, if this code and machine wrote it.")
    ] = False,
    quick: Quick = False,
) -> None:
    """Measure time and memory of attention, rivals taking turns; write medians and quartiles as CSV.

    Lists are separated by commas. A rival that is wrong is never timed: on CPUs in float32 the command
    then exits with 1 before measuring anything, otherwise it goes without that rival in the passes where
    it is wrong, and reports it.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    from ..attention import run_self_checks
    from ..lab.benchmark import grid
    from ..lab.benchmark.bounds import Bounds
    from ..lab.benchmark.machine_report import machine_report, write_machine_report
    from ..lab.benchmark.problem import PLAIN
    from ..lab.benchmark.records import write_records
    from ..lab.benchmark.rivals import BASELINE, contenders, rival_named
    from ..provenance import device_provenance, provenance

    setting, on = _setting(device, dtype)
    extent = grid.QUICK if quick else grid.GPU if setting.is_cuda else grid.FULL
    output = output or (GPU_TIMINGS if setting.is_cuda else TIMINGS)
    report = report or (GPU_REPORT if setting.is_cuda else None)
    invited = [rival.name for rival in contenders(device).values() if rival.invited]
    names = dict.fromkeys([BASELINE, *(_items(rivals) or invited)])
    try:
        chosen = [rival_named(name, device) for name in names if flex or name != "flex"]
        problems = grid.problems(extent, _items(shapes), _items(lengths), _items(passes), setting)
        origin = provenance() | {"rivals": " ".join(rival.name for rival in chosen)}
        origin |= device_provenance(on) | {"dtype": setting.dtype_name, "batch": extent.rule}
        earlier = grid.read_resumable(output, origin) if resume and output.exists() else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    outcomes, left_out = run_self_checks(device), list[str]()
    faults: dict[tuple[str, str], str] = {}
    if setting == PLAIN:
        _refuse_wrong(chosen)
    else:
        distrusted = [name for name, outcome in outcomes.items() if not outcome.passed]
        chosen = [rival for rival in chosen if rival.name not in distrusted]
        faults = _faults(chosen, setting, sorted({problem.pass_name for problem in problems}))
        left_out += [f"without {name}: it failed its self-check" for name in distrusted]
        left_out += [f"without {found}" for found in faults.values()]
    bounds = Bounds.of_gpu(on, setting.dtype) if setting.is_cuda else Bounds.measure()
    origin, rows = earlier or (origin | bounds.record(), [])
    page, bounds = _page(origin), Bounds.from_record(origin)
    for line in left_out:
        page.line(line)
    for problem in problems:
        page.heading(str(problem))
        if grid.is_recorded(problem, rows):
            page.line("already recorded")
            continue
        taking_part = []
        for rival in chosen:
            if (rival.name, problem.pass_name) in faults:
                continue
            limit = extent.slowest if slowest is None else slowest
            reason = grid.skipped_reason(problem, rival, memory_limit * 2**30, limit)
            if reason is None:
                taking_part.append(rival)
            else:
                page.line(f"without {rival.name}: {reason}")
                left_out.append(f"{rival.name} at {problem}: {reason}")
        turns = extent.seconds if seconds is None else seconds
        found = grid.measure_problem(problem, taking_part, turns, bounds, memory)
        rows += found
        write_records(output, origin, rows)
        if report is not None:
            # After every problem, so that an interrupted run leaves a report too.
            text = machine_report(origin, rows, outcomes, left_out, BASELINE)
            write_machine_report(report, text)
        page.table(("rival", "ms", "to SDPA", "of bound", "MiB"), map(_cells, found), numbers=True)
    page.line(f"\nWritten to {output}")
    if report is not None:
        page.line(f"To send back: {report}")


@app.command()
def ratios(
    backend: Annotated[str, Option(help="The backend to compare.")] = "cpu",
    flex: Flex = True,
    seconds: Seconds = None,
    output: Output = RATIOS,
    quick: Quick = False,
) -> None:
    """Compare one backend with itself and with others, each comparison against a target.

    The cost of the transform, a window against the whole, one thread against two, the overhead of a call
    and so on. If a rival is wrong, exits with 1 before measuring anything.
    """
    from ..attention import unavailable_backends
    from ..lab.benchmark import comparisons
    from ..lab.benchmark.bounds import Bounds
    from ..lab.benchmark.records import Ratio, write_records
    from ..lab.benchmark.rivals import BASELINE, backend_named, contenders, rival_named
    from ..provenance import provenance

    rival = or_bad_parameter(lambda: backend_named(backend), "--backend")
    baseline = rival_named(BASELINE)
    other = contenders().get("flex") if flex and backend != "flex" else None
    _refuse_wrong([rival, baseline] if other is None else [rival, baseline, other])

    bounds = Bounds.measure()
    origin = provenance() | {"backend": backend} | bounds.record()
    page = _page(origin)
    if other is None:
        page.line(f"without flex: {unavailable_backends().get('flex', 'not requested')}")
    if comparisons.cores() == 1:
        page.line("without two threads: there is one core")
    lengths, usual_seconds = (comparisons.QUICK, 0.05) if quick else (comparisons.FULL, 15)
    turns = usual_seconds if seconds is None else seconds
    read_bandwidth = bounds.read_gigabytes_per_second
    rows: list[Ratio] = []
    for comparison in comparisons.all_comparisons(rival, baseline, other, read_bandwidth, lengths):
        page.heading(str(comparison))
        try:
            found = comparisons.measure_comparison(comparison, turns)
        except NotImplementedError as declined:
            page.line(f"without {comparison.names}: {declined}")
            continue
        rows += found
        write_records(output, origin, rows)
        page.table(
            ("", "measured", "target", "met"),
            [
                (row.comparison, row.shown, row.shown_target, "yes" if row.met else "no")
                for row in found
            ],
        )
    page.line(f"\nWritten to {output}")
    page.line(f"{sum(row.met for row in rows)} of {len(rows)} targets met.")


@app.command(name="models")
def bench_models(seconds: Seconds = None, output: Output = MODELS, quick: Quick = False) -> None:
    """Time steps of whole models: the scale-invariant scheme relative to plain RoPE on SDPA."""
    from ..lab.benchmark import models
    from ..lab.benchmark.bounds import Bounds
    from ..lab.benchmark.records import ModelTiming, write_records
    from ..provenance import provenance

    origin = provenance() | Bounds.measure().record()
    page = _page(origin)
    usual_seconds = 0.05 if quick else 30
    turns = usual_seconds if seconds is None else seconds
    rows: list[ModelTiming] = []
    for problem in models.model_problems(quick):
        page.heading(str(problem))
        row = models.measure_model(problem, turns)
        rows.append(row)
        write_records(output, origin, rows)
        page.line(
            f"{row.median_ms:#.4g} ms, {row.ratio:.3f} ({row.ratio_low:.3f} to "
            f"{row.ratio_high:.3f}) of RoPE on SDPA; target: at most {row.target:g}, "
            f"{'met' if row.met else 'not met'}"
        )
        if row.attention_share is not None:
            page.line(f"{row.attention_share:.0%} of the time per token in attention")
    page.line(f"\nWritten to {output}")


@app.command()
def plot(
    results: Results = TIMINGS,
    output: Annotated[Path, Option(help="Folder for the figures.")] = OUTPUT,
) -> None:
    """Draw recorded timings against length. Needs matplotlib."""
    from ..lab.benchmark.records import Timing
    from ..lab.benchmark.report import draw

    with plain_errors():
        written = draw(*_read(results, Timing, "--results"), output)
    typer.echo("\n".join(map(str, written)))


@app.command(name="page")
def write_page(
    results: Results = TIMINGS,
    ratios: Annotated[
        Path, Option(metavar="CSV", help="File that `sia bench ratios` wrote, if it exists.")
    ] = RATIOS,
    models: Annotated[
        Path, Option(metavar="CSV", help="File that `sia bench models` wrote, if it exists.")
    ] = MODELS,
    output: Annotated[Path, Option(metavar="MD", help="The page to write.")] = PAGE,
) -> None:
    """Write recorded results up as a page of the documentation."""
    from ..lab.benchmark.records import ModelTiming, Ratio, Timing
    from ..lab.benchmark.report import page

    timings = _read(results, Timing, "--results")
    compared = _read(ratios, Ratio, "--ratios") if ratios.exists() else (None, [])
    whole = _read(models, ModelTiming, "--models") if models.exists() else (None, [])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(*timings, *compared, *whole), encoding="utf-8")
    typer.echo(str(output))


def _read(path: Path, kind: "type[Record]", option: str) -> "tuple[dict[str, str], list[Record]]":
    from ..lab.benchmark.records import read_records

    if not path.exists():
        reason = f"{str(path)!r} does not exist; give a recorded file, or record one first"
        raise typer.BadParameter(reason, param_hint=f"'{option}'")
    return or_bad_parameter(lambda: read_records(path, kind), option)


def _refuse_wrong(rivals: "Iterable[Rival]") -> None:
    """Exit if a rival computes something wrong."""
    from ..lab.benchmark.correctness import fault

    faults = [found for rival in rivals if (found := fault(rival)) is not None]
    if faults:
        typer.echo("\n".join([*faults, "Nothing was measured."]), err=True)
        raise typer.Exit(1)


def _setting(device: str, dtype: str | None) -> "tuple[Setting, torch.device]":
    """The setting in the words of the command line, and its device."""
    import torch

    from ..lab.benchmark.problem import DTYPES, Setting

    if device.partition(":")[0] not in ("cpu", "cuda"):
        reason = f"device must be cpu or cuda, got {device!r}"
        raise typer.BadParameter(reason, param_hint="'--device'")
    if device.startswith("cuda") and not torch.cuda.is_available():
        reason = f"torch {torch.__version__} finds no GPU on this machine; leave it out, or use cpu"
        raise typer.BadParameter(reason, param_hint="'--device'")
    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    if dtype not in DTYPES:
        reason = f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}"
        raise typer.BadParameter(reason, param_hint="'--dtype'")
    return Setting(device, dtype), torch.device(device)


def _faults(
    rivals: "Sequence[Rival]", setting: "Setting", passes: Sequence[str]
) -> dict[tuple[str, str], str]:
    """Wrong results by rival and pass, which then goes without it; the baseline must be right."""
    from ..lab.benchmark.correctness import faults_by_pass
    from ..lab.benchmark.rivals import BASELINE

    found = {
        (rival.name, pass_name): fault
        for rival in rivals
        for pass_name, fault in faults_by_pass(rival, setting, passes).items()
    }
    of_baseline = [fault for (name, _), fault in found.items() if name == BASELINE]
    if of_baseline:
        typer.echo("\n".join([*of_baseline, "Nothing was measured."]), err=True)
        raise typer.Exit(1)
    return found


def _page(origin: dict[str, str]) -> Page:
    """A page that begins with the machine, its bounds and the versions."""
    from ..lab.benchmark.bounds import Bounds

    page = Page()
    gpu = f"{origin['device']}, " if origin.get("device", "cpu") != "cpu" else ""
    page.line(
        f"{gpu}{origin['cpu']}, {origin['threads']} threads, load {origin['load']} before the run; "
        f"torch {origin['torch']}, commit {origin['commit']}."
    )
    page.line(f"Bounds: {Bounds.from_record(origin)}")
    return page


def _cells(row: "Timing") -> Sequence[str]:
    return (
        row.rival,
        f"{row.median_ms:#.4g}",
        f"{row.ratio_to_sdpa:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})",
        f"{row.share_of_bound:.0%}",
        "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.1f}",
    )


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
