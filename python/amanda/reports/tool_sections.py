"""The sections of a page that a tool's results make."""

from __future__ import annotations

from typing import Any

from amanda.reports.results import Results
from amanda.reports.sections import MOST_ROWS, Section, Table, Text, table_of


def sections_of(name: str, tool: Results[Any, Any]) -> list[Section]:
    """The answer and the figures of a tool, then a table for each of its groupings. Headings begin with `name`."""
    answer = tool.answer()
    answers = [Text("answer", answer).under(name)] if answer else []
    figures = [figure.under(name) for figure in tool.figures()]
    return [*answers, *figures, *(table_of_tool(f"{name} by {by}", tool, by) for by in tool.groupings())]


def table_of_tool(heading: str, tool: Results[Any, Any], by: str) -> Table:
    """A table of a tool's rows, the first `MOST_ROWS` of them."""
    rows = tool.rows(by)
    remarks = "\n".join(filter(None, tool._remarks(by)))
    return table_of(heading, tool._columns(by, rows), rows, remarks, MOST_ROWS)
