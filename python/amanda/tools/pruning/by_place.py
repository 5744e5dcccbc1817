"""Groupings of rows that count something at a `Place`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amanda.reports.columns import name_column
from amanda.reports.data_frame import fields_of
from amanda.reports.places import PLACE_FIELDS
from amanda.reports.results import Grouping
from amanda.reports.rich_table import Column


def by_place(
    kind: type[Any], columns: Sequence[Column], summed: Callable[[Sequence[Any]], Any], **properties: str
) -> dict[str, Grouping]:
    """Groupings by "id", "op", "module" and "line" of a dataclass that has the fields of `Place`, with a total."""
    fields = {by: () if by == "id" else PLACE_FIELDS for by in ("id", "op", "module", "line")}
    return {
        by: Grouping([name_column(by), *columns], fields_of(kind, without=without, **properties), summed)
        for by, without in fields.items()
    }
