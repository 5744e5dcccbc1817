"""Tables: names are never broken inside a part and numbers never cut, at any width, in terminals and in notebooks."""

import re
from xml.etree import ElementTree

import pytest
import rich.cells
import rich.console
from amanda.reports.columns import name_column, number_column
from amanda.reports.rich_table import Column, rich_table
from amanda.reports.table import Name

NAMES = [
    "encoder.layer.5.attention.output.dense",
    "resnet.encoder.stages.3.layers.5.layer.1.convolution",
    "aten::scaled_dot_product_attention",
    "a_layer_whose_name_is_longer_than_any_narrow_terminal_and_has_no_dots_at_all.x",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::Array<char*, 3> >(int)",
    "/usr/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py:1243",
    "模型.编码器.层.注意力",
    "conv1",
    "",
]
WIDTHS = [40, 60, 80, 120, 200]
SEPARATORS = r"(?<=[./<,\s])|(?<=::)"


class Row:
    def __init__(self, name):
        self.name, self.calls, self.total_ns, self.share, self.output_bytes = name, 12345, 678_910_000, 0.1, 98_765_432


MEASURES = [
    number_column("calls", "calls"),
    number_column("total ms", "total_ns", 1e6, 2),
    number_column("share", "share", 1, 3),
    number_column("output MB", "output_bytes", 1e6, 2),
]
NUMBERS = ["12345", "678.91", "0.100", "98.77"]


def printed(table, width):
    console = rich.console.Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def is_whole(shown, name):
    """Whether this is some parts of the name, the first one possibly shortened from the left."""
    end = shown.removeprefix("…")
    at = name.find(end)
    while at >= 0:
        before, after = name[:at], name[at + len(end) :]
        starts = shown.startswith("…") or not before or re.search(rf"(?:{SEPARATORS})$", before)
        ends = not after or re.match(r"\s", after) or re.search(rf"(?:{SEPARATORS})$", before + end)
        if starts and ends:
            return True
        at = name.find(end, at + 1)
    return False


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", range(1, 130))
def test_a_name_goes_on_after_a_separator_or_is_shortened_from_the_left(width):
    for name in NAMES:
        for shortens in (False, True):
            lines = [line.plain for line in Name(name, shortens).wrap(None, width)]
            assert all(rich.cells.cell_len(line) <= width for line in lines)
            assert len(lines) == 1 or not shortens
            assert all(is_whole(line.strip(), name) for line in lines if line.strip() not in ("", "…")), lines
            if rich.cells.cell_len(name) <= width:
                assert lines == [name]
            elif not shortens and not any("…" in line for line in lines):
                assert "".join(line.strip() for line in lines).replace(" ", "") == name.replace(" ", "")


def test_how_names_look():
    def lines(name, width, shortens=False):
        return [line.plain for line in Name(name, shortens).wrap(None, width)]

    path = "/usr/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py:1243"
    assert lines(path, 60, shortens=True) == ["…transformers/models/bert/modeling_bert.py:1243"]
    assert lines("encoder.layer.5.attention.output.dense", 20) == ["encoder.layer.5.", "  attention.output.", "  dense"]
    assert lines("aten::scaled_dot_product_attention", 20) == ["aten::", "  …product_attention"]
    assert lines("/home/me/models/bert.py:12", 20, shortens=True) == ["…models/bert.py:12"]
    assert lines("/home/me/models/bert.py:12", 12, shortens=True) == ["…bert.py:12"]
    assert lines("/home/me/models/a_long_name.py:12", 12, shortens=True) == ["…_name.py:12"]
    assert lines("aten::linear\n  encoder.layer.0, bert.py:7", 24) == [
        "aten::linear",
        "  encoder.layer.0,",
        "    bert.py:7",
    ]


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("by", ["module", "line"])
def test_no_name_is_broken_and_no_number_cut_at_any_width(width, by):
    rows = [Row(name) for name in NAMES if name]
    lines = printed(rich_table("test", [name_column(by), *MEASURES], rows), width)
    assert max(map(rich.cells.cell_len, lines)) <= width
    body = lines[3:]
    shown = [number for number in NUMBERS if number in body[0]]
    assert shown == NUMBERS[: len(shown)]
    assert len(shown) == {40: 2}.get(width, 4)
    assert sum(all(number in line for number in shown) for line in body) == len(rows)  # in one line of each row
    for line in body:
        text = re.sub(rf"\s+({'|'.join(map(re.escape, NUMBERS))})(?=\s|$)", "", line).strip()
        if text and not text.startswith(("no room", "output MB")):
            assert any(is_whole(text, name) for name in NAMES), line


@pytest.mark.parametrize("width", WIDTHS)
def test_two_columns_of_names_share_what_room_there_is(width):
    names = [Column("op", lambda row: row.name, left=True, folds=True)] * 2
    lines = printed(rich_table("test", [*names, MEASURES[0]], [Row(NAMES[0])]), width)
    assert max(map(len, lines)) <= width
    for line in lines[3:]:
        if "no room" not in line and line.strip():
            assert all(is_whole(text, NAMES[0]) for text in line.replace("12345", "").split())


def test_what_is_left_out_of_a_narrow_table_is_said():
    table = rich_table("test", [name_column("module"), *MEASURES], [Row(NAMES[3])], caption="measured on a Monday")
    lines = [line.strip() for line in printed(table, 40)]
    assert lines[1].split() == ["module", "calls", "total", "ms"]
    text = " ".join(lines)
    assert "measured on a Monday no room in 40 characters for: share, output MB" in text
    assert "no room" not in " ".join(printed(table, 80))
    assert table.caption.plain == "measured on a Monday"
    assert [column.header for column in table.columns] == ["module", "calls", "total ms", "share", "output MB"]


def test_the_column_that_sorts_is_left_out_last():
    table = rich_table("test", [name_column("module"), *MEASURES], [Row(NAMES[0])], sort="output_bytes")
    lines = printed(table, 40)
    assert lines[1].split() == ["module", "calls", "output", "MB"]
    assert {"12345", "98.77"} <= set(" ".join(lines).split())


@pytest.mark.parametrize("width", range(1, 40))
def test_a_terminal_too_narrow_for_anything_shows_names(width):
    lines = printed(rich_table("test", [name_column("module"), *MEASURES], [Row("conv1"), Row(NAMES[0])]), width)
    assert max(map(len, lines)) <= width
    if width >= 7:
        assert "conv1" in " ".join(lines)


def test_notebooks_show_names_in_one_piece_and_all_columns():
    table = rich_table("test", [name_column("module"), *MEASURES], [Row(name) for name in NAMES if name])
    page = ElementTree.fromstring(table._repr_html_())
    head, *rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert head == ["module", "calls", "total ms", "share", "output MB"]
    assert rows == [[name, *NUMBERS] for name in NAMES if name]
    assert all(cell.get("style").endswith("white-space: pre") for row in page.iter("tr") for cell in row)
    bundle = table._repr_mimebundle_()
    assert bundle["text/html"] == table._repr_html_()
    assert bundle["text/plain"].strip().startswith("module")
    assert set(table._repr_mimebundle_(include={"text/html"})) == {"text/html"}


@pytest.mark.parametrize(("top", "error"), [(-1, ValueError), (True, ValueError), (2.5, TypeError), ("3", TypeError)])
def test_a_top_that_is_no_number_of_rows_is_refused(says, top, error):
    with says(error, f"[test] top= is how many rows to show, 0 or more, got {top!r}"):
        rich_table("test", [name_column("op")], [], top=top)
