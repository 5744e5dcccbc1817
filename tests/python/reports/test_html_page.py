"""HTML pages: what is in the file, and that it is written as a whole or not at all."""

import html.parser
import os
import stat
from types import SimpleNamespace

import pytest
from amanda.reports.html_page import HtmlPage
from amanda.reports.rich_table import Column

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
    found = Reader(page.text())
    cells = [attrs for tag, attrs in found.tags if tag == "td"]
    assert cells == [
        {"class": "name", "data-key": "aten::add"},
        {"class": "number", "data-key": "1500"},
        {"class": "name", "data-key": "aten::mul"},
        {"class": "number"},
    ]
    texts = [text for text in found.texts if text.strip()]
    for text in ("Title", "Summary.", "Slow", "aten::add", "1500 ns", "of two"):
        assert text in texts


def test_texts_of_a_program_are_never_markup():
    evil = "<script>alert(1)</script>&\"'"
    page = HtmlPage(evil, evil)
    page.add_text(evil, evil)
    page.add_table(evil, [Column(evil, lambda row: evil, field="name")], [row(evil, 1)], caption=evil)
    page.add_listing(evil, COLUMNS, [row(evil, 1)], code=lambda line: evil, caption=evil)
    found = Reader(page.text())
    assert [tag for tag, _ in found.tags].count("script") == 1, "only the page's own"
    in_text, in_table, in_listing = 2, 4, 4
    assert found.texts.count(evil) == 2 + 1 + in_text + in_table + in_listing, "title, heading, summary, sections"


def test_a_listing_keeps_the_order_of_lines_and_shades_the_hot_ones():
    page = HtmlPage("Cost by line")
    lines = [row("  x = 1", 0), row("  y = x @ x", 100)]
    page.add_listing("a.py", COLUMNS[1:], lines, code=lambda line: line.name, heat=lambda line: line.ns / 100)
    found = Reader(page.text())
    assert [text for text in found.texts if text in ("  x = 1", "  y = x @ x")] == ["  x = 1", "  y = x @ x"]
    shaded = [attrs["style"] for tag, attrs in found.tags if tag == "tr" and "style" in attrs]
    assert shaded == ["background: rgb(var(--hot) / 0.450)"]


def test_the_page_needs_no_network(tmp_path):
    page = HtmlPage("Title")
    page.add_svg("Picture", '<?xml version="1.0"?>\n<svg width="1"></svg>')
    found = Reader(page.text())
    assert ("svg", {"width": "1"}) in found.tags
    assert not [tag for tag, attrs in found.tags if tag == "link" or "src" in attrs or "href" in attrs]


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
