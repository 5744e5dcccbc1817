"""Writes what shipped tools look at, by regime of a framework, into docs/limitations.md.

PyTorch and TensorFlow have environments of their own, and each run writes the columns of the framework that is there:

    .venv/bin/python scripts/tool_regimes.py
    .venv-tensorflow/bin/python scripts/tool_regimes.py

With names of tools only their rows are written.
"""

from __future__ import annotations

import sys

from regime_table import page
from regime_table.cells import cell
from regime_table.regimes import REGIMES
from regime_table.tools import TOOLS

if __name__ == "__main__":
    text = page.PAGE.read_text()
    found = {(tool, regime): cell(tool, regime) for tool in sys.argv[1:] or TOOLS for regime in REGIMES}
    page.PAGE.write_text(page.rewritten(text, page.cells_of(text) | found))
