"""The numbers that the paper prints, to stand beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..seeds import SeedRow
from ..tables import Best, Row, Table, length_table

# The paper's method, whose rows the pages call ours.
OURS = "scale-invariant-p-rope"

# Values by scheme, at the three lengths.
PrintedTable = Mapping[str, tuple[float, float, float]]
LENGTHS = (4096, 16_384, 65_536)

# Table 1: validation loss of 162M parameters trained at 4096, the mean of three seeds. The two
# ablations, scale-invariant RoPE and NoPE, are in a figure without numbers.
TABLE1: PrintedTable = {
    "rope": (3.261, 3.936, 5.260),
    "p-rope": (3.260, 3.984, 5.735),
    "nope": (3.397, 6.430, 8.125),
    "rope-ntk": (3.261, 3.703, 5.430),
    "yarn": (3.261, 3.958, 5.353),
    "logn-rope": (3.260, 3.273, 3.378),
    "logn-p-rope": (3.256, 3.262, 3.317),
    "logn-ntk": (3.261, 3.272, 3.394),
    "alibi": (3.281, 3.272, 3.270),
    "scale-invariant-p-rope": (3.244, 3.235, 3.247),
}

# Standard errors by scheme, at the three lengths; None where the paper does not print them.
Errors = Mapping[str, tuple[float | None, float | None, float | None]]
ERRORS1: Errors = {
    "rope": (0.001, 0.010, 0.014),
    "p-rope": (0.001, 0.008, 0.085),
    "nope": (0.000, 0.059, 0.062),
    "rope-ntk": (0.001, 0.007, 0.026),
    "yarn": (0.000, 0.018, 0.065),
    "logn-rope": (0.001, 0.004, 0.011),
    "logn-p-rope": (0.001, 0.002, 0.005),
    "logn-ntk": (0.001, 0.002, 0.025),
    "alibi": (0.001, 0.001, 0.000),
    "scale-invariant-p-rope": (0.001, 0.001, 0.001),
}

# Table 2: share of needles found by the same models after fine-tuning at 4096.
TABLE2: PrintedTable = {
    "rope": (0.962, 0.000, 0.000),
    "p-rope": (0.966, 0.250, 0.000),
    "nope": (0.964, 0.303, 0.000),
    "rope-ntk": (0.962, 0.217, 0.000),
    "yarn": (0.969, 0.000, 0.000),
    "logn-rope": (0.965, 0.276, 0.064),
    "logn-p-rope": (0.969, 0.962, 0.939),
    "logn-ntk": (0.962, 0.253, 0.056),
    "alibi": (0.957, 0.020, 0.003),
    "scale-invariant-p-rope": (0.965, 0.969, 0.969),
}

# Those of Table 2 that are larger than 0.005.
ERRORS2: Errors = {
    "p-rope": (None, 0.020, None),
    "nope": (None, 0.239, None),
    "rope-ntk": (None, 0.078, None),
    "logn-rope": (None, 0.010, None),
    "logn-p-rope": (None, None, 0.009),
    "logn-ntk": (None, 0.015, None),
}

# Table 3: loss of Infini-attention, trained and evaluated as for Table 1, beside two rows of that.
TABLE3: PrintedTable = {
    "rope": TABLE1["rope"],
    OURS: TABLE1[OURS],
    "infini-rope": (3.296, 3.302, 3.310),
    "infini-p-rope": (3.295, 3.303, 3.311),
}
ERRORS3: Errors = {
    "rope": ERRORS1["rope"],
    OURS: ERRORS1[OURS],
    "infini-rope": (0.003, 0.004, 0.008),
    "infini-p-rope": (0.003, 0.005, 0.009),
}

# Table 4: loss of Llama-2-7B converted and fine-tuned at 4096; RoPE and RoPE+NTK are not fine-tuned.
TABLE4: PrintedTable = {
    "rope": (1.968, 7.036, 8.815),
    "p-rope": (2.029, 3.504, 6.800),
    "nope": (4.152, 6.172, 7.730),
    "rope-ntk": (1.988, 3.090, 7.523),
    "yarn": (1.957, 7.004, 8.763),
    "logn-rope": (1.966, 6.932, 8.726),
    "logn-p-rope": (2.049, 2.984, 6.224),
    "logn-ntk": (1.966, 3.063, 7.413),
    "alibi": (2.750, 2.745, 2.744),
    "scale-invariant-p-rope": (2.163, 2.193, 2.252),
}
# Schemes of Table 4 that the paper does not fine-tune.
NOT_CONTINUED = ("rope", "rope-ntk")


def printed_table(
    values: PrintedTable, best: Best, errors: Errors | None = None, *, change: bool = False
) -> Table:
    """One of the paper's tables, to stand to the right of ours."""
    rows = {
        scheme: SeedRow(scheme, {0: dict(zip(LENGTHS, printed, strict=True))})
        for scheme, printed in values.items()
    }
    table = length_table(rows, "scheme", best, column="paper, {:,}".format, change=change)
    known = {row.key: (errors or {}).get(row.key or "", ()) for row in table.rows}
    return replace(table, rows=[_with_errors(row, known[row.key]) for row in table.rows])


def _with_errors(row: Row, errors: Sequence[float | None]) -> Row:
    cells = [
        cell if error is None else replace(cell, text=f"{cell.text} ± {error:.3f}")
        for cell, error in zip(row.cells, errors, strict=False)
    ]
    return replace(row, cells=[*cells, *row.cells[len(errors) :]])
