"""A page about a run: what ran, and the tables of its tools. It needs jinja2: import it where one is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import amanda
from amanda.cli.tool_list import NamedTool
from amanda.reports.html_page import HtmlPage
from amanda.reports.results import Results


def write(path: str, command: Sequence[str], status: object, ran: str, tools: Iterable[NamedTool]) -> None:
    """Writes tables of each tool that has results, by all that its rows can stand for.

    Arguments:
        ran: how much ran, in words.

    Raises:
        OSError: the file cannot be written.
    """
    ended = "ended" if status is None else f"ended with status {status}"
    page = HtmlPage(" ".join(command), f"{ran}\n{ended}; amanda {amanda.__version__}")
    for name, tool in tools:
        if isinstance(tool, Results):
            for by in tool.groupings():
                page.add_results(f"{name} by {by}", tool, by)
    page.write(path)
