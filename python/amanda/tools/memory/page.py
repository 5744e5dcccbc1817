"""A page about memory at the peak. It needs jinja2: import it where one is made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from amanda.toolkit.pages import HtmlPage

if TYPE_CHECKING:
    from .peak_memory import PeakMemory

HEADINGS = {"kind": "Kinds", "line": "Lines", "module": "Modules", "op": "Operator types", "id": "Operators"}


def write(path: str | os.PathLike[str], memory: PeakMemory, title: str) -> None:
    """See `PeakMemory.write_html`."""
    page = HtmlPage(title, "\n".join(f"{device}: {peak / 1e6:.3f} MB" for device, peak in memory.peak_bytes.items()))
    for figure in memory.figures():
        page.add(figure)
    if memory.growth is not None and memory.growth.rows():
        page.add_results("What each step leaves behind", memory.growth, "owner")
    for by, heading in HEADINGS.items():
        page.add_results(heading, memory, by)
    page.write(path)
