"""Tables by length: what is marked, what is missing, and tables side by side."""

from scale_invariant_attention.lab.seeds import SeedRow
from scale_invariant_attention.lab.tables import Cell, length_table, markdown

ROWS = {
    "rope": SeedRow("rope", {0: {256: 1.0, 1024: 3.0}, 1: {256: 2.0, 1024: 5.0}}),
    "alibi": SeedRow("alibi", {0: {256: 1.5, 1024: 2.0}}),
}


def cells(table):
    return {row.key: list(row.cells) for row in table.rows}


def test_mean_error_change_and_the_lowest():
    table = length_table(ROWS, "scheme", min, titles={"rope": "RoPE"}, change=True)
    assert markdown(table).splitlines() == [
        "| scheme | 256 | 1,024 | change |",
        "|---|---|---|---|",
        "| RoPE | 1.500 ± 0.500 | 4.000 ± 1.000 | +2.500 |",
        "| alibi | 1.500 | **2.000** | +0.500 |",
    ]
    assert table.texts()[1] == ("alibi", "1.500", "2.000", "+0.500")


def test_the_highest_may_be_the_best_and_nothing_need_be():
    assert [row[1].best for row in cells(length_table(ROWS, "scheme", max)).values()] == [
        True,
        False,
    ]
    assert not any(cell.best for row in length_table(ROWS, "scheme").rows for cell in row.cells)


def test_means_that_are_printed_alike_are_marked_alike():
    rows = {name: SeedRow(name, {0: {256: loss}}) for name, loss in (("a", 0.8841), ("b", 0.8842))}
    rows["c"] = SeedRow("c", {0: {256: 0.9}})
    cells = [row.cells[0].best for row in length_table(rows, "scheme", min).rows]
    assert cells == [True, True, False]
    # Where all are printed alike, none is best.
    del rows["c"]
    assert not any(row.cells[0].best for row in length_table(rows, "scheme", min).rows)


def test_what_was_not_measured_is_left_empty():
    rows = {**ROWS, "nope": SeedRow("nope", {0: {1024: 1.0}})}
    assert cells(length_table(rows, "scheme", min))["nope"] == [
        Cell("", "not measured"),
        Cell("1.000", best=True),
    ]


def test_lengths_stand_in_the_order_that_is_asked_for():
    assert length_table(ROWS, "scheme", lengths=(1024, 256)).header == ["scheme", "1,024", "256"]


def test_a_note_stands_beside_a_value():
    table = length_table(
        ROWS, "scheme", note=lambda key, length, spread: f"{key} {length} {spread.count}"
    )
    assert cells(table)["rope"][1].note == "rope 1024 2"


def test_tables_side_by_side():
    printed = {"alibi": SeedRow("alibi", {0: {4096: 3.0}})}
    both = length_table(ROWS, "scheme", min).beside(
        length_table(printed, "scheme", min, column="paper, {:,}".format)
    )
    assert both.header == ["scheme", "256", "1,024", "paper, 4,096"]
    assert [row.cells[-1].text for row in both.rows] == ["", "3.000"]
