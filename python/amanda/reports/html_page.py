"""A page: charts, tables and listings in one self-contained HTML file. It imports jinja2: import it where one is made."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe  # jinja2's own

from amanda.reports import plotly_charts
from amanda.reports.packed_table import packed
from amanda.reports.results import Results
from amanda.reports.rich_table import Column
from amanda.reports.sections import Listing, Section, Table, Text, table_of
from amanda.reports.tool_sections import table_of_tool
from amanda.reports.whole_file import whole_file

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("amanda.reports", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class HtmlPage:
    """One HTML file that needs no network and no server. Every text is escaped.

    Tables can be sorted by a click on a column's heading, and filtered by a text; charts can be zoomed. Browsers since 2023
    can read tables::

        page = HtmlPage("Two runs compared", "3 operators differ.")
        page.add_table("Causes", columns, rows)
        page.write("report.html")

    The page forbids the browser to load anything from elsewhere.

    Arguments:
        title: the title of the page.
        summary: a sentence or two below the title.
    """

    def __init__(self, title: str, summary: str = "") -> None:
        self._title, self._summary = title, summary
        self._sections: list[dict[str, Any]] = []
        self._charts = 0

    def add(self, section: Section, rank: int | None = None) -> None:
        """Adds a section below the others.

        Arguments:
            rank: the rank of the process that the section is about; None if it is not about one process. On a page of
                several ranks, the reader chooses one of them, or all.
        """
        if rank is not None:
            section = section.under(f"rank {rank}")
        shown: dict[str, Any] = {"kind": "text", "heading": section.heading, "caption": section.caption, "rank": rank}
        if isinstance(section, Table):
            shown |= {"kind": "table", "data": packed(section)}
        elif isinstance(section, Listing):
            lines = zip(section.cells, section.code, section.heat, strict=True)
            shown |= {"kind": "listing", "headings": section.headings, "lines": list(lines)}
        elif chart := plotly_charts.chart_of(section):
            shown |= {"kind": "chart", "data": _data(chart)}
            self._charts += 1
        self._sections.append(shown)

    def add_text(self, heading: str, text: str) -> None:
        """A section of text. Line breaks are kept."""
        self.add(Text(heading, text))

    def add_table(self, heading: str, columns: Sequence[Column], rows: Sequence[Any], caption: str = "") -> None:
        """A table that can be sorted and filtered: a row for each of `rows`, a cell for each of `columns`."""
        self.add(table_of(heading, columns, rows, caption))

    def add_results(self, heading: str, tool: Results[Any, Any], by: str) -> None:
        """A table of a tool's rows, the first `MOST_ROWS` of them."""
        self.add(table_of_tool(heading, tool, by))

    def text(self) -> str:
        """The page."""
        library = markupsafe.Markup(plotly_charts.library()) if self._charts else ""
        ranks = sorted({section["rank"] for section in self._sections if section["rank"] is not None})
        page: str = _ENVIRONMENT.get_template("page.html").render(
            title=self._title, summary=self._summary, sections=self._sections, ranks=ranks, plotly=library
        )
        return page

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, as a whole or not at all: a file that was there stays until the new one is complete.

        Raises:
            OSError: it cannot be written.
        """
        text = self.text()
        with whole_file(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)


def _data(value: Any) -> markupsafe.Markup:
    """JSON inside a script element, which ends at the first "</script"."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return markupsafe.Markup(text.replace("<", "\\u003c"))
