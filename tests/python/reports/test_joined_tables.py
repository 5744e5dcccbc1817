"""Tables of two runs: rows by name, in the program's order, with the differences."""

from types import SimpleNamespace

from amanda.reports.columns import name_column, number_column, percentage_column
from amanda.reports.joined_tables import joined
from amanda.reports.rich_table import Column
from amanda.reports.sections import table_of

COLUMNS = [
    name_column("op"),
    number_column("calls", "calls"),
    number_column("ms", "ns", 1e6, 2),
    Column("place", lambda row: row.place, left=True),
    percentage_column("share", "share"),
]


def row(name, calls, ns, share=0.5):
    return SimpleNamespace(name=name, calls=calls, ns=ns, place="here", share=share)


BEFORE = [row("linear", 2000, 3_000_000), row("relu", 2, 5_000_000), row("add", 1, 1_000_000), row("add", 2, None)]
AFTER = [row("gelu", 7, 7_000_000), row("linear", 2500, 2_500_000, 0.25), row("add", 1, 1_000_000), row("silu", 3, 3)]


def both(before=BEFORE, after=AFTER, columns=COLUMNS):
    table = joined(table_of("ops", COLUMNS, before), table_of("ops", columns, after), ("before", "after"))
    return table, [list(cells) for cells in zip(*table.texts, strict=True)]


def test_rows_of_the_same_name_are_one_row_with_its_differences():
    table, rows = both()
    assert table.headings[:4] == ["op", "calls, before", "calls, after", "calls, difference"]
    assert table.headings[7:] == ["share, before", "share, after", "share, difference"]
    assert table.numbers == [False] + [True] * 9
    assert [cells[:7] for cells in rows] == [
        ["gelu", "", "7", "only after", "", "7.00", "only after"],
        ["linear", "2000", "2500", "+500", "3.00", "2.50", "-0.50"],
        ["relu", "2", "", "only before", "5.00", "", "only before"],
        ["add", "1", "1", "+0", "1.00", "1.00", "+0.00"],
        ["silu", "", "3", "only after", "", "0.00", "only after"],
        ["add", "2", "", "only before", "", "", "only before"],
    ]
    assert rows[1][7:] == ["50.0%", "25.0%", "-25.0%"]
    assert table.keys[6] == [7_000_000, -500_000, -5_000_000, 0, 3, None], "sorted by what changed most"
    assert table.caption == "not compared: place"
    assert table.total == 6


def test_a_column_that_one_run_has_alone_is_named():
    table, _ = both(columns=COLUMNS[:2])
    assert table.headings == ["op", "calls, before", "calls, after", "calls, difference"]
    assert table.caption == "not compared: ms, place, share"


def test_a_run_without_rows_is_compared():
    _, rows = both(after=[])
    assert [cells[0] for cells in rows] == ["linear", "relu", "add", "add"]
    assert rows[0][1] == "2000"
    table, rows = both(before=[], after=[])
    assert (rows, table.headings) == ([], ["op"])
