"""Rows that say something about a place, `PlaceRow`s: the forms of their tables, and their sums."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from amanda.reports.columns import name_column
from amanda.reports.data_frame import fields_of
from amanda.reports.places import PLACE_FIELDS, GroupBy, Place
from amanda.reports.results import Grouping
from amanda.reports.rich_table import Column

BY = ("id", "op", "module", "line")
_ALL = Place(None, "", "", "")


def place_groupings(
    kind: type[Any],
    columns: Sequence[Column],
    more: Mapping[str, Sequence[Column]] = MappingProxyType({}),
    *,
    without: Sequence[str] = (),
    only_by_id: Sequence[str] = (),
    summed: Callable[[Sequence[Any]], Any] | None = None,
    **properties: Any,
) -> dict[str, Grouping]:
    """Groupings by "id", "op", "module" and "line".

    Arguments:
        kind: the dataclass of the rows.
        columns: of the tables, behind the place.
        more: columns between these of some of the groupings. The others do not have their fields.
        without, properties: as of `fields_of`.
        only_by_id: fields that have no meaning in the other groupings.
        summed: as of `Grouping`.
    """
    fields = fields_of(kind, without=without, **properties)
    shown = {column.field for some in more.values() for column in some}
    found = {}
    for by in BY:
        own = more.get(by, ())
        hidden = shown - {column.field for column in own} | {*(() if by == "id" else (*PLACE_FIELDS, *only_by_id))}
        left = {name: dtype for name, dtype in fields.items() if name not in hidden}
        found[by] = Grouping([name_column(by), *own, *columns], left, summed)
    return found


def counted_groupings(kind: type[Any], columns: Sequence[Column], **properties: Any) -> dict[str, Grouping]:
    """The same for rows of which each other field is a number that is added up, with a total."""
    return place_groupings(kind, columns, summed=functools.partial(add_up, kind), **properties)


def grouped(kind: type[Any], rows: Iterable[Any], by: GroupBy) -> list[Any]:
    """A sum of such rows for each group, in the order in which the groups first appear."""
    groups: dict[Place, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.place.group(by), []).append(row)
    return [add_up(kind, group, place) for place, group in groups.items()]


def add_up(kind: type[Any], rows: Sequence[Any], place: Place = _ALL) -> Any:
    """The sum of such rows."""
    numbers = [field.name for field in dataclasses.fields(kind) if field.name not in Place._fields]
    return kind(*place, *(sum(getattr(row, name) for row in rows) for name in numbers))
