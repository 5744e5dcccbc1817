"""Rows that count something at a `Place`: how they are grouped, and their sums.

`kind` is a dataclass: the fields of `Place`, then numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from amanda.toolkit import PLACE_FIELDS, Column, GroupBy, Grouping, Place, fields_of, name_column

_ALL = Place(None, "", "", "")


def by_place(kind: type[Any], columns: Sequence[Column], **properties: str) -> dict[str, Grouping]:
    """Groupings of such rows by "id", "op", "module" and "line", with a total."""
    fields = {by: () if by == "id" else PLACE_FIELDS for by in ("id", "op", "module", "line")}
    total = functools.partial(add_up, kind)
    return {
        by: Grouping([name_column(by), *columns], fields_of(kind, without=without, **properties), total)
        for by, without in fields.items()
    }


def group(kind: type[Any], rows: Iterable[Any], by: GroupBy) -> list[Any]:
    """A row for each group, in the order in which they first appear."""
    groups: dict[Place, list[Any]] = {}
    for row in rows:
        place = Place(row.op_id, row.name, row.module_path, row.source)
        groups.setdefault(place.group(by), []).append(row)
    return [add_up(kind, of_group, place) for place, of_group in groups.items()]


def add_up(kind: type[Any], rows: Sequence[Any], place: Place = _ALL) -> Any:
    numbers = [field.name for field in dataclasses.fields(kind) if field.name not in Place._fields]
    return kind(*place, *(sum(getattr(row, name) for row in rows) for name in numbers))
