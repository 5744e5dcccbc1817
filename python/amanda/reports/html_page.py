"""A page: charts, tables and listings in one self-contained HTML file. It imports jinja2: import it where one is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe  # jinja2's own

from amanda.reports import page_panels, plotly_charts
from amanda.reports.results import Results
from amanda.reports.rich_table import Column
from amanda.reports.sections import Section, Text, table_of
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

    Sections fold. A table has a tab for each of its groupings, source code one for each file. Tables can be sorted by
    their headings, and filtered by a text. Charts can be zoomed. A search finds a text everywhere in the page. Browsers
    since 2024 can show it::

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
        self._parts: list[page_panels.Part] = []

    def add(self, section: Section, rank: int | None = None, *, run: str = "") -> None:
        """Adds a section below the others.

        Arguments:
            rank: the rank of the process that the section is about; None if it is not about one process. On a page of
                several ranks, the reader chooses one of them, or all.
            run: the one of two runs that the section is about. Sections of the same kind and heading that follow each
                other stand next to each other; so does source code of the same file.
        """
        self._parts.append(page_panels.part_of(section, rank, run))

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
        charts = any(part.shown["kind"] == "chart" for part in self._parts)
        page: str = _ENVIRONMENT.get_template("page.html").render(
            title=self._title,
            summary=self._summary,
            panels=page_panels.panels_of(self._parts),
            ranks=sorted({part.rank for part in self._parts if part.rank is not None}),
            plotly=markupsafe.Markup(plotly_charts.library()) if charts else "",
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
