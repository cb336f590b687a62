"""Provenance of measurements: date, commit, versions and machine."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

# Fields that must agree for figures to share a table.
IDENTITY = ("commit", "version", "torch", "python", "cpu", "threads")

CHANGED = " with changes"

UNKNOWN = "unknown"
TRITON_DISTRIBUTIONS = ("triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")


def provenance() -> dict[str, str]:
    """Provenance of a run that starts now, with the load of the machine before it.

    >>> set(IDENTITY) <= set(provenance())
    True
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "version": version("scale-invariant-attention"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_information().get("model name") or platform.processor() or platform.machine(),
        "threads": str(torch.get_num_threads()),
        "load": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else UNKNOWN,
    }


def device_provenance(device: torch.device) -> dict[str, str]:
    """Name, driver and libraries of a device, in addition to :func:`provenance`.

    >>> device_provenance(torch.device("cpu"))["device"]
    'cpu'
    """
    about = {"device": device_name(device), "triton": triton_version() or "none"}
    if device.type != "cuda":
        return about
    properties = torch.cuda.get_device_properties(device)
    cudnn: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return about | {
        "compute_capability": f"{properties.major}.{properties.minor}",
        "processors": str(properties.multi_processor_count),
        "device_memory_bytes": str(properties.total_memory),
        "runtime": f"ROCm {torch.version.hip}"
        if torch.version.hip
        else f"CUDA {torch.version.cuda}",
        "cudnn": UNKNOWN if cudnn is None else str(cudnn),
        "driver": _nvidia_smi("driver_version") or UNKNOWN,
        "power_limit": _nvidia_smi("power.limit") or UNKNOWN,
    }


def device_name(device: torch.device) -> str:
    """The model of a GPU; the type of any other device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def triton_version() -> str | None:
    """The installed version of Triton, found without importing it."""
    return installed_version(*TRITON_DISTRIBUTIONS)


def installed_version(*names: str) -> str | None:
    """The version of the first of these packages that is installed, found without importing it.

    >>> installed_version("no-such-package") is None
    True
    """
    for name in names:
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def _nvidia_smi(field: str) -> str:
    """A field of the first GPU; empty where there is no such tool."""
    return _output("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader").partition("\n")[0]


def _commit() -> str:
    # An installed package may lie in another project's repository.
    if not _git("ls-files", Path(__file__).name):
        return UNKNOWN
    # The sources and the build: results and documents change no figure.
    changed = _git("status", "--porcelain", "-uno", "--", ":/src", ":/setup.py", ":/pyproject.toml")
    return _git("rev-parse", "HEAD") + (CHANGED if changed else "")


def _git(*arguments: str) -> str:
    return _output("git", *arguments)


def _output(*command: str) -> str:
    """Output of a command; empty if it is missing or fails."""
    try:
        return subprocess.run(  # noqa: S603  nothing here comes from outside
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cpu_information() -> dict[str, str]:
    """The fields of the first processor that Linux lists; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first, *_ = text.split("\n\n")
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
