"""The numbers that the paper prints, to stand beside ours."""

from collections.abc import Mapping

from ..seeds import SeedRow
from ..tables import Best, Table, length_table

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


def printed_table(values: PrintedTable, best: Best, *, change: bool = False) -> Table:
    """One of the paper's tables, to stand to the right of ours."""
    rows = {
        scheme: SeedRow(scheme, {0: dict(zip(LENGTHS, printed, strict=True))})
        for scheme, printed in values.items()
    }
    return length_table(rows, "scheme", best, column="paper, {:,}".format, change=change)
