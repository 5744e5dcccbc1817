"""Cells of notebooks: IPython compiles their code under names such as "/tmp/ipykernel_123/456.py"."""

from __future__ import annotations

import linecache
import re
import sys
from typing import Any

_NUMBERED = re.compile(r"<ipython-input-(\d+)-\w+>")
_COMPILED = re.compile(r"(?:<ipython-input-\d+-\w+>|[^\s'\"(]*ipykernel_\d+[/\\]\d+\.py)(?::\d+)?")


def shell() -> Any:
    """IPython's shell; None in other programs."""
    ipython: Any = sys.modules.get("IPython")
    return ipython.get_ipython() if hasattr(ipython, "get_ipython") else None


def cell_of(path: str) -> str:
    """The cell that is compiled under this name: "cell [3]", as IPython counts; "" if the name is another one's."""
    if numbered := _NUMBERED.fullmatch(path):
        return f"cell [{numbered[1]}]"
    if "ipykernel_" not in path or (known := shell()) is None:
        return ""
    named = getattr(known.compile, "format_code_name", lambda path: None)(path)  # ("Cell", "In[3]"); IPython 8 has it
    number = re.search(r"\d+", named[1]) if named else None
    return f"cell [{number[0]}]" if number else ""


def readable_file(path: str) -> str:
    """A cell's name as that of a file, for warnings and `linecache`; other names as they are."""
    cell = cell_of(path)
    if cell and path in linecache.cache:
        linecache.cache[cell] = linecache.cache[path]
    return cell or path


def line_in_cell(source: str) -> str:
    """The line "/tmp/ipykernel_123/456.py:2" of a cell as "cell [3], line 2". Other lines, and files, stay as they are."""
    path, colon, number = source.rpartition(":")
    if colon and number.isdigit() and (cell := cell_of(path)):
        return f"{cell}, line {number}"
    return cell_of(source) or source


def in_text(text: str) -> str:
    """A text with `line_in_cell` for the lines that it names."""
    return _COMPILED.sub(lambda found: line_in_cell(found[0]), text)
