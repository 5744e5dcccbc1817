"""HTML pages: what is in the file, and that it is written as a whole or not at all."""

import html.parser
import json
import math
import os
import stat
from types import SimpleNamespace

import pytest
from amanda.reports.html_page import HtmlPage
from amanda.reports.rich_table import Column
from amanda.reports.sections import MOST_NODES, Curve, Listing, Text, Timeline, icicle_of, section_of, table_of
from page_tables import tables_of

COLUMNS = [
    Column("operator", lambda row: row.name, left=True, field="name"),
    Column("time", lambda row: f"{row.ns} ns", field="ns"),
]


class Reader(html.parser.HTMLParser):
    """What a browser would find: start tags with their attributes, and texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def row(name, ns):
    return SimpleNamespace(name=name, ns=ns)


def test_a_table_has_what_is_shown_and_what_it_is_sorted_by():
    page = HtmlPage("Title", "Summary.")
    page.add_table("Slow", COLUMNS, [row("aten::add", 1500), row("aten::mul", None)], caption="of two")
    (table,) = tables_of(page.text())
    assert table["headings"] == ["operator", "time"]
    assert table["texts"] == [["aten::add", "aten::mul"], ["1500 ns", "None ns"]]
    assert table["keys"] == [None, [1500, None]], "names are sorted by what is shown"
    texts = [text for text in Reader(page.text()).texts if text.strip()]
    for text in ("Title", "Summary.", "Slow", "of two"):
        assert text in texts


def test_numbers_that_json_has_not_are_sorted_as_missing_ones():
    page = HtmlPage("Title")
    page.add_table("Slow", COLUMNS[1:], [row("a", math.nan), row("b", math.inf), row("c", 1)])
    assert tables_of(page.text())[0]["keys"] == [[None, None, 1]]


def test_a_long_table_says_what_it_leaves_out():
    rows = [row(f"op{place}", 9 - place) for place in range(9)]
    table = table_of("Slow", COLUMNS, rows, "in all threads", most=4)
    assert table.texts[0] == ["op0", "op1", "op2", "op3"]
    assert table.total == 9
    assert table.caption == ("the first 4 of 9 rows; to_json, to_csv and amanda run --out write all\nin all threads")


def test_an_icicle_sums_its_paths_and_keeps_the_largest_nodes():
    few = icicle_of("h", "ms", "all", [(["a", "x"], 2.0), (["b"], 4.0), (["a", "y"], 1.0)])
    parents = ["" if parent is None else few.labels[parent] for parent in few.parents]
    assert list(zip(few.labels, parents, few.values, strict=True)) == [
        ("all", "", 7.0),
        ("a", "all", 3.0),
        ("x", "a", 2.0),
        ("b", "all", 4.0),
        ("y", "a", 1.0),
    ], "in the order of the costs"
    many = icicle_of("h", "ms", "all", [([f"m{i}", "op"], float(i)) for i in range(MOST_NODES)])
    assert many.caption == f"{MOST_NODES + 1:,} smaller nodes are not drawn"
    assert len(many.labels) == MOST_NODES
    assert many.values[0] == MOST_NODES * (MOST_NODES - 1) / 2
    for node, parent in enumerate(many.parents[1:], 1):
        assert parent < node
        assert many.values[parent] >= many.values[node]
    assert icicle_of("h", "ms", "all", []).labels == ["all"]


def test_sections_are_the_same_after_a_file():
    sections = [
        Curve("h", "c", [0.0], [1.0], "MB"),
        Timeline("h", "c", ["t"], [0], [0.0], [1.0], ["n"], ["d"], ["forward"]),
        icicle_of("h", "ms", "all", [(["a"], 1.0)]),
        Listing("h", "c", ["ms"], [["1"]], ["x = 1"], [1.0]),
        table_of("h", COLUMNS, [row("a", 1)]),
        Text("h", "c"),
    ]
    assert [section_of(json.loads(json.dumps(section.as_json()))) for section in sections] == sections


def test_texts_of_a_program_are_never_markup():
    evil = "</script><script>alert(1)</script><!--&\"'"
    page = HtmlPage(evil, evil)
    page.add_text(evil, evil)
    page.add_table(evil, [Column(evil, lambda row: evil, field="name")], [row(evil, 1)], caption=evil)
    page.add(Listing(evil, evil, [evil], [[evil]], [evil], [0.5]))
    page.add(icicle_of(evil, evil, evil, [([evil], 1.0)], evil))
    page.add(Timeline(evil, evil, [evil], [0], [0.0], [1.0], [evil], [evil], [evil]))
    page.add(Curve(evil, evil, [0.0, 1.0], [1.0, 2.0], evil))
    text = page.text()
    found = Reader(text)
    own, data = 4, 4
    assert [tag for tag, _ in found.tags].count("script") == own + data
    headings, captions, contents = 6, 6, 6
    in_listing = 3
    about = 2 + 1  # title, h1, summary
    assert found.texts.count(evil) == about + contents + headings + captions + in_listing
    assert tables_of(text)[0]["texts"] == [[evil]]


def test_a_listing_keeps_the_order_of_lines_and_shades_the_hot_ones():
    page = HtmlPage("Cost by line")
    page.add(Listing("a.py", "", ["time"], [["0 ns"], ["100 ns"]], ["  x = 1", "  y = x @ x"], [0.0, 1.0]))
    found = Reader(page.text())
    assert [text for text in found.texts if text in ("  x = 1", "  y = x @ x")] == ["  x = 1", "  y = x @ x"]
    shaded = [attrs["style"] for tag, attrs in found.tags if tag == "tr" and "style" in attrs]
    assert shaded == ["background: rgb(var(--hot) / 0.450)"]


def test_the_library_for_charts_is_only_in_pages_that_have_some():
    page = HtmlPage("Title")
    page.add_table("Slow", COLUMNS, [row("a", 1)])
    assert len(page.text()) < 25_000
    page.add(Curve("Memory", "", [0.0], [1.0], "MB"))
    assert "plotly.js v" in page.text()


def test_a_file_is_replaced_as_a_whole_and_readable_by_others(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    mask = os.umask(0o022)
    try:
        HtmlPage("New").write(path)
    finally:
        os.umask(mask)
    assert "<title>New</title>" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_page_that_cannot_be_made_leaves_the_old_file(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        HtmlPage("New").write(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        HtmlPage("New").write(tmp_path / "missing" / "page.html")
    broken = Column("broken", lambda row: row.nothing)
    with pytest.raises(AttributeError):
        HtmlPage("New").add_table("", [broken], [row("a", 1)])
    assert path.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["folder", "page.html"]
