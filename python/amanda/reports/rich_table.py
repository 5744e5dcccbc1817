"""Rows of a tool as a table for `rich.print`, `print` and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda.reports.arguments import whole_number

if TYPE_CHECKING:
    from amanda.reports.table import Table


class Column(NamedTuple):
    heading: str
    cell: Callable[[Any], str]
    left: bool = False  # else aligned right, as numbers are
    folds: bool = False  # a name: where the terminal is narrow, it goes on in the next line, after a dot
    shortens: bool = False  # a name that is shortened from the left instead
    field: str = ""  # the rows' attribute that it shows
    decides: bool = False  # for this column the table is read: narrow terminals show it


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
        TypeError: `top` is not an integer.
        ValueError: `top` is negative.
    """
    import rich.box

    _check_top(speaker, top)
    table = _of_rows(columns, rows[:top], caption, box=rich.box.SIMPLE_HEAD)
    table.keeps = (*table.keeps, *(i for i, column in enumerate(columns) if sort and column.field == sort))

    def sums(title: str, some: Sequence[Any]) -> list[str]:
        if not summed:
            return [title]
        row = summed(some)
        return [title, *("" if column.left else column.cell(row) for column in columns[1:])]

    rest = rows[top:] if top is not None else []
    if rest:
        table.add_row(*sums(f"({len(rest)} more)", rest), style="dim")
    if rows and summed:
        table.add_section()
        table.add_row(*sums("total", rows), style="bold")
    return table


def plain_table(columns: Sequence[Column], rows: Sequence[Any], caption: str = "") -> Table:
    """A table of all rows, without a line below the headings."""
    return _of_rows(columns, rows, caption, box=None, padding=(0, 2))


def _of_rows(columns: Sequence[Column], rows: Sequence[Any], caption: str, **looks: Any) -> Table:
    import rich.text  # here, as in the functions above: `import amanda` takes no other package

    from amanda.reports.table import Name, Table

    table = Table(pad_edge=False, collapse_padding=True, **looks)
    table.caption = rich.text.Text(caption) if caption else None
    table.keeps = (0, *(i for i, column in enumerate(columns) if column.decides))
    table.decided = any(column.decides for column in columns)
    for column in columns:
        justify = "left" if column.left else "right"
        is_name = column.folds or column.shortens
        table.add_column(column.heading, justify=justify, no_wrap=not is_name, overflow="ellipsis")

    def cell(column: Column, row: Any) -> rich.text.Text:
        text = column.cell(row)
        return Name(text, column.shortens) if column.folds or column.shortens else rich.text.Text(text)

    for row in rows:
        table.add_row(*(cell(column, row) for column in columns))
    return table


def _check_top(speaker: str, top: object) -> None:
    complaint = f"[{speaker}] top= is how many rows to show, 0 or more, got {top!r}"
    if isinstance(top, bool):
        raise ValueError(complaint)
    if top is not None:
        whole_number(top, complaint)
