"""Tables as plain text and as HTML. They need no other package."""

from __future__ import annotations

import html
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

GAP = "  "
NARROWEST = 12  # what a column is shortened to at most


class Column(NamedTuple):
    heading: str
    cell: Callable[[Any], str]
    right: bool = False  # as numbers are aligned
    shortens: bool = False  # from the left, with an ellipsis, where the table would be too wide


def text(columns: Sequence[Column], rows: Sequence[Any], width: int | None = None) -> str:
    """A line for the headings and one for each row, at most `width` characters as far as columns can be shortened."""
    cells = [[column.heading for column in columns], *([column.cell(row) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        _fit(widths, columns, width)
    lines = [GAP.join(map(_aligned, line, widths, columns)).rstrip() for line in cells]
    return "\n".join(lines)


def as_html(columns: Sequence[Column], rows: Sequence[Any], caption: str = "") -> str:
    """A table element, with whole names."""
    aligned = [
        f' style="text-align: {"right" if column.right else "left"}; white-space: pre-wrap"' for column in columns
    ]

    def line(tag: str, cells: Sequence[str]) -> str:
        inside = (f"<{tag}{how}>{html.escape(cell)}</{tag}>" for cell, how in zip(cells, aligned, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    lines = ["<table>"]
    if caption:
        lines.append(f"<caption>{html.escape(caption)}</caption>")
    lines.append(line("th", [column.heading for column in columns]))
    lines += [line("td", [column.cell(row) for column in columns]) for row in rows]
    return "\n".join([*lines, "</table>"])


def terminal_width() -> int | None:
    """The width of the terminal that print() writes to; None if it writes to something else."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def line_of_code(source: str) -> str:
    """A source line, "/home/me/model.py:12", with its path from the working directory if it is in there."""
    here = os.getcwd() + os.sep
    return source.removeprefix(here)


def _fit(widths: list[int], columns: Sequence[Column], width: int) -> None:
    short = [i for i, column in enumerate(columns) if column.shortens]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0 and (widest := max(short, key=lambda i: widths[i], default=None)) is not None:
        if widths[widest] <= max(NARROWEST, len(columns[widest].heading)):
            return
        widths[widest] -= 1
        excess -= 1


def _aligned(cell: str, width: int, column: Column) -> str:
    cell = cell if len(cell) <= width else f"…{cell[len(cell) - width + 1 :]}"
    return cell.rjust(width) if column.right else cell.ljust(width)
