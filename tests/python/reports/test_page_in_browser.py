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
from amanda.reports.sections import MOST_BARS, Curve, Text, Timeline, icicle_of, table_of
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
    const [name, ms, place_of] = all("th button", place), [input] = all("input", place);
    const shown = () => all(".shown", place)[0].textContent;
    const filter = text => { input.value = text; input.dispatchEvent(new Event("input")); };
    found.as_given = await column(place, 1);
    found.shown = shown();
    ms.click();
    found.largest = await column(place, 1);
    found.larger = await column(place, 1, 400);
    ms.click();
    found.smallest = await column(place, 1);
    filter("ADD</b>1");
    found.filtered = await column(place, 1);
    found.shown_of_filtered = shown();
    name.click();
    found.by_name = await column(place, 1);
    found.arrow = name.parentNode.getAttribute("aria-sort");
    filter("nothing has this");
    found.nothing = await column(place, 1);
    filter("");
    name.click();
    found.by_name_reversed = await column(place, 1);
    place_of.click();
    found.by_text = await column(place, 3);
"""


LARGE = """
    const place = section("Large"), headings = all("th button", place), [input] = all("input", place);
    found.shown = {};
    const note = async name => {
      found[name] = await column(place, 1);
      found.shown[name] = all(".shown", place)[0].textContent;
    };
    const filter = text => { input.value = text; input.dispatchEvent(new Event("input")); };
    const click = async (number, name) => { headings[number].click(); await note(name); };
    await note("as_given");
    await click(2, "largest");
    await click(2, "smallest");
    filter("CONV7");
    await note("filtered");
    await click(1, "by_kind");
    await click(3, "by_place");
    filter("");
    await note("all_by_place");
    await click(3, "reversed");
"""


@pytest.mark.parametrize("count", [120_000, pytest.param(1_000_000, marks=pytest.mark.long)])
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
        matching = f"{len(rows):,} of " if len(rows) < count else ""
        assert found["shown"][name] == f"{matching}{count:,} rows"


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
    assert found["shown"] == "1,200 rows"
    assert found["largest"] == [row.name for row in known[:200]]
    assert found["larger"] == [row.name for row in known[:400]]
    assert found["smallest"] == [row.name for row in known[::-1][:200]]
    adds = [row for row in [*known[::-1], *(row for row in rows if row.ns is None)] if "add</b>1" in row.name]
    assert found["filtered"] == [row.name for row in adds]
    assert found["shown_of_filtered"] == "111 of 1,200 rows"
    assert found["by_name"] == [row.name for row in sorted(adds, key=by_name)]
    assert found["arrow"] == "ascending"
    assert found["nothing"] == []
    assert found["by_name_reversed"] == [row.name for row in sorted(rows, key=by_name, reverse=True)[:200]]
    assert found["by_text"] == [f"line {399 - place // 3}" for place in range(200)], "numbers in texts are numbers"


ZOOM = """
    const [icicle, timeline] = all(".chart").slice(0, 2), memory = all(".chart")[2];
    found.headings = all("h2").map(heading => heading.textContent);
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
    charts = [*sections_of("profile", profile)[1:3], *sections_of("memory", memory)[1:2]]  # after the answers
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
    all(".panel").forEach(panel => panel.open = true);
    await pause(100);
    const shown = () => all("main section").filter(place => place.checkVisibility()).map(
      place => [place.dataset.heading, all("tr[aria-rowindex] td", place).map(cell => cell.textContent)]);
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
    const folded = { full: document.documentElement.scrollHeight, wide: document.documentElement.scrollWidth };
    found.headings = all("h2").map(heading => heading.textContent);
    found.contents = all("nav li > a").map(link => link.textContent);
    found.open = all(".panel[open] h2").map(heading => heading.textContent);
    found.heights = [folded.full, folded.wide];
    const time = section("profile: operators over time"), place = section("profile by id");
    location.hash = place.id;
    await pause(1000);
    while (document.querySelector("[aria-busy]")) await pause(10);
    found.revealed = place.checkVisibility();
    found.hidden = section("profile by op").checkVisibility();
    const [input] = all("input", place);
    const filter = text => { input.value = text; input.dispatchEvent(new Event("input")); };
    filter("encoder.layers.0.self_attn");
    found.filtered = await column(place, 1);
    filter("");
    const links = all("td.name a", place);
    const line = links.find(link => link.textContent.startsWith("train_digits.py:"));
    found.link = line.textContent;
    line.click();
    found.marked = all("tr.marked").map(row => [row.cells[0].textContent, row.lastElementChild.textContent.trim()]);
    found.seen = all("tr.marked").map(row => row.checkVisibility());
    links.find(link => link.textContent === "aten::scaled_dot_product_attention").click();
    found.searched = all("#everywhere")[0].value;
    while (document.querySelector("[aria-busy]")) await pause(10);
    found.hits = Object.fromEntries(all(".panel").map(
      panel => [panel.querySelector("h2").textContent, panel.querySelector(".hits").textContent]));
    found.rows = await column(place, 1);
    reveal(time);
    await pause(1000);
    found.bars = all(".point", time).length;
    found.faint = all(".chart", time)[0].data.flatMap(trace => trace.marker.opacity).filter(value => value < 1).length;
    search_for("");
    while (document.querySelector("[aria-busy]")) await pause(10);
    found.all_rows = (await column(place, 1, 1e6)).length;
    const [icicle] = all(".chart", section("profile: time of modules and their operators"));
    found.sorted = icicle.data[0].sort;
    found.orders = icicle.layout.updatemenus[0].buttons.map(({ label, args }) => [label, args]);
    found.labels = icicle.data[0].labels.slice(0, 4);
"""


@pytest.fixture(scope="module")
def real_page(tmp_path_factory):
    """The one in docs/reports.md, and what the command prints."""
    path = tmp_path_factory.mktemp("run") / "page.html"
    example = ROOT / "examples" / "python" / "train_digits.py"
    tools = ["-t", "profile(backward=True)", "-t", "memory", "--top", "1", "--html", path]
    command = [sys.executable, "-m", "amanda", "run", *tools, example]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return path.read_text(), done.stdout


@pytest.mark.parametrize("width", [700, 1400])
def test_the_page_of_a_real_run(real_page, width, tmp_path):
    page, printed = real_page
    found, complaints, addresses = visit(page, REAL, tmp_path, width)
    assert (complaints, addresses) == ([], [])
    panels = [
        *(
            "profile: answer",
            "memory: answer",
            "profile: time of modules and their operators",
            "profile: operators over time",
        ),
        *(
            "memory: cpu in use over time",
            "source code",
            "profile",
            "memory",
            "coverage: what tools saw",
            "environment",
        ),
    ]
    assert found["headings"] == found["contents"] == panels
    assert found["open"] == [*panels[:3], "source code", "profile"]
    high, wide = found["heights"]
    assert high < 2 * 1080, "two screens"
    assert wide <= width, "nothing sticks out"

    assert (found["revealed"], found["hidden"]) == (True, False), "a link opens a panel, and one of its tabs"
    names = {name.splitlines()[0] for name in found["filtered"]}
    assert {"aten::scaled_dot_product_attention", "aten::linear"} <= names
    assert all("encoder.layers.0.self_attn" in name for name in found["filtered"])

    ((number, code),) = found["marked"]
    source = (ROOT / "examples" / "python" / "train_digits.py").read_text().splitlines()
    assert found["link"] == f"train_digits.py:{number}"
    assert (code, found["seen"]) == (source[int(number) - 1].strip(), [True])

    assert found["searched"] == "aten::scaled_dot_product_attention"
    assert found["rows"]
    assert all("scaled_dot_product_attention" in name for name in found["rows"])
    assert int(found["hits"]["coverage: what tools saw"]) == 1
    assert int(found["hits"]["profile"]) > len(found["rows"])
    assert found["hits"]["environment"] == "0"
    assert int(re.search(r"([\d,]+) operators ran", printed)[1].replace(",", "")) > MOST_BARS
    assert found["bars"] == MOST_BARS
    matching = int(found["hits"]["profile: operators over time"].replace(",", ""))
    assert 0 < matching < MOST_BARS
    assert found["faint"] == MOST_BARS - matching
    assert found["all_rows"] > 100
    assert found["orders"] == [["largest first", ["sort", True]], ["in the program's order", ["sort", False]]]
    assert found["labels"][0] == "program"


CHARTS_FOUND = """
    const [icicle, timeline, curve] = all(".chart"), hits = () => all("summary .hits").map(place => place.textContent);
    const search = async text => {
      search_for(text);
      while (document.querySelector("[aria-busy]")) await pause(10);
      await pause(500);
      return hits();
    };
    found.modules = await search("INNER");
    found.colors = icicle.data[0].marker.colors.map(color => color === FOUND);
    found.drawn = all(".slice path.surface", icicle).map(slice => getComputedStyle(slice).fill).sort();
    found.of_curve = await search("mb");
    found.nothing = await search("");
    found.plain = icicle.data[0].marker?.colors ?? null;
"""


def test_the_search_finds_boxes_and_curves(tmp_path):
    page = HtmlPage("Page")
    page.add(icicle_of("Modules", "ms", "program", [(["inner", "0"], 2.0), (["inner", "1"], 1.0), (["last"], 1.0)]))
    page.add(Timeline("Time", "", ["main"], [0], [0.0], [1.0], ["inner"], ["a.py:1"], ["forward"]))
    page.add(Curve("Memory", "", [0.0, 1.0], [1.0, 2.0], "MB"))
    found, complaints, _ = visit(page.text(), CHARTS_FOUND, tmp_path)
    assert complaints == []
    assert found["modules"] == ["1", "1", "0"]
    assert found["colors"] == [False, True, False, False, False]
    assert found["drawn"].count("rgb(232, 89, 12)") == 1
    assert found["of_curve"] == ["0", "0", "1"]
    assert (found["nothing"], found["plain"]) == (["", "", ""], None)


PAIRS = """
    found.titles = all("h2").map(title => title.textContent);
    found.runs = all("h3").map(title => title.textContent);
    found.tabs = all("[role=tab]").length;
    found.boxes = all(".pair section").map(place => {
      const { left, top, width } = place.getBoundingClientRect();
      return { left, top, width, drawn: all("svg.main-svg", place)[0]?.getBoundingClientRect().width ?? 0 };
    });
    found.shown = all(".pair section").map(place => place.checkVisibility());
    found.wide = document.documentElement.scrollWidth;
"""


@pytest.mark.parametrize("width", [700, 1400])
def test_two_runs_stand_next_to_each_other(width, tmp_path):
    page = HtmlPage("Page")
    for run in ("before", "after"):
        page.add(Curve("Memory", "", [0.0, 1.0], [1.0, 2.0], "MB"), run=run)
    for run in ("before", "after"):
        page.add(Text("answer", f"it is slow {run}"), run=run)
    found, complaints, _ = visit(page.text(), PAIRS, tmp_path, width)
    assert complaints == []
    assert (found["titles"], found["runs"]) == (["Memory", "answer"], ["before", "after"] * 2)
    assert (found["tabs"], found["shown"]) == (0, [True] * 4)
    assert found["wide"] <= width
    first, second = found["boxes"][:2]
    assert first["drawn"] == pytest.approx(first["width"], abs=1)
    assert (first["top"] == second["top"]) == (width == 1400)
    assert (first["left"] == second["left"]) == (width == 700)


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


SIGNS = """
    const place = section("Signs"), headings = all("th button", place), [input] = all("input", place);
    const click = async (name, number) => { headings[number].click(); found[name] = await column(place, 1); };
    await click("largest", 1);
    await click("smallest", 1);
    await click("by_word", 2);
    await click("by_word_reversed", 2);
    input.value = "i̇";
    input.dispatchEvent(new Event("input"));
    found.dotted = await column(place, 1);
"""


def test_negative_numbers_equal_keys_and_letters_of_several_lengths_are_in_order(tmp_path):
    numbers = [3.5, -1e300, 0.0, None, -0.0, -2.0, 5e-324, 1e300, -5e-324, 3.5]
    words = ["b", "İx", "A9", "a10", "B", "a9", "x\0y", "İİ", "a", "A"]
    rows = [SimpleNamespace(id=f"#{i}", n=n, w=w) for i, (n, w) in enumerate(zip(numbers, words, strict=True))]
    columns = [
        Column("id", lambda row: row.id, left=True),
        Column("n", lambda row: str(row.n), field="n"),
        Column("w", lambda row: row.w, left=True, field="w"),
    ]
    page = HtmlPage("Page")
    page.add(table_of("Signs", columns, rows))
    found, complaints, _ = visit(page.text(), SIGNS, tmp_path)
    assert complaints == []

    def ordered(of, reverse=False):
        known = sorted((row for row in of if row.n is not None), key=lambda row: row.n, reverse=reverse)
        return [*known, *(row for row in of if row.n is None)]

    largest = ordered(rows, reverse=True)
    smallest = ordered(largest)
    assert found["largest"] == [row.id for row in largest]
    assert found["smallest"] == [row.id for row in smallest]
    natural = {"a": 0, "A": 0, "a9": 1, "A9": 1, "a10": 2, "b": 3, "B": 3, "İİ": 4, "İx": 5, "x\0y": 6}
    by_word = sorted(smallest, key=lambda row: natural[row.w])
    assert found["by_word"] == [row.id for row in by_word]
    by_word_reversed = sorted(by_word, key=lambda row: natural[row.w], reverse=True)
    assert found["by_word_reversed"] == [row.id for row in by_word_reversed]
    assert sorted(found["dotted"]) == ["#1", "#7"]
