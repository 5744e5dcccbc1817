"""A rich table that shows itself in notebooks and to print(). It needs rich: import it where a table is made."""

from __future__ import annotations

import html
import io
from typing import Any

import rich.console
import rich.table
import rich.text


class Table(rich.table.Table):  # type: ignore[misc]
    """A `rich.table.Table`. Notebooks show it as an HTML table, ``print(table)`` as `rich.print` does, without
    colors."""

    def __repr__(self) -> str:
        columns = ", ".join(_text(column.header) for column in self.columns)
        return f"<amanda table: {columns}; rows: {self.row_count}>"

    def __str__(self) -> str:
        console = rich.console.Console(file=io.StringIO(), force_terminal=False, color_system=None)
        with console.capture() as printed:
            console.print(self)
        return str(printed.get())

    def _repr_html_(self) -> str:
        columns = self.columns
        aligned = [f' style="text-align: {column.justify}; white-space: pre-wrap"' for column in columns]
        lines = ["<table>"]
        if self.caption:
            lines.append(f"<caption>{_escaped(self.caption)}</caption>")
        lines.append(_html_row("th", [column.header for column in columns], aligned))
        for row, cells in zip(self.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
            lines.append(_html_row("td", cells, aligned, _STYLES.get(str(row.style), "")))
        return "\n".join([*lines, "</table>"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **options: Any) -> dict[str, str]:
        """IPython calls it before `_repr_html_`: rich's own HTML would be text of the terminal's width."""
        bundle: dict[str, str] = super()._repr_mimebundle_(include, exclude, **options)
        return {kind: self._repr_html_() if kind == "text/html" else text for kind, text in bundle.items()}


_STYLES = {"bold": ' style="font-weight: bold"', "dim": ' style="opacity: 0.6"'}  # of rows, in rich's words


def _html_row(tag: str, cells: Any, aligned: list[str], style: str = "") -> str:
    inside = "".join(f"<{tag}{how}>{_escaped(cell)}</{tag}>" for cell, how in zip(cells, aligned, strict=True))
    return f"<tr{style}>{inside}</tr>"


def _escaped(cell: object) -> str:
    return html.escape(_text(cell))


def _text(cell: object) -> str:
    """A cell's text without markup."""
    return str(rich.text.Text.from_markup(cell).plain if isinstance(cell, str) else cell)
