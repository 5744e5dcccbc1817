"""Rows of a tool as a table for `rich.print`, `print` and notebooks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from amanda.reports.table import Table


class Column(NamedTuple):
    heading: str
    cell: Callable[[Any], str]
    left: bool = False  # else aligned right, as numbers are
    folds: bool = False  # a name: where the terminal is narrow, it goes on in the next line, after a dot
    shortens: bool = False  # a name that is shortened from the left instead
    field: str = ""  # the rows' attribute that it shows


def rich_table(
    speaker: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    *,
    top: int | None = None,
    caption: str = "",
    summed: Callable[[Sequence[Any]], Any] | None = None,
    sort: str | None = None,
) -> Table:
    """A table of the `top` rows (None: all), with a line for the rest.

    Arguments:
        speaker: the tool's name in messages.
        summed: makes one row of many. Given, the line for the others holds their sum, and a line for the total follows.
        sort: the field by which the rows are sorted. Terminals that are too narrow for all columns show this one.

    Raises:
        ImportError: rich is not installed.
        TypeError: `top` is not an integer.
        ValueError: `top` is negative.
    """
    _check_top(speaker, top)
    try:
        import rich.box
        import rich.table
        import rich.text

        from amanda.reports.table import Name, Table  # here: it imports rich
    except ImportError as error:
        raise ImportError(
            f"[{speaker}] tables need rich: pip install 'amanda[profile]'; rows() needs nothing"
        ) from error
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.caption = rich.text.Text(caption) if caption else None
    table.keeps = (0, *(i for i, column in enumerate(columns) if sort and column.field == sort))
    for column in columns:
        justify = "left" if column.left else "right"
        is_name = column.folds or column.shortens
        table.add_column(column.heading, justify=justify, no_wrap=not is_name, overflow="ellipsis")

    def cell(column: Column, row: Any) -> rich.text.Text:
        text = column.cell(row)
        return Name(text, column.shortens) if column.folds or column.shortens else rich.text.Text(text)

    def sums(title: str, some: Sequence[Any]) -> list[str]:
        if not summed:
            return [title]
        row = summed(some)
        return [title, *("" if column.left else column.cell(row) for column in columns[1:])]

    for row in rows[:top]:
        table.add_row(*(cell(column, row) for column in columns))
    rest = rows[top:] if top is not None else []
    if rest:
        table.add_row(*sums(f"({len(rest)} more)", rest), style="dim")
    if rows and summed:
        table.add_section()
        table.add_row(*sums("total", rows), style="bold")
    return table


def _check_top(speaker: str, top: object) -> None:
    if top is None:
        return
    complaint = f"[{speaker}] top= is how many rows to show, 0 or more, got {top!r}"
    try:
        if isinstance(top, bool) or operator.index(top) < 0:  # type: ignore[arg-type]
            raise ValueError(complaint)
    except TypeError:
        raise TypeError(complaint) from None
