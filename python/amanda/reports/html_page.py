"""A page: tables, listings and pictures in one self-contained HTML file. It needs jinja2: import it where one is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from amanda.reports.results import Results
from amanda.reports.rich_table import Column
from amanda.reports.whole_file import whole_file

try:
    import jinja2
except ImportError as error:
    raise ImportError("[report] HTML pages need jinja2: pip install 'amanda[report]'") from error

MOST_ROWS = 500
"""Of the table of a tool: a browser takes seconds to sort tens of thousands."""

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("amanda.reports", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class _Cell(NamedTuple):
    text: str
    key: float | str | None  # to sort by; None: after all others
    kind: str  # the CSS class


class HtmlPage:
    """One HTML file that needs no network and no server. Every text is escaped.

    Tables can be sorted by a click on a column's heading, and filtered by a text::

        page = HtmlPage("Two runs compared", "3 operators differ.")
        page.add_table("Causes", columns, rows)
        page.write("report.html")

    Arguments:
        title: of the page.
        summary: a sentence or two below the title.
    """

    def __init__(self, title: str, summary: str = "") -> None:
        self._title, self._summary = title, summary
        self._sections: list[dict[str, Any]] = []

    def add_text(self, heading: str, text: str) -> None:
        """A section of text. Line breaks are kept."""
        self._sections.append({"kind": "text", "heading": heading, "text": text})

    def add_table(self, heading: str, columns: Sequence[Column], rows: Sequence[Any], caption: str = "") -> None:
        """A table that can be sorted and filtered: a row for each of `rows`, a cell for each of `columns`."""
        cells = [[_cell(column, row) for column in columns] for row in rows]
        self._sections.append(
            {"kind": "table", "heading": heading, "columns": columns, "rows": cells, "caption": caption}
        )

    def add_results(self, heading: str, tool: Results[Any, Any], by: str) -> None:
        """A table of a tool's rows, the first `MOST_ROWS` of them."""
        rows = tool.rows(by)
        more = f"the first {MOST_ROWS} of {len(rows)}" if len(rows) > MOST_ROWS else ""
        remarks = "\n".join(filter(None, [more, *tool._remarks(by)]))
        self.add_table(heading, tool._columns(by, rows), rows[:MOST_ROWS], remarks)

    def add_listing(
        self,
        heading: str,
        columns: Sequence[Column],
        lines: Sequence[Any],
        code: Callable[[Any], str],
        heat: Callable[[Any], float] = lambda line: 0.0,
        caption: str = "",
    ) -> None:
        """Source code, line by line, with `columns` on its left.

        Arguments:
            code: the text of a line.
            heat: how strongly a line is shaded, 0 to 1.
        """
        rows = [
            {"cells": [_cell(column, line) for column in columns], "code": code(line), "heat": heat(line)}
            for line in lines
        ]
        self._sections.append(
            {"kind": "listing", "heading": heading, "columns": columns, "rows": rows, "caption": caption}
        )

    def add_svg(self, heading: str, svg: str, caption: str = "") -> None:
        """A picture, such as matplotlib writes. It is not escaped: it must not come from the program's own text."""
        picture = svg[svg.index("<svg") :]  # without the XML declaration
        self._sections.append({"kind": "svg", "heading": heading, "svg": picture, "caption": caption})

    def text(self) -> str:
        page: str = _ENVIRONMENT.get_template("page.html").render(
            title=self._title, summary=self._summary, sections=self._sections
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


def _cell(column: Column, row: Any) -> _Cell:
    value = getattr(row, column.field, None) if column.field else None
    is_number = isinstance(value, int | float)
    key = value if is_number and value == value else value if isinstance(value, str) else None
    return _Cell(column.cell(row), key, "name" if column.left else "number")
