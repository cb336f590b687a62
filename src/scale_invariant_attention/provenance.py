"""Where figures come from: when, from which commit, with which versions, on what machine."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

# What has to be the same for figures to stand in one table.
IDENTITY = ("commit", "version", "torch", "python", "cpu", "threads")

CHANGED = " with changes"


def provenance() -> dict[str, str]:
    """Of a run that starts now, with how busy the machine was before.

    >>> set(IDENTITY) <= set(provenance())
    True
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "version": version("scale-invariant-attention"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "threads": str(torch.get_num_threads()),
        "load": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown",
    }


def _commit() -> str:
    # An installed package may lie in somebody else's repository.
    if not _git("ls-files", Path(__file__).name):
        return "unknown"
    # What is built, and what it is built by: results and documents change no figure.
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


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
