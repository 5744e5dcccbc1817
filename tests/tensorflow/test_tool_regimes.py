"""What docs/limitations.md says of each shipped tool on TensorFlow is what the tool's evidence says there."""

import sys

import pytest
from repository import ROOT

sys.path.append(str(ROOT / "scripts"))
from regime_table import cells, page
from regime_table.regimes import REGIMES
from regime_table.tools import TOOLS

FOUND = page.cells_of(page.PAGE.read_text())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("regime", REGIMES)
def test_the_page_says_what_was_looked_at(tool, regime):
    assert cells.cell(tool, regime) == FOUND[tool, regime], "run: .venv-tensorflow/bin/python scripts/tool_regimes.py"


def test_each_column_of_tensorflow_is_compared():
    assert {*REGIMES} == {name for name in page.OTHERS if name.startswith("TensorFlow")}
