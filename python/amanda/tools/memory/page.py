"""A page about memory at the peak. It needs jinja2: import it where one is made."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from amanda.reports.html_page import HtmlPage

if TYPE_CHECKING:
    from amanda.tools.memory.peak_memory import PeakMemory

HEADINGS = {"kind": "Kinds", "line": "Lines", "module": "Modules", "op": "Operator types", "id": "Operators"}


def write(path: str | os.PathLike[str], memory: PeakMemory, title: str) -> None:
    """See `PeakMemory.write_html`."""
    page = HtmlPage(title, "\n".join(f"{device}: {peak / 1e6:.3f} MB" for device, peak in memory.peak_bytes.items()))
    for device in memory.peak_bytes:
        picture = _curve(memory, device)
        if picture:
            page.add_svg(f"{device} over time", picture)
    for by, heading in HEADINGS.items():
        page.add_results(heading, memory, by)
    page.write(path)


def _curve(memory: PeakMemory, device: str) -> str:
    """Empty without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    points = memory.timeline(device)
    figure = Figure(figsize=(10, 3), layout="constrained")
    axes = figure.subplots()
    axes.fill_between([at for at, _ in points], [size / 1e6 for _, size in points], step="post", alpha=0.5)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MB in use")
    axes.margins(x=0)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()
