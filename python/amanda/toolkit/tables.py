"""Tables: the methods by which a tool hands out its rows, the columns of tables, and a bar for long work."""

from typing import TYPE_CHECKING, Any

from amanda.reports.annotated import AnnotatedResults
from amanda.reports.columns import general_column, name_column, number_column, percentage_column
from amanda.reports.data_frame import data_frame, fields_of
from amanda.reports.progress import Progress
from amanda.reports.results import Grouping, Results
from amanda.reports.rich_table import Column, rich_table

if TYPE_CHECKING:
    from amanda.reports.table import Table

__all__ = [
    "AnnotatedResults",
    "Column",
    "Grouping",
    "Progress",
    "Results",
    "Table",
    "data_frame",
    "fields_of",
    "general_column",
    "name_column",
    "number_column",
    "percentage_column",
    "rich_table",
]


def __getattr__(name: str) -> Any:
    if name != "Table":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from amanda.reports.table import Table  # here: it needs rich

    return Table
