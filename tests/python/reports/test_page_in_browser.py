"""Pages in Chromium: sorting, filtering and zooming work, and nothing is asked of a network."""

import random
import re
import subprocess
import sys
from types import SimpleNamespace

import amanda
import numpy
import pandas
import pytest
import torch
from amanda.reports.html_page import HtmlPage
from amanda.reports.rich_table import Column
from amanda.reports.sections import MOST_BARS, Curve, table_of
from amanda.reports.tool_sections import sections_of
from amanda.tools.memory import PeakMemory
from amanda.tools.profile import Profile
from in_browser import needs_browser, visit
from repository import ROOT

pytestmark = needs_browser
COLUMNS = [
    Column("operator", lambda row: row.name, left=True, field="name"),
    Column("ms", lambda row: "" if row.ns is None else f"{row.ns / 1e6:.1f}", field="ns"),
    Column("place", lambda row: f"line {number_of(row)}"),
]


def number_of(row):
    return int("".join(filter(str.isdigit, row.name)))


@pytest.fixture
def rows():
    chosen = random.Random(0)
    names = [f"{kind}{number}" for kind in ("Linear", "conv", "<b>add</b>") for number in range(400)]
    chosen.shuffle(names)
    return [SimpleNamespace(name=name, ns=chosen.choice([None, chosen.randrange(10**9)])) for name in names]


SORT_AND_FILTER = """
    const place = section("Operators");
    const [name, ms, place_of] = all("th", place), [input] = all("input", place), [more] = all("button", place);
    const shown = () => all(".shown", place)[0].textContent;
    const filter = text => { input.value = text; input.dispatchEvent(new Event("input")); };
    found.as_given = column(place, 1);
    found.shown = shown();
    ms.click();
    found.largest = column(place, 1);
    more.click();
    found.larger = column(place, 1);
    ms.click();
    found.smallest = column(place, 1);
    filter("ADD</b>1");
    found.filtered = column(place, 1);
    found.shown_of_filtered = shown();
    name.click();
    found.by_name = column(place, 1);
    found.arrow = name.ariaSort ?? name.getAttribute("aria-sort");
    filter("nothing has this");
    found.nothing = column(place, 1);
    filter("");
    name.click();
    found.by_name_reversed = column(place, 1);
    place_of.click();
    found.by_text = column(place, 3);
"""


LARGE = """
    const place = section("Large"), headings = all("th", place), [input] = all("input", place);
    found.shown = {};
    const note = name => {
      found[name] = column(place, 1);
      found.shown[name] = all(".shown", place)[0].textContent;
    };
    const filter = text => { input.value = text; input.dispatchEvent(new Event("input")); };
    const click = (number, name) => { headings[number].click(); note(name); };
    note("as_given");
    click(2, "largest");
    click(2, "smallest");
    filter("CONV7");
    note("filtered");
    click(1, "by_kind");
    click(3, "by_place");
    filter("");
    note("all_by_place");
    click(3, "reversed");
"""


@pytest.mark.parametrize("count", [120_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_large_table_is_sorted_and_filtered_as_by_pandas(count, tmp_path):
    chosen = numpy.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "id": [f"#{number}" for number in range(count)],
            "name": [
                f"{('Linear', 'conv', 'é<b>')[kind]}{layer}"
                for kind, layer in chosen.integers((3, 90), size=(count, 2))
            ],
            "ns": numpy.where(chosen.random(count) < 0.01, numpy.nan, chosen.integers(0, 10**9, count)),
            "line": chosen.permutation(count),
        }
    )
    columns = [
        Column("id", lambda row: row.id, left=True),
        Column("kind", lambda row: row.name, left=True, field="name"),
        Column("ms", lambda row: f"{row.ns / 1e6:.3f}", field="ns"),
        Column("place", lambda row: f"x.py:{row.line}", left=True),
    ]
    page = HtmlPage("Page")
    page.add(table_of("Large", columns, list(frame.itertuples())))
    found, complaints, addresses = visit(page.text(), LARGE, tmp_path)
    assert (complaints, addresses) == ([], [])

    def natural(names):
        return names.str.lower().str.replace(r"\d+", lambda digits: digits[0].zfill(9), regex=True)

    expected = {"as_given": frame, "largest": frame.sort_values("ns", ascending=False, kind="stable")}
    expected["smallest"] = expected["largest"].sort_values("ns", kind="stable")
    expected["filtered"] = expected["smallest"][expected["smallest"].name.str.contains("conv7")]
    expected["by_kind"] = expected["filtered"].sort_values("name", key=natural, kind="stable")
    expected["by_place"] = expected["by_kind"].sort_values("line", kind="stable")
    expected["all_by_place"] = frame.sort_values("line")
    expected["reversed"] = frame.sort_values("line", ascending=False)
    for name, rows in expected.items():
        assert found[name] == rows.id[:200].tolist(), name
        matching = f" that match, of {count:,}" if len(rows) < count else ""
        assert found["shown"][name] == f"200 of {len(rows):,} rows{matching}"


def by_name(row):
    return ["<b>add</b>", "conv", "Linear"].index(row.name.rstrip("0123456789")), number_of(row)


def test_a_table_is_sorted_and_filtered(rows, tmp_path):
    page = HtmlPage("Page")
    page.add_table("Operators", COLUMNS, rows)
    found, complaints, addresses = visit(page.text(), SORT_AND_FILTER, tmp_path)
    assert (complaints, addresses) == ([], [])
    names = [row.name for row in rows]
    known = sorted((row for row in rows if row.ns is not None), key=lambda row: -row.ns)
    assert found["as_given"] == names[:200]
    assert found["shown"] == "200 of 1,200 rows"
    assert found["largest"] == [row.name for row in known[:200]]
    assert found["larger"] == [row.name for row in known[:400]]
    assert found["smallest"] == [row.name for row in known[::-1][:200]]
    adds = [row for row in [*known[::-1], *(row for row in rows if row.ns is None)] if "add</b>1" in row.name]
    assert found["filtered"] == [row.name for row in adds]
    assert found["shown_of_filtered"] == "111 of 111 rows that match, of 1,200"
    assert found["by_name"] == [row.name for row in sorted(adds, key=by_name)]
    assert found["arrow"] == "ascending"
    assert found["nothing"] == []
    assert found["by_name_reversed"] == [row.name for row in sorted(rows, key=by_name, reverse=True)[:200]]
    assert found["by_text"] == [f"line {399 - place // 3}" for place in range(200)], "numbers in texts are numbers"


ZOOM = """
    const [icicle, timeline] = all(".chart").slice(0, 2), memory = all(".chart")[2];
    found.headings = all("h2").slice(0, 3).map(heading => heading.textContent);
    found.buttons = all(".modebar-btn").map(button => button.dataset.title);
    found.bars = all(".point", timeline).length;
    for (const [name, place] of [["timeline", timeline], ["memory", memory]]) {
      place.scrollIntoView();
      const full = [...place._fullLayout.xaxis.range];
      const drag = all(".nsewdrag", place)[0], box = drag.getBoundingClientRect(), y = box.top + box.height / 2;
      mouse(drag, "mousedown", box.left + box.width * 0.25, y);
      mouse(document, "mousemove", box.left + box.width * 0.5, y);
      mouse(document, "mousemove", box.left + box.width * 0.75, y);
      mouse(document, "mouseup", box.left + box.width * 0.75, y);
      await pause(1000);
      found[name] = [full, [...place._fullLayout.xaxis.range]];
    }
    found.nodes = all(".slice", icicle).map(slice => slice.textContent);
    const inner = all(".slice", icicle).find(slice => slice.textContent === "inner");
    icicle.scrollIntoView();
    inner.dispatchEvent(new MouseEvent("click", { bubbles: true, view: window }));
    await pause(3000);
    found.nodes_inside = all(".slice", icicle).map(slice => slice.textContent);
"""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
        self.last = torch.nn.Linear(64, 1)

    def forward(self, x):
        return self.last(self.inner(x)).sum()


def test_charts_are_drawn_and_zoomed(tmp_path):
    profile, memory = Profile(backward=True), PeakMemory()
    model, x = Net(), torch.randn(512, 64)
    with amanda.apply(profile, memory):
        for _ in range(3):
            model(x).backward()
    page = HtmlPage("Page")
    charts = [*sections_of("profile", profile)[:2], *sections_of("memory", memory)[:1]]
    for chart in charts:
        page.add(chart)
    found, complaints, addresses = visit(page.text(), ZOOM, tmp_path)
    assert (complaints, addresses) == ([], [])
    assert found["headings"] == [chart.heading for chart in charts]
    assert found["bars"] == sum(row.calls + row.backward_calls for row in profile.rows())
    assert "Zoom in" in found["buttons"]
    assert not [title for title in found["buttons"] if "hare" in title or "loud" in title], "nothing is sent away"
    for name in ("timeline", "memory"):
        (start, end), (zoomed_start, zoomed_end) = found[name]
        quarters = [start + (end - start) * part for part in (0.25, 0.75)]
        assert [zoomed_start, zoomed_end] == pytest.approx(quarters, abs=(end - start) / 100)
    assert {"program", "inner", "last", "0", "1", "linear", "tanh"} <= set(found["nodes"])
    assert "inner" in found["nodes_inside"]
    assert {"program", "last"}.isdisjoint(found["nodes_inside"]), "the node that is clicked fills the chart"


RANKS = """
    const [select] = all("#rank");
    const shown = () => all("section").filter(place => place.checkVisibility()).map(
      place => [place.querySelector("h2").textContent, all("td", place).map(cell => cell.textContent)]);
    const choose = value => { select.value = value; select.dispatchEvent(new Event("change")); };
    found.options = all("option", select).map(option => option.textContent);
    found.all = shown();
    choose("2");
    found.two = shown();
    dispatchEvent(new Event("resize"));
    await pause(500); // rank 0's chart is resized while it is hidden
    choose("0");
    await pause(500);
    found.zero = shown();
    const chart = section("rank 0: Memory");
    found.sizes = [".chart", "svg.main-svg"].map(name => all(name, chart)[0].getBoundingClientRect().width);
    choose("");
    found.all_again = shown();
"""


def test_a_rank_is_chosen(tmp_path):
    page = HtmlPage("Page")
    page.add_text("About", "all")
    for rank in (2, 0):
        page.add(Curve("Memory", "", [0.0, 1.0], [1.0, 2.0], "MB"), rank)
        page.add(table_of("Operators", COLUMNS[:1], [SimpleNamespace(name=f"of{rank}")]), rank)
    found, complaints, addresses = visit(page.text(), RANKS, tmp_path)
    assert (complaints, addresses) == ([], [])
    assert found["options"] == ["all ranks", "rank 0", "rank 2"]
    about = ["About", []]
    two, zero = ([[f"rank {rank}: Memory", []], [f"rank {rank}: Operators", [f"of{rank}"]]] for rank in (2, 0))
    assert found["all"] == found["all_again"] == [about, *two, *zero]
    assert found["two"] == [about, *two]
    assert found["zero"] == [about, *zero]
    chart, drawn = found["sizes"]
    assert drawn == pytest.approx(chart, abs=1)
    assert chart > 600
    alone = HtmlPage("Page")
    alone.add(Curve("Memory", "", [0.0], [1.0], "MB"), 3)
    assert "<select" not in alone.text(), "there is nothing to choose"


REAL = """
    found.headings = all("h2").map(heading => heading.textContent);
    found.bars = all(".chart")[1].querySelectorAll(".point").length;
    const place = section("profile by id"), [input] = all("input", place);
    input.value = "encoder.layers.0.self_attn";
    input.dispatchEvent(new Event("input"));
    found.filtered = column(place, 1);
"""


def test_the_page_of_a_real_run(tmp_path):
    """The one in docs/reports.md."""
    example = ROOT / "examples" / "python" / "train_digits.py"
    tools = ["-t", "profile(backward=True)", "-t", "memory", "--top", "1", "--html", tmp_path / "page.html"]
    command = [sys.executable, "-m", "amanda", "run", *tools, example]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, complaints, addresses = visit((tmp_path / "page.html").read_text(), REAL, tmp_path)
    assert (complaints, addresses) == ([], [])
    assert found["headings"][:3] == [
        "profile: time of modules and their operators",
        "profile: operators over time",
        "memory: cpu in use over time",
    ]
    assert "coverage: what tools saw" in found["headings"]
    assert [heading for heading in found["headings"] if "train_digits.py: " in heading], "the source code"
    assert int(re.search(r"([\d,]+) operators ran", done.stdout)[1].replace(",", "")) > MOST_BARS
    assert found["bars"] == MOST_BARS
    names = {name.splitlines()[0] for name in found["filtered"]}
    assert {"aten::scaled_dot_product_attention", "aten::linear"} <= names
    assert all("encoder.layers.0.self_attn" in name for name in found["filtered"])


def test_a_browser_that_cannot_read_tables_says_so(rows, tmp_path):
    page = HtmlPage("Page")
    page.add_table("Operators", COLUMNS, rows)
    old = page.text().replace("<head>", "<head><script>delete window.DecompressionStream;</script>", 1)
    script = "found.told = all('.table')[0].textContent; found.cells = all('td').length;"
    found, complaints, _ = visit(old, script, tmp_path)
    told = "DecompressionStream is not defined"
    assert found == {"told": f"This browser cannot read the table: {told}", "cells": 0}
    assert complaints == [f"ReferenceError: {told}"]


def test_a_browser_that_asks_a_network_is_noticed(tmp_path):
    """The other tests can fail: a picture from elsewhere is a complaint of the page's policy, and an address without it."""
    page = HtmlPage("Page").text()
    asks = "const image = new Image(); image.src = 'http://127.0.0.1:9/picture.png'; await pause(500);"
    _, complaints, addresses = visit(page, asks, tmp_path)
    assert complaints == ["blocked: http://127.0.0.1:9/picture.png"]
    assert addresses == []
    policy = '<meta http-equiv="Content-Security-Policy"'
    assert policy in page
    _, complaints, addresses = visit(page.replace(policy, "<meta"), asks, tmp_path)
    assert addresses == ["http://127.0.0.1:9/picture.png"]
