"""Notebooks: what cells show, how places in cells are named, and progress below a cell."""

import re
from xml.etree import ElementTree

import amanda
import pytest
import torch
from amanda.driver.identity import cells
from amanda.reports import notebook, notebook_bar
from amanda.tools.graph import GraphTracing
from amanda.tools.history.alarms import Alarm
from amanda.tools.nonfinite import Finding, NaNSentinel, NonfiniteWarning
from amanda.tools.profile import Profile
from in_notebook import needs_notebooks, printed, run_cells, shown


def rows_of(page):
    return [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(page).iter("tr")]


def text_of(page):
    return "\n".join(ElementTree.fromstring(page.replace("<br>", "")).itertext())


# ---- in a kernel ------------------------------------------------------------------------------------------------------


@needs_notebooks
def test_places_are_lines_of_cells():
    setup, _, table, listing, one_cell, missing, described, warned, again, failed, never = run_cells(
        "import gc, torch, amanda\nfrom amanda.tools.profile import Profile\nx = torch.ones(2)",
        "profile = Profile()\nwith amanda.apply(profile) as scope:\n    y = torch.sin(x)\n    z = y.cos()",
        'print(profile.table("id"))\nprint(profile.table("line"))\nprint(profile.answer())',
        "profile.annotate()",
        "print(profile.annotate('cell [2]'))",
        "profile.annotate('cell [1]')",
        "print(scope.describe())",
        "class Looking(amanda.Tool):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.add_inst_for_op(self.look, ops=['cos'])\n"
        "    def look(self, context):\n"
        "        context.insert_before_op(lambda x: 1 / 0)\n"
        "def none_ran():\n"
        "    with amanda.apply(Looking()):\n"
        "        x.sin()\n"
        "none_ran()",
        "with amanda.apply(Looking()):\n    x.sin()",
        "with amanda.apply(Looking()):\n    x.cos()",
        "amanda.apply(Looking())\ngc.collect()",
    )
    assert setup == []
    text = printed(table)
    assert re.search(r"aten::sin, cell \[2\], line 3 +1 ", text)
    assert re.search(r"^ cell \[2\], line 4 +1 ", text, re.M)
    assert re.search(r"% in cell \[2\], line \d, `[yz] = ", text)
    assert shown(listing, "text/plain") == "<amanda listing: cell [2]>"
    code = text_of(shown(listing))
    assert code.startswith("cell [2]: ")
    assert re.search(r"3 +1 .*│     y = torch\.sin\(x\)", code)
    assert printed(one_cell).startswith("cell [2]: ")
    assert "'cell [1]': no operator was called there; these files have some: cell [2]" in missing[0]["evalue"]
    assert "cell [2], line 3" in printed(described)
    assert "ipykernel_" not in text + code + printed(described)
    assert (
        printed(warned, "stderr")
        .splitlines()[::2][0]
        .startswith("cell [8]:8: UnmatchedFilterWarning: [scope] ops='cos'")
    )
    assert printed(warned, "stderr").splitlines()[1] == "  with amanda.apply(Looking()):"
    assert printed(again, "stderr").startswith("cell [9]:1: UnmatchedFilterWarning: ")
    note = "[amanda] in tool 'Looking': <lambda> before aten::cos (forward, cell [10], line 2)"
    assert note in failed[0]["traceback"][-1]
    assert printed(never, "stderr").startswith(
        "cell [11]:1: UserWarning: [scope] the scope of Looking was never entered"
    )


@needs_notebooks
def test_the_last_line_of_a_cell_is_shown():
    _, tool, scope, graph, findings, _ = run_cells(
        "import torch, amanda\n"
        "from amanda.tools.graph import GraphTracing\n"
        "from amanda.tools.nonfinite import NaNSentinel\n"
        "from amanda.tools.profile import Profile\n"
        "profile, graph, nan = Profile(), GraphTracing(), NaNSentinel(action='warn')\n"
        "with amanda.apply(profile, graph, nan) as scope:\n"
        "    torch.zeros(2).log() - torch.ones(2).log() * float('nan')",
        "profile",
        "scope",
        "graph.graph",
        "nan",
        "print(1)",
    )
    assert rows_of(shown(tool))[1][0] in ("aten::log", "aten::zeros", "aten::ones", "aten::mul", "aten::sub")
    page = shown(scope)
    assert page.count("<table") >= 3
    assert text_of(page).lstrip().startswith("<amanda.Scope of Profile, ")
    assert ["aten::log", "", "cell [1], line 7"] in [row[1:4] for row in rows_of(shown(graph))]
    assert "cell [1], line 7" in text_of(shown(findings))


@needs_notebooks
def test_progress_is_below_the_cell_and_is_erased():
    work = (
        "import time, IPython.display\n"
        "from amanda.toolkit.tables import Progress\n"
        "def work(count=4, seconds=0.2):\n"
        "    with Progress('injecting <faults>', 4) as progress:\n"
        "        for layer in range(count):\n"
        "            time.sleep(seconds)\n"
        "            progress.now(f'conv{layer}')\n"
        "            progress.advance()\n"
        "        time.sleep(0.1)\n"
        "        progress.advance(0)\n"
        "        return progress"
    )
    long = "from amanda.reports import notebook_bar\n"
    long += "drawn, was = [], notebook_bar.NotebookBar._draw\n"
    long += "notebook_bar.NotebookBar._draw = lambda bar, shown: (drawn.append(shown), was(bar, shown))\n"
    long += "work()\nprint(drawn)"
    _, quick, slow = run_cells(work, "work(2, 0)\nprint('done')", long)
    assert [output["output_type"] for output in quick] == ["stream"], "short work shows nothing"
    bar, text = slow
    assert bar["data"] == {"text/plain": "", "text/html": ""}
    drawn = eval(text["text"])
    assert drawn[-1] == bar["data"]
    pages = [ElementTree.fromstring(one["text/html"]) for one in drawn[:-1]]
    found = [float(page.find("progress").get("value")) for page in pages]
    assert found == sorted(found)
    assert found[-1] == 4
    assert {page.find("progress").get("max") for page in pages} == {"4"}
    assert "injecting <faults>: conv3 100% 4/4 0:00:01 0:00:00 left" in text_of(drawn[-2]["text/html"])


# ---- without one ------------------------------------------------------------------------------------------------------


class Shell:
    """What IPython 8 has of this."""

    class compile:
        @staticmethod
        def format_code_name(name):
            return ("Cell", "In[12]") if name == "/tmp/ipykernel_7/9.py" else None


@pytest.fixture
def ipython(monkeypatch):
    monkeypatch.setattr(cells, "shell", Shell)


@pytest.mark.usefixtures("ipython")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/tmp/ipykernel_7/9.py:3", "cell [12], line 3"),
        ("/tmp/ipykernel_7/9.py", "cell [12]"),
        ("<ipython-input-4-0123abc>:1", "cell [4], line 1"),
        ("/tmp/ipykernel_7/8.py:3", "/tmp/ipykernel_7/8.py:3"),
        ("/home/me/model.py:3", "/home/me/model.py:3"),
        ("", ""),
    ],
)
def test_a_line_of_a_cell_has_its_number(source, expected):
    assert cells.line_in_cell(source) == expected
    assert cells.in_text(f"after aten::add ({source}), twice") == f"after aten::add ({expected}), twice"


@pytest.mark.parametrize("compiler", [object(), None])
def test_an_ipython_that_does_not_say_the_number_leaves_the_file(compiler, monkeypatch):
    monkeypatch.setattr(cells, "shell", lambda: compiler and type("Old", (), {"compile": compiler}))
    assert cells.line_in_cell("/tmp/ipykernel_7/9.py:3") == "/tmp/ipykernel_7/9.py:3"
    assert not notebook_bar.is_notebook()


HOSTILE = "<b>&\"'</script>"


def test_every_text_is_escaped():
    page = notebook.table([HOSTILE], ["left"], [([HOSTILE], "")], HOSTILE)
    assert rows_of(page) == [[HOSTILE], [HOSTILE]]
    for made in (notebook.text, notebook.heading, notebook.code, notebook.remark):
        assert ElementTree.fromstring(made(HOSTILE)).text == HOSTILE
        assert made("") == ""
    assert "<b>" not in page


def test_names_of_a_program_are_escaped():
    finding = Finding("given", "forward", 1, HOSTILE, "", HOSTILE, f"{HOSTILE}:1", HOSTILE, (), ())
    assert HOSTILE in text_of(finding._repr_html_())
    alarm = Alarm("nonfinite", HOSTILE, 1, 1, 1, HOSTILE, HOSTILE, HOSTILE, 1.0, 1.0, text=HOSTILE)
    assert text_of(alarm._repr_html_()).count(HOSTILE) == 5
    model = torch.nn.Sequential()
    model.add_module(HOSTILE.replace(".", ""), torch.nn.Linear(2, 2))
    graph, profile = GraphTracing(), Profile()
    with amanda.apply(graph, profile) as scope:
        model(torch.ones(1, 2))
    assert [row[2] for row in rows_of(graph.graph._repr_html_())[1:]].count(HOSTILE) == 3  # the input is of none
    assert HOSTILE in text_of(scope._repr_html_())


def test_a_finding_shows_its_operands_in_a_table():
    sentinel = NaNSentinel(action="warn")
    with amanda.apply(sentinel), pytest.warns(NonfiniteWarning) as warned:
        torch.tensor([-1.0, 4.0]).log()
    assert warned[0].filename == __file__
    finding = sentinel.first
    (head, *operands), text = rows_of(finding._repr_html_()), text_of(finding._repr_html_())
    assert head == ["operand", "dtype", "shape", "device", "elements", "NaN", "infinite", "zero", "least", "most"]
    assert operands == [
        ["output 0", "float32", "[2]", "cpu", "2", "1", "0", "0", "1.386", "1.386"],
        ["input self", "float32", "[2]", "cpu", "2", "0", "0", "0", "-1", "4"],
    ]
    assert "aten::log produced the first NaN (" in text
    assert "torch.tensor([-1.0, 4.0]).log()" in text
    assert "cause: input self is negative" in text
    assert text.count("input self") == 2, "the table and the cause, and no list"


def test_of_many_rows_the_first_are_shown_and_other_tables_are_named():
    profile = Profile()
    with amanda.apply(profile):
        for _ in range(3):
            eval("[" + ", ".join(["x.sin()"] * 50).replace(", ", ",\n") + "]", {"x": torch.ones(1)})
    page = profile._repr_html_()
    assert 'also .table("module"), ' in text_of(page) or 'also .table("' in text_of(page)
    by_line = profile.table("line", notebook.TOP)._repr_html_()
    assert len(rows_of(by_line)) == 1 + notebook.TOP + 2
    assert len(page) < 20_000
    profile.reset()
    assert "no rows so far" in text_of(profile._repr_html_())
