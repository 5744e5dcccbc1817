"""Rows of a tool as a table for `rich.print`, `print` and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from amanda.reports.table import Table


class Column(NamedTuple):
    heading: str
    cell: Callable[[Any], str]
    left: bool = False  # otherwise aligned right, for numbers
    folds: bool = False  # wraps if the terminal is narrow


def rich_table(
    speaker: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    *,
    top: int | None = None,
    caption: str = "",
    summed: Callable[[Sequence[Any]], Any] | None = None,
) -> Table:
    """A table of the `top` rows (None: all), with a line for the rest.

    Arguments: speaker: the tool's name in messages. summed: adds rows up. If given, the line for the rest holds their
        sum, and a line for the total follows.

    Raises:
        ImportError: rich is not installed.
    """
    try:
        import rich.box
        import rich.table
        import rich.text

        from amanda.reports.table import Table  # here: it imports rich
    except ImportError as error:
        raise ImportError(
            f"[{speaker}] tables need rich: pip install 'amanda[profile]'; rows() needs nothing"
        ) from error
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.caption = rich.text.Text(caption) if caption else None
    for column in columns:
        justify = "left" if column.left else "right"
        table.add_column(column.heading, justify=justify, no_wrap=not column.folds, overflow="fold")

    def sums(title: str, some: Sequence[Any]) -> list[str]:
        return [title, *(column.cell(summed(some)) for column in columns[1:])] if summed else [title]

    for row in rows[:top]:
        table.add_row(*(rich.text.Text(column.cell(row)) for column in columns))
    rest = rows[top:] if top is not None else []
    if rest:
        table.add_row(*sums(f"({len(rest)} more)", rest), style="dim")
    if rows and summed:
        table.add_section()
        table.add_row(*sums("total", rows), style="bold")
    return table
