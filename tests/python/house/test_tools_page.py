"""docs/tools.md: its excerpts run, given the names they take for granted."""

import re

import amanda
import pytest
import rich
import torch
from amanda.tools.coverage import Coverage
from amanda.tools.cupti_profiler import CuptiProfiler
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.graph import GraphTracing
from amanda.tools.profile import Profile
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import FakeQuantization
from amanda.tools.statistics import OpStatistics
from repository import ROOT

PAGE = ROOT / "docs" / "tools.md"
SECTIONS = re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
EXCERPTS = [
    pytest.param(code, id=title)
    for title, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("code", EXCERPTS)
def test_the_excerpt_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train_one_epoch(model):
        model(x).sum().backward()

    model, x = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2)
    names = {"amanda": amanda, "rich": rich, "model": model, "x": x, "train_one_epoch": train_one_epoch}
    exec(code, names | {"my_tool": amanda.Tool()})


def test_every_section_of_a_tool_with_results_links_to_what_they_share():
    tools = {title for title, _ in SECTIONS} - {"Results", "MappingTool"}
    assert len(tools) == 9
    assert {title for title, text in SECTIONS if "[results](#results)" in text} == tools


def test_the_page_has_the_groupings_of_every_tool():
    (table,) = re.findall(r"^\| tool \| `by` \|\n\| --- \| --- \|\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    listed = {
        tool: re.findall(r'"(\w+)"', groupings)
        for tools, groupings in re.findall(r"\| (.*) \| (.*) \|", table)
        for tool in re.findall(r"\[(\w+)\]", tools)
    }
    kinds = {kind.__name__: kind for kind in (Profile, CuptiProfiler, Flops, GraphTracing, OpStatistics)}
    kinds |= {kind.__name__: kind for kind in (GradientStatistics, FakeQuantization, Coverage)}
    kinds["pruning"] = MagnitudePruning
    assert listed == {
        name: [by for by in kind._groupings if (name, by) != ("CuptiProfiler", "operator")]
        for name, kind in kinds.items()
    }
