"""docs/tools.md, docs/tools/*.md and docs/research/*.md: their excerpts run, given the names they take for granted."""

import importlib
import pkgutil
import re
import shutil

import amanda
import pytest
import rich
import torch
from amanda import research, tools
from amanda.reports.results import Results
from repository import ROOT

DOCS = ROOT / "docs"
INDEX = DOCS / "tools.md"
# One page for each family of tools that edit, for large tools, and for papers.
FAMILIES = sorted([*(DOCS / "tools").glob("*.md"), *(DOCS / "research").glob("*.md")])
REGIMES = ["autocast", "checkpointing", "compiled code", "distributed training"]


def sections(page):
    return re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE)


EXCERPTS = [
    pytest.param(code, id=f"{page.stem}: {title}")
    for page in [INDEX, *FAMILIES]
    for title, text in sections(page)
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
]


def exported(module):
    return [getattr(module, name) for name in getattr(module, "__all__", vars(module))]


# Every tool that `amanda.tools` and `amanda.research` export.
TOOLS = ("amanda.tools.", "amanda.research.")
KINDS = {
    kind.__name__: kind
    for package in (tools, research)
    for found in pkgutil.iter_modules(package.__path__)
    if not found.name.startswith("_")
    for kind in exported(importlib.import_module(f"{package.__name__}.{found.name}"))
    if isinstance(kind, type) and issubclass(kind, amanda.Tool) and kind is not amanda.Tool
    if kind.__module__.startswith(TOOLS)
}


@pytest.mark.parametrize("code", EXCERPTS)
def test_the_excerpt_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(DOCS / "programs" / "classify.onnx", "model.onnx")

    def train_one_epoch(model):
        model(x).sum().backward()

    model, x = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2)
    names = {"amanda": amanda, "torch": torch, "rich": rich, "model": model, "x": x, "train_one_epoch": train_one_epoch}
    exec(code, names | {"my_tool": amanda.Tool()})


@pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.stem)
def test_a_page_says_where_its_tools_work(page):
    ((_, text),) = [section for section in sections(page) if section[0] == "Where it works"]
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    assert [regime for regime, _ in rows if regime not in ("---", "TensorFlow")] == REGIMES
    assert all(behavior for _, behavior in rows)


def test_every_tool_is_in_a_table_of_the_index():
    listed = set(re.findall(r"^\| `\w+\.(\w+)` \|", INDEX.read_text(), re.MULTILINE))
    bases = {name for name, kind in KINDS.items() if any(kind in other.__mro__[1:] for other in KINDS.values())}
    bases |= {name for name, kind in KINDS.items() if kind.__module__.startswith("amanda.tools._")}  # parts of others
    assert listed == KINDS.keys() - bases


def test_every_section_of_a_tool_with_results_links_to_what_they_share():
    of_tools = {title: text for title, text in sections(INDEX) if title in KINDS}
    of_tools |= {f"{page.stem}: {title}": text for page in FAMILIES for title, text in sections(page) if title in KINDS}
    assert len(of_tools) >= 8
    for title, text in of_tools.items():
        has_results = issubclass(KINDS[title.split(": ")[-1]], Results)
        assert ("tools.md#results)" in text or "(#results)" in text) == has_results, title


def test_the_index_has_the_groupings_of_every_tool():
    (table,) = re.findall(r"^\| tool \| `by` \|\n\| --- \| --- \|\n((?:\|.*\n)+)", INDEX.read_text(), re.MULTILINE)
    listed = {
        tool: re.findall(r'"(\w+)"', groupings)
        for tools, groupings in re.findall(r"\| (.*) \| (.*) \|", table)
        for tool in re.findall(r"\[(\w+)\]", tools)
    }
    assert listed == {
        name: [by for by in kind._groupings if (name, by) != ("CuptiProfiler", "operator")]
        for name, kind in KINDS.items()
        if defines_groupings(kind)
    }


def defines_groupings(kind):
    """Itself, or a base that it shares with what is no tool."""
    owner = next((base for base in kind.__mro__ if "_groupings" in vars(base)), Results)
    return owner is kind or (owner is not Results and not issubclass(owner, amanda.Tool))


def cells_of_limitations(regime):
    """By tool: what the table of docs/limitations.md says, which scripts/tool_regimes.py measured."""
    lines = (DOCS / "limitations.md").read_text().splitlines()
    head = next(line for line in lines if line.startswith("| tool |") and f"| {regime} |" in line)
    column = head.split(" | ").index(regime)
    rows = lines[lines.index(head) + 2 :]
    rows = rows[: rows.index("")]
    return {row.split(" | ")[0].strip("| `"): row.split(" | ")[column] for row in rows}


@pytest.mark.parametrize("name", sorted(KINDS.keys() & cells_of_limitations("compiled").keys()))
def test_a_tool_says_that_it_needs_eager_functions_if_it_does(name):
    kind = KINDS[name]
    by_default, with_taps = (cells_of_limitations(regime)[name] for regime in ("compiled", 'compiled, "graph"'))
    assert (by_default == "eager") == bool(kind.needs_eager)
    assert with_taps in (("compiled", "refuses", "eager") if kind.needs_eager else (by_default,))
    if with_taps != "eager":  # EffectivePath opens a scope of its own
        assert kind.leaves_compiled_out == (with_taps == "compiled")
