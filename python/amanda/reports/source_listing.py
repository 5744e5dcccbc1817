"""Source code with numbers about its lines, as line_profiler prints it."""

from __future__ import annotations

import html
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda.driver.identity.cells import line_in_cell
from amanda.reports.rich_table import Column

if TYPE_CHECKING:
    import rich.console

HOT = 0.1
"""The heat from which on a line is emphasized."""


class ListedLine(NamedTuple):
    """A line of a file; `code` is None where lines are left out."""

    number: int
    row: Any  # None if nothing is known about the line
    code: str | None

    def cell(self, column: Column) -> str:
        return column.cell(self.row) if self.row is not None else ""


class ListedFile(NamedTuple):
    path: str
    heading: str
    lines: list[ListedLine]
    readable: bool  # true if there is source code


class SourceListing:
    """Shows itself to `print`, to `rich.print` and in notebooks. `files` has what is shown.

    Arguments:
        columns: the columns of a row.
        files: each path with its rows by line number, and a heading.
        heat: how hot a row is, 0 to 1.
        context: the number of lines to show around those with rows; None shows whole files.
        remark: lines of text below everything.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        files: Iterable[tuple[str, Mapping[int, Any], str]],
        heat: Callable[[Any], float],
        context: int | None,
        remark: str = "",
    ) -> None:
        self.columns, self.remark, self._heat = columns, remark, heat
        self.files = [_listed(path, rows, heading, context) for path, rows, heading in files]

    def heat(self, line: ListedLine) -> float:
        return self._heat(line.row) if line.row is not None else 0.0

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self._lines())

    def __repr__(self) -> str:
        return f"<amanda listing: {', '.join(line_in_cell(file.path) for file in self.files) or 'no file'}>"

    def __rich__(self) -> rich.console.Group:
        """Long lines are cut, not folded."""
        import rich.console
        import rich.text

        return rich.console.Group(
            *(rich.text.Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in self._lines())
        )

    def _repr_html_(self) -> str:
        styles = {"bold": "font-weight: bold", "dim": "opacity: 0.6"}
        spans = (f'<span style="{styles.get(style, "")}">{html.escape(text)}</span>' for text, style in self._lines())
        return f'<pre style="line-height: 1.3">{"<br>".join(spans)}</pre>'

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Each line of text with its style."""
        for position, file in enumerate(self.files):
            if position:
                yield "", ""
            yield file.heading, "bold"
            yield from self._lines_of(file)
        if self.remark:
            if self.files:
                yield "", ""
            yield from ((line, "dim") for line in self.remark.splitlines())

    def _lines_of(self, file: ListedFile) -> Iterator[tuple[str, str]]:
        cells = [[str(line.number), *map(line.cell, self.columns)] for line in file.lines]
        headings = ["line", *(column.heading for column in self.columns)]
        widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]

        def joined(texts: Sequence[str], code: str) -> str:
            padded = (text.rjust(width) for text, width in zip(texts, widths, strict=True))
            return f"{'  '.join(padded)} │ {code}".rstrip()

        yield joined(headings, "source" if file.readable else "(source not available)"), "dim"
        for line, texts in zip(file.lines, cells, strict=True):
            if line.code is None:
                yield joined(["⋮".rjust(len(texts[0])), *texts[1:]], ""), "dim"
            else:
                heat = self.heat(line)
                yield joined(texts, line.code), "bold" if heat >= HOT else "" if line.row is not None else "dim"


def _listed(path: str, rows: Mapping[int, Any], heading: str, context: int | None) -> ListedFile:
    code = [line.rstrip("\n") for line in linecache.getlines(path)]
    if not code:
        return ListedFile(path, heading, [ListedLine(number, rows[number], "") for number in sorted(rows)], False)
    count = max(len(code), *rows)  # the file may have changed since
    if context is None:
        shown = set(range(1, count + 1))
    else:
        shown = {near for number in rows for near in range(number - context, number + context + 1)}
    lines: list[ListedLine] = []
    for number in sorted(shown & set(range(1, count + 1))):
        if number > (lines[-1].number if lines else 0) + 1:
            lines.append(ListedLine(number - 1, None, None))
        text = code[number - 1] if number <= len(code) else ""
        lines.append(ListedLine(number, rows.get(number), text.expandtabs()))
    if lines[-1].number < len(code):
        lines.append(ListedLine(lines[-1].number + 1, None, None))
    return ListedFile(path, heading, lines, True)
