"""`sia doctor`: versions, hardware, and a self-check of every backend."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from .terminal import Page

if TYPE_CHECKING:
    from ..lab.doctor import Check, Kernels, Machine, SelfCheck

UNKNOWN = "unknown"


def doctor(
    compiled: Annotated[
        bool,
        Option("--compile", help="Also check backends that compile first, which takes seconds."),
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions and hardware, and check every backend against the formula.

    Backends that "auto" relies on only after a self-check are checked again, forward and backward.
    Exits with 1 if a backend fails its check.
    """
    from ..lab.doctor import check_backends, inspect_machine, self_checks

    machine = inspect_machine()
    devices = ["cpu", "cuda"] if machine.gpus else ["cpu"]
    checks = [check for name in devices for check in check_backends(name, compiled=compiled)]
    thorough = [check for name in devices for check in self_checks(name)]
    ok = all(it.passed is not False for it in checks) and all(it.outcome.passed for it in thorough)
    if as_json:
        report = asdict(machine) | {"backends": [asdict(check) for check in checks]}
        report |= {"self_checks": [check.as_json() for check in thorough], "ok": ok}
        typer.echo(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(machine, checks, thorough)
    if not ok:
        raise typer.Exit(1)


def _print(machine: "Machine", checks: "Iterable[Check]", thorough: "Sequence[SelfCheck]") -> None:
    page = Page()
    flags = machine.instruction_sets
    known = flags and ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in flags.items())
    gpus = [
        f"{gpu.name}, {_gibibytes(gpu.memory_bytes)}, compute capability {gpu.compute_capability}"
        for gpu in machine.gpus
    ]
    page.facts(
        [
            *machine.versions.items(),
            ("platform", machine.platform),
            ("CPU", machine.cpu),
            ("instructions", f"{known or UNKNOWN}; torch uses {machine.torch_cpu_capability}"),
            ("kernels", _kernels(machine.kernels)),
            ("cores", f"{machine.cores or UNKNOWN}; torch threads: {machine.torch_threads}"),
            ("memory", _gibibytes(machine.memory_bytes)),
            *(("GPU", gpu) for gpu in gpus or ["none that torch can use"]),
        ]
    )
    page.heading("Optional packages")
    page.facts((name, it or _how_to_install(name)) for name, it in machine.optional.items())
    page.heading("Backends")
    page.table(
        ("device", "backend", "runs", "self-check in float32"),
        [
            (it.device, it.backend, "no" if it.unavailable_reason else "yes", _verdict(it))
            for it in checks
        ],
    )
    if thorough:
        page.heading(
            'Self-check, forward and backward: "auto" relies on a backend only if it passes'
        )
        page.table(
            ("device", "backend", "float32 products", "seconds", "outcome"),
            [
                (it.device, it.outcome.backend, it.float32_precision, _seconds(it), _outcome(it))
                for it in thorough
            ],
        )
    for it in thorough:
        for difference in it.outcome.differences:
            page.line(f"{it.outcome.backend}: {difference}")


def _how_to_install(name: str) -> str:
    from ..lab.doctor import OPTIONAL

    return f'no: pip install "{OPTIONAL[name]}"'


def _seconds(check: "SelfCheck") -> str:
    outcome = check.outcome
    compiling = f", compiling {outcome.compile_seconds:.1f}" if outcome.compile_seconds else ""
    return f"{outcome.seconds:.1f}{compiling}"


def _outcome(check: "SelfCheck") -> str:
    outcome = check.outcome
    if not outcome.passed:
        return f"FAILED: {outcome.findings}"
    without = f"; not checked: {'; '.join(outcome.declined)}" if outcome.declined else ""
    return f"OK; closest to its budget: {outcome.closest}{without}"


def _verdict(check: "Check") -> str:
    if check.unavailable_reason is not None:
        return check.unavailable_reason
    if check.passed is None:
        return "not run: it compiles first, which takes seconds; add --compile"
    if check.problem is not None:
        return f"FAILED: {check.problem}"
    verdict = "OK" if check.passed else "FAILED"
    return f"{verdict}: max error {check.error:.1e}, allowed {check.allowed:.1e}"


def _kernels(kernels: "Kernels") -> str:
    if kernels.uses is None:
        return "none"
    compiled = (
        f"{name}{'' if runs else ' (not on this CPU)'}" for name, runs in kernels.compiled.items()
    )
    return f"{kernels.uses} in use; compiled for {', '.join(compiled)}"


def _gibibytes(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / 2**30:.1f} GiB"
