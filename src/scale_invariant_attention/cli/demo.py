"""`sia demo`: why scale invariance matters, in seconds on a CPU."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ..experiments.demo import (
    ALIBI_SLOPE,
    DecadeMasses,
    OpRun,
    RecentShares,
    decade_masses,
    op_run,
    recent_shares,
)
from ..experiments.demo_figure import draw
from ..theory import Estimate
from .page import Page


def demo(
    output: Annotated[
        Path,
        typer.Option(help="The folder for the figure; made if it is missing.", readable=False),
    ] = Path("demo-output"),
) -> None:
    """Show where attention goes as the context grows, and run the op. Needs no GPU and no data."""
    _make_folder(output)
    page = Page()
    shares = recent_shares()
    _print_shares(page, shares)
    decades = decade_masses()
    _print_decades(page, decades)
    _print_run(page, op_run())
    page.heading("4. The figure")
    figure = output / "attention-by-distance.png"
    try:
        draw(shares, decades, figure)
    except ModuleNotFoundError as missing:
        page.line(f"Not drawn: {missing}")
    else:
        page.paragraph("Tables 1 and 2 as curves:")
        page.line(str(figure))


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not os.access(output, os.W_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        is_file = isinstance(error, FileExistsError)
        reason = "is a file" if is_file else f"cannot be used: {error.strerror}"
        raise typer.BadParameter(
            f"{str(output)!r} {reason}; name a folder that can be made or written to",
            param_hint="'--output'",
        ) from error


def _print_shares(page: Page, shares: RecentShares) -> None:
    page.heading(f"1. What the nearest {shares.recent} tokens keep as the context grows")
    page.paragraph(
        f"Plain softmax and LogN treat all distances alike: of N tokens the nearest "
        f"{shares.recent} expect {shares.recent}/N of the attention, and drown. The "
        f"scale-invariant transform leaves them a share that falls only slowly. (Mean of "
        f"{shares.samples} draws of independent N(0, 1) scores, +/- one standard error.)"
    )
    page.table(
        ("context", *shares.shares),
        [
            (f"{length:,}", *map(_share, estimates))
            for length, *estimates in zip(shares.lengths, *shares.shares.values(), strict=True)
        ],
        numbers=True,
    )


def _share(share: Estimate) -> str:
    return f"{100 * share.mean:#.3g}% +/- {100 * share.standard_error:.1g}%"


def _print_decades(page: Page, decades: DecadeMasses) -> None:
    page.heading("2. What each decade of distances gets")
    page.paragraph(
        f"Expected weight before the softmax divides by the sum: compare within a column. Plain: "
        f"every decade outweighs all nearer ones together. ALiBi (slope 1/{1 / ALIBI_SLOPE:.0f}, "
        f"its farthest-seeing head): far decades vanish. Scale-invariant: far decades weigh the "
        f"same, ever closer to {decades.limit:.2f}."
    )
    page.table(
        ("distance", *decades.masses),
        [
            (f"{start:,}-{10 * start - 1:,}", *map(_mass, masses))
            for start, *masses in zip(decades.starts, *decades.masses.values(), strict=True)
        ],
        numbers=True,
    )


def _mass(mass: float) -> str:
    return f"{mass:,.2f}" if mass >= 0.01 else f"{mass:.1e}"


def _print_run(page: Page, run: OpRun) -> None:
    page.heading("3. The operation at work")
    page.paragraph(
        "One training step of attention, exact, without ever holding the score matrix. The last "
        "queries are computed again by the reference, which is the definition written out."
    )
    page.facts(
        [
            ("shape", "{} x {} heads x {} tokens x {}, float32".format(*run.shape)),
            ("backend", run.backend),
            ("forward", f"{run.forward_seconds * 1e3:.0f} ms"),
            ("backward", f"{run.backward_seconds * 1e3:.0f} ms"),
            ("scores not stored", f"{run.score_matrix_bytes / 2**20:.0f} MiB"),
            (
                f"last {run.checked} queries",
                f"max difference from the reference {run.output_error:.1e}, "
                f"in the query gradient {run.gradient_error:.1e}",
            ),
        ]
    )
