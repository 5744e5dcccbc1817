"""What docs/limitations.md says of each shipped tool in each regime is what the tool's evidence says there."""

import sys

import amanda
import pytest
import torch
from repository import ROOT

sys.path.append(str(ROOT / "scripts"))
from regime_table import cells, page
from regime_table.regimes import REGIMES
from regime_table.tools import EXCEPTIONS, TOOLS, Made, public_tools

TEXT = page.PAGE.read_text()
FOUND = page.cells_of(TEXT)
# Tools that look, edit, and find something: the others are slow.
QUICK = {"ActivationPruning", "NaNSentinel", "Profile"}
CELLS = [
    pytest.param(tool, regime, marks=[] if tool in QUICK else pytest.mark.long)
    for tool, regime in FOUND
    if regime in REGIMES
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("tool", "regime"), CELLS, ids=lambda text: text.replace(", ", "-").replace('"', ""))
def test_the_page_says_what_was_looked_at(tool, regime):
    assert cells.cell(tool, regime) == FOUND[tool, regime], "run: python scripts/tool_regimes.py"


def test_the_page_has_every_cell():
    regimes = [*page.PYTORCH, *page.OTHERS]
    assert set(FOUND) == {(tool, regime) for tool in TOOLS for regime in regimes}
    assert set(REGIMES) < set(regimes)
    assert page.rewritten(TEXT, FOUND) == TEXT, "run: python scripts/tool_regimes.py"


def test_every_public_tool_has_a_row_or_a_reason():
    assert public_tools() == TOOLS.keys() | EXCEPTIONS.keys()
    assert not TOOLS.keys() & EXCEPTIONS.keys()


def raising(error):
    class Raising(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="conv2d")

        def analyze(self, context):
            raise error

    return Raising()


@pytest.mark.parametrize(
    "error", [RuntimeError("[tool] an error of PyTorch's, whose text looks like one of a tool"), amanda.Error("vmap")]
)
def test_an_error_that_is_no_refusal_ends_the_script(monkeypatch, error):
    monkeypatch.setitem(TOOLS, "Raising", Made("tools.flops", lambda *_: raising(error)))
    with pytest.raises(type(error), match=error.args[0][-4:]):
        cells.cell("Raising", "eager")


def test_a_refusal_says_who_speaks_and_what_works(monkeypatch):
    error = amanda.Error("[raising] Raising can't work on aten::conv2d; leave it out by ops=")
    monkeypatch.setitem(TOOLS, "Raising", Made("tools.flops", lambda *_: raising(error)))
    assert cells.cell("Raising", "eager") == cells.REFUSES
