"""Columns of tables that several tools have."""

from __future__ import annotations

from typing import Any

from amanda.reports.rich_table import Column
from amanda.reports.source_files import line_of_code, short_line


def name_column(by: str) -> Column:
    """The first column of a table: `name`, and by "id" also `module_path` and `source`, all in one column."""
    if by == "id":
        return Column("operator, module, line", _place, left=True, folds=True, field="name")
    if by in ("line", "user_line"):
        return Column(by.replace("_", " "), _line, left=True, shortens=True, field="name")
    nothing = f"(no {by})"
    return Column(by, lambda row: row.name or nothing, left=True, folds=True, field="name")


def number_column(heading: str, field: str, unit: float = 1, digits: int = 0) -> Column:
    """A column of numbers, each divided by `unit`; empty for None and NaN."""

    def cell(row: Any) -> str:
        value = getattr(row, field)
        return "" if value is None or value != value else f"{value / unit:.{digits}f}"

    return Column(heading, cell, field=field)


def percentage_column(heading: str, field: str) -> Column:
    """A column of shares, from 0 to 1, in percent."""
    return Column(heading, lambda row: f"{getattr(row, field):.1%}", field=field)


def general_column(heading: str, field: str) -> Column:
    """A column of numbers of any size, with four digits; empty for None."""

    def cell(row: Any) -> str:
        value = getattr(row, field)
        return "" if value is None else f"{value:.4g}"

    return Column(heading, cell, field=field)


def _line(row: Any) -> str:
    return line_of_code(row.name) or "(no line)"


def _place(row: Any) -> str:
    where = ", ".join(text for text in (row.module_path, short_line(row.source)) if text)
    return f"{row.name}\n  {where}" if where else str(row.name)
