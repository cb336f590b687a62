"""`sia doctor`: versions, hardware, and a self-check of every backend."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from .terminal import Page

if TYPE_CHECKING:
    from ..lab.doctor import Check, Kernels, Machine

UNKNOWN = "unknown"


def doctor(
    compiled: Annotated[
        bool,
        Option("--compile", help="Also check backends that compile first, which takes seconds."),
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions and hardware, and check every backend against the formula.

    Exits with 1 if a backend fails its check.
    """
    from ..lab.doctor import check_backends, inspect_machine

    machine = inspect_machine()
    devices = ["cpu", "cuda"] if machine.gpus else ["cpu"]
    checks = [check for name in devices for check in check_backends(name, compiled=compiled)]
    failed = [check for check in checks if check.passed is False]
    if as_json:
        report = asdict(machine) | {"backends": [asdict(check) for check in checks]}
        typer.echo(json.dumps(report | {"ok": not failed}, indent=2))
    else:
        _print(machine, checks)
    if failed:
        raise typer.Exit(1)


def _print(machine: "Machine", checks: "Iterable[Check]") -> None:
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
    page.heading("Backends")
    page.table(
        ("device", "backend", "runs", "self-check in float32"),
        [
            (it.device, it.backend, "no" if it.unavailable_reason else "yes", _verdict(it))
            for it in checks
        ],
    )


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
