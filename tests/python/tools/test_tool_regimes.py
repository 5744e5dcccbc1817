"""What docs/limitations.md says of each shipped tool in each regime is what the tool's evidence says there."""

import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "tool_regimes.py"))
PAGE = SCRIPT["cells_of"]((ROOT / "docs" / "limitations.md").read_text())


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("tool", "regime"), list(PAGE), ids=lambda text: text.replace(", ", "-").replace('"', ""))
def test_the_page_says_what_was_looked_at(tool, regime):
    assert SCRIPT["cell"](tool, regime) == PAGE[tool, regime], "run: python scripts/tool_regimes.py"


def test_the_page_has_every_cell():
    assert set(PAGE) == {(tool, regime) for tool in SCRIPT["TOOLS"] for regime in SCRIPT["REGIMES"]}
