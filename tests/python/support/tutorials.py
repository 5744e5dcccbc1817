"""The cells of docs/tutorials, for the tests that run them."""

import re
from pathlib import Path

from repository import ROOT

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
CELL = re.compile(r"^```\{code-cell\} python\n((?::.*\n)*)\n?(.*?)^```$", re.DOTALL | re.MULTILINE)


def cells(page):
    """(line, code) of each cell."""
    text = page.read_text()
    return [(text.count("\n", 0, match.start(2)) + 1, match[2]) for match in CELL.finditer(text)]


def run_cell(page, line, code, names):
    if file := re.match(r"%%writefile (\S+)\n", code):  # Jupyter's, the only magic that tutorials use
        Path(file[1]).write_text(code[file.end() :])
        return
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
