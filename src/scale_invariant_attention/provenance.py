"""Provenance of measurements: date, commit, versions and machine."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

# Fields that must agree for figures to share a table.
IDENTITY = ("commit", "version", "torch", "python", "cpu", "threads")

CHANGED = " with changes"


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
        "load": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown",
    }


def _commit() -> str:
    # An installed package may lie in another project's repository.
    if not _git("ls-files", Path(__file__).name):
        return "unknown"
    # The sources and the build: results and documents change no figure.
    changed = _git("status", "--porcelain", "-uno", "--", ":/src", ":/setup.py", ":/pyproject.toml")
    return _git("rev-parse", "HEAD") + (CHANGED if changed else "")


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(  # noqa: S603  nothing here comes from outside
            ("git", *arguments),  # noqa: S607  git is where the user has it
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
