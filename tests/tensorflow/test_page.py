"""docs/tensorflow.md: its code runs as printed, from top to bottom."""

from __future__ import annotations

import re
from typing import Any

import keras
import pytest
from repository import ROOT

PAGE = ROOT / "docs" / "tensorflow.md"


def blocks() -> list[tuple[int, str]]:
    text = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start()) + 1, match[1]) for match in found]


def test_the_page_runs_from_top_to_bottom() -> None:
    keras.backend.clear_session()  # Keras numbers the layers of a process
    names: dict[str, Any] = {"__name__": "page"}
    assert len(blocks()) >= 7
    for line, code in blocks():
        exec(compile("\n" * line + code, str(PAGE), "exec"), names)


@pytest.mark.parametrize("page", ["tensorflow.md"])
def test_links_and_named_files_exist(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text())
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
