"""Write the documentation page on speed and memory from the results of benchmark_attention.py.

python benchmarks/page_attention.py results.csv -o docs/benchmark.md
"""

from argparse import ArgumentParser
from pathlib import Path

from results import Row, read_results
from rivals import BASELINE

PAGE = """# Speed and memory

<!-- Written by benchmarks/page_attention.py from recorded results: run `make bench` to renew it. -->

Causal attention, batch 1, float32, {threads} threads of an {cpu}. SDPA is torch's plain
`scaled_dot_product_attention`, which does not compute the transform; `eager` writes the transform down
with the whole score matrix, and sits out the lengths at which that takes more than 4 GiB. Ratios are
medians, over rounds in which the rivals take turns, of the time relative to SDPA in the same round, with
quartiles in brackets. Shares of peak count the exact causal triangle (forward and backward together 3.5
times the forward) against the best float32 matrix product on the spot, {matmul_gflops} GFLOP/s.
Memory is the peak above inputs, outputs and gradients, each in a process of its own.

![Time relative to SDPA against length](attention-benchmark.png)

{tables}

Recorded {date} with scale-invariant-attention {version} (commit {commit}), torch {torch}, Python
{python}; load {load} before the run. The rows are in `benchmarks/results/attention.csv`.
"""


def page(origin: dict[str, str], rows: list[Row]) -> str:
    """The page as Markdown."""
    groups = dict.fromkeys((row.shape, row.pass_name) for row in rows)
    tables = (_table(group, rows) for group in groups)
    return PAGE.format(tables="\n\n".join(tables), **origin | {"commit": origin["commit"][:12]})


def _table(group: tuple[str, str], rows: list[Row]) -> str:
    heads, _, head_dim = group[0].partition("x")
    lines = [
        f"## {heads} heads of {head_dim}, {group[1]}",
        "",
        "| length | | milliseconds | relative to SDPA | share of peak | memory, MiB |",
        "|---|---|---|---|---|---|",
    ]
    mine = [row for row in rows if (row.shape, row.pass_name) == group]
    return "\n".join(lines + [_line(row) for row in mine])


def _line(row: Row) -> str:
    ratio = f"{row.ratio_to_sdpa:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})"
    memory = "" if row.peak_memory_mib is None else f"{row.peak_memory_mib:.0f}"
    cells = [
        f"{row.length:,}",
        row.rival,
        f"{row.median_ms:.1f}",
        "1" if row.rival == BASELINE else ratio,
        f"{100 * row.share_of_peak:.0f} %",
        memory,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="the CSV of benchmark_attention.py")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark.md"))
    options = parser.parse_args()
    options.output.write_text(page(*read_results(options.results)))
