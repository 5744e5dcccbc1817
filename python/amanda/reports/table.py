"""A rich table that shows itself in notebooks and to print(). It imports rich: import it where a table is made."""

from __future__ import annotations

import copy
import dataclasses
import io
import re
from typing import Any

import rich.cells
import rich.console
import rich.containers
import rich.measure
import rich.table
import rich.text

from amanda.reports import notebook
from amanda.reports.terminal import terminal_width

ELLIPSIS = "…"
MIN_NAME_WIDTH = 16  # columns are left out before names get shorter than this
GOOD_NAME_WIDTH = 28  # and before this those that do not decide, in tables that know which do
INDENT = "  "  # of a name's second line and those after it
_UNBOUNDED = 1_000_000  # a width in which everything fits


class Name(rich.text.Text):  # type: ignore[misc]
    """A name in a table: of an operator, a module, a file, a kernel. It is never broken inside a part.

    Where it does not fit, it goes on in the next line after a dot, "::", "/", "<", a comma or a space. A part that does
    not fit into a line is shortened from the left: "…product_attention".

    Arguments:
        shortens: shorten the whole name from the left, instead of using more lines.
    """

    def __init__(self, text: str, shortens: bool = False) -> None:
        super().__init__(text)
        self.shortens = shortens

    def wrap(self, console: Any, width: int, **options: Any) -> rich.containers.Lines:
        """The lines of at most `width` characters in which rich shows it."""
        lines = [shown for line in self.plain.split("\n") for shown in self._lines(line, width)]
        return rich.containers.Lines(rich.text.Text(line, style=self.style, end="") for line in lines)

    def __rich_measure__(self, console: Any, options: Any) -> rich.measure.Measurement:
        widest = max(map(rich.cells.cell_len, self.plain.split("\n")))
        return rich.measure.Measurement(min(widest, MIN_NAME_WIDTH), widest).with_maximum(options.max_width)

    def _lines(self, line: str, width: int) -> list[str]:
        if rich.cells.cell_len(line) <= width:
            return [line]
        if self.shortens:
            return [_shortened_at_a_part(line, width)]
        margin = line[: len(line) - len(line.lstrip())] if width > MIN_NAME_WIDTH // 2 else ""
        lines, indent = [margin], margin + INDENT if width > MIN_NAME_WIDTH // 2 else ""
        for part in _parts(line.lstrip()):
            if lines[-1].strip() and rich.cells.cell_len((lines[-1] + part).rstrip()) > width:
                lines.append(indent)
            lines[-1] += _shortened(part, width - rich.cells.cell_len(lines[-1]))
        return [shown.rstrip() for shown in lines]


def _parts(line: str) -> list[str]:
    return [part for part in re.split(r"(?<=[./<,\s])(?!py:)|(?<=::)", line) if part]


def _shortened(text: str, width: int) -> str:
    """The end of the text, behind an ellipsis if something is missing."""
    if rich.cells.cell_len(text.rstrip()) <= width:
        return text
    end = text.rstrip()
    while end and rich.cells.cell_len(end) >= width:
        end = end[1:]
    return ELLIPSIS[:width] + end


def _shortened_at_a_part(text: str, width: int) -> str:
    """The same, without the rest of the part that is cut, unless little would be left. The parts of a path are files."""
    shown = _shortened(text, width)
    whole = ELLIPSIS + (shown.partition("/")[2] if "/" in text else "".join(_parts(shown)[1:]))
    return whole if 2 * rich.cells.cell_len(whole) >= width else shown


class Table(rich.table.Table):  # type: ignore[misc]
    """A `rich.table.Table`. Notebooks show it as an HTML table, ``print(table)`` as `rich.print` does, without colors.

    A console that is too narrow for all columns gets fewer, and a line names the missing ones. A table without rows is one
    line that says so.

    Attributes:
        keeps: positions of the columns that are left out last.
        decided: whether all others may be left out for the sake of names.
    """

    keeps: tuple[int, ...] = (0,)
    decided = False

    def __rich_console__(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> Any:
        shown, left_out = self, list[str]()
        width = self.width or options.max_width
        while len(shown.columns) > 1:
            last = max((i for i in range(1, len(shown.columns)) if i not in shown.keeps), default=0)
            if shown._least_width(console, options, GOOD_NAME_WIDTH if last and self.decided else 0) <= width:
                break
            last = last or 1
            left_out.insert(0, _text(shown.columns[last].header))
            shown = shown._without(last)
        note = f"no room in {options.max_width} characters for: {', '.join(left_out)}" if left_out and self.rows else ""
        if shown is self:
            shown = copy.copy(self)
        shown.caption = None  # rich would center it, in lines of the table's width
        if self.rows:
            yield from rich.table.Table.__rich_console__(shown, console, options)
        else:
            yield rich.text.Text("no rows")
        below = "\n".join(filter(None, [_text(self.caption or ""), note]))
        if below:
            yield rich.text.Text(below)

    def _least_width(self, console: rich.console.Console, options: rich.console.ConsoleOptions, name_width: int) -> int:
        """The width in which no number is cut, and names have what they need, and `name_width` if they are so long."""
        unbounded = options.update(width=_UNBOUNDED)
        measured = [(column, self._measure_column(console, unbounded, column)) for column in self.columns]
        widths = [
            measure.maximum if column.no_wrap else max(measure.minimum, min(measure.maximum, name_width))
            for column, measure in measured
        ]
        return int(sum(widths) + self._extra_width)

    def _without(self, position: int) -> Table:
        table = copy.copy(self)
        columns = self.columns[:position] + self.columns[position + 1 :]
        table.columns = [dataclasses.replace(column, _index=i) for i, column in enumerate(columns)]
        table.keeps = tuple(kept - (kept > position) for kept in self.keeps if kept != position)
        return table

    def __repr__(self) -> str:
        columns = ", ".join(_text(column.header) for column in self.columns)
        return f"<amanda table: {columns}; rows: {self.row_count}>"

    def __str__(self) -> str:
        return self.text(terminal_width())

    def text(self, width: int | None = None) -> str:
        """Lines of at most `width` characters, without spaces at their ends. If it is None, each row is one line, with
        whole names: for pipes and files."""
        shown = self if width is not None else self._in_one_line_each()
        return "\n".join(map(str.rstrip, shown._printed(width=width or _UNBOUNDED).splitlines()))

    def _in_one_line_each(self) -> Table:
        table = copy.copy(self)
        table.columns = [dataclasses.replace(column) for column in self.columns]
        for column in table.columns:
            column._cells = [_joined(cell) for cell in column._cells]
        return table

    def _printed(self, **options: Any) -> str:
        # Not Jupyter's: there, capture() adds an empty output to the cell.
        console = rich.console.Console(
            file=io.StringIO(), force_terminal=False, force_jupyter=False, color_system=None, **options
        )
        with console.capture() as printed:
            console.print(self)
        return str(printed.get())

    def _repr_html_(self) -> str:
        columns = self.columns
        cells = zip(*(column.cells for column in columns), strict=True)
        rows = (([*map(_text, of)], _STYLES.get(str(row.style), "")) for row, of in zip(self.rows, cells, strict=True))
        headings = [_text(column.header) for column in columns]
        return notebook.table(headings, [column.justify for column in columns], rows, _text(self.caption or ""))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **options: Any) -> dict[str, str]:
        """IPython calls it before `_repr_html_`: rich's own HTML would be text of the terminal's width."""
        bundle: dict[str, str] = super()._repr_mimebundle_(include, exclude, **options)
        return {kind: self._repr_html_() if kind == "text/html" else text for kind, text in bundle.items()}


_STYLES = {"bold": "font-weight: bold", "dim": "opacity: 0.6"}  # of rows, in rich's words


def _joined(cell: object) -> object:
    """A cell of several lines in one."""
    if not isinstance(cell, rich.text.Text) or "\n" not in cell.plain:
        return cell
    return rich.text.Text(", ".join(map(str.strip, cell.plain.split("\n"))), style=cell.style)


def _text(cell: object) -> str:
    """A cell's text without markup."""
    return str(rich.text.Text.from_markup(cell).plain if isinstance(cell, str) else cell)
